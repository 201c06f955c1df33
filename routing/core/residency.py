"""Residency from routing history: which replica probably holds which prefix, learned from what this router sent where.

Advice, never law: a wrong entry costs milliseconds. The index is keyed by namespace first, so no namespace sees or influences another's.
An entry is *pending* from dispatch, *inferred* from the first byte on, and fades with age; it is dropped on refusal. Each replica's entries are
bounded by what its cache can hold, leaves first, as engines evict. Memory: about 250 bytes an entry.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Source = Literal["pending", "inferred"]
P_PENDING = 0.50
P_INFERRED = 0.80
AGE_CONSTANT_S = 300.0  # tau of the confidence's decay, for chat; the median reuse gap of chat traces is of that order
DEFAULT_CAPACITY_BLOCKS = 50_000
MAX_STRETCHES = 32  # bounds the work of a match in a conversation of many turns


@dataclass(frozen=True, slots=True)
class Match:
    """What of a prompt a replica probably holds.

    ``confidence`` in [0, 0.97] is the mean over the matched blocks, so ``blocks * confidence`` is the number expected to hit; ``source`` and
    ``age_s`` are those of the last matched block, the weakest.
    """

    blocks: int
    confidence: float
    source: Source | None
    age_s: float


NO_MATCH = Match(blocks=0, confidence=0.0, source=None, age_s=0.0)


@dataclass(slots=True)
class _Entry:
    since: int  # ticket of the dispatch that made the entry: earlier ones never counted on it
    pending: int  # dispatches in flight that will make it resident
    inferred_at_s: float | None  # last time an answer showed it resident

    @property
    def source(self) -> Source:
        return "pending" if self.inferred_at_s is None else "inferred"

    def age_s(self, now_s: float) -> float:
        return 0.0 if self.inferred_at_s is None else max(0.0, now_s - self.inferred_at_s)

    def probability(self, now_s: float) -> float:
        """That the engine holds this block: what an answer showed, faded by age, or what a dispatch in flight promises, whichever is more."""
        shown = 0.0 if self.inferred_at_s is None else P_INFERRED * math.exp(-self.age_s(now_s) / AGE_CONSTANT_S)
        return max(shown, P_PENDING) if self.pending else shown

    def like(self, other: _Entry) -> bool:
        """Whether both have the same evidence, hence the same probability at any time."""
        return self.inferred_at_s == other.inferred_at_s and (self.pending > 0) == (other.pending > 0)


class _Replica:
    """One replica's blocks, least recently used first. Keys are namespace + digest: the namespace is part of every look-up."""

    __slots__ = ("capacity_blocks", "entries", "evicted")

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        self.entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self.evicted = 0

    def end_of_stretch(self, first: _Entry, namespace: bytes, digests: Sequence[bytes], positions: range) -> int:
        """Where, among ``positions`` in a held chain, the evidence begins to differ from that of ``first``."""
        return _first(positions, lambda position: not self.entries[namespace + digests[position]].like(first))

    def trim(self) -> None:
        while len(self.entries) > self.capacity_blocks:
            self.entries.popitem(last=False)
            self.evicted += 1


class HistoryIndex:
    """All replicas' histories. Not thread-safe: one event loop owns it. ``now_s`` is monotonic and given by the caller."""

    def __init__(self, *, capacity_blocks: int = DEFAULT_CAPACITY_BLOCKS) -> None:
        self._capacity_blocks = capacity_blocks
        self._replicas: dict[str, _Replica] = {}
        self._dispatches = 0

    def match(self, namespace: bytes, digests: Sequence[bytes], replica: str, now_s: float) -> Match:
        """The longest prefix of ``digests`` that ``replica`` holds in ``namespace``.

        Along a chain, presence, age and promises are monotone: whatever touches a block touches all before it. So bisection finds the end of the
        match and the ends of its stretches of equal evidence (about one for each turn of a conversation).
        """
        held = self._replicas.get(replica)
        if held is None:
            return NO_MATCH
        entries = held.entries
        blocks = _first(range(len(digests)), lambda position: namespace + digests[position] not in entries)
        if blocks == 0:
            return NO_MATCH
        leaf = entries[namespace + digests[blocks - 1]]
        expected_blocks, start = 0.0, 0
        for _ in range(MAX_STRETCHES):
            first = entries[namespace + digests[start]]
            end = held.end_of_stretch(first, namespace, digests, range(start, blocks))
            expected_blocks += (end - start) * first.probability(now_s)
            start = end
            if start == blocks:
                break
        expected_blocks += (blocks - start) * leaf.probability(now_s)  # beyond the bound: no less than the weakest
        return Match(blocks=blocks, confidence=expected_blocks / blocks, source=leaf.source, age_s=leaf.age_s(now_s))

    def dispatched(self, namespace: bytes, digests: Sequence[bytes], replica: str) -> int:
        """Count a prompt as residency-to-be at ``replica``, from the moment it is sent.

        Returns the ticket by which this dispatch is settled, once: :meth:`confirmed` or :meth:`dropped`. Entries that were evicted or forgotten
        and came back meanwhile belong to later dispatches, so a late settlement never takes away what those promise.
        """
        self._dispatches += 1
        held = self._replicas.setdefault(replica, _Replica(self._capacity_blocks))
        for digest in reversed(digests):  # root last: it is the most recently used, so leaves are evicted first
            key = namespace + digest
            entry = held.entries.get(key)
            if entry is None:
                held.entries[key] = _Entry(since=self._dispatches, pending=1, inferred_at_s=None)
            else:
                entry.pending += 1
                held.entries.move_to_end(key)
        held.trim()
        return self._dispatches

    def confirmed(self, namespace: bytes, digests: Sequence[bytes], replica: str, ticket: int, now_s: float) -> None:
        """The prompt's prefill ran (first byte seen, or cancelled after upstream headers): pending becomes inferred."""
        for _, entry in self._counted(namespace, digests, replica, ticket):
            entry.pending -= 1
            entry.inferred_at_s = now_s

    def dropped(self, namespace: bytes, digests: Sequence[bytes], replica: str, ticket: int) -> None:
        """The prompt was refused or never arrived: what only it promised is forgotten."""
        for key, entry in self._counted(namespace, digests, replica, ticket):
            entry.pending -= 1
            if entry.pending == 0 and entry.inferred_at_s is None:
                del self._replicas[replica].entries[key]

    def _counted(self, namespace: bytes, digests: Sequence[bytes], replica: str, ticket: int) -> Iterator[tuple[bytes, _Entry]]:
        """The entries that the dispatch of ``ticket`` counted on and that are still the same."""
        held = self._replicas.get(replica)
        if held is None:
            return
        for digest in digests:
            key = namespace + digest
            entry = held.entries.get(key)
            if entry is not None and entry.since <= ticket:
                yield key, entry

    def set_capacity(self, replica: str, capacity_blocks: int) -> None:
        """Bound one replica's entries by what its engine says it can hold."""
        held = self._replicas.setdefault(replica, _Replica(capacity_blocks))
        held.capacity_blocks = max(1, capacity_blocks)
        held.trim()

    def forget(self, replica: str) -> None:
        """The replica restarted, was flushed or removed: it holds nothing."""
        self._replicas.pop(replica, None)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Blocks held and blocks evicted so far, by replica: for metrics."""
        return {name: (len(replica.entries), replica.evicted) for name, replica in self._replicas.items()}


def _first(positions: range, holds: Callable[[int], bool]) -> int:
    """The first of ``positions`` for which ``holds``, or their end. Once it holds it must hold for all that follow."""
    return positions.start + bisect_left(positions, True, key=holds)
