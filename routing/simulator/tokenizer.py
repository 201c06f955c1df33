"""Text to token ids and back: a word-level tokenizer of our own, or a real one from its files."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import minijinja
import tokenizers

Message = Mapping[str, Any]
Piece = tuple[int, str]


class UnrenderableConversationError(ValueError):
    """The messages cannot be turned into a prompt; the text is for the client."""


class Tokenizer(Protocol):
    """What the server needs. ``vocabulary_size`` bounds the ids that a client may send as a prompt."""

    @property
    def eos_id(self) -> int: ...

    @property
    def vocabulary_size(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def pieces(self, text: str) -> list[Piece]:
        """The ids of a text with the part of the text that each stands for; the parts join to the text."""

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[Any] | None, add_generation_prompt: bool, template_kwargs: Mapping[str, Any]
    ) -> str: ...


def flatten_content(content: object) -> str:
    """Message content as text. Text parts are joined with a newline, as vLLM joins them."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UnrenderableConversationError("content must be a string or a list of parts")
    texts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise UnrenderableConversationError("unsupported content part")
    return "\n".join(texts)


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as a template sees them: content flattened, tool-call arguments parsed from their JSON string."""
    prepared: list[dict[str, Any]] = []
    for message in messages:
        row = dict(message)
        row["content"] = flatten_content(row.get("content"))
        if row.get("tool_calls"):
            if not isinstance(row["tool_calls"], list):
                raise UnrenderableConversationError("tool_calls must be a list")
            row["tool_calls"] = [_parsed_call(call) for call in row["tool_calls"]]
        prepared.append(row)
    return prepared


def _parsed_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        raise UnrenderableConversationError("tool call arguments are not JSON") from None
    return {**call, "function": {**function, "arguments": arguments}}


def schema_tools(tools: Sequence[Any] | None) -> list[Any] | None:
    """Tools as vLLM writes them for a template: in the order of the API's schema, an absent description as null."""
    if not tools:
        return None
    return [_schema_tool(tool) for tool in tools]


def _schema_tool(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return tool
    return {"type": "function", "function": {name: function.get(name) for name in ("name", "description", "parameters")}}


def schema_calls(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tool calls in the order of the API's schema; other members of a message stay."""
    return [{**row, "tool_calls": [_schema_call(call) for call in row["tool_calls"]]} if row.get("tool_calls") else row for row in messages]


def _schema_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    ordered = {name: function[name] for name in ("arguments", "name") if name in function}
    return {name: {**call, "function": ordered}[name] for name in ("id", "function", "type") if name in call}


class WordTokenizer:
    """Words, punctuation marks and runs of white space; a word takes the single space before it along.

    The words it was given have the first ids, in their order; any other gets one from its own bytes (two may share
    one: such a vocabulary cannot be without collisions). Nothing is learnt, so the same text has the same ids in every
    process. ``decode`` can name the given words only; another id becomes ``<id>``.

    The rendering is ChatML: role markers are special tokens, also when a user types them. Tools come first, then the
    conversation; tool calls are written as JSON after the assistant's text.
    """

    _SPECIAL = {"<|im_start|>": 1, "<|im_end|>": 2}
    _FIRST_KNOWN_ID = 1_000
    _FIRST_HASHED_ID = 10_000
    _VOCABULARY = 160_000
    _PATTERN = re.compile(r"<\|im_start\|>|<\|im_end\|>| ?\w+| ?[^\w\s]|\s+?(?= \S)|\s+")

    def __init__(self, known_words: Sequence[str] = ()) -> None:
        both = [form for word in known_words for form in (word, " " + word)]
        self._known = {text: token_id for token_id, text in enumerate(both, self._FIRST_KNOWN_ID)} | self._SPECIAL
        if len(self._known) > self._FIRST_HASHED_ID - self._FIRST_KNOWN_ID:
            raise ValueError("too many known words")
        self._texts = {token_id: text for text, token_id in self._known.items()}

    @property
    def eos_id(self) -> int:
        return self._SPECIAL["<|im_end|>"]

    @property
    def vocabulary_size(self) -> int:
        return self._VOCABULARY

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        del add_special_tokens  # this vocabulary has no token to add
        return [self._id(part) for part in self._PATTERN.findall(text)]

    def pieces(self, text: str) -> list[Piece]:
        return [(self._id(part), part) for part in self._PATTERN.findall(text)]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(self._texts.get(token_id, f"<{token_id}>") for token_id in token_ids)

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[Any] | None, add_generation_prompt: bool, template_kwargs: Mapping[str, Any]
    ) -> str:
        parts: list[str] = []
        if tools:
            parts.append(f"<|im_start|>tools\n{_json(tools)}<|im_end|>\n")
        prepared = template_messages(messages)
        continued = bool(template_kwargs.get("continue_final_message"))
        for position, message in enumerate(prepared):
            parts.append(f"<|im_start|>{message.get('role', '')}\n{message['content']}")
            if message.get("tool_calls"):
                parts.append(_json(message["tool_calls"]))
            if not (continued and position == len(prepared) - 1):
                parts.append("<|im_end|>\n")
        if add_generation_prompt:
            parts.append("<|im_start|>assistant\n")
        return "".join(parts)

    def _id(self, text: str) -> int:
        known = self._known.get(text)
        if known is not None:
            return known
        return self._FIRST_HASHED_ID + zlib.crc32(text.encode("utf-8", "surrogatepass")) % (self._VOCABULARY - self._FIRST_HASHED_ID)


class FileTokenizer:
    """A Hugging Face ``tokenizer.json`` with a Jinja chat template, or with a ``tokenizer_config.json`` that holds one.

    Left out: templates that need ``strftime_now`` or a list of named templates.
    """

    def __init__(self, tokenizer_path: str, chat_template_path: str | None) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(tokenizer_path)
        self._environment = minijinja.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=False)
        self._environment.add_filter("tojson", _json)
        self._environment.add_global("raise_exception", _raise_from_template)
        self._template = Path(chat_template_path).read_text() if chat_template_path else None
        config_path = Path(tokenizer_path).with_name("tokenizer_config.json")
        config = json.loads(config_path.read_text()) if config_path.exists() else {}
        if self._template is not None and chat_template_path is not None and chat_template_path.endswith(".json"):
            config = json.loads(self._template)
            self._template = config["chat_template"]
        self._specials = {name: _token_text(config.get(name)) for name in ("bos_token", "eos_token")}
        self._eos_id = self._find_eos()

    @property
    def eos_id(self) -> int:
        return self._eos_id

    @property
    def vocabulary_size(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def pieces(self, text: str) -> list[Piece]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        ends = [end for _, end in encoding.offsets]
        starts = [0, *ends[:-1]]  # from the end of the token before, so that the parts join to the text
        return [(token_id, text[start:end]) for token_id, start, end in zip(encoding.ids, starts, ends, strict=True)]

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[Any] | None, add_generation_prompt: bool, template_kwargs: Mapping[str, Any]
    ) -> str:
        if self._template is None:
            raise UnrenderableConversationError("As of transformers v4.44, default chat template is no longer allowed")
        try:
            return self._environment.render_str(
                self._template,
                messages=schema_calls(template_messages(messages)),
                tools=schema_tools(tools),
                add_generation_prompt=add_generation_prompt,
                bos_token=self._specials["bos_token"] or "",
                eos_token=self._specials["eos_token"] or "",
                **{name: value for name, value in template_kwargs.items() if name != "continue_final_message"},
            )
        except minijinja.TemplateError as error:
            raise UnrenderableConversationError(str(error)) from None

    def _find_eos(self) -> int:
        for text in (self._specials["eos_token"], "<|im_end|>", "<|eot_id|>", "<|endoftext|>", "</s>"):
            token_id = self._tokenizer.token_to_id(text) if text else None
            if token_id is not None:
                return int(token_id)
        raise ValueError("the tokenizer names no end-of-sequence token")


def load_tokenizer(tokenizer_path: str | None, chat_template_path: str | None, known_words: Sequence[str]) -> Tokenizer:
    """The tokenizer from its files, or the built-in one when no path is given."""
    if tokenizer_path is None:
        return WordTokenizer(known_words)
    return FileTokenizer(tokenizer_path, chat_template_path)


def _json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_from_template(message: str) -> None:
    raise UnrenderableConversationError(message)


def _token_text(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
