"""Messages of a chat as the engine's chat template is given them, as vLLM 0.32 prepares them. Pure.

Facts reproduced here: text parts are joined with newlines for templates that take strings; tool-call arguments become objects, ``{}`` where they are
not JSON objects; tool calls are written in the order of the API's schema; a developer message becomes a system message where the template knows no
such role.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from routing.prompts.types import Unprepared

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
# Preparation holds up others: what has more than this goes without exact tokens. A conversation of a million tokens has fewer.
MAX_PIECES = 8192  # messages, parts of their contents, tool calls and tools


def size(messages: Sequence[Any], tools: Sequence[Any]) -> int:
    """Tools, messages, and the parts and tool calls of these."""
    if len(messages) > MAX_PIECES:
        return len(messages)
    given = (member for message in messages if isinstance(message, dict) for member in (message.get("content"), message.get("tool_calls")))
    return len(tools) + len(messages) + sum(len(member) for member in given if isinstance(member, list))


def have_media(messages: Sequence[Any]) -> bool:
    """Whether any message has a part that is no text.

    Raises:
        Unprepared: one that we cannot tell.
    """
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


def prepared(messages: Sequence[Any], content_format: ContentFormat, knows_developer: bool, *, marked: bool) -> list[dict[str, Any]]:
    """The messages as a template of this format is given them; ``marked``: with ``MARK`` for media.

    Raises:
        Unprepared: one that the engine will refuse, or of which we cannot tell what it makes.
    """
    found = [_message(message, content_format, marked=marked) for message in messages]
    if not knows_developer and any(message["role"] == "developer" for message in found):
        return _one_system_message(found)
    return found


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
