"""A request body to what the engine's chat template and tokenizer are given, as vLLM 0.32 prepares it. Pure.

Facts reproduced here, beside those of :mod:`routing.prompts.messages`: tools are written in the order of the API's schema, with ``null`` for an
absent description; ``tools`` are shown also with ``tool_choice: "none"``; chat adds no special tokens (the template supplies BOS), completions do;
truncation keeps the end of the prompt.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from routing.prompts.messages import MAX_PIECES, ContentFormat, have_media, prepared, size
from routing.prompts.types import NoTokens, Unprepared

# Variables that a client may not set through chat_template_kwargs without making something else of the request than we reproduce.
_ENGINE_ARGUMENTS = ("chat_template", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict")
_TEMPLATE_ARGUMENTS = ("messages", "conversation", "conversations", "tools", "documents", "self", "tokenizer_kwargs", "return_assistant_tokens_mask")
_RESERVED = frozenset((*_ENGINE_ARGUMENTS, *_TEMPLATE_ARGUMENTS))
VALUE_CHARACTERS = 16  # what preparing and rendering a value costs, in characters of text


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


def within(body: Mapping[str, Any], characters: int) -> bool:
    """Whether what a template is given of a chat body has at most so many characters: texts and names, and ``VALUE_CHARACTERS`` for each value, those
    in arguments of tool calls among them."""
    left = characters
    values = [body.get(name) for name in ("messages", "tools", "documents", "chat_template_kwargs")]
    while values and left >= 0:
        value = values.pop()
        left -= VALUE_CHARACTERS
        if isinstance(value, str | list | dict):
            left -= len(value)
        if left < 0:
            break
        if isinstance(value, list):
            values.extend(value)
        elif isinstance(value, dict):
            left -= sum(map(len, value))
            values.extend(value.values())
            arguments = value.get("arguments")
            if isinstance(arguments, str) and len(arguments) <= left:
                left -= VALUE_CHARACTERS * sum(map(arguments.count, ",[{"))
    return left >= 0


def chat(body: Mapping[str, Any], *, content_format: ContentFormat, knows_developer: bool, max_characters: int) -> Conversation | NoTokens:
    """The conversation of a chat body for a template that takes content in this format; ``max_characters`` as for :func:`within`."""
    try:
        return _chat(body, content_format, knows_developer, max_characters)
    except Unprepared as refused:
        return NoTokens(refused.reason)


def _chat(body: Mapping[str, Any], content_format: ContentFormat, knows_developer: bool, max_characters: int) -> Conversation:
    _refuse_members(body, ("chat_template", "mm_processor_kwargs", "media_io_kwargs", "prompt_embeds"))
    if isinstance(body.get("kv_transfer_params"), dict) and "prompt_token_ids" in body["kv_transfer_params"]:
        raise Unprepared("unsupported")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Unprepared("request")
    tools = _list_of_tools(body.get("tools"))
    if size(messages, tools or ()) > MAX_PIECES or not within(body, max_characters):
        raise Unprepared("too_long")
    add_generation_prompt = _flag(body, "add_generation_prompt", default=True)
    continued = _flag(body, "continue_final_message", default=False)
    if continued and add_generation_prompt:
        raise Unprepared("request")
    media = have_media(messages)
    if media and continued:
        raise Unprepared("unsupported")
    return Conversation(
        messages=prepared(messages, content_format, knows_developer, marked=False),
        marked=prepared(messages, content_format, knows_developer, marked=True) if media else None,
        tools=None if tools is None else [_tool(each) for each in tools],
        documents=_documents(body.get("documents")),
        variables=_variables(body),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continued,
        add_special_tokens=_flag(body, "add_special_tokens", default=False),
        cut=_cut(body),
    )


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


def _list_of_tools(tools: object) -> list[Any] | None:
    if tools is None:
        return None
    if not isinstance(tools, list) or not tools:
        raise Unprepared("request")
    return tools


def _tool(tool: object) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Unprepared("request")
    if tool.get("type", "function") != "function":
        raise Unprepared("request")
    deferred = tool.get("defer_loading")
    if not all(isinstance(flag, bool | None) for flag in (deferred, function.get("strict"), function.get("defer_loading"))):
        raise Unprepared("request")  # vLLM makes true or false of 1, "yes" and others; not every engine does
    shown = {"name": function["name"], "description": function.get("description"), "parameters": function.get("parameters")}
    optional = {"strict": function.get("strict"), "defer_loading": deferred if function.get("defer_loading") is None else function["defer_loading"]}
    shown |= {name: value for name, value in optional.items() if value is not None}
    written: dict[str, Any] = {"type": "function", "function": shown}
    return written if deferred is None else written | {"defer_loading": deferred}
