"""Stretches of history: blocks in a row that were used and shown together, so that a prompt of thousands of blocks costs a few steps.

All blocks of a stretch have one state. A dispatch that leaves a stretch in its middle splits it; two in a row that nothing tells apart any more are
joined when the next dispatch uses both. Used by :mod:`routing.core.residency` alone.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

Source = Literal["pending", "inferred"]
Extent = Callable[[int], int]  # of the first blocks of a prompt; int: all blocks count alike


class Above(NamedTuple):
    """What comes before some blocks of a prompt: the digest of the last block before them, and how many there are."""

    parent: bytes | None
    blocks: int


FIRST = Above(None, 0)


class Stretch:
    """Blocks in a row with one state: whatever used or showed one of them used or showed all. Dispatches that end inside it split it."""

    __slots__ = ("children", "digests", "inferred_at_s", "last", "namespace", "parent", "pending", "since", "start")

    def __init__(self, namespace: bytes, digests: tuple[bytes, ...], parent: bytes | None, ticket: int, start: int) -> None:
        self.namespace = namespace
        self.digests = digests
        self.start = start  # how many blocks of the prompt come before the first
        self.parent = parent  # digest of the block before the first; a chain's digest has one parent only
        self.since = ticket  # of the dispatch that made the blocks: earlier ones never counted on them
        self.last = ticket  # of the latest dispatch that used them
        self.children = 0  # stretches that continued it: with several it stays apart from each
        self.pending = 0  # dispatches in flight that will make them resident
        self.inferred_at_s: float | None = None  # last time an answer showed them resident

    @property
    def source(self) -> Source:
        return "pending" if self.inferred_at_s is None else "inferred"

    def age_s(self, now_s: float) -> float:
        return 0.0 if self.inferred_at_s is None else max(0.0, now_s - self.inferred_at_s)

    def shown(self, at_s: float) -> None:
        if self.inferred_at_s is None or self.inferred_at_s < at_s:  # a sibling's word may come late
            self.inferred_at_s = at_s

    def common(self, digests: Sequence[bytes], place: int) -> int:
        """How many of its blocks ``digests`` has from ``place`` on, where its first block is. Of chains, equal ends are equal throughout."""
        mine = self.digests
        high = min(len(mine), len(digests) - place)
        if mine[high - 1] == digests[place + high - 1]:
            return high
        low = 1
        while low < high:
            middle = (low + high) // 2
            if mine[middle] == digests[place + middle]:
                low = middle + 1
            else:
                high = middle
        return low


class Held:
    """One owner's blocks at a replica: by namespace and digest, and in stretches, the least recently used first. Within a stretch the leaf is the
    least recently used. Its size is the sum of what its blocks cover: ``extent`` says how much the first so many blocks of a prompt do."""

    __slots__ = ("extent", "order", "size", "where")

    def __init__(self, extent: Extent = int) -> None:
        self.extent = extent
        self.where: dict[bytes, dict[bytes, Stretch]] = {}
        self.order: OrderedDict[Stretch, None] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def values(self) -> Iterator[Stretch]:
        return iter(self.order)

    def walk(self, namespace: bytes, digests: Sequence[bytes], since_s: float = -math.inf) -> list[tuple[Stretch, int]]:
        """The stretches that the held prefix of ``digests`` lies in, and how many blocks of each; as far as a dispatch in flight or an answer not
        older than ``since_s`` says so."""
        row = self.where.get(namespace)
        found: list[tuple[Stretch, int]] = []
        if row is None:
            return found
        place, most = 0, len(digests)
        while place < most and (stretch := row.get(digests[place])) is not None and (mine := stretch.digests)[0] == digests[place]:
            shown_s = stretch.inferred_at_s
            if shown_s is not None and shown_s < since_s and not stretch.pending:
                break
            count = min(len(mine), most - place)
            if mine[count - 1] != digests[place + count - 1]:
                count = stretch.common(digests, place)
            found.append((stretch, count))
            place += count
        return found

    def whole(self, namespace: bytes, digests: Sequence[bytes], ticket: int) -> list[Stretch]:
        """As :meth:`walk`, each one split where ``digests`` leaves it; of those alone that the dispatch of ``ticket`` counts on."""
        stretches: list[Stretch] = []
        for stretch, count in self.walk(namespace, digests):
            if stretch.since > ticket:
                continue
            if count == len(stretch.digests):
                stretches.append(stretch)
                continue
            stretches.append(self.split(stretch, count))
            for above in reversed(stretches[:-1]):
                self.order.move_to_end(above)
        return stretches

    def split(self, stretch: Stretch, count: int) -> Stretch:
        """Cut the first ``count`` blocks off as a stretch of their own, the most recently used; the rest stays where it is."""
        head = Stretch(stretch.namespace, stretch.digests[:count], stretch.parent, stretch.since, stretch.start)
        head.children = 1
        head.last, head.pending, head.inferred_at_s = stretch.last, stretch.pending, stretch.inferred_at_s
        stretch.digests, stretch.parent, stretch.start = stretch.digests[count:], head.digests[-1], stretch.start + count
        self.where[head.namespace].update(dict.fromkeys(head.digests, head))
        self.order[head] = None
        return head

    def join(self, first: Stretch, second: Stretch) -> bool:
        """Make one stretch, ``first``, of two in a row that nothing tells apart any more once the next dispatch has used both.

        Nobody in flight counted on either, so ``since`` matters to no settlement.
        """
        if first.pending or second.pending or first.inferred_at_s != second.inferred_at_s or first.children != 1:
            return False
        first.digests += second.digests
        first.since = max(first.since, second.since)
        first.children = second.children
        self.where[first.namespace].update(dict.fromkeys(second.digests, first))
        del self.order[second]
        return True

    def joined(self, stretches: list[Stretch]) -> list[Stretch]:
        """The same blocks in as few stretches as the next dispatch, of all of them, allows."""
        kept = stretches[:1]
        for stretch in stretches[1:]:
            if not self.join(kept[-1], stretch):
                kept.append(stretch)
        return kept

    def use(self, namespace: bytes, digests: tuple[bytes, ...], ticket: int, above: Above = FIRST, *, joining: bool = False) -> list[Stretch]:
        """The stretches of all of ``digests``, those that were missing included, as the most recently used."""
        first = self.where.get(namespace, {}).get(digests[0])
        if first is not None and first.digests[0] != digests[0]:  # what another index told begins anywhere in a chain
            self.split(first, first.digests.index(digests[0]))
        stretches = self.whole(namespace, digests, ticket)
        if joining and len(stretches) > 1:
            stretches = self.joined(stretches)
        place = sum(len(stretch.digests) for stretch in stretches)
        if place < len(digests):
            row = self.where.setdefault(namespace, {})
            rest = digests[place:]
            if not row.keys().isdisjoint(rest):  # beyond a hole, which no chain has: forget what is there
                for digest in rest:
                    if digest in row:
                        self.remove(row[digest])
                row = self.where.setdefault(namespace, {})
            made = Stretch(namespace, rest, digests[place - 1] if place else above.parent, ticket, above.blocks + place)
            row.update(dict.fromkeys(rest, made))
            self.order[made] = None
            self.size += self.extent(above.blocks + len(digests)) - self.extent(above.blocks + place)
            if stretches:
                stretches[-1].children += 1
            stretches.append(made)
        for stretch in reversed(stretches):  # root last, so leaves are evicted first
            self.order.move_to_end(stretch)
        return stretches

    def leaves(self, stretch: Stretch, size: int) -> int:
        """How many of its last blocks cover ``size``, or all."""
        extent, end = self.extent, stretch.start + len(stretch.digests)
        return bisect_left(range(len(stretch.digests)), size, key=lambda count: extent(end) - extent(end - count))

    def remove(self, stretch: Stretch) -> None:
        self.cut(stretch, len(stretch.digests))

    def cut(self, stretch: Stretch, count: int) -> None:
        """Forget its last ``count`` blocks."""
        row = self.where[stretch.namespace]
        keep = len(stretch.digests) - count
        for digest in stretch.digests[keep:]:
            del row[digest]
        self.size -= self.extent(stretch.start + keep + count) - self.extent(stretch.start + keep)
        if keep:
            stretch.digests = stretch.digests[:keep]
            return
        del self.order[stretch]
        if not row:
            del self.where[stretch.namespace]
