"""Bytes that wait in memory on behalf of many sources, of which some flood: one bound for all, one for each, and a floor for each owner.

Half of the whole is common, first come, first served. The other half is divided evenly among the owners that there are, and nobody else's flood
takes a byte of it: so all together never hold more than the whole, and a quiet owner is served while others have filled what is common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

DEFAULT_WHOLE_BYTES = 256 * 1024 * 1024
SOURCE_PART = 4  # one source may hold a quarter of the whole


class ByteBudget:
    """Accounts by owner. ``used_bytes`` is what waits now; ``refused`` counts refusals. Not thread-safe."""

    def __init__(self, *, whole_bytes: int = DEFAULT_WHOLE_BYTES) -> None:
        self.whole_bytes = whole_bytes
        self.source_bytes = whole_bytes // SOURCE_PART
        self.owners = 1
        self.used_bytes = 0
        self.refused = 0
        self._by_owner: Counter[Hashable] = Counter()

    def floor_bytes(self) -> int:
        """What each owner has for itself."""
        return self.whole_bytes // 2 // max(1, self.owners)

    def account(self, owner: Hashable) -> Account:
        """An account of one source of ``owner``. Close it."""
        return Account(self, owner)

    def _fits(self, owner: Hashable, before: int, now: int) -> bool:
        more = now - before
        if more <= 0:
            return True
        fits = now <= self.source_bytes and (self.used_bytes + more <= self.whole_bytes // 2 or self._by_owner[owner] + more <= self.floor_bytes())
        self.refused += not fits
        return fits

    def _put(self, owner: Hashable, more: int) -> None:
        self.used_bytes += more
        self._by_owner[owner] += more
        if not self._by_owner[owner]:
            del self._by_owner[owner]


class Account:
    """One source's part. It is told what waits; what does not fit is for the source to let go."""

    def __init__(self, budget: ByteBudget, owner: Hashable) -> None:
        self._budget = budget
        self._owner = owner
        self._closed = False
        self.held_bytes = 0

    def fits(self, wanted_bytes: int) -> bool:
        """Whether the source may hold so much in all."""
        return self._budget._fits(self._owner, self.held_bytes, wanted_bytes)

    def set(self, held_bytes: int) -> None:
        """The source holds so much now; a closed one holds nothing any more, whatever it says."""
        if self._closed:
            return
        self._budget._put(self._owner, held_bytes - self.held_bytes)
        self.held_bytes = held_bytes

    def close(self) -> None:
        """The source is gone. Safe to repeat."""
        self.set(0)
        self._closed = True
