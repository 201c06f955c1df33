"""What reconciliation does by itself. Each repair is one transaction of its own, harmless to repeat, and says in a few words what came of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import redis
from django.db import DatabaseError

from routing.core.findings import Finding, Repair
from routing.services import isolation, publishing
from routing.services.audits import calendar
from tenants import changes
from tenants.actor import system
from tenants.core.errors import Refusal
from tenants.scoping import tenant_scope
from tenants.services import locks

ACTOR = system("reconciliation")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """A repair that a tenant's finding asks for."""

    tenant_id: UUID
    finding: Finding
    now: datetime

    @property
    def subject(self) -> UUID:
        return UUID(self.finding.subject_id)


def carry_out(wanted: Repair, job: Job) -> str:
    """Do it, and say what was done, or why not. Never raises for what another run may mend."""
    try:
        return _REPAIRS[wanted](job)
    except Refusal as refusal:
        return f"could not be repaired: {refusal.message}"[:300]
    except publishing.NotConfigured:
        return "could not be published: this process holds no publish key"
    except (redis.RedisError, DatabaseError) as error:
        _log.warning("%s of tenant %s was not repaired (%s)", job.finding.kind, job.tenant_id, type(error).__name__)
        return f"could not be repaired ({type(error).__name__}); it is tried again"


def _publish(job: Job) -> str:
    return f"published version {publishing.publish(job.subject)}"


def _republish(job: Job) -> str:
    """The same configuration under a new version: routers look at a document again only when its bytes differ."""
    with tenant_scope(job.tenant_id):
        locks.tenant(job.tenant_id)
        reason = f"router {job.finding.subject_id} refuses the document"
        changes.record(tenant_id=job.tenant_id, actor=ACTOR, action="tenant.republish", object_id=job.tenant_id, reason=reason)
    return "published again under a new version"


def _release(job: Job) -> str:
    with tenant_scope(job.tenant_id):
        freed = isolation.release(tenant_id=job.tenant_id, replica_id=job.subject)
    return "took the assignment away" if freed else "nothing was left to take away"


def _observe(job: Job) -> str:
    """As the sweep of routers' reports would have."""
    with tenant_scope(job.tenant_id):
        seen = isolation.observe(tenant_id=job.tenant_id, replica_id=job.subject, build=job.finding.mark, started_at=None, now=job.now)
    ordered = calendar.observed(job.tenant_id, job.subject, job.now, trigger="build")
    said = "noted the build" if seen.build else "the build was noted already"
    return f"{said}; {_ordered(len(ordered))}"


def _audit(job: Job) -> str:
    if job.finding.subject_kind == "endpoint":
        return _ordered(len(calendar.alarmed(job.tenant_id, job.subject, UUID(job.finding.aspect), job.now)))
    return _ordered(len(calendar.observed(job.tenant_id, job.subject, job.now, trigger="build")))


def _ordered(count: int) -> str:
    return "ordered an audit" if count else "no audit was ordered: one waits, runs or has just ended, or no endpoint leads there"


_REPAIRS: dict[Repair, Callable[[Job], str]] = {
    "publish": _publish,
    "republish": _republish,
    "release": _release,
    "observe": _observe,
    "audit": _audit,
}
