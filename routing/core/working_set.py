"""How many distinct blocks a replica was sent within the last ten minutes: what its cache would have to hold.

What is evicted meanwhile still counts; that is the point. A sample of the blocks stands for all: a block is in it if its digest, which is uniform, is
below a bound, and the bound is halved whenever more than :data:`MOST` are kept, so the relative error is about 1 / sqrt(MOST / 2), 2 %.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable

WINDOW_S = 600.0
MOST = 4096
_SPACE = 1 << 32


class WorkingSet:
    """One replica's. ``now_s`` is monotonic and given by the caller; digests have at least 4 bytes."""

    __slots__ = ("_bound", "_last", "_oldest_s", "dropped")

    def __init__(self) -> None:
        self._bound = _SPACE
        self._last: OrderedDict[bytes, float] = OrderedDict()  # by digest: when it was last sent, oldest first
        self._oldest_s = -math.inf  # nothing in it is older
        self.dropped = 0  # left out when the sample was thinned

    def touch(self, digests: Iterable[bytes], now_s: float) -> None:
        """Blocks were sent there."""
        bound = self._bound.to_bytes(5, "big")[1:]
        for digest in digests if self._bound == _SPACE else [one for one in digests if one[:4] < bound]:
            self._last[digest] = now_s
            self._last.move_to_end(digest)
        if len(self._last) > MOST:
            self._forget(now_s)
        while len(self._last) > MOST and self._bound > 1:
            self._thin()

    def size(self, now_s: float) -> int:
        """Distinct blocks of the last :data:`WINDOW_S`."""
        self._forget(now_s)
        return len(self._last) * (_SPACE // self._bound)

    def clear(self) -> None:
        """The replica is another process: nothing was sent to it."""
        self._last.clear()
        self._oldest_s = -math.inf
        self._bound = _SPACE

    def _forget(self, now_s: float) -> None:
        """Leave out what is too old. When that is the case next is remembered, since each decision asks every replica."""
        last = self._last
        if now_s - WINDOW_S <= self._oldest_s:
            return
        while last:
            digest = next(iter(last))
            self._oldest_s = last[digest]
            if now_s - WINDOW_S <= self._oldest_s:
                return
            del last[digest]
        self._oldest_s = -math.inf

    def _thin(self) -> None:
        before = len(self._last)
        self._bound //= 2
        bound = self._bound.to_bytes(5, "big")[1:]
        self._last = OrderedDict((digest, at_s) for digest, at_s in self._last.items() if digest[:4] < bound)
        self.dropped += before - len(self._last)
