"""Replicas as the record shows them, written out only where somebody looks: a decision over 64 replicas needs one of them, most records none more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

from routing.core import ttft
from routing.core.ranks import OTHER_RANK
from routing.core.types import Ask, Candidate, Replica


class Row(NamedTuple):
    """A replica that was looked at. ``terms`` are its score's, in seconds, in the order of their names; ``estimate`` is None where nobody needed it
    yet."""

    replica: Replica
    estimate: ttft.Estimate | None = None
    terms: Sequence[float] = ()


class Weighed(Sequence[Candidate]):
    """All replicas of a decision, best first, refused ones last. Equal to another whose candidates are."""

    __slots__ = ("_ask", "_made", "_names", "_rows")

    def __init__(self, ask: Ask, rows: Sequence[Row], names: Sequence[str] = ()) -> None:
        self._ask = ask
        self._rows = rows
        self._names = names
        self._made: dict[int, Candidate] = {}

    @property
    def replicas(self) -> Iterator[Replica]:
        """What the candidates are made of, in their order: for questions that need no candidate."""
        return (row.replica for row in self._rows)

    def least_wait_s(self) -> float:
        """The least work of others, in seconds, ahead of the request at any replica that was not refused; there is one."""
        waits_s = (
            known.wait_s if (known := self._made.get(place) or row.estimate) is not None else ttft.wait_s(row.replica)
            for place, row in enumerate(self._rows)
            if row.replica.refusal is None
        )
        return min(waits_s)

    def best_matched_tokens(self) -> int:
        """The longest prefix that any of them probably holds; 0 of nobody."""
        return max(((self._made.get(place) or row.replica).matched_tokens for place, row in enumerate(self._rows)), default=0)

    def considered(self) -> int:
        """How many replicas; ranks of one are one."""
        return sum([row.replica.refusal != OTHER_RANK for row in self._rows])

    def of(self, replica_id: str) -> Candidate | None:
        """That replica's."""
        return next((self[place] for place, row in enumerate(self._rows) if row.replica.id == replica_id), None)

    def led_by(self, first: Candidate) -> Weighed:
        """The same replicas with ``first`` in the place of its own and before all others."""
        rows = sorted(self._rows, key=lambda row: row.replica.id != first.replica_id or row.replica.refusal == OTHER_RANK)
        led = Weighed(self._ask, rows, self._names)
        led._made[0] = first
        return led

    @overload
    def __getitem__(self, place: int) -> Candidate: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Candidate, ...]: ...
    def __getitem__(self, place: int | slice) -> Candidate | tuple[Candidate, ...]:
        if isinstance(place, slice):
            return tuple(self[one] for one in range(*place.indices(len(self._rows))))
        place = range(len(self._rows))[place]
        made = self._made.get(place)
        if made is None:
            row = self._rows[place]
            made = self._made[place] = weighed(self._ask, row.replica, dict(zip(self._names, row.terms, strict=False)), row.estimate)
        return made

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Weighed) else NotImplemented

    __hash__ = None  # type: ignore[assignment] # as of whatever can be equal without being the same


def weighed(ask: Ask, replica: Replica, terms: dict[str, float], estimate: ttft.Estimate | None = None) -> Candidate:
    """A replica as the record shows it. ``terms`` are its score's, in seconds; ``estimate`` is the expectation, where it is known already."""
    expected = estimate or ttft.estimate(ask, replica)
    return Candidate(
        replica_id=replica.id,
        replica_name=replica.name,
        refusal=replica.refusal,
        matched_tokens=replica.matched_tokens,
        expected_cached_tokens=expected.cached_tokens,
        uncached_tokens=expected.uncached_tokens,
        expected_ttft_s=expected.ttft_s,
        score_s=sum(terms.values()),
        queued_tokens=replica.queued_tokens,
        wait_s=expected.wait_s,
        in_flight=replica.in_flight,
        evidence=replica.evidence,
        evidence_age_s=replica.evidence_age_s,
        residency=replica.residency,
        terms=terms,
        foreign_tokens=replica.foreign_tokens,
        decodes=replica.active_decodes,
        lower_tokens=replica.lower_tokens,
        tier=replica.tier,
        adapter=replica.adapter,
        adapter_s=replica.adapter_s,
        slot=replica.slot,
        dp_rank=replica.dp_rank,
    )
