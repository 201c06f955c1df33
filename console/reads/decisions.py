"""Stored decisions: the list and its filters, and one record decoded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import get_args
from uuid import UUID

from django.db.models import Q
from django.db.models.fields.json import KT
from django.utils.dateparse import parse_datetime

from routing import queries
from routing.core.record import DecisionRecord, Outcome
from routing.models import DecisionRow, Replica

PAGE_ROWS = 50
NAMESPACE_WITHIN = timedelta(hours=24)  # no index leads to a namespace, so the rows of a day are looked through at most: the last of the range
WITHIN = {"15m": timedelta(minutes=15), "1h": timedelta(hours=1), "24h": timedelta(hours=24)}  # ranges that end now
BETWEEN = "between"  # the range that is given by its two ends
RANGES = (("", "any time"), ("15m", "last 15 minutes"), ("1h", "last hour"), ("24h", "last 24 hours"), (BETWEEN, "from … to"))
NAMESPACE = re.compile(r"[A-Za-z0-9_-]{1,64}")
OUTCOMES: tuple[str, ...] = get_args(Outcome)
_FIRST = datetime.min.replace(tzinfo=UTC) + NAMESPACE_WITHIN  # before it there are no dates to count back to


@dataclass(frozen=True, slots=True)
class Asked:
    """A list as a person asked for it. A malformed value narrows nothing, so that an old link still opens; what is wrong with times is told."""

    filter: queries.DecisionFilter
    within: str  # a name of WITHIN, BETWEEN, or empty for any time
    missed: bool  # a match was predicted and the engine reported none of it
    namespace: str  # its public id, or empty; looked for within NAMESPACE_WITHIN
    before: datetime | None
    before_id: UUID | None
    wrong: Mapping[str, str] = field(default_factory=dict)  # by field of the range; nothing is listed then

    @property
    def narrowed(self) -> bool:
        return self.missed or bool(self.namespace or self.within or self.wrong) or self.filter != queries.DecisionFilter()


def parse(query: Mapping[str, str], *, now: datetime) -> Asked:
    """Read a list's filters and place from a query string."""
    before, before_id = cursor(query.get("before", ""))
    within, since, until, wrong = _time_range(query, now)
    wanted = queries.DecisionFilter(
        endpoint_id=as_uuid(query.get("endpoint", "")),
        key_id=as_uuid(query.get("key", "")),
        replica_id=str(replica_id) if (replica_id := as_uuid(query.get("replica", ""))) else None,
        outcome=query.get("outcome") if query.get("outcome") in OUTCOMES else None,
        since=since,
        until=until,
        slower_than_s=_milliseconds(query.get("slower", "")),
        audits="only" if query.get("audits") == "only" else "none",
    )
    namespace = query.get("namespace", "")
    return Asked(
        filter=wanted,
        within=within,
        missed=query.get("missed") == "1",
        namespace=namespace if NAMESPACE.fullmatch(namespace) else "",
        before=before,
        before_id=before_id,
        wrong=wrong,
    )


def _time_range(query: Mapping[str, str], now: datetime) -> tuple[str, datetime | None, datetime | None, dict[str, str]]:
    """The range's name, its ends, and what is wrong by field. Two ends alone are a range too, as links have them."""
    within = query.get("within", "")
    ends = {name: query.get(name, "").strip() for name in ("from", "to")}
    if within in WITHIN:
        wrong = {name: "This range ends now. Choose “from … to” to give its ends." for name, text in ends.items() if text}
        return within, now - WITHIN[within], None, wrong
    if within not in ("", BETWEEN):
        return "", None, None, {"within": f"Choose one of: {', '.join(WITHIN)}, {BETWEEN}."}
    times = {name: utc(text) for name, text in ends.items() if text}
    wrong = {name: "This is no time. Write it in UTC, such as 2027-01-31T12:00." for name, moment in times.items() if moment is None}
    since, until = times.get("from"), times.get("to")
    if since and until and until <= since:
        wrong["to"] = "The end must be after the begin."
    return BETWEEN if times or within else "", since, until, wrong


def utc(text: str) -> datetime | None:
    """A moment as a form or a person writes it: ISO 8601, in UTC where it names no zone, a date alone for its begin; None for what is none."""
    try:
        value = datetime.fromisoformat(text.strip().replace(" +", "+"))
        value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return value


@dataclass(frozen=True, slots=True)
class Page:
    """Rows, newest first, each with its ``error_code`` or None, and the cursor of the next page or an empty text."""

    rows: tuple[DecisionRow, ...]
    next: str


def listed(tenant_id: UUID, asked: Asked, *, now: datetime) -> Page:
    """One page, inside the tenant scope; columns and the code of what failed, never whole records. Empty where the range is wrong."""
    if asked.wrong:
        return Page(rows=(), next="")
    found = queries.decisions(tenant_id, asked.filter)
    if asked.missed:
        found = found.filter(matched_tokens__gt=0, cached_tokens=0)
    if asked.namespace:
        newest = min(asked.filter.until or now, now)
        oldest = newest - NAMESPACE_WITHIN if newest > _FIRST else newest
        found = found.filter(record__namespace=asked.namespace, started_at__gte=oldest)
    if asked.before and asked.before_id:
        found = found.filter(Q(started_at__lt=asked.before) | Q(started_at=asked.before, id__lt=asked.before_id))
    rows = list(found.annotate(error_code=KT("record__error_code")).order_by("-started_at", "-id")[: PAGE_ROWS + 1])
    more = len(rows) > PAGE_ROWS
    rows = rows[:PAGE_ROWS]
    return Page(rows=tuple(rows), next=f"{rows[-1].started_at.isoformat()}~{rows[-1].id}" if more else "")


def replicas_of(tenant_id: UUID, rows: Iterable[DecisionRow]) -> dict[str, Replica]:
    """The replicas that rows name, by id, inside the tenant scope: those of own pools, since others' are the platform's."""
    ids = {replica_id for row in rows if (replica_id := as_uuid(row.replica_id)) is not None}
    return {str(one.id): one for one in queries.replicas(tenant_id).only("id", "name", "pool__name").filter(id__in=ids)}


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
        return value.astimezone(UTC) if value is not None and value.tzinfo is not None else None  # a database knows fewer zones than Python
    except (ValueError, OverflowError):
        return None
