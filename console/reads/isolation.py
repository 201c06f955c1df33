"""What the isolation page shows: the state of engines, audits and what came of them, and the events that made cached blocks unreachable."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, Generic, TypeVar
from uuid import UUID

from django.db.models import Q, QuerySet

from console.reads import decisions
from namespaces.audit import evidence
from namespaces.audit.case import Outcome
from namespaces.audit.statistics import failure_rate_bound
from routing import queries
from routing.models import AuditRun, Endpoint, Replica
from routing.services import identity_events
from routing.services.identity_events import Impact
from tenants.core.errors import NotFound
from tenants.models import AuditEntry, TenantRow
from tenants.scoping import tenant_scope

MAX_REPLICAS = 2000
MAX_ENDPOINTS = 1000
RUN_ROWS = 20
EVENT_ROWS = 20
GRID_ROWS = 200
GRID_RUNS = 5000  # looked at for the strongest of each replica
STRONGEST_OF = timedelta(days=7)
_UNTRIED = (Outcome.NOT_EXPRESSIBLE, Outcome.PROVED_ELSEWHERE)

Row = TypeVar("Row", bound=TenantRow)


@dataclass(frozen=True, slots=True)
class Held:
    """One replica. ``spent_tokens`` is what its audits cost since midnight UTC; ``platform`` says whose it is."""

    replica: Replica
    platform: bool
    spent_tokens: int
    busy: bool


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """Rows, newest first, and the cursor of the next page or an empty text."""

    rows: tuple[Row, ...]
    next: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """One case of a run's matrix. ``bound`` is the upper 95 % bound of its failure rate, None unless it passed with negative probes."""

    title: str
    name: str
    rows: str
    outcome: str
    reason: str
    negatives: int
    controls: int
    bound: float | None


@dataclass(frozen=True, slots=True)
class Happened:
    """An identity event; ``impact`` is None where counting took too long."""

    entry: AuditEntry
    components: tuple[str, ...]
    impact: Impact | None


def held(tenant_id: UUID, *, now: datetime, operator: bool) -> tuple[Held, ...]:
    """Replicas of the tenant's own pools, inside its scope; for a platform operator those of granted pools too, read in their owner's."""
    own = queries.replicas(tenant_id)
    found = _held(own, now, platform=False)
    if operator:
        granted: dict[UUID, list[UUID]] = {}
        for pool in queries.usable_pools(tenant_id):
            if not pool.own:
                granted.setdefault(pool.owner_tenant_id, []).append(pool.id)
        for owner_id, pool_ids in granted.items():
            with tenant_scope(owner_id):
                found += _held(queries.replicas(owner_id).filter(pool_id__in=pool_ids), now, platform=True)
    return tuple(found)


def _held(replicas: QuerySet[Replica], now: datetime, *, platform: bool) -> list[Held]:
    today = now.astimezone(UTC).date()
    return [
        Held(
            replica=one,
            platform=platform,
            spent_tokens=one.audit_tokens if one.audit_day == today else 0,
            busy=one.audit_busy_until is not None and one.audit_busy_until > now,
        )
        for one in replicas.defer("credential").order_by("pool__name", "name", "id")[:MAX_REPLICAS]
    ]


def granted_names(tenant_id: UUID) -> tuple[str, ...]:
    """Pools of the platform's that the tenant uses: their replicas are not the tenant's to list."""
    return tuple(pool.name for pool in queries.usable_pools(tenant_id) if not pool.own)


def enabled(tenant_id: UUID) -> list[Endpoint]:
    """The endpoints that take requests, by name."""
    return list(Endpoint.objects.filter(tenant_id=tenant_id, enabled=True).select_related("grant").order_by("name")[:MAX_ENDPOINTS])


def auditable(tenant_id: UUID, found: Sequence[Endpoint], *, operator: bool) -> list[Endpoint]:
    """Those of ``found`` whose audits the caller may order: on own pools, for a platform operator on granted ones too. Audited pools come first, then
    other own ones: the first is what the page proposes."""
    usable = {pool.id: pool for pool in queries.usable_pools(tenant_id)}
    open_to = [(usable[one.grant.pool_id], one) for one in found if one.grant.pool_id in usable]
    allowed = [(pool, one) for pool, one in open_to if pool.own or operator]
    return [one for _, one in sorted(allowed, key=lambda pair: (not pair[0].own, pair[0].isolation != "audited", pair[1].name))]


# ---- audits ----------------------------------------------------------------------------------------------------------------


def runs(tenant_id: UUID, cursor: str) -> Page[AuditRun]:
    """One page of the tenant's audits, inside its scope, without what was seen in them."""
    return page_of(AuditRun.objects.filter(tenant_id=tenant_id).defer("evidence", "cases"), cursor, RUN_ROWS)


def run(tenant_id: UUID, run_id: UUID) -> AuditRun:
    """One audit.

    Raises:
        NotFound: absent, or another tenant's.
    """
    found = AuditRun.objects.filter(tenant_id=tenant_id, id=run_id).first()
    if found is None:
        raise NotFound
    return found


def report(found: AuditRun) -> bytes:
    """The signed report, as the API exports it.

    Raises:
        NotFound: the audit has not ended.
    """
    if found.evidence is None or found.signature is None or found.evidence_key is None:
        raise NotFound
    return evidence.report(found.evidence, bytes(found.signature), bytes(found.evidence_key))


def verdicts(cases: Iterable[dict[str, Any]]) -> tuple[Verdict, ...]:
    """The matrix of a run, in its own order."""
    return tuple(_verdict(one) for one in cases)


def _verdict(case: dict[str, Any]) -> Verdict:
    negatives = int(case["negative_probes"])
    passed = case["outcome"] == Outcome.PASS and negatives > 0
    return Verdict(
        title=case["title"],
        name=case["name"],
        rows=", ".join(str(row) for row in case["rows"]),
        outcome=case["outcome"],
        reason=case["reason"],
        negatives=negatives,
        controls=int(case["controls_seen"]),
        bound=failure_rate_bound(negatives) if passed else None,
    )


@dataclass(frozen=True, slots=True)
class GridRow:
    """One replica's strongest audit of its present build; a verdict for each column, None where that run did not know the case. ``newest`` is the
    newest finished audit where that is another one."""

    run: AuditRun
    cells: tuple[Verdict | None, ...]
    newest: AuditRun | None


@dataclass(frozen=True, slots=True)
class Grid:
    """Cases against replicas. ``columns`` are (name, title) of what probes tried somewhere, in the order of the newest run; ``elsewhere`` the titles
    of the cases that none of these audits could try."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[GridRow, ...]
    elsewhere: tuple[str, ...]


def grid(tenant_id: UUID, *, now: datetime) -> Grid:
    """The audit matrix: of each replica the strongest audit of its present build, inside the tenant scope, without what was seen in it."""
    done = AuditRun.objects.filter(tenant_id=tenant_id, state="finished").defer("evidence", "cases", "signature", "evidence_key")
    ids = done.order_by("replica_id", "-finished_at", "-id").distinct("replica_id").values("id")
    newest = {run.replica_id: run for run in done.filter(id__in=ids).order_by("-finished_at", "-id")[:GRID_ROWS]}
    recent: dict[UUID, list[AuditRun]] = {replica_id: [run] for replica_id, run in newest.items()}
    for run in done.filter(replica_id__in=newest, finished_at__gte=now - STRONGEST_OF).order_by("-finished_at", "-id")[:GRID_RUNS]:
        recent[run.replica_id].append(run)
    silent = _told_nothing(done, [run for found in recent.values() for run in found])
    shown = [strongest(found, silent).id for found in recent.values()]
    runs = list(AuditRun.objects.filter(tenant_id=tenant_id, id__in=shown).defer("evidence").order_by("-finished_at", "-id"))
    known = {case["name"]: case["title"] for run in runs for case in run.cases}
    tried = {case["name"] for run in runs for case in run.cases if case["outcome"] not in _UNTRIED}
    columns = {name: title for name, title in known.items() if name in tried}
    rows = []
    for run in sorted(runs, key=lambda run: (run.pool_name, run.replica_name, str(run.replica_id))):
        by_name = {verdict.name: verdict for verdict in verdicts(run.cases)}
        last = newest[run.replica_id]
        rows.append(GridRow(run, tuple(by_name.get(name) for name in columns), None if last.id == run.id else last))
    return Grid(tuple(columns.items()), tuple(rows), tuple(title for name, title in known.items() if name not in tried))


def _told_nothing(done: QuerySet[AuditRun], runs: Sequence[AuditRun]) -> frozenset[UUID]:
    """Ids of those that were only not carried out to the end: as they change no state, they take nothing back. Whatever looked odd does, and so does
    what an older release stored, which did not say so."""
    unclear = [run.id for run in runs if run.outcome == Outcome.INCONCLUSIVE]
    if not unclear:
        return frozenset()
    said = done.filter(id__in=unclear).filter(Q(cases=[]) | Q(cases__contains=[{"odd": False}])).exclude(cases__contains=[{"odd": True}])
    return frozenset(said.values_list("id", flat=True))


def strongest(runs: Sequence[AuditRun], silent: Container[UUID] = ()) -> AuditRun:
    """Of one replica's audits, newest first, the one with the most clean negative probes since the last that spoke against it or met another build.

    A shorter audit that passes too takes nothing back from a longer one of the same build, and neither does one of ``silent``, which ended with
    nothing seen. Where the build is not known, nothing says that it is the same.
    """
    newest = runs[0]
    same = takewhile(lambda run: run.build == newest.build != "" and (run.outcome == Outcome.PASS or run.id in silent), runs)
    passed = [run for run in same if run.outcome == Outcome.PASS]
    return max(passed, key=lambda run: run.negative_probes, default=newest)


# ---- identity events -------------------------------------------------------------------------------------------------------


def events(tenant_id: UUID, cursor: str) -> Page[AuditEntry]:
    """One page of what made cached blocks unreachable, inside the tenant scope."""
    return page_of(identity_events.events(tenant_id), cursor, EVENT_ROWS)


def explained(tenant_id: UUID, entries: Sequence[AuditEntry]) -> tuple[Happened, ...]:
    """The entries with what each changed and what it cost; in one count."""
    impacts = identity_events.impacts(tenant_id, entries)
    return tuple(Happened(entry=one, components=tuple(identity_events.components(one)), impact=impacts.get(one.id)) for one in entries)


def expected(tenant_id: UUID, endpoint: Endpoint, *, now: datetime) -> Impact | None:
    """What rotating the endpoint's epoch now would reach, counted as for one that happened. Nothing is stored."""
    would = AuditEntry(tenant_id=tenant_id, action="endpoint.rotate_epoch", object_id=endpoint.id, created_at=now)
    return identity_events.impacts(tenant_id, [would]).get(would.id)


def page_of(found: QuerySet[Row], cursor: str, size: int) -> Page[Row]:
    """One page of rows, newest first."""
    moment, row_id = decisions.cursor(cursor)
    if moment and row_id:
        found = found.filter(Q(created_at__lt=moment) | Q(created_at=moment, id__lt=row_id))
    rows = list(found.order_by("-created_at", "-id")[: size + 1])
    more = len(rows) > size
    rows = rows[:size]
    return Page(rows=tuple(rows), next=f"{rows[-1].created_at.isoformat()}~{rows[-1].id}" if more else "")
