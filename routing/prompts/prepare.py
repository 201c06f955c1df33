"""A request body to what the engine's chat template and tokenizer are given, as vLLM 0.32 prepares it. Pure.

Facts reproduced here: text parts are joined with newlines for templates that take strings; tool-call arguments become objects, ``{}`` where they are
not JSON objects; tools and tool calls are written in the order of the API's schema, with ``null`` for an absent description; ``tools`` are shown also
with ``tool_choice: "none"``; a developer message becomes a system message where the template knows no such role; chat adds no special tokens
(the template supplies BOS), completions do; truncation keeps the end of the prompt.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from routing.prompts.types import NoTokens, Reason

ContentFormat = Literal["string", "openai"]
MARK = "\ue000"  # stands for media in a second rendering; where the two renderings part is where the exact text ends

TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
MEDIA_PARTS = {
    "image_url": "image",
    "input_image": "image",
    "image_embeds": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio_embeds": "audio",
    "video_url": "video",
    "video_embeds": "video",
}
# Members of content parts that the engine's own schema names: they do not reach a template beside a text, any other member does.
_PART_MEMBERS = {*TEXT_PARTS, *MEDIA_PARTS, "type", "file", "image_pil", "prompt_embeds", "data", "uuid", "closed", "name", "prompt_cache_breakpoint"}
_BILLING_LINE = "x-anthropic-billing-header"  # vLLM drops this line from system messages
# Variables that a client may not set through chat_template_kwargs without making something else of the request than we reproduce.
_ENGINE_ARGUMENTS = ("chat_template", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict")
_TEMPLATE_ARGUMENTS = ("messages", "conversation", "conversations", "tools", "documents", "self", "tokenizer_kwargs", "return_assistant_tokens_mask")
_RESERVED = frozenset((*_ENGINE_ARGUMENTS, *_TEMPLATE_ARGUMENTS))


# Preparation runs on the event loop: what has more than this goes without exact tokens. A conversation of a million tokens has fewer.
MAX_PIECES = 8192  # messages, and parts of their contents
MAX_ARGUMENTS_CHARACTERS = 1024 * 1024  # of one tool call


class Unprepared(Exception):
    """No exact preparation, for a reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


@dataclass(frozen=True, slots=True)
class Cut:
    """Keep ``tokens`` of the prompt. ``explicit``: the client named the side, then special tokens are cut like any other."""

    tokens: int
    side: Literal["left", "right"]
    explicit: bool


@dataclass(frozen=True, slots=True)
class Ids:
    """A prompt given as token ids: used as it is."""

    ids: array[int]
    cut: Cut | None


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt given as text."""

    text: str
    add_special_tokens: bool
    cut: Cut | None


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a chat template is given. ``marked`` are the messages once more with ``MARK`` for media; None when there is none."""

    messages: list[dict[str, Any]]
    marked: list[dict[str, Any]] | None
    tools: list[dict[str, Any]] | None
    documents: list[Any] | None
    variables: dict[str, Any]
    add_generation_prompt: bool
    continue_final_message: bool
    add_special_tokens: bool
    cut: Cut | None


def completion(body: Mapping[str, Any]) -> Ids | Text | NoTokens:
    """The prompt of a completions body."""
    try:
        _refuse_members(body, ("suffix", "prompt_embeds", "mm_processor_kwargs", "media_io_kwargs"))
        cut = _cut(body)
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return Text(prompt, _flag(body, "add_special_tokens", default=True), cut)
        return Ids(_token_ids(prompt), cut)
    except Unprepared as refused:
        return NoTokens(refused.reason)


def chat(body: Mapping[str, Any], *, content_format: ContentFormat, knows_developer: bool) -> Conversation | NoTokens:
    """The conversation of a chat body for a template that takes content in this format."""
    try:
        return _chat(body, content_format, knows_developer)
    except Unprepared as refused:
        return NoTokens(refused.reason)


def _chat(body: Mapping[str, Any], content_format: ContentFormat, knows_developer: bool) -> Conversation:
    _refuse_members(body, ("chat_template", "mm_processor_kwargs", "media_io_kwargs", "prompt_embeds"))
    if isinstance(body.get("kv_transfer_params"), dict) and "prompt_token_ids" in body["kv_transfer_params"]:
        raise Unprepared("unsupported")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Unprepared("request")
    if _size(messages) > MAX_PIECES:
        raise Unprepared("too_long")
    add_generation_prompt = _flag(body, "add_generation_prompt", default=True)
    continued = _flag(body, "continue_final_message", default=False)
    if continued and add_generation_prompt:
        raise Unprepared("request")
    media = _has_media(messages)
    if media and continued:
        raise Unprepared("unsupported")
    plain = _conversation(messages, content_format, knows_developer, marked=False)
    return Conversation(
        messages=plain,
        marked=_conversation(messages, content_format, knows_developer, marked=True) if media else None,
        tools=_tools(body.get("tools")),
        documents=_documents(body.get("documents")),
        variables=_variables(body),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continued,
        add_special_tokens=_flag(body, "add_special_tokens", default=False),
        cut=_cut(body),
    )


def _size(messages: Sequence[Any]) -> int:
    """Messages, and the parts of those whose content has parts."""
    if len(messages) > MAX_PIECES:
        return len(messages)
    contents = (message.get("content") for message in messages if isinstance(message, dict))
    return len(messages) + sum(len(content) for content in contents if isinstance(content, list))


def _refuse_members(body: Mapping[str, Any], names: Sequence[str]) -> None:
    if any(body.get(name) is not None for name in names):
        raise Unprepared("unsupported")


def _flag(body: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise Unprepared("request")
    return value


def _cut(body: Mapping[str, Any]) -> Cut | None:
    tokens, side = body.get("truncate_prompt_tokens"), body.get("truncation_side")
    if tokens is None:
        return None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < -1 or side not in (None, "left", "right"):
        raise Unprepared("request")
    if tokens <= 0:  # -1 means the engine's own context length, which is not ours to know
        raise Unprepared("unsupported")
    return Cut(tokens, side or "left", explicit=side is not None)


def _token_ids(prompt: object) -> array[int]:
    if isinstance(prompt, list) and len(prompt) > 1 and isinstance(prompt[0], str | list):
        raise Unprepared("many_prompts")
    if not isinstance(prompt, list) or not prompt or not all(type(token) is int for token in prompt):
        raise Unprepared("request")
    try:
        return array("I", prompt)
    except OverflowError:
        raise Unprepared("request") from None


def _variables(body: Mapping[str, Any]) -> dict[str, Any]:
    """``chat_template_kwargs`` as they reach the template: none that is null or "auto"; reasoning effort switches thinking."""
    given = body.get("chat_template_kwargs")
    if given is not None and not isinstance(given, dict):
        raise Unprepared("request")
    if given and not _RESERVED.isdisjoint(given):
        raise Unprepared("unsupported")
    variables = dict(given or {})
    effort = body.get("reasoning_effort")
    if effort is not None:
        if not isinstance(effort, str):
            raise Unprepared("request")
        variables["reasoning_effort"] = effort
        variables.setdefault("enable_thinking", effort != "none")
    for name in ("add_generation_prompt", "continue_final_message"):  # the body's own members win
        variables.pop(name, None)
    return {name: value for name, value in variables.items() if value is not None and value != "auto"}


def _documents(documents: object) -> list[Any] | None:
    if documents is None:
        return None
    if not isinstance(documents, list) or not all(isinstance(each, dict) for each in documents):
        raise Unprepared("request")
    return documents


def _tools(tools: object) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    if not isinstance(tools, list) or not tools:
        raise Unprepared("request")
    return [_tool(each) for each in tools]


def _tool(tool: object) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Unprepared("request")
    if tool.get("type", "function") != "function":
        raise Unprepared("request")
    deferred = tool.get("defer_loading")
    shown = {"name": function["name"], "description": function.get("description"), "parameters": function.get("parameters")}
    optional = {"strict": function.get("strict"), "defer_loading": deferred if function.get("defer_loading") is None else function["defer_loading"]}
    shown |= {name: value for name, value in optional.items() if value is not None}
    written: dict[str, Any] = {"type": "function", "function": shown}
    return written if deferred is None else written | {"defer_loading": deferred}


def _has_media(messages: Sequence[Any]) -> bool:
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    return any(_modality(part) is not None for content in contents if isinstance(content, list) for part in content)


def _modality(part: object) -> str | None:
    """Which medium a content part carries; None for text.

    Raises:
        Unprepared: neither text nor a medium that we know the place of.
    """
    if isinstance(part, str):
        return None
    if not isinstance(part, dict):
        raise Unprepared("request")
    kind = part.get("type")
    if kind is None:
        kind = next((name for name in MEDIA_PARTS if name in part), None)
    if kind in TEXT_PARTS:
        return None
    if not isinstance(kind, str) or kind not in MEDIA_PARTS:
        raise Unprepared("unsupported")
    return MEDIA_PARTS[kind]


def _conversation(messages: Sequence[Any], content_format: ContentFormat, knows_developer: bool, *, marked: bool) -> list[dict[str, Any]]:
    prepared = [_message(message, content_format, marked=marked) for message in messages]
    if not knows_developer and any(message["role"] == "developer" for message in prepared):
        return _one_system_message(prepared)
    return prepared


def _message(message: object, content_format: ContentFormat, *, marked: bool) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Unprepared("request")
    role = message["role"]
    parts = _parts(message.get("content"))
    if role == "system":
        parts = _without_billing_line(parts)
    content: Any
    if content_format == "openai":
        content = [shown for part in parts if (shown := _shown_part(part, marked=marked)) is not None]
    else:
        content = _joined(parts, marked=marked)
    row: dict[str, Any] = {"role": role, "content": content}
    if role == "assistant":
        _add_assistant(row, message)
    elif role == "tool":
        if "tool_call_id" in message:
            row["tool_call_id"] = message["tool_call_id"]
        if isinstance(content, list) and all(part["type"] == "text" for part in content):
            row["content"] = "\n".join(part["text"] for part in content)
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            row[name] = message[name]
    if role == "developer":
        row["tools"] = message.get("tools")
    return row


def _parts(content: object) -> list[Any]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise Unprepared("request")
    return content


def _text(part: Any) -> str | None:
    """A text part's text; None where there is none to show."""
    if isinstance(part, str):
        return part
    text = part.get(TEXT_PARTS[part["type"]])
    if text is None and part["type"] in ("text", "refusal"):
        return None
    if not isinstance(text, str):
        raise Unprepared("request")
    return text


def _shown_part(part: Any, *, marked: bool) -> dict[str, Any] | None:
    modality = _modality(part)
    others = {name: value for name, value in part.items() if name not in _PART_MEMBERS} if isinstance(part, dict) else {}
    if modality is not None:
        return {"type": "text", "text": MARK} if marked else {"type": modality, **others}
    text = _text(part)
    return None if text is None else {"type": "text", "text": text, **others}


def _joined(parts: Sequence[Any], *, marked: bool) -> str:
    """Content as one text, without empty parts. The engine puts placeholders of media before it (or between): the exact text ends before both."""
    media = [_modality(part) is not None for part in parts]
    texts = [text for part, medium in zip(parts, media, strict=True) if not medium and (text := _text(part))]
    joined = "\n".join(texts)
    return MARK + joined if marked and any(media) else joined


def _without_billing_line(parts: Sequence[Any]) -> list[Any]:
    kept: list[Any] = []
    for part in parts:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str) or not text.startswith(_BILLING_LINE):
            kept.append(part)
        elif rest := text.partition("\n")[2]:
            kept.append(rest if isinstance(part, str) else {**part, "text": rest})
    return kept


def _add_assistant(row: dict[str, Any], message: Mapping[str, Any]) -> None:
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise Unprepared("request")
    if calls:
        row["tool_calls"] = [_call(each) for each in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        row["reasoning"] = row["reasoning_content"] = reasoning


def _call(call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or call.get("type", "function") != "function":
        raise Unprepared("request")
    shown = _in_order(function, ("arguments", "name"))
    shown["arguments"] = _arguments(function.get("arguments"))
    return _in_order(call | {"function": shown}, ("id", "function", "type"))


def _in_order(value: Mapping[str, Any], first: Sequence[str]) -> dict[str, Any]:
    """The members that the API's schema names in its order, then all others in theirs."""
    return {name: value[name] for name in first if name in value} | {name: each for name, each in value.items() if name not in first}


def _arguments(arguments: object) -> dict[str, Any]:
    if isinstance(arguments, dict):
        return arguments
    if not isinstance(arguments, str) or not arguments:
        return {}
    if len(arguments) > MAX_ARGUMENTS_CHARACTERS:
        raise Unprepared("too_long")
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _one_system_message(prepared: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Developer messages as system messages, and these, if any is not the first, as one."""
    turned = [_as_system(message) if message["role"] == "developer" else message for message in prepared]
    if all(message["role"] != "system" for message in turned[1:]):
        return turned
    texts = [text for message in turned if message["role"] == "system" and (text := _flat(message.get("content")))]
    others = [message for message in turned if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _as_system(message: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "tools"} | {"role": "system"}


def _flat(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if "text" in part)
    return content if isinstance(content, str) else ""
