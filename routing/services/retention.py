"""How long records are kept: partitions of days come and go, tenants may keep less than the platform does, and what was lost on the way is counted.

Tables are made and dropped by the owner's function alone (see migration 0011), which takes numbers and no names.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Max, Min, Sum

from routing.models import DecisionRow, RecordAccount, RecordSettings
from routing.services import captures, rollups
from tenants import changes
from tenants.actor import Actor
from tenants.core.errors import Invalid, NotFound
from tenants.queries import all_tenants
from tenants.scoping import require_scope, tenant_scope
from tenants.services import locks

AHEAD_DAYS = 7
EXPIRE_ROWS = 20_000  # that one run deletes of one tenant
ROLLUP_DAYS = 400
USAGE_DAYS = 800
ACCOUNT_DAYS = 30
MAX_ACCOUNTS = 200


@dataclass(frozen=True, slots=True)
class Partitions:
    """What one run did. ``blocked``: days whose rows lie in the partition of all other days, so that they get none of their own."""

    created: int
    dropped: int
    blocked: int


@dataclass(frozen=True, slots=True)
class Account:
    """The records of one router process. ``missing``: numbered, and neither stored nor refused: lost, or still on the way."""

    router_id: str
    started_at: datetime
    last_at: datetime
    numbered: int
    stored: int
    refused: int

    @property
    def missing(self) -> int:
        return max(0, self.numbered - self.stored - self.refused)


@dataclass(frozen=True, slots=True)
class Kept:
    """How long a tenant keeps its decisions, and from when on there are any."""

    keep_days: int
    platform_days: int
    oldest: datetime | None


def keep_partitions() -> Partitions:
    """Make the coming days' partitions and drop those past the platform's bound. Safe to repeat.

    Raises:
        OperationalError: the table is locked by somebody else; the next run tries again.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM saltroute_keep_partitions(%s, %s)", [AHEAD_DAYS, settings.RECORDS_DAYS])
        return Partitions(*cursor.fetchone())


def expire(tenant_id: UUID) -> int:
    """Delete decisions older than the tenant keeps them, at most ``EXPIRE_ROWS``; returns how many. In the tenant's scope."""
    require_scope(tenant_id)
    with connection.cursor() as cursor:
        cursor.execute("SELECT saltroute_expire_decisions(%s, %s)", [settings.RECORDS_DAYS, EXPIRE_ROWS])
        return int(cursor.fetchone()[0])


def tend(now: datetime) -> tuple[int, int]:
    """Fold and forget for every tenant, each in its own transaction; returns how many rows were folded and how many forgotten."""
    folded = forgotten = 0
    for ref in all_tenants():
        with tenant_scope(ref.tenant_id):
            folded += rollups.fold(ref.tenant_id, now)
        with tenant_scope(ref.tenant_id):
            forgotten += expire(ref.tenant_id)
            before = now - timedelta(days=ROLLUP_DAYS), now - timedelta(days=USAGE_DAYS)
            forgotten += rollups.forget(ref.tenant_id, rollups_before=before[0], usage_before=before[1])
        with contextlib.suppress(NotFound), tenant_scope(ref.tenant_id):  # deleted since the list was read
            forgotten += captures.tend(ref.tenant_id, now)
    fold_accounts(now)
    return folded, forgotten


def kept(tenant_id: UUID) -> Kept:
    """In the tenant's scope."""
    own = RecordSettings.objects.filter(tenant_id=tenant_id).values_list("keep_days", flat=True).first()
    oldest = DecisionRow.objects.filter(tenant_id=tenant_id).aggregate(found=Min("started_at"))["found"]
    return Kept(keep_days=min(own or settings.RECORDS_DAYS, settings.RECORDS_DAYS), platform_days=settings.RECORDS_DAYS, oldest=oldest)


def set_days(*, tenant_id: UUID, actor: Actor, keep_days: int) -> Kept:
    """Keep decisions for so many days; what is older goes within an hour. Rollups and usage stay.

    Raises:
        Invalid: not between 1 and the platform's bound.
    """
    if not 1 <= keep_days <= settings.RECORDS_DAYS:
        raise Invalid(f"Use 1 to {settings.RECORDS_DAYS} days: the platform keeps none for longer.", field="keep_days")
    locks.tenant(tenant_id)
    before = kept(tenant_id)
    row, _ = RecordSettings.objects.update_or_create(tenant_id=tenant_id, defaults={"keep_days": keep_days})
    if before.keep_days != keep_days:
        changes.record(
            tenant_id=tenant_id,
            actor=actor,
            action="records.keep",
            object_id=row.id,
            object_label="decisions",
            before={"keep_days": before.keep_days},
            after={"keep_days": keep_days},
        )
    return kept(tenant_id)


def accounts() -> list[Account]:
    """Of the router processes heard of late, newest first. For the platform: routers serve every tenant."""
    found = RecordAccount.objects.values("router_id", "boot_ms").annotate(
        last=Max("at"), highest=Max("highest"), stored=Sum("stored"), refused=Sum("refused")
    )
    return [
        Account(
            router_id=one["router_id"],
            started_at=datetime.fromtimestamp(one["boot_ms"] / 1000, tz=UTC),
            last_at=one["last"],
            numbered=one["highest"],
            stored=one["stored"],
            refused=one["refused"],
        )
        for one in found.order_by("-last")[:MAX_ACCOUNTS]
    ]


def fold_accounts(now: datetime) -> None:
    """One row for each router process, and none for those that have been silent for ``ACCOUNT_DAYS``."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM routing_recordaccount WHERE at < %s", [now - timedelta(days=ACCOUNT_DAYS)])
        cursor.execute(
            """
            WITH gone AS (DELETE FROM routing_recordaccount RETURNING *)
            INSERT INTO routing_recordaccount (at, router_id, boot_ms, highest, stored, refused)
            SELECT max(at), router_id, boot_ms, max(highest), sum(stored), sum(refused) FROM gone GROUP BY router_id, boot_ms
            """
        )
