"""One audit from its order to its signed evidence, in the process that may: it holds the publish key (for probe tokens) and the evidence key."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import SystemRandom
from uuid import UUID

import redis
from django.conf import settings
from django.utils import timezone

from namespaces.audit import evidence as signing
from namespaces.audit.case import Facts, Outcome
from namespaces.audit.states import State
from routing import queries
from routing.models import AuditRun
from routing.services.audits import orders, report, reports, targets
from routing.services.audits.door import Aim, Door
from routing.services.audits.execution import Execution, Findings
from routing.services.audits.extent import RESTARTED, Sizes, round_tokens
from routing.services.audits.reports import DEFAULT_BLOCK_TOKENS, EngineReport
from routing.services.audits.targets import Target
from tenants.core.errors import Conflict, Invalid, LimitReached, NotFound
from tenants.models import Tenant
from tenants.scoping import tenant_scope

LOAD_AGE_S = 1.0  # how old a router's word on an engine's queue may be
VALKEY_S = 0.5
MAX_ROUNDS = 500
PROBING_PART = 0.8  # of the time that the replica is taken for


class NotConfigured(Exception):
    """This process holds no evidence key or no publish key: audits run in the worker of the queue ``audit`` and in ``manage.py audit``."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over. ``state`` is the replica's then; None where it is gone or was never touched."""

    run: AuditRun
    state: State | None


def sizes_of(given: dict[str, int]) -> Sizes:
    """Sample sizes of an order, held within bounds.

    Raises:
        Invalid: unknown, not a whole number, or out of bounds.
    """
    for name, value in given.items():
        if name not in Sizes.__dataclass_fields__ or isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_ROUNDS:
            raise Invalid(f"Sample sizes are whole numbers from 0 to {MAX_ROUNDS}.", field=f"sizes.{name}")
    return Sizes(**given)


def repeated(rounds: int | None) -> dict[str, int]:
    """The sample sizes that ``--repeat N`` and the API's ``repeat`` stand for: N rounds of two salts, where None is the usual."""
    return {} if rounds is None else {"rounds": max(0, rounds - 1), "timed_negatives": max(10, 2 * rounds)}


def run(tenant_id: UUID, run_id: UUID, *, clock: Callable[[], float] = time.monotonic) -> Ended | None:
    """Carry out an order. None: it is not waiting (another delivery of the same task did it, or does it now), or the replica is busy and it waits on.

    Raises:
        NotConfigured: in the wrong process.
    """
    if settings.EVIDENCE_KEY is None or settings.PUBLISH_KEY is None:
        raise NotConfigured
    with tenant_scope(tenant_id):
        order = AuditRun.objects.filter(tenant_id=tenant_id, id=run_id, state="queued").first()
        if order is None:
            return None
        slug = Tenant.objects.values_list("slug", flat=True).get(id=tenant_id)
        try:
            target = targets.again(tenant_id, order.endpoint_id, order.replica_id)
        except NotFound:
            target = None
    url = None if target is None else _url(target)
    if target is None or url is None:
        return _refused(order, "the endpoint or the replica is gone, or out of service")
    engine = reported(url)
    facts = Facts(engine=target.engine, adapters=tuple(name for name in target.adapters if not engine.models or name in engine.models))
    least_tokens = round_tokens(facts, engine.block_tokens or DEFAULT_BLOCK_TOKENS)
    try:
        begun = orders.begin(run=order, target=target, needed_tokens=least_tokens, now=timezone.now())
    except Conflict:
        return None
    except (LimitReached, NotFound) as refusal:
        return _refused(order, refusal.message)
    order.started_at = timezone.now()
    job = _Job(order=order, target=target, url=url, slug=slug, engine=engine, facts=facts, begun=begun)
    findings = _probed(job, publish_key=settings.PUBLISH_KEY, clock=clock)
    return _concluded(job, findings, settings.EVIDENCE_KEY)


@dataclass(frozen=True, slots=True)
class _Job:
    """Everything a run needs to know, gathered before its first probe."""

    order: AuditRun
    target: Target
    url: str
    slug: str
    engine: EngineReport
    facts: Facts
    begun: orders.Begun

    @property
    def build(self) -> str:
        return self.engine.build or self.begun.build

    @property
    def block_tokens(self) -> int:
        return self.engine.block_tokens or DEFAULT_BLOCK_TOKENS

    @property
    def sizes(self) -> Sizes:
        """As ordered; else the usual ones, or the small ones where a proved build was merely restarted."""
        if not self.order.sizes and self.begun.restarted and self.build == self.begun.build:
            return RESTARTED
        return sizes_of(self.order.sizes)


def _probed(job: _Job, *, publish_key: bytes, clock: Callable[[], float]) -> Findings:
    """Send the probes. Interrupted, by a limit or a mistake of ours: what was sent is paid for, nothing is concluded, the replica is free again."""
    target, order = job.target, job.order
    ends_s = clock() + orders.RUN_S * PROBING_PART
    door = Door(settings.DOOR_URL, publish_key, Aim(target.tenant_id, target.endpoint_id, target.endpoint_name, target.replica_id, order.id))
    execution = Execution(
        send=door.send,
        facts=job.facts,
        rng=SystemRandom(),
        block_tokens=job.block_tokens,
        sizes=job.sizes,
        left_tokens=job.begun.left_tokens,
        reserved_runs=0 if order.sizes else orders.RESERVED_RUNS,  # who names the sizes means them
        late=lambda: clock() > ends_s,
        busy=_Load(job.url, clock).busy,
    )
    try:
        return execution.run()
    except BaseException:
        spent, now = execution.findings.computed_tokens, timezone.now()
        orders.settle(target=target, tokens=spent, event=None, reason="", build=job.build, now=now)
        orders.close(run=order, state="finished", outcome=Outcome.INCONCLUSIVE.value, reason="the audit was interrupted", finished_at=now)
        raise
    finally:
        door.close()


def _concluded(job: _Job, findings: Findings, evidence_key: bytes) -> Ended:
    """Sign and store, then act: a state without its evidence would be worse than evidence whose state comes a moment later. What the tokens
    did not do for was not begun: it is refused, as it would have been before had the engine's tokenizer been known."""
    order, now = job.order, timezone.now()
    if findings.unaffordable:
        orders.close(run=order, state="refused", reason=findings.unaffordable[:300], finished_at=now, tokens_spent=findings.computed_tokens)
        orders.settle(target=job.target, tokens=findings.computed_tokens, event=None, reason="", build=job.build, now=now)
        return Ended(order, None)
    value = report.evidence(order, job.target, findings, slug=job.slug, build=job.build, block_tokens=job.block_tokens, finished_at=now)
    signature, public_key = signing.sign(value, evidence_key)
    orders.close(
        run=order,
        state="finished",
        finished_at=now,
        build=job.build,
        outcome=findings.outcome.value,
        reason=findings.reason[:300],
        probes=findings.probes,
        negative_probes=findings.negatives,
        failure_bound_ppm=report.bound_ppm(findings),
        tokens_spent=findings.computed_tokens,
        cases=report.cases(findings),
        evidence=value,
        signature=signature,
        evidence_key=public_key,
    )
    reason = f"audit {order.id}: {findings.reason}"
    state = orders.settle(target=job.target, tokens=findings.computed_tokens, event=findings.event, reason=reason, build=job.build, now=now)
    return Ended(order, state)


def _refused(order: AuditRun, reason: str) -> Ended:
    orders.close(run=order, state="refused", reason=reason[:300], finished_at=timezone.now())
    return Ended(order, None)


def _url(target: Target) -> str | None:
    with tenant_scope(target.owner_id):
        row = queries.replicas(target.owner_id).filter(id=target.replica_id).first()
        return None if row is None else row.url


def reported(url: str) -> EngineReport:
    """What routers say of an engine now; nothing at all where Valkey does not answer."""
    try:
        with queries.valkey(VALKEY_S) as client:
            return reports.read(client).engines.get(url, EngineReport())
    except redis.RedisError:
        return EngineReport()


class _Load:
    """Whether others queue at the engine, by the routers' word; looked up once a second at most."""

    def __init__(self, url: str, clock: Callable[[], float]) -> None:
        self._url = url
        self._clock = clock
        self._asked_s = float("-inf")
        self._waiting: float | None = None

    def busy(self) -> bool:
        """More than one request waits."""
        if self._clock() - self._asked_s > LOAD_AGE_S:
            self._asked_s = self._clock()
            self._waiting = reported(self._url).waiting
        return self._waiting is not None and self._waiting > 1
