"""Residency from routing history: which replica probably holds which prefix, learned from what this router sent where.

Advice, never law: a wrong entry costs milliseconds. The index is keyed by namespace first, so no namespace sees or influences another's.
An entry is *pending* from dispatch, *inferred* from the first byte on, and fades with age; it is dropped on refusal. Each replica's entries are
bounded by what its cache can hold, leaves first, as engines evict. Every entry is some *owner's* (a tenant's): who holds most of a full replica pays
first, and nobody is pushed below an equal share, so that no tenant can evict what another's modest traffic taught. Memory: about 270 bytes an entry.

Where history was lost (evicted, or a prompt of which nobody knows whether it ran) the namespace has a *gap* there until the replica is forgotten:
:meth:`HistoryIndex.explained` then says that it cannot tell.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

from routing.core.prefix import DIGEST_BYTES

Source = Literal["pending", "inferred"]
P_EVENT = 0.995  # not less: of a context of 100k tokens each hundredth is a thousand tokens that nobody will compute, in the queue as in the price
P_PENDING = 0.75  # what is ahead in an engine's queue will be cached in time unless it fails; surer than this, all would join one leader
P_INFERRED = 0.80
AGE_CONSTANT_S = 300.0  # tau of the confidence's decay, for chat; the median reuse gap of chat traces is of that order
DEFAULT_CAPACITY_BLOCKS = 50_000
MAX_GAPS = 256  # namespaces with gaps, for each owner at a replica; with more of them, all of the owner's count as such
MAX_STRETCHES = 32  # bounds the work of a match in a conversation of many turns


class Match(NamedTuple):
    """What of a prompt a replica probably holds.

    ``confidence`` in [0, 0.97] is the mean over the matched blocks, so ``blocks * confidence`` is the number expected to hit; ``source`` and
    ``age_s`` are those of the last matched block, the weakest.
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


@dataclass(slots=True)
class _Entry:
    since: int  # ticket of the dispatch that made the entry: earlier ones never counted on it
    last: int  # ticket of the latest dispatch that used it
    pending: int  # dispatches in flight that will make it resident
    inferred_at_s: float | None  # last time an answer showed it resident
    parent: bytes | None  # key of the block before it; a chain's digest has one parent only

    @property
    def source(self) -> Source:
        return "pending" if self.inferred_at_s is None else "inferred"

    def age_s(self, now_s: float) -> float:
        return 0.0 if self.inferred_at_s is None else max(0.0, now_s - self.inferred_at_s)

    def probability(self, now_s: float, tau_s: float) -> float:
        """That the engine holds this block: what an answer showed, faded by age, or what a dispatch in flight promises, whichever is more."""
        shown = 0.0 if self.inferred_at_s is None else P_INFERRED * math.exp(-self.age_s(now_s) / tau_s)
        return max(shown, P_PENDING) if self.pending else shown

    def like(self, other: _Entry) -> bool:
        """Whether both have the same evidence, hence the same probability at any time."""
        return self.inferred_at_s == other.inferred_at_s and (self.pending > 0) == (other.pending > 0)


_NONE: OrderedDict[bytes, _Entry] = OrderedDict()  # what an unknown owner holds; never written to


class _Replica:
    """One replica's blocks by owner, least recently used first. Keys are namespace + digest: the namespace is part of every look-up."""

    __slots__ = ("capacity_blocks", "evicted", "gaps", "owners", "size")

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        self.owners: dict[bytes, OrderedDict[bytes, _Entry]] = {}
        self.gaps: dict[bytes, set[bytes] | None] = {}  # by owner: namespaces whose history is not whole; None: none is
        self.size = 0
        self.evicted = 0

    def held(self, owner: bytes) -> OrderedDict[bytes, _Entry]:
        return self.owners.get(owner, _NONE)

    def forget(self, owner: bytes, key: bytes) -> None:
        """Drop one entry that never came true."""
        entries = self.owners[owner]
        del entries[key]
        self.size -= 1
        if not entries:
            del self.owners[owner]

    def trim(self) -> None:
        """Evict down to the bound: from whoever holds most, and from nobody below an equal share of it."""
        while self.size > self.capacity_blocks:
            payer = max(self.owners, key=lambda owner: (len(self.owners[owner]), owner))
            entries = self.owners[payer]
            over_share = len(entries) - self.capacity_blocks // len(self.owners)  # > 0: the largest holds more than the mean
            for _ in range(min(over_share, self.size - self.capacity_blocks)):
                key, _entry = entries.popitem(last=False)
                self.add_gap(payer, key[:-DIGEST_BYTES])
                self.size -= 1
                self.evicted += 1
            if not entries:
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

    ``owner`` is whose budget a namespace's entries count against; one namespace has one owner. ``hits`` and ``misses`` count look-ups.
    """

    def __init__(self, *, capacity_blocks: int = DEFAULT_CAPACITY_BLOCKS) -> None:
        self._capacity_blocks = capacity_blocks
        self._replicas: dict[str, _Replica] = {}
        self._dispatches = 0
        self._last_keyed: tuple[Sequence[bytes] | None, bytes, Sequence[bytes]] = (None, b"", ())
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

        Along a chain, presence, age and promises are monotone: whatever touches a block touches all before it. So bisection finds the end of the
        match and the ends of its stretches of equal evidence (about one for each turn of a conversation).
        """
        held = self._replicas.get(replica)
        entries = _NONE if held is None else held.held(owner)
        keys = self._keyed(namespace, digests)
        blocks = _held_blocks(entries, keys)
        if max_age_s < math.inf:
            blocks = _first(range(blocks), lambda place: not (entry := entries[keys[place]]).pending and entry.age_s(now_s) > max_age_s)
        if blocks == 0:
            self.misses += 1
            return NO_MATCH
        self.hits += 1
        leaf = entries[keys[blocks - 1]]
        expected_blocks, start = 0.0, 0
        for _ in range(MAX_STRETCHES):
            first = entries[keys[start]]
            end = _end_of_stretch(entries, keys, start, blocks, leaf)
            expected_blocks += (end - start) * first.probability(now_s, tau_s)
            start = end
            if start == blocks:
                break
        expected_blocks += (blocks - start) * leaf.probability(now_s, tau_s)  # beyond the bound: no less than the weakest
        return Match(blocks=blocks, confidence=expected_blocks / blocks, source=leaf.source, age_s=leaf.age_s(now_s))

    def _keyed(self, namespace: bytes, digests: Sequence[bytes]) -> Sequence[bytes]:
        """The keys of a prompt's blocks. All replicas are asked about one prompt in turn, so the last answer is kept."""
        of, under, keys = self._last_keyed
        if of is not digests or under != namespace:
            keys = [namespace + digest for digest in digests]
            self._last_keyed = (digests if isinstance(digests, tuple) else None, namespace, keys)
        return keys

    def settled(self, namespace: bytes, digests: Sequence[bytes], replica: str, *, owner: bytes = b"") -> int:
        """How many leading blocks some answer showed resident at ``replica``, however long ago: what no dispatch in flight is needed for."""
        held = self._replicas.get(replica)
        entries = _NONE if held is None else held.held(owner)

        def promised(position: int) -> bool:
            entry = entries.get(namespace + digests[position])
            return entry is None or entry.inferred_at_s is None

        return _first(range(len(digests)), promised)

    def explained(self, namespace: bytes, digests: Sequence[bytes], replica: str, ticket: int, *, owner: bytes = b"") -> int | None:
        """How many leading blocks other dispatches than that of ``ticket`` put at ``replica``, whatever their age: the most that the namespace's own
        history can explain of a hit. None where that history has gaps."""
        held = self._replicas.get(replica)
        if held is None or not held.is_whole(owner, namespace):
            return None
        entries = held.held(owner)

        def unexplained(position: int) -> bool:
            entry = entries.get(namespace + digests[position])
            return entry is None or entry.since == entry.last == ticket

        return _first(range(len(digests)), unexplained)

    def dispatched(self, namespace: bytes, digests: Sequence[bytes], replica: str, *, owner: bytes = b"") -> int:
        """Count a prompt as residency-to-be at ``replica``, from the moment it is sent.

        Returns the ticket by which this dispatch is settled, once: :meth:`confirmed` or :meth:`dropped`. Entries that were evicted or forgotten
        and came back meanwhile belong to later dispatches, so a late settlement never takes away what those promise.
        """
        self._dispatches += 1
        ticket = self._dispatches
        held = self._replicas.setdefault(replica, _Replica(self._capacity_blocks))
        if not digests:
            return ticket
        entries = held.owners.setdefault(owner, OrderedDict())
        keys = [namespace + digest for digest in digests]
        for place in range(len(keys) - 1, -1, -1):  # root last: it is the most recently used, so leaves are evicted first
            key = keys[place]
            entry = entries.get(key)
            if entry is None:
                parent = keys[place - 1] if place else None
                entries[key] = _Entry(since=ticket, last=ticket, pending=1, inferred_at_s=None, parent=parent)
                held.size += 1
            else:
                entry.pending += 1
                entry.last = ticket
                entries.move_to_end(key)
        held.trim()
        return ticket

    def confirmed(self, namespace: bytes, digests: Sequence[bytes], replica: str, ticket: int, now_s: float, *, owner: bytes = b"") -> None:
        """The prompt's prefill ran (first byte seen, or cancelled after upstream headers): pending becomes inferred."""
        held = self._replicas.get(replica)
        entries = _NONE if held is None else held.held(owner)
        for digest in digests:  # as _counted does; a long prompt has thousands
            entry = entries.get(namespace + digest)
            if entry is None or entry.since > ticket:
                continue
            entry.pending -= 1
            if entry.inferred_at_s is None or entry.inferred_at_s < now_s:  # a sibling's word may come late
                entry.inferred_at_s = now_s

    def dropped(self, namespace: bytes, digests: Sequence[bytes], replica: str, ticket: int, *, owner: bytes = b"", certain: bool = True) -> None:
        """The prompt was refused or never arrived: what only it promised is forgotten. Not ``certain``: it may have run all the same."""
        held = self._replicas.get(replica)
        if held is None:
            return
        for key, entry in list(self._counted(namespace, digests, replica, ticket, owner)):
            entry.pending -= 1
            if entry.pending == 0 and entry.inferred_at_s is None:
                held.forget(owner, key)
        if not certain:
            held.add_gap(owner, namespace)

    def _counted(self, namespace: bytes, digests: Sequence[bytes], replica: str, ticket: int, owner: bytes) -> Iterator[tuple[bytes, _Entry]]:
        """The entries that the dispatch of ``ticket`` counted on and that are still the same."""
        held = self._replicas.get(replica)
        entries = _NONE if held is None else held.held(owner)
        for digest in digests:
            key = namespace + digest
            entry = entries.get(key)
            if entry is not None and entry.since <= ticket:
                yield key, entry

    def known(self, namespace: bytes, digests: Sequence[bytes], replica: str, *, owner: bytes = b"") -> int:
        """How many leading blocks are in the index, whatever their evidence; not counted as a look-up."""
        held = self._replicas.get(replica)
        entries = _NONE if held is None else held.held(owner)
        return _first(range(len(digests)), lambda position: namespace + digests[position] not in entries)

    def chain_to(self, namespace: bytes, digest: bytes, replica: str, *, owner: bytes = b"") -> tuple[bytes, ...] | None:
        """The digests from a prompt's beginning to ``digest``; None where that is not in the index."""
        held = self._replicas.get(replica)
        entries = _NONE if held is None else held.held(owner)
        chain: list[bytes] = []
        key: bytes | None = namespace + digest
        while key is not None:
            entry = entries.get(key)
            if entry is None:
                return None
            chain.append(key[-DIGEST_BYTES:])
            key = entry.parent
        return tuple(reversed(chain))

    def owners(self, replica: str) -> dict[bytes, int]:
        """Blocks held at ``replica``, by owner."""
        held = self._replicas.get(replica)
        return {} if held is None else {owner: len(entries) for owner, entries in held.owners.items()}

    def recent(self, replica: str, owner: bytes, most: int) -> list[Resident]:
        """Up to ``most`` of an owner's most recently used blocks that an answer showed, oldest first. With a block come all before it."""
        held = self._replicas.get(replica)
        entries = _NONE if held is None else held.held(owner)
        newest = ((key, entry) for key, entry in reversed(entries.items()) if entry.inferred_at_s is not None)
        return [Resident(key, entry.parent, entry.inferred_at_s or 0.0) for key, entry in islice(newest, most)][::-1]

    def restore(self, residents: Sequence[Resident], replica: str, *, owner: bytes = b"") -> None:
        """Take in what another index's :meth:`recent` gave, in that order and whole: a block without all before it must not get in. What is known
        already keeps the younger of both evidences."""
        if not residents:
            return
        self._dispatches += 1
        held = self._replicas.setdefault(replica, _Replica(self._capacity_blocks))
        entries = held.owners.setdefault(owner, OrderedDict())
        for key, parent, inferred_at_s in residents:
            entry = entries.get(key)
            if entry is None:
                ticket = self._dispatches
                entries[key] = _Entry(since=ticket, last=ticket, pending=0, inferred_at_s=inferred_at_s, parent=parent)
                held.size += 1
                continue
            entries.move_to_end(key)
            entry.inferred_at_s = inferred_at_s if entry.inferred_at_s is None else max(inferred_at_s, entry.inferred_at_s)
        held.trim()

    def set_capacity(self, replica: str, capacity_blocks: int) -> None:
        """Bound one replica's entries by what its engine says it can hold."""
        held = self._replicas.setdefault(replica, _Replica(capacity_blocks))
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

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Blocks held and blocks evicted so far, by replica: for metrics."""
        return {name: (replica.size, replica.evicted) for name, replica in self._replicas.items()}


def _held_blocks(entries: Mapping[bytes, _Entry], keys: Sequence[bytes]) -> int:
    """How many of the leading keys are held, by bisection."""
    low, high = 0, len(keys)
    if not high or keys[0] not in entries:
        return 0
    while low < high:
        middle = (low + high) // 2
        if keys[middle] in entries:
            low = middle + 1
        else:
            high = middle
    return low


def _end_of_stretch(entries: Mapping[bytes, _Entry], keys: Sequence[bytes], start: int, end: int, leaf: _Entry) -> int:
    """Where, in the held chain from ``start`` to ``end``, the evidence begins to differ from that of the first; ``leaf`` is the last."""
    first = entries[keys[start]]
    if first.like(leaf):
        return end
    low, high = start + 1, end
    while low < high:
        middle = (low + high) // 2
        if entries[keys[middle]].like(first):
            low = middle + 1
        else:
            high = middle
    return low


def _first(positions: range, holds: Callable[[int], bool]) -> int:
    """The first of ``positions`` for which ``holds``, or their end. Once it holds it must hold for all that follow."""
    return positions.start + bisect_left(positions, True, key=holds)
