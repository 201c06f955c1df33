"""Distances in an LRU stack whose members are touched leaf first, in one pass and bounded memory.

Under leaf-first order (what engines do when they free a sequence) a block is never more recent than the block before it in its prompt, so a block
that is within the ``C`` most recent ones has its whole prefix there too: the plain stack distance then says for every capacity at once whether a
prefix hits. With any other order it does not.

Members are sampled by a hash of their id once there are more than ``limit``: the threshold is halved, and what is left stands for twice as many.
Blocks that were used ``HEAVY`` times by then are all kept and stand for themselves, since a sample that misses or doubles the one block that
everybody shares says nothing. A block's id stands for its whole prefix, so every block can be judged by itself. Source: the adaptive form of SHARDS
(Waldspurger et al., FAST'15); keeping the heavy ones is ours.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

_MASK = (1 << 64) - 1
_FULL = 1 << 64


def _mixed(block: int) -> int:
    mixed = (block * 0x9E3779B97F4A7C15) & _MASK
    return ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) & _MASK


HEAVY = 32


class LeafFirstStack:
    """The blocks seen so far, most recent last. ``limit``: how many are kept; about 250 bytes each."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.weight = 1  # how many blocks a sampled one stands for
        self.uses: dict[int, int] = {}  # times that a kept block was found again
        self._threshold = _FULL
        self._heavy: set[int] = set()
        self._slots: dict[int, int] = {}  # block -> slot, most recent last
        self._total = 0  # blocks, as estimated
        slots = 2 * min(limit, 512) + 2
        self._times: array[float] = array("d", [0.0]) * slots
        self._tree: array[int] = array("q", [0]) * slots  # Fenwick tree over slots: the blocks that each stands for
        self._next = 1

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def sampled(self) -> bool:
        return self._threshold < _FULL

    @property
    def total(self) -> int:
        """Distinct blocks, as estimated."""
        return self._total

    def weight_of(self, block: int) -> int:
        """How many blocks a kept one stands for."""
        return 1 if block in self._heavy else self.weight

    def kept(self, blocks: Sequence[int]) -> list[tuple[int, int]]:
        """(position, block) of those that are looked at."""
        if self._threshold == _FULL:
            return list(enumerate(blocks))
        threshold, heavy = self._threshold, self._heavy
        return [(position, block) for position, block in enumerate(blocks) if _mixed(block) < threshold or block in heavy]

    def keeps(self, block: int) -> bool:
        return block in self._heavy or _mixed(block) < self._threshold

    def look(self, block: int) -> tuple[int, float] | None:
        """(distinct blocks used since, last use in s) of a block seen before, else None. Counts a use."""
        slot = self._slots.get(block)
        if slot is None:
            return None
        self.uses[block] = self.uses.get(block, 0) + 1
        tree, place, older = self._tree, slot, 0
        while place:
            older += tree[place]
            place &= place - 1
        return self._total - older, self._times[slot]

    def touch(self, blocks: Sequence[int], at_s: float) -> None:
        """Use the kept ones of a prompt, given from its root on: the last becomes the least recent of them."""
        for block in reversed(blocks):
            weight = self.weight_of(block)
            slot = self._slots.pop(block, None)
            if slot is not None:
                self._add(slot, -weight)
            if self._next == len(self._tree):
                self._compact()
            self._slots[block] = self._next
            self._times[self._next] = at_s
            self._add(self._next, weight)
            self._next += 1
        while len(self._slots) > self.limit:
            self.thin()

    def thin(self) -> None:
        """Keep half as many of those that are not heavy."""
        self._heavy.update(block for block, uses in self.uses.items() if uses >= HEAVY and len(self._heavy) < self.limit // 4)
        self._threshold //= 2
        self.weight *= 2
        for block in [block for block in self._slots if not self.keeps(block)]:
            del self._slots[block]
            self.uses.pop(block, None)
        self._compact()

    def state(self) -> dict[str, Any]:
        """All that a stack is, as plain data: :meth:`restore` makes the same one of it."""
        return {
            "weight": self.weight,
            "heavy": sorted(self._heavy),
            "blocks": list(self._slots),  # least recent first
            "times_s": [self._times[slot] for slot in self._slots.values()],
            "uses": self.uses,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what ``state`` was taken of, whose limit must have been the same."""
        self.weight, self._heavy, self.uses = state["weight"], set(state["heavy"]), dict(state["uses"])
        self._threshold = _FULL // self.weight
        self._slots = {block: place for place, block in enumerate(state["blocks"])}
        self._times = array("d", state["times_s"])
        self._compact()

    def _add(self, slot: int, amount: int) -> None:
        tree, size = self._tree, len(self._tree)
        self._total += amount
        while slot < size:
            tree[slot] += amount
            slot += slot & -slot

    def _compact(self) -> None:
        """Number the slots anew, in order, with room for as many again."""
        times = [self._times[slot] for slot in self._slots.values()]
        self._slots = dict(zip(self._slots, range(1, len(self._slots) + 1), strict=True))
        self._next = len(self._slots) + 1
        self._total = 0
        room = max(len(self._tree), 2 * self._next)
        self._times = array("d", [0.0]) * room
        tree = self._tree = array("q", [0]) * room
        for slot, (block, at_s) in enumerate(zip(self._slots, times, strict=True), start=1):
            self._times[slot] = at_s
            tree[slot] = self.weight_of(block)
            self._total += tree[slot]
        for slot in range(1, len(tree)):
            parent = slot + (slot & -slot)
            if parent < len(tree):
                tree[parent] += tree[slot]
