"""What a stream of completion events says, read beside the relay: usage, completeness, errors; and which few bytes the client does not get to see.

Every event is relayed byte for byte, except: a usage chunk that only the router asked for is left out, an error event is replaced by the relay's
own, and the
``model`` member is renamed where the endpoint's name is not the engine's. Events are parsed only if they hold the word they are parsed for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from routing.core import sse
from routing.core.verdict import Said, Verdict, judge, parse

DONE = b"[DONE]"


@dataclass(slots=True)
class Usage:
    """Token counts as the engine reported them last; None is "not said".

    ``chunks`` counts events with choices; ``counted`` says that ``completion_tokens`` is that count, for want of a word from the engine.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    chunks: int = 0
    counted: bool = False

    def settle(self) -> None:
        """After the last event: if the engine never said how many tokens it made, count the chunks. A count that it gave, even zero, stays."""
        if self.completion_tokens is None and self.chunks:
            self.completion_tokens, self.counted = self.chunks, True

    def take(self, usage: object) -> None:
        """Take in a ``usage`` object; zeros are kept as zeros, anything but counts is ignored, and no more tokens were cached than there were."""
        if not isinstance(usage, dict):
            return
        details = usage.get("prompt_tokens_details")
        self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
        self.completion_tokens = _count(usage.get("completion_tokens"), self.completion_tokens)
        if isinstance(details, dict):
            self.cached_tokens = _count(details.get("cached_tokens"), self.cached_tokens)
        if self.cached_tokens is not None and self.prompt_tokens is not None:
            self.cached_tokens = min(self.cached_tokens, self.prompt_tokens)


def _count(value: object, default: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else default


@dataclass(frozen=True, slots=True)
class Rename:
    """The engine's model name and the client's, as JSON members in the two spacings that engines write."""

    pairs: tuple[tuple[bytes, bytes], ...]

    @staticmethod
    def between(served: str, asked: str) -> Rename | None:
        """None where the two are the same: then not a byte is touched."""
        if served == asked:
            return None
        before, after = msgspec.json.encode(served), msgspec.json.encode(asked)
        return Rename(pairs=tuple((b'"model":' + space + before, b'"model":' + space + after) for space in (b"", b" ")))

    def apply(self, text: bytes) -> bytes:
        """Rename the first ``model`` member, if it stands before ``choices``: inside a JSON string its quotes would be escaped."""
        for before, after in self.pairs:
            place = text.find(before)
            if place >= 0 and (text.find(b'"choices"', 0, place) < 0):
                return text[:place] + after + text[place + len(before) :]
        return text


@dataclass(slots=True)
class StreamMeter:
    """Reads one stream. ``hide_usage``: the client did not ask for the usage chunk."""

    hide_usage: bool
    rename: Rename | None = None
    usage: Usage = field(default_factory=Usage)
    done: bool = False
    finished: bool = False
    aborted: bool = False
    hidden: int = 0
    error: Verdict | None = None

    def take(self, event: bytes) -> bytes | None:
        """The bytes to relay for ``event``; None for nothing. After an error event ``error`` is set and nothing more is to be relayed."""
        if b"data" not in event:
            return event
        data = sse.data_of(event)
        if data is None:
            return event
        if data.strip() == DONE:
            self.done = True
            return event
        if b'"error"' in data:
            verdict = judge(200, parse(data))
            if verdict.error is not None:
                self.error = verdict
                return None
        if b'"finish_reason":"' in data or b'"finish_reason": "' in data:
            self.finished = True
            self.aborted = self.aborted or b'"abort"' in data
        if b'"usage"' in data and self._is_usage_only(parse(data)):
            self.hidden += 1
            return None
        if b'"choices"' in data:
            self.usage.chunks += 1
        return event if self.rename is None else self.rename.apply(event)

    def _is_usage_only(self, said: Said | None) -> bool:
        """Note the usage of a chunk; whether the chunk holds nothing else and is to be hidden."""
        usage = None if said is None else said.usage
        if said is None or usage is None:
            return False
        self.usage.take(usage)
        return self.hide_usage and not said.has_choices

    @property
    def complete(self) -> bool:
        """Whether the engine said that the answer is whole."""
        return (self.done or self.finished) and not self.aborted
