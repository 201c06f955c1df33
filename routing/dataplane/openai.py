"""OpenAI's request shapes: just enough is checked to route and to keep the namespace; what only the engine understands is the engine's to judge.

Policy: media URLs follow ``routing.core.media``. A response's ``model`` is what the client asked for: where the endpoint's name is not the
engine's, the
one member is rewritten (the first in each event, before ``choices``), and every other byte stays.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from routing.core import body as bodies
from routing.core import media, prefix
from routing.core.body import Body
from routing.dataplane import errors

MAX_SUBDIVISION_CHARACTERS = 128
OPENING_CHARACTERS = 4096
MAX_SEQUENCES = 1_000_000  # more answers than any engine makes of one body; it goes into counts and messages of a fixed width
_PROMPT_CHANGES = ("truncate_prompt_tokens", "prompt_embeds")  # members that make another prompt of the given ids


@dataclass(frozen=True, slots=True)
class Call:
    """A request body, understood. ``prompt`` is the prompt written out as bytes for the prefix chain."""

    body: Body
    model: str
    stream: bool
    wants_usage: bool
    prompt: bytes
    learns: bool  # whether its usage may teach bytes per token: plain text, one prompt
    token_bytes: float | None  # bytes per token where known exactly (prompts given as token ids)
    subdivision: str | None  # the client's own cache_salt
    sequences: int  # answers asked for: prompts times choices
    token_ids: array[int] | None = None  # the one prompt, where it was given as token ids that engines use as they are

    @property
    def api(self) -> Literal["chat", "completions"]:
        return "chat" if "messages" in self.body.value else "completions"

    @property
    def opening(self) -> bytes:
        """What tells conversations apart that share their system prompt, and stays while they grow: the first thing the user said, as bytes. Of a
        long text its beginning and its length.

        Empty where there is no such thing.
        """
        first = next((message for message in self.body.value.get("messages", ()) if message.get("role") == "user"), None)
        if first is None:
            return b""
        text = first.get("content")
        if isinstance(text, str) and len(text) > OPENING_CHARACTERS:
            first = {**first, "content": [text[:OPENING_CHARACTERS], len(text)]}
        return msgspec.json.encode(first)


def read(raw: bytes, shape: Callable[[dict[str, Any]], None], media_hosts: Sequence[str]) -> Call:
    """Parse and check a body. Pure and possibly long: large bodies are read in a worker thread.

    Raises:
        ApiError: 400, naming the member at fault.
    """
    try:
        body = bodies.read(raw)
    except bodies.BodyError as error:
        raise errors.bad_request(error.message, error.param) from None
    value = body.value
    model = value.get("model")
    if not isinstance(model, str) or not model:
        raise errors.bad_request("'model' must be a non-empty string.", "model")
    if not isinstance(value.get("stream"), bool | None):
        raise errors.bad_request("'stream' must be true or false.", "stream")
    if value.get("stream") and not isinstance(value.get("stream_options"), dict | None):
        raise errors.bad_request("'stream_options' must be an object.", "stream_options")
    shape(value)
    messages = value.get("messages") if "messages" in value else None
    if messages is not None and media.names_media(messages):
        raise errors.bad_request("Content parts must not carry a 'uuid': send the media itself.", "messages", "media_uuid_not_allowed")
    if messages is not None and media.refused_urls(messages, media_hosts):
        raise errors.bad_request("A media URL in 'messages' is not allowed. Send the media inline as a data: URL.", "messages", "media_not_allowed")
    subdivision = value.get("cache_salt")
    if subdivision is not None and not (isinstance(subdivision, str) and 0 < len(subdivision) <= MAX_SUBDIVISION_CHARACTERS):
        raise errors.bad_request(f"'cache_salt' must be text of 1 to {MAX_SUBDIVISION_CHARACTERS} characters.", "cache_salt")
    prompt, learns, token_bytes = _prompt(value)
    return Call(
        body=body,
        model=model,
        stream=value.get("stream") is True,
        wants_usage=bodies.asks_usage(value),
        prompt=prompt,
        learns=learns,
        token_bytes=token_bytes,
        subdivision=subdivision,
        sequences=_sequences(value),
        token_ids=_token_ids(value),
    )


def _prompt(value: dict[str, Any]) -> tuple[bytes, bool, float | None]:
    """The prompt as bytes, whether its usage teaches, and its exact bytes per token where known."""
    if "messages" in value:
        messages, has_media = media.compact(value["messages"])
        return prefix.chat_bytes(messages, value.get("tools")), not has_media, None
    prompt = value.get("prompt")
    as_tokens = isinstance(prompt, list) and bool(prompt) and all(isinstance(token, int) for token in prompt)
    return prefix.prompt_bytes(prompt), isinstance(prompt, str), 4.0 if as_tokens else None


def _token_ids(value: dict[str, Any]) -> array[int] | None:
    """The ids of a body whose one prompt is token ids, and which asks for no change of them; ids that no engine can have give None."""
    prompt = value.get("prompt")
    if "messages" in value or not isinstance(prompt, list) or not prompt or any(value.get(name) is not None for name in _PROMPT_CHANGES):
        return None
    if len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    if isinstance(prompt[0], bool) or not isinstance(prompt[0], int):
        return None
    try:
        return array("I", prompt)
    except (TypeError, OverflowError):
        return None


def _sequences(value: dict[str, Any]) -> int:
    """How many answers an engine makes of the body; what it would refuse counts as one."""
    prompt, choices = value.get("prompt"), [value.get("n"), value.get("best_of")]
    prompts = len(prompt) if isinstance(prompt, list) and not all(isinstance(token, int) for token in prompt) else 1
    return min(MAX_SEQUENCES, prompts * max([1, *(number for value in choices if (number := counted(value)) is not None)]))


def counted(value: object) -> int | None:
    """A number as engines read it, which take 3.0 and "3" for 3 too; None: it is none."""
    if isinstance(value, str) and len(value) <= 40:
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63:
        return None
    return int(value)


def check_chat(value: dict[str, Any]) -> None:
    """The shape of a chat completion.

    Raises:
        ApiError: 400.
    """
    messages = value.get("messages")
    if not isinstance(messages, list) or not messages:
        raise errors.bad_request("'messages' must be a non-empty array.", "messages")
    for place, message in enumerate(messages):
        if not isinstance(message, dict):
            raise errors.bad_request(f"'messages[{place}]' must be an object.", f"messages[{place}]")


def check_completion(value: dict[str, Any]) -> None:
    """The shape of a text completion: text, texts, token ids, or lists of token ids.

    Raises:
        ApiError: 400.
    """
    prompt = value.get("prompt")
    if isinstance(prompt, str):
        return
    if not isinstance(prompt, list) or not prompt or not (_all(prompt, str) or _all(prompt, int) or _token_lists(prompt)):
        raise errors.bad_request("'prompt' must be text, a list of texts, token ids, or a list of lists of token ids.", "prompt")


def _all(values: list[Any], kind: type) -> bool:
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


def _token_lists(values: list[Any]) -> bool:
    return all(isinstance(value, list) and bool(value) and _all(value, int) for value in values)
