"""Stored decisions: the list and its filters, and one record decoded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import get_args
from uuid import UUID

import msgspec
from django.db.models import Q
from django.utils.dateparse import parse_datetime

from routing import queries
from routing.core.record import CandidateRecord, DecisionRecord, Outcome
from routing.models import DecisionRow

PAGE_ROWS = 50
# Terms that tell of others on a shared replica: its queue, its working set, and what follows from both.
_LOAD_TERMS = frozenset({"wait", "pressure", "slo_guard"})
OUTCOMES: tuple[str, ...] = get_args(Outcome)


@dataclass(frozen=True, slots=True)
class Asked:
    """A list as a person asked for it. Malformed values narrow nothing, so that an old link still opens."""

    filter: queries.DecisionFilter
    missed: bool  # a match was predicted and the engine reported none of it
    before: datetime | None
    before_id: UUID | None

    @property
    def narrowed(self) -> bool:
        return self.missed or self.filter != queries.DecisionFilter()


def parse(query: Mapping[str, str]) -> Asked:
    """Read a list's filters and place from a query string."""
    before, before_id = cursor(query.get("before", ""))
    wanted = queries.DecisionFilter(
        endpoint_id=as_uuid(query.get("endpoint", "")),
        key_id=as_uuid(query.get("key", "")),
        outcome=query.get("outcome") if query.get("outcome") in OUTCOMES else None,
        slower_than_s=_milliseconds(query.get("slower", "")),
    )
    return Asked(filter=wanted, missed=query.get("missed") == "1", before=before, before_id=before_id)


@dataclass(frozen=True, slots=True)
class Page:
    """Rows, newest first, and the cursor of the next page or an empty text."""

    rows: tuple[DecisionRow, ...]
    next: str


def listed(tenant_id: UUID, asked: Asked) -> Page:
    """One page, inside the tenant scope; columns only, never the records."""
    found = queries.decisions(tenant_id, asked.filter)
    if asked.missed:
        found = found.filter(matched_tokens__gt=0, cached_tokens=0)
    if asked.before and asked.before_id:
        found = found.filter(Q(started_at__lt=asked.before) | Q(started_at=asked.before, id__lt=asked.before_id))
    rows = list(found.order_by("-started_at", "-id")[: PAGE_ROWS + 1])
    more = len(rows) > PAGE_ROWS
    rows = rows[:PAGE_ROWS]
    return Page(rows=tuple(rows), next=f"{rows[-1].started_at.isoformat()}~{rows[-1].id}" if more else "")


@dataclass(frozen=True, slots=True)
class Shown:
    """A record as one caller may read it, names of its replicas by id, and the ids of those whose load was taken out."""

    record: DecisionRecord
    names: dict[str, str]
    hidden: frozenset[str]


def shown(record: DecisionRecord, own_ids: set[str] | None) -> Shown:
    """Take out of ``record`` what is the platform's: names, load and working sets of replicas that other tenants use too.

    The tenant keeps its own terms (prefill, prices) and one rounded wait of the pool, that of the replica that was chosen. ``own_ids`` None is a
    platform operator, who reads everything.
    """
    names = {one.replica_id: one.replica_name for one in record.candidates}
    if record.replica_id:
        names.setdefault(record.replica_id, record.replica_name or record.replica_id)
    for attempt in record.attempts:
        names.setdefault(attempt.replica_id, attempt.replica_id)
    hidden = [] if own_ids is None else sorted(replica_id for replica_id in names if replica_id not in own_ids)
    if not hidden:
        return Shown(record=record, names=names, hidden=frozenset())
    names |= {replica_id: f"shared replica {number}" for number, replica_id in enumerate(hidden, start=1)}
    chosen = next((one for one in record.candidates if one.replica_id == record.replica_id), None)
    wait_s = rounded(chosen.terms.get("wait", 0.0)) if chosen else 0.0
    candidates = tuple(_without_load(one, names[one.replica_id], wait_s) if one.replica_id in hidden else one for one in record.candidates)
    replica_name = names.get(record.replica_id or "", record.replica_name)
    return Shown(record=msgspec.structs.replace(record, candidates=candidates, replica_name=replica_name), names=names, hidden=frozenset(hidden))


def rounded(value_s: float) -> float:
    """A wait to one significant digit, in steps of at least 10 ms: enough to explain a request, too coarse to watch others by."""
    if value_s < 0.01:
        return 0.0
    digits = -math.floor(math.log10(value_s))
    return round(value_s, min(digits, 2))


def _without_load(one: CandidateRecord, name: str, wait_s: float) -> CandidateRecord:
    terms = {term: value for term, value in one.terms.items() if term not in _LOAD_TERMS}
    if "wait" in one.terms:
        terms["wait"] = wait_s
    expected_s = wait_s + terms.get("prefill", 0.0)
    return msgspec.structs.replace(
        one, replica_name=name, in_flight=0, queued_tokens=0.0, terms=terms, score_s=sum(terms.values()), expected_ttft_s=expected_s
    )


def started_at(record: DecisionRecord) -> datetime:
    """When the request began, in UTC."""
    return datetime.fromtimestamp(record.started_at, tz=UTC)


def cursor(text: str) -> tuple[datetime | None, UUID | None]:
    """The moment and row id of a page's cursor; None for what is malformed."""
    moment, _, row_id = text.partition("~")
    return _moment(moment), as_uuid(row_id)


def as_uuid(text: str) -> UUID | None:
    """The UUID that ``text`` spells, or None."""
    try:
        return UUID(text.strip())
    except ValueError:
        return None


def _milliseconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value / 1000 if 0 <= value < 1e9 else None


def _moment(text: str) -> datetime | None:
    try:
        value = parse_datetime(text.replace(" ", "+"))
    except ValueError:
        return None
    return value if value is not None and value.tzinfo is not None else None
