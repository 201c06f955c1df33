"""The ledger of one replica: uncached prompt tokens that this router sent and that have no first byte yet.

Every entry is released by the request that made it. An entry also has an end of its own, for answers that do not stream: their engine never says when
prefill ended and decode began, so the entry stops counting when the prefill was expected to be over.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Ledger:
    """Queued tokens by entry. ``now_s`` is monotonic and given by the caller."""

    entries: dict[int, tuple[float, float]] = field(default_factory=dict)  # id -> (tokens, counts until)
    serial: int = 0

    def add(self, tokens: float, *, until_s: float) -> int:
        """Count ``tokens`` until they are released or ``until_s`` passes; returns the entry's id."""
        self.serial += 1
        self.entries[self.serial] = (max(0.0, tokens), until_s)
        return self.serial

    def release(self, entry: int) -> None:
        """Stop counting an entry; safe to repeat."""
        self.entries.pop(entry, None)

    def queued(self, now_s: float) -> tuple[float, int]:
        """Tokens and requests that still wait for their first token."""
        tokens, waiting = 0.0, 0
        for amount, until_s in self.entries.values():
            if now_s < until_s:
                tokens += amount
                waiting += 1
        return tokens, waiting
