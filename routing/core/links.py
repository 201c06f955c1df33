"""What is known of the ways between engines: how long a transfer takes, and which way failed of late.

Learned from the times between calling the decode replica and its first byte, less what it needed to admit the request:

* setup: the 10th percentile of short transfers, once there are enough, before that :data:`SETUP_S`.
* rate: the median of tokens over the time beyond setup, of long transfers, once there are enough, before that :data:`TOKENS_PER_S`.

A way that failed is left alone for a while, like a replica whose breaker is open: neither of its ends need be broken.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from statistics import median

from routing.core.breaker import Breaker
from routing.core.pairs import Way

SETUP_S = 0.02
TOKENS_PER_S = 50_000.0  # a model of 128 KiB a token over 50 Gbit/s
SHORT_TOKENS = 1024
WINDOW = 64
ENOUGH = 4
MAX_LINKS = 4096
_RATES = (100.0, 1e8)  # what a rate can be


@dataclass(slots=True)
class Link:
    """One way. ``now_s`` is monotonic and given by the caller."""

    breaker: Breaker
    short: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))  # seconds
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))  # tokens/s

    @property
    def setup_s(self) -> float:
        return sorted(self.short)[len(self.short) // 10] if len(self.short) >= ENOUGH else SETUP_S

    @property
    def way(self) -> Way:
        return Way(self.setup_s, median(self.rates) if len(self.rates) >= ENOUGH else TOKENS_PER_S)

    def observe(self, *, moved_tokens: float, seconds: float) -> None:
        """Learn from one transfer that came to its first byte."""
        taken_s = max(0.0, seconds)
        if moved_tokens < SHORT_TOKENS:
            self.short.append(taken_s)
            return
        self.rates.append(min(_RATES[1], max(_RATES[0], moved_tokens / max(1e-4, taken_s - self.setup_s))))


@dataclass(slots=True)
class Links:
    """All ways that were tried, by the URLs of their ends; the longest unused is given up at :data:`MAX_LINKS`."""

    open_s: float = 30.0
    dropped: int = 0
    _held: OrderedDict[tuple[str, str], Link] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._held)

    def way(self, prefill_url: str, decode_url: str, now_s: float) -> Way | None:
        """The way as known; None while it is left alone."""
        known = self._held.get((prefill_url, decode_url))
        if known is None:
            return Way(SETUP_S, TOKENS_PER_S)
        return known.way if known.breaker.allows(now_s) else None

    def take(self, prefill_url: str, decode_url: str) -> Link:
        """The link, made known on first use."""
        ends = (prefill_url, decode_url)
        link = self._held.get(ends)
        if link is None:
            link = self._held[ends] = Link(Breaker(failures=1, open_s=self.open_s))
            if len(self._held) > MAX_LINKS:
                self._held.popitem(last=False)
                self.dropped += 1
        self._held.move_to_end(ends)
        return link

    def forget(self, url: str) -> None:
        """An engine is gone, or another process than before."""
        for ends in [ends for ends in self._held if url in ends]:
            del self._held[ends]
