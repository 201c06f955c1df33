"""Residency from routing history: which replica probably holds which prefix, learned from what this router sent where.

Advice, never law: a wrong entry costs milliseconds. The index is keyed by namespace first, so no namespace sees or influences another's.
An entry is *pending* from dispatch, *inferred* from the first byte on, and fades with age; it is dropped on refusal. Each replica's entries are
bounded by what its cache can hold, leaves first, as engines evict. Memory: about 250 bytes an entry.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Source = Literal["pending", "inferred"]
P_PENDING = 0.50
P_INFERRED = 0.80
AGE_CONSTANT_S = 300.0  # tau of the confidence's decay, for chat; the median reuse gap of chat traces is of that order
DEFAULT_CAPACITY_BLOCKS = 50_000


@dataclass(frozen=True, slots=True)
class Match:
    """What of a prompt a replica probably holds. ``confidence`` in [0, 0.97] is that of the weakest block of the matched chain."""

    blocks: int
    confidence: float
    source: Source | None
    age_s: float


NO_MATCH = Match(blocks=0, confidence=0.0, source=None, age_s=0.0)


@dataclass(slots=True)
class _Entry:
    pending: int  # dispatches in flight that will make it resident
    inferred_at_s: float | None  # last time an answer showed it resident


class _Replica:
    """One replica's blocks, least recently used first. Keys are namespace + digest: the namespace is part of every look-up."""

    __slots__ = ("capacity_blocks", "entries", "evicted")

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        self.entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self.evicted = 0

    def trim(self) -> None:
        while len(self.entries) > self.capacity_blocks:
            self.entries.popitem(last=False)
            self.evicted += 1


class HistoryIndex:
    """All replicas' histories. Not thread-safe: one event loop owns it. ``now_s`` is monotonic and given by the caller."""

    def __init__(self, *, capacity_blocks: int = DEFAULT_CAPACITY_BLOCKS) -> None:
        self._capacity_blocks = capacity_blocks
        self._replicas: dict[str, _Replica] = {}

    def match(self, namespace: bytes, digests: Sequence[bytes], replica: str, now_s: float) -> Match:
        """The longest prefix of ``digests`` that ``replica`` holds in ``namespace``.

        Presence is monotone along a chain (leaves go first), so a binary search finds its end.
        """
        held = self._replicas.get(replica)
        if held is None or not digests or namespace + digests[0] not in held.entries:
            return NO_MATCH
        low, high = 1, len(digests)  # blocks known present, upper bound
        while low < high:
            middle = (low + high + 1) // 2
            if namespace + digests[middle - 1] in held.entries:
                low = middle
            else:
                high = middle - 1
        # The leaf is the youngest to arrive and the first to go: its confidence bounds the chain's.
        entry = held.entries[namespace + digests[low - 1]]
        if entry.inferred_at_s is None:
            return Match(blocks=low, confidence=P_PENDING, source="pending", age_s=0.0)
        age_s = max(0.0, now_s - entry.inferred_at_s)
        confidence = P_INFERRED * math.exp(-age_s / AGE_CONSTANT_S)
        if entry.pending and confidence < P_PENDING:
            return Match(blocks=low, confidence=P_PENDING, source="pending", age_s=0.0)
        return Match(blocks=low, confidence=confidence, source="inferred", age_s=age_s)

    def dispatched(self, namespace: bytes, digests: Sequence[bytes], replica: str) -> None:
        """Count a prompt as residency-to-be at ``replica``, from the moment it is sent."""
        held = self._replicas.setdefault(replica, _Replica(self._capacity_blocks))
        for digest in reversed(digests):  # root last: it is the most recently used, so leaves are evicted first
            key = namespace + digest
            entry = held.entries.get(key)
            if entry is None:
                held.entries[key] = _Entry(pending=1, inferred_at_s=None)
            else:
                entry.pending += 1
                held.entries.move_to_end(key)
        held.trim()

    def confirmed(self, namespace: bytes, digests: Sequence[bytes], replica: str, now_s: float) -> None:
        """The prompt's prefill ran (first byte seen, or cancelled after upstream headers): pending becomes inferred."""
        for entry in self._held(namespace, digests, replica):
            entry.pending = max(0, entry.pending - 1)
            entry.inferred_at_s = now_s

    def dropped(self, namespace: bytes, digests: Sequence[bytes], replica: str) -> None:
        """The prompt was refused or never arrived: what only it promised is forgotten."""
        held = self._replicas.get(replica)
        if held is None:
            return
        for digest in digests:
            key = namespace + digest
            entry = held.entries.get(key)
            if entry is None:
                continue
            entry.pending = max(0, entry.pending - 1)
            if entry.pending == 0 and entry.inferred_at_s is None:
                del held.entries[key]

    def _held(self, namespace: bytes, digests: Sequence[bytes], replica: str) -> Iterable[_Entry]:
        held = self._replicas.get(replica)
        if held is not None:
            for digest in digests:
                entry = held.entries.get(namespace + digest)
                if entry is not None:
                    yield entry

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
