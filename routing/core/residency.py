"""Residency from routing history: which replica probably holds which prefix, learned from what this router sent where.

Advice, never law: a wrong entry costs milliseconds. The index is keyed by namespace first, so no namespace sees or influences another's.
An entry is *pending* from dispatch, *inferred* from the first byte on, and fades with age; it is dropped on refusal. Each replica's entries are
bounded by what its cache can hold, leaves first, as engines evict. Every entry is some *owner's* (a tenant's): who holds most of a full replica pays
first, and nobody is pushed below an equal share, so that no tenant can evict what another's modest traffic taught. What was sent
together is kept together (:mod:`routing.core.stretches`).

Where history was lost (evicted, or a prompt of which nobody knows whether it ran) the namespace has a *gap* there until the replica is forgotten:
:meth:`HistoryIndex.explained` then says that it cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, takewhile
from typing import NamedTuple

from routing.core.prefix import DIGEST_BYTES
from routing.core.stretches import FIRST, Above, Extent, Held, Source, Stretch

P_EVENT = 0.995  # not less: of a context of 100k tokens each hundredth is a thousand tokens that nobody will compute, in the queue as in the price
P_PENDING = 0.65  # what is ahead in an engine's queue will be cached in time unless it fails; surer than this, all would join one leader
P_INFERRED = 0.80
AGE_CONSTANT_S = 300.0  # tau of the confidence's decay, for chat; the median reuse gap of chat traces is of that order
DEFAULT_CAPACITY_BLOCKS = 50_000
MAX_GAPS = 256  # namespaces with gaps, for each owner at a replica; with more of them, all of the owner's count as such
MAX_STRETCHES = 32  # bounds the work of a match in a conversation of many turns


class Match(NamedTuple):
    """What of a prompt a replica probably holds.

    ``confidence`` in [0, 0.97] is the mean over what the matched blocks cover, so that times ``confidence`` is what is expected to hit; ``source``
    and ``age_s`` are those of the last matched block, the weakest.
    """

    blocks: int
    confidence: float
    source: Source | None
    age_s: float


NO_MATCH = Match(blocks=0, confidence=0.0, source=None, age_s=0.0)


class Resident(NamedTuple):
    """A block that an answer showed resident, as one index tells another. Keys are namespace + digest."""

    key: bytes
    parent: bytes | None
    inferred_at_s: float


_NONE = Held()  # what an unknown owner holds; never written to


class _Replica:
    """One replica's blocks by owner."""

    __slots__ = ("capacity_blocks", "evicted", "extent", "gaps", "owners", "size")

    def __init__(self, capacity_blocks: int, extent: Extent) -> None:
        self.capacity_blocks = capacity_blocks
        self.extent = extent
        self.owners: dict[bytes, Held] = {}
        self.gaps: dict[bytes, set[bytes] | None] = {}  # by owner: namespaces whose history is not whole; None: none is
        self.size = 0
        self.evicted = 0

    def held(self, owner: bytes) -> Held:
        return self.owners.get(owner, _NONE)

    def use(
        self, owner: bytes, namespace: bytes, digests: tuple[bytes, ...], ticket: int, above: Above = FIRST, *, joining: bool = False
    ) -> list[Stretch]:
        held = self.owners.get(owner)
        if held is None:
            held = self.owners[owner] = Held(self.extent)
        before = held.size
        stretches = held.use(namespace, digests, ticket, above, joining=joining)
        self.size += held.size - before
        return stretches

    def forget(self, owner: bytes, stretch: Stretch) -> None:
        """Drop blocks that never came true."""
        held = self.owners[owner]
        before = held.size
        held.remove(stretch)
        self.size -= before - held.size
        if not held:
            del self.owners[owner]

    def trim(self) -> None:
        """Evict down to the bound: from whoever holds most, and from nobody below an equal share of it."""
        while self.size > self.capacity_blocks:
            payer = max(self.owners, key=lambda owner: (len(self.owners[owner]), owner))
            held = self.owners[payer]
            over_share = len(held) - self.capacity_blocks // len(self.owners)  # > 0: the largest holds more than the mean
            left = min(over_share, self.size - self.capacity_blocks)
            while left:
                stretch = next(iter(held.order))
                before = held.size
                self.add_gap(payer, stretch.namespace)
                held.cut(stretch, held.leaves(stretch, left))
                gone = before - held.size
                self.size -= gone
                self.evicted += gone
                left -= min(left, gone)
            if not held:
                del self.owners[payer]

    def add_gap(self, owner: bytes, namespace: bytes) -> None:
        gaps = self.gaps.setdefault(owner, set())
        if gaps is not None:
            gaps.add(namespace)
            if len(gaps) > MAX_GAPS:
                self.gaps[owner] = None

    def is_whole(self, owner: bytes, namespace: bytes) -> bool:
        gaps = self.gaps.get(owner, _NO_GAPS)
        return gaps is not None and namespace not in gaps


_NO_GAPS: set[bytes] = set()


class HistoryIndex:
    """All replicas' histories. Not thread-safe: one event loop owns it. ``now_s`` is monotonic and given by the caller.

    ``owner`` is whose budget a namespace's entries count against; one namespace has one owner. ``hits`` and ``misses`` count look-ups. ``extent``
    says how much the first so many blocks of a prompt cover, where blocks are not all of one size: bounds, sizes and confidences are by that measure.
    """

    def __init__(self, *, capacity_blocks: int = DEFAULT_CAPACITY_BLOCKS, extent: Extent = int) -> None:
        self._capacity_blocks = capacity_blocks
        self._extent = extent
        self._replicas: dict[str, _Replica] = {}
        self._dispatches = 0
        self.hits = 0
        self.misses = 0

    def match(
        self,
        namespace: bytes,
        digests: Sequence[bytes],
        replica: str,
        now_s: float,
        *,
        owner: bytes = b"",
        max_age_s: float = math.inf,
        tau_s: float = AGE_CONSTANT_S,
    ) -> Match:
        """The longest prefix of ``digests`` that ``replica`` holds in ``namespace``, as far as answers younger than ``max_age_s`` or dispatches in
        flight say so. ``tau_s`` is how fast what answers said fades (:mod:`routing.core.age`).

        Along a chain, presence, age and promises are monotone: whatever touches a block touches all before it.
        """
        held = self._replicas.get(replica)
        found = [] if held is None else held.held(owner).walk(namespace, digests, since_s=now_s - max_age_s)
        if not found:
            self.misses += 1
            return NO_MATCH
        self.hits += 1
        leaf, extent = found[-1][0], self._extent
        blocks = covered = kinds = 0
        expected = probability = 0.0
        shown_s, promised = None, False
        for stretch, count in found:
            if kinds == 0 or (kinds <= MAX_STRETCHES and (stretch.inferred_at_s != shown_s or (stretch.pending > 0) != promised)):
                reached = extent(blocks)
                expected += (reached - covered) * probability
                covered, kinds = reached, kinds + 1
                one = stretch if kinds <= MAX_STRETCHES else leaf  # beyond the bound: no less than the weakest
                shown_s, promised = one.inferred_at_s, one.pending > 0
                probability = _probability(shown_s, promised, now_s, tau_s)
            blocks += count
        reached = extent(blocks)
        return Match(blocks, (expected + (reached - covered) * probability) / reached, leaf.source, leaf.age_s(now_s))

    def _held(self, replica: str) -> _Replica:
        held = self._replicas.get(replica)
        if held is None:
            held = self._replicas[replica] = _Replica(self._capacity_blocks, self._extent)
        return held

    def _walk(self, namespace: bytes, digests: Sequence[bytes], replica: str, owner: bytes) -> list[tuple[Stretch, int]]:
        held = self._replicas.get(replica)
        return [] if held is None else held.held(owner).walk(namespace, digests)

    def settled(self, namespace: bytes, digests: Sequence[bytes], replica: str, *, owner: bytes = b"") -> int:
        """How many leading blocks some answer showed resident at ``replica``, however long ago: what no dispatch in flight is needed for."""
        found = self._walk(namespace, digests, replica, owner)
        return sum(count for _, count in takewhile(lambda one: one[0].inferred_at_s is not None, found))

    def explained(self, namespace: bytes, digests: Sequence[bytes], replica: str, ticket: int, *, owner: bytes = b"") -> int | None:
        """How many leading blocks other dispatches than that of ``ticket`` put at ``replica``, whatever their age: the most that the namespace's own
        history can explain of a hit. None where that history has gaps."""
        held = self._replicas.get(replica)
        if held is None or not held.is_whole(owner, namespace):
            return None
        found = held.held(owner).walk(namespace, digests)
        return sum(count for _, count in takewhile(lambda one: not one[0].since == one[0].last == ticket, found))

    def explained_anywhere(self, namespace: bytes, digests: Sequence[bytes], tickets: Mapping[str, int], *, owner: bytes = b"") -> int | None:
        """As :meth:`explained`, the most of several replicas, each with the ticket not to count there (0: none)."""
        found = [self.explained(namespace, digests, one, ticket, owner=owner) for one, ticket in tickets.items() if one in self._replicas]
        return None if not found or None in found else max(one for one in found if one is not None)

    def dispatched(self, namespace: bytes, digests: Sequence[bytes], replica: str, *, owner: bytes = b"") -> int:
        """Count a prompt as residency-to-be at ``replica``, from the moment it is sent.

        Returns the ticket by which this dispatch is settled, once: :meth:`confirmed` or :meth:`dropped`. Entries that were evicted or forgotten
        and came back meanwhile belong to later dispatches, so a late settlement never takes away what those promise.
        """
        self._dispatches += 1
        ticket = self._dispatches
        held = self._held(replica)
        if not digests:
            return ticket
        for stretch in held.use(owner, namespace, tuple(digests), ticket, joining=True):
            stretch.pending += 1
            stretch.last = ticket
        held.trim()
        return ticket

    def confirmed(self, namespace: bytes, digests: Sequence[bytes], replica: str, ticket: int, now_s: float, *, owner: bytes = b"") -> None:
        """The prompt's prefill ran (first byte seen, or cancelled after upstream headers): pending becomes inferred."""
        for stretch in self._counted(namespace, digests, replica, ticket, owner):
            stretch.pending -= 1
            stretch.shown(now_s)

    def dropped(self, namespace: bytes, digests: Sequence[bytes], replica: str, ticket: int, *, owner: bytes = b"", certain: bool = True) -> None:
        """The prompt was refused or never arrived: what only it promised is forgotten. Not ``certain``: it may have run all the same."""
        held = self._replicas.get(replica)
        if held is None:
            return
        for stretch in self._counted(namespace, digests, replica, ticket, owner):
            stretch.pending -= 1
            if stretch.pending == 0 and stretch.inferred_at_s is None:
                held.forget(owner, stretch)
        if not certain:
            held.add_gap(owner, namespace)

    def _counted(self, namespace: bytes, digests: Sequence[bytes], replica: str, ticket: int, owner: bytes) -> list[Stretch]:
        """The stretches that the dispatch of ``ticket`` counted on and that are still the same."""
        held = self._replicas.get(replica)
        return [] if held is None else held.held(owner).whole(namespace, digests, ticket)

    def known(self, namespace: bytes, digests: Sequence[bytes], replica: str, *, owner: bytes = b"") -> int:
        """How many leading blocks are in the index, whatever their evidence; not counted as a look-up."""
        return sum(count for _, count in self._walk(namespace, digests, replica, owner))

    def chain_to(self, namespace: bytes, digest: bytes, replica: str, *, owner: bytes = b"") -> tuple[bytes, ...] | None:
        """The digests from a prompt's beginning to ``digest``; None where that is not in the index."""
        held = self._replicas.get(replica)
        row = {} if held is None else held.held(owner).where.get(namespace, {})
        parts: list[tuple[bytes, ...]] = []
        wanted: bytes | None = digest
        while wanted is not None:
            stretch = row.get(wanted)
            if stretch is None:
                return None
            parts.append(stretch.digests[: stretch.digests.index(wanted) + 1])
            wanted = stretch.parent
        return tuple(chain.from_iterable(reversed(parts)))

    def owners(self, replica: str) -> dict[bytes, int]:
        """The extent of the blocks held at ``replica``, by owner."""
        held = self._replicas.get(replica)
        return {} if held is None else {owner: len(entries) for owner, entries in held.owners.items()}

    def recent(self, replica: str, owner: bytes, most: int) -> list[Resident]:
        """Up to ``most`` of an owner's most recently used blocks that an answer showed, oldest first. With a block come all before it."""
        held = self._replicas.get(replica)
        stretches = () if held is None else reversed(held.held(owner).order)
        newest = chain.from_iterable(_residents(stretch) for stretch in stretches if stretch.inferred_at_s is not None)
        return list(islice(newest, most))[::-1]

    def restore(self, residents: Sequence[Resident], replica: str, *, owner: bytes = b"") -> None:
        """Take in what another index's :meth:`recent` gave, in that order and whole: a block without all before it must not get in. What is known
        already keeps the younger of both evidences."""
        if not residents:
            return
        self._dispatches += 1
        held = self._held(replica)
        depths: dict[bytes, int] = {}
        for one in reversed(residents):  # a block comes after those that continue it
            depths[one.key] = 1 + (0 if one.parent is None else depths.get(one.parent, 0))
        for run in _runs(residents):
            namespace, parent = run[0].key[:-DIGEST_BYTES], run[0].parent
            above = FIRST if parent is None else Above(parent[-DIGEST_BYTES:], depths[run[0].key] - 1)
            for stretch in held.use(owner, namespace, tuple(one.key[-DIGEST_BYTES:] for one in run), self._dispatches, above):
                stretch.shown(run[0].inferred_at_s)
        held.trim()

    def set_capacity(self, replica: str, capacity_blocks: int) -> None:
        """Bound one replica's entries by what its engine says it can hold, as an extent."""
        held = self._held(replica)
        held.capacity_blocks = max(1, capacity_blocks)
        held.trim()

    def forget(self, replica: str) -> None:
        """The replica restarted, was flushed or removed: it holds nothing."""
        self._replicas.pop(replica, None)

    def forget_owner(self, owner: bytes) -> None:
        """The owner is gone: none of its namespaces can come again."""
        for held in self._replicas.values():
            held.size -= len(held.owners.pop(owner, _NONE))
            held.gaps.pop(owner, None)

    def size(self, replica: str) -> int:
        """Extent of the blocks held at ``replica``."""
        held = self._replicas.get(replica)
        return 0 if held is None else held.size

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Extent of the blocks held and of those evicted so far, by replica: for metrics."""
        return {name: (replica.size, replica.evicted) for name, replica in self._replicas.items()}


def _probability(inferred_at_s: float | None, promised: bool, now_s: float, tau_s: float) -> float:
    """That the engine holds a block: what an answer showed, faded by age, or what a dispatch in flight promises, whichever is more."""
    shown = 0.0 if inferred_at_s is None else P_INFERRED * math.exp(min(0.0, inferred_at_s - now_s) / tau_s)
    return max(shown, P_PENDING) if promised else shown


def _residents(stretch: Stretch) -> Iterator[Resident]:
    """Its blocks from the first on."""
    above = stretch.parent
    for digest in stretch.digests:
        yield Resident(stretch.namespace + digest, None if above is None else stretch.namespace + above, stretch.inferred_at_s or 0.0)
        above = digest


def _runs(residents: Sequence[Resident]) -> Iterator[list[Resident]]:
    """Blocks in a row that one answer showed, each run from its first block on; ``residents`` name a block before its parent."""
    run: list[Resident] = []
    for one in residents:
        if run and (run[-1].parent != one.key or run[-1].inferred_at_s != one.inferred_at_s):
            yield run[::-1]
            run = []
        run.append(one)
    if run:
        yield run[::-1]
