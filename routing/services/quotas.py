"""Quotas: setting and removing them, and how much of each is used.

What is used is counted by routers and kept in Valkey; of the month the usage that ingest stores says the same, later and for good: where the two
differ twice in the same way, Valkey is put right (:func:`correct`).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import redis
from django.db import InterfaceError, OperationalError
from django.db.models import Q, Sum

from routing import queries
from routing.core import quota
from routing.core.quota import MEASURES, Measure
from routing.core.snapshot import QuotaEntry
from routing.models import Endpoint, Quota, UsageRow
from routing.services import support
from routing.services.records import GROUP, STREAM
from tenants import changes
from tenants.actor import Actor
from tenants.core.api_key import Kind
from tenants.core.errors import Forbidden, Invalid
from tenants.core.scopes import parse_path
from tenants.models import ApiKey, Scope
from tenants.queries import all_tenants
from tenants.scoping import require_scope, tenant_scope
from tenants.services import locks

MAX_QUOTAS_PER_TENANT = 1000
NEAR = 0.8  # of a limit: from there on the console warns
READ_S = 0.5
SWEEP_S = 45.0
EVERY_S = 120.0  # as beat asks for it (settings.django)
DRIFT = f"{quota.PREFIX}drift"  # by key: how far Valkey was from the usage when they were last compared
_log = logging.getLogger(__name__)


# ---- changes -----------------------------------------------------------------------------------------------------------


def put(
    *,
    tenant_id: UUID,
    actor: Actor,
    of: str,
    name: str = "",
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
    tokens_per_month: int | None = None,
    platform: bool = False,
) -> Quota:
    """Set the limits of what ``of`` and ``name`` say; those not given are none. ``platform``: the caller operates the platform.

    Raises:
        Invalid: nothing of that name, no limit at all, or one out of range.
        Forbidden: the platform's own quota for the tenant, by somebody else.
        LimitReached: ``MAX_QUOTAS_PER_TENANT``.
    """
    support.one_of(of, quota.OFS, field="of")
    _check_platform(of, platform)
    locks.tenant(tenant_id)
    held = Quota.objects.select_for_update().filter(tenant_id=tenant_id, of=of, name=name).first()
    if held is None:
        _check_name(tenant_id, of, name)
    limits: dict[str, Any] = dict(zip(MEASURES, (requests_per_minute, tokens_per_minute, tokens_per_month), strict=True))
    for measure, limit in limits.items():
        if limit is not None and not (isinstance(limit, int) and not isinstance(limit, bool) and 1 <= limit <= quota.MAX_LIMIT):
            raise Invalid(f"Use a whole number from 1 to {quota.MAX_LIMIT}.", field=measure)
    if all(limit is None for limit in limits.values()):
        raise Invalid(f"Set at least one of: {', '.join(MEASURES)}.", field=MEASURES[0])
    if held is None:
        support.within(Quota.objects.filter(tenant_id=tenant_id).count(), MAX_QUOTAS_PER_TENANT, "quotas (MAX_QUOTAS_PER_TENANT)")
        held = Quota(tenant_id=tenant_id, of=of, name=name, **limits)
        held.save()
        _record(held, actor, "quota.set", before=None, after=limits)
        return held
    before, after = support.apply_changes(held, limits)
    if after:
        _record(held, actor, "quota.set", before=before, after=after)
    return held


def remove(*, tenant_id: UUID, actor: Actor, quota_id: UUID, platform: bool = False) -> Quota:
    """Take a quota away. What was used under it is forgotten.

    Raises:
        NotFound: no such quota of this tenant.
        Forbidden: the platform's own, by somebody else.
    """
    locks.tenant(tenant_id)
    held = support.locked(Quota, tenant_id=tenant_id, row_id=quota_id)
    _check_platform(held.of, platform)
    _record(held, actor, "quota.remove", before=limits_of(held), after=None)
    Quota.objects.filter(tenant_id=tenant_id, id=quota_id).delete()
    return held


def _check_platform(of: str, platform: bool) -> None:
    if of == "platform" and not platform:
        raise Forbidden("The platform's own quota is set and removed by platform operators.")


def _check_name(tenant_id: UUID, of: str, name: str) -> None:
    if of in ("tenant", "platform"):
        if name:
            raise Invalid("There is one quota of the whole tenant: leave its name out.", field="name")
        return
    if of == "scope":
        parse_path(name, field="name")
    if not _named(tenant_id, of, name):
        raise Invalid(f"This tenant has no {of} of this name.", field="name")


def _named(tenant_id: UUID, of: str, name: str) -> bool:
    if of == "scope":
        return Scope.objects.filter(tenant_id=tenant_id, path=name).exists()
    if of == "key":
        return ApiKey.objects.filter(tenant_id=tenant_id, kind=Kind.INFERENCE, name=name, revoked_at=None).exists()
    return Endpoint.objects.filter(tenant_id=tenant_id, name=name).exists()


def _record(row: Quota, actor: Actor, action: str, *, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
    label = f"{row.of} {row.name}".strip() if row.of != "scope" else f"scope {row.name or '(root)'}"
    changes.record(tenant_id=row.tenant_id, actor=actor, action=action, object_id=row.id, object_label=label, before=before, after=after)


def limits_of(row: Quota) -> dict[str, int | None]:
    """The limits of a quota by measure."""
    return {measure: getattr(row, measure) for measure in MEASURES}


def entries(tenant_id: UUID) -> tuple[QuotaEntry, ...]:
    """The quotas as routers are told of them. In the tenant's scope."""
    rows = Quota.objects.filter(tenant_id=tenant_id).order_by("of", "name")
    return tuple(QuotaEntry(id=row.id, of=row.of, name=row.name, **limits_of(row)) for row in rows)  # type: ignore[arg-type] # the column has these choices


# ---- what is used ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """One limit. ``used`` holds what is reserved for requests under way; None: Valkey does not answer, so nobody knows. ``reset_s``: until it begins
    anew, or until what is used by the minute has left the window."""

    measure: Measure
    limit: int
    used: int | None
    reset_s: float | None

    @property
    def left(self) -> int | None:
        return None if self.used is None else max(0, self.limit - self.used)

    @property
    def share(self) -> float | None:
        return None if self.used is None else self.used / self.limit

    @property
    def near(self) -> bool:
        return self.share is not None and self.share >= NEAR


@dataclass(frozen=True, slots=True)
class Held:
    """A quota with how it stands. ``found``: there is something of that name now."""

    row: Quota
    found: bool
    standings: tuple[Standing, ...]

    @property
    def near(self) -> bool:
        return any(one.near for one in self.standings)


def standings(tenant_id: UUID, rows: list[Quota], now: datetime) -> list[Held]:
    """How quotas stand. Without Valkey the month is what the usage says, and minutes are unknown. In the tenant's scope."""
    require_scope(tenant_id)
    now_s = now.timestamp()
    month = quota.month_of(now_s)
    wanted: list[tuple[Quota, Measure]] = [(row, measure) for row in rows for measure in MEASURES if getattr(row, measure) is not None]
    names = _Names(tenant_id)
    try:
        with queries.valkey(READ_S) as client:
            fields = _read(client, [_key(row, measure, month) for row, measure in wanted])
    except redis.RedisError:
        fields = [None] * len(wanted)
    found: dict[UUID, list[Standing]] = {}
    for (row, measure), held in zip(wanted, fields, strict=True):
        limit: int = getattr(row, measure)
        used: int | None
        if measure == "tokens_per_month":
            used = names.used(row, month) if held is None else sum(quota.month_used(held, now_s))
            reset_s: float | None = quota.month_ends_at(month) - now_s
        else:
            used, reset_s = (None, None) if held is None else quota.minute_used(held, now_s)
        found.setdefault(row.id, []).append(Standing(measure, limit, used, reset_s))
    return [Held(row, names.has(row), tuple(found.get(row.id, ()))) for row in rows]


def _key(row: Quota, measure: Measure, month: str) -> str:
    return quota.key_of(row.id, measure, month if measure == "tokens_per_month" else "")


def _read(client: redis.Redis, keys: list[str]) -> list[dict[str, str] | None]:
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.hgetall(key)
    return [None if isinstance(one, redis.RedisError) else _text(one) for one in pipe.execute(raise_on_error=False)]


def _text(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}


class _Names:
    """What the tenant's quotas are of, by name: ids of keys (revoked ones of the same name too), scopes and endpoints."""

    def __init__(self, tenant_id: UUID) -> None:
        self._tenant_id = tenant_id
        keys = ApiKey.objects.filter(tenant_id=tenant_id, kind=Kind.INFERENCE).values_list("name", "id", "revoked_at")
        self._keys: dict[str, list[UUID]] = {}
        for name, key_id, _ in keys:
            self._keys.setdefault(name, []).append(key_id)
        self._live_keys = {name for name, _, revoked_at in keys if revoked_at is None}
        self._scopes = dict(Scope.objects.filter(tenant_id=tenant_id).values_list("path", "id"))
        self._endpoints = dict(Endpoint.objects.filter(tenant_id=tenant_id).values_list("name", "id"))

    def has(self, row: Quota) -> bool:
        held = {"scope": self._scopes, "key": self._live_keys, "endpoint": self._endpoints}.get(row.of)
        return held is None or row.name in held

    def used(self, row: Quota, month: str) -> int:
        """Input and output tokens of the month under a quota, as ingest stored them."""
        begins = date(int(month[:4]), int(month[5:]), 1)
        ends = datetime.fromtimestamp(quota.month_ends_at(month), tz=UTC).date()
        rows = UsageRow.objects.filter(self._where(row), tenant_id=self._tenant_id, day__gte=begins, day__lt=ends, key_id__isnull=False)
        sums = rows.aggregate(input=Sum("input_tokens"), output=Sum("output_tokens"))
        return int(sums["input"] or 0) + int(sums["output"] or 0)

    def _where(self, row: Quota) -> Q:
        if row.of == "key":
            return Q(key_id__in=self._keys.get(row.name, []))
        if row.of == "endpoint":
            return Q(endpoint_id=self._endpoints.get(row.name))
        if row.of == "scope" and row.name:
            below = [scope_id for path, scope_id in self._scopes.items() if path == row.name or path.startswith(f"{row.name}/")]
            return Q(scope_id__in=below)
        return Q()


# ---- put right ---------------------------------------------------------------------------------------------------------


def correct(tenant_id: UUID, client: redis.Redis, now: datetime) -> int:
    """Hold the month in Valkey against the usage, and put right what differs; returns how many limits were. In the tenant's scope.

    A difference counts once it was seen twice, the smaller one of the two: what is on its way between router and database differs for moments. Where
    Valkey knows nothing of the month at all, it is told at once. Downward only while no record waits: records that are late look like tokens that
    nobody used.

    Raises:
        redis.RedisError: Valkey does not answer.
    """
    require_scope(tenant_id)
    rows = list(Quota.objects.filter(tenant_id=tenant_id, tokens_per_month__isnull=False))
    if not rows:
        return 0
    now_s = now.timestamp()
    month = quota.month_of(now_s)
    keys = [_key(row, "tokens_per_month", month) for row in rows]
    waits = _records_wait(client)
    names = _Names(tenant_id)
    earlier = _earlier(client, keys)
    changed = 0
    for row, key, before, held in zip(rows, keys, earlier, _read(client, keys), strict=True):
        if held is None:
            _log.warning("quota %s of %s cannot be compared: its key in Valkey holds no hash", row.id, row.of)
            continue
        counted, _ = quota.month_used(held, now_s)
        drift = counted - names.used(row, month)
        change = _change(drift, before, empty=not held, waits=waits)
        if change:
            try:
                client.hincrby(key, quota.GONE, change)
            except redis.ResponseError as error:  # what somebody wrote there is no number
                _log.warning("quota %s of %s cannot be put right: %s", row.id, row.of, type(error).__name__)
                continue
            client.expire(key, quota.MONTH_KEPT_S)
            changed += 1
            _log.info("quota %s of %s: %+d tokens, by the usage of %s", row.id, row.of, change, month)
        client.hset(DRIFT, key, drift + change)
    client.expire(DRIFT, quota.MONTH_KEPT_S)
    return changed


def _earlier(client: redis.Redis, keys: list[str]) -> list[int | None]:
    """How far each limit was off when they were last compared; None: nobody knows."""
    try:
        found = client.hmget(DRIFT, keys)
    except redis.ResponseError:  # somebody wrote something else there; it is begun anew
        client.delete(DRIFT)
        return [None] * len(keys)
    return [None if one is None else quota.whole(one.decode(errors="replace") if isinstance(one, bytes) else one) for one in found]


def _change(drift: int, before: int | None, *, empty: bool, waits: bool) -> int:
    """What to add in Valkey. ``drift``: how much it holds beyond the usage; ``before``: the same when they were last compared."""
    if drift < 0 and empty:
        return -drift
    if before is None or drift == 0 or (drift > 0) != (before > 0) or before == 0:
        return 0
    if drift > 0 and waits:
        return 0
    return -min(drift, before) if drift > 0 else min(-drift, -before)


def _records_wait(client: redis.Redis) -> bool:
    """Whether records are on their way to the database."""
    try:
        groups = client.xinfo_groups(STREAM)
    except redis.ResponseError:  # no stream: no router has made a record since Valkey began
        return False
    return any(one["name"] in (GROUP, GROUP.encode()) and (one["pending"] or one["lag"] != 0) for one in groups)


def sweep(now: datetime, *, within_s: float = SWEEP_S) -> int:
    """Do so for every tenant, as far as time allows; one tenant's mistake keeps no other back. Returns how many limits were put right.

    Raises:
        redis.RedisError: Valkey does not answer.
    """
    began_s, changed = time.monotonic(), 0
    with queries.valkey(READ_S) as client:
        for ref in support.in_turn(all_tenants(), now.timestamp(), every_s=EVERY_S):
            if time.monotonic() - began_s > within_s:
                _log.warning("the time for quotas was over before all tenants had their turn")
                break
            try:
                with tenant_scope(ref.tenant_id):
                    changed += correct(ref.tenant_id, client, now)
            except (OperationalError, InterfaceError) as error:
                _log.warning("quotas of tenant %s were not compared (%s)", ref.slug, type(error).__name__)
    return changed
