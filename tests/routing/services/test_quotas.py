"""Quotas as they are stored, told to routers, held against the usage and put right."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.db import connection

from routing.core import quota
from routing.core.record import DecisionRecord
from routing.models import Endpoint, Quota
from routing.services import publishing, quotas, record_store, records, slo
from tenants.core.api_key import Kind
from tenants.core.errors import Forbidden, Invalid, LimitReached, NotFound, Refusal
from tenants.core.roles import Role
from tenants.models import AuditEntry, Scope
from tenants.scoping import tenant_scope
from tenants.services import api_keys, scopes
from tests.routing.services.made import Made
from tests.routing.services.rows import ACTOR, an_endpoint, version

pytestmark = pytest.mark.django_db
NOW = datetime(2027, 1, 15, 12, 0, tzinfo=UTC)
ABSENT = uuid.uuid4()


@pytest.fixture
def valkey(valkey_url: str) -> Any:
    """A client that may do everything."""
    with redis.Redis.from_url(valkey_url) as client:
        yield client


def put(made: Made, of: str = "tenant", name: str = "", **more: Any) -> Quota:
    """Set a quota in the tenant's scope; a month's without another word."""
    limits = more or {"tokens_per_month": 1_000}
    with tenant_scope(made.id):
        return quotas.put(tenant_id=made.id, actor=ACTOR, of=of, name=name, **limits)


def used(made: Made, *, at: datetime = NOW, tokens: int = 10, **fields: Any) -> None:
    """Store what ingest would: one request of as many prompt tokens."""
    given: dict[str, Any] = {"route": "chat", "outcome": "ok", "status": 200, "router_id": "r1", "config_version": 1, "prompt_tokens": tokens}
    given = {"key_id": ABSENT, **given, **fields}
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_ingest")
        assert record_store.store([DecisionRecord(id=uuid.uuid4(), tenant_id=made.id, started_at=at.timestamp(), **given)]).stored == 1
        cursor.execute("SET ROLE saltroute_app")


def key_of(row: Quota, month: str = "2027-01") -> str:
    return quota.key_of(row.id, "tokens_per_month", month)


def counted(valkey: redis.Redis, row: Quota) -> int:
    """What Valkey holds for the month."""
    (fields,) = quotas._read(valkey, [key_of(row)])
    return quota.month_used(fields or {}, NOW.timestamp())[0]


def correct(made: Made, valkey: redis.Redis, now: datetime = NOW) -> int:
    with tenant_scope(made.id):
        return quotas.correct(made.id, valkey, now)


def test_setting_changing_and_removing_are_logged_and_published(acorn: Made) -> None:
    """Each raises the version once and says before and after; setting the same again changes nothing."""
    with tenant_scope(acorn.id):
        began = version(acorn.id)
        row = put(acorn, requests_per_minute=5)
        assert put(acorn, requests_per_minute=5).id == row.id
        assert version(acorn.id) == began + 1
        assert put(acorn, requests_per_minute=6, tokens_per_month=9).id == row.id
        (entry,) = quotas.entries(acorn.id)
        assert (entry.of, entry.requests_per_minute, entry.tokens_per_minute, entry.tokens_per_month) == ("tenant", 6, None, 9)
        assert publishing.build_snapshot(acorn.id, now_s=NOW.timestamp()).quotas == (entry,)
        quotas.remove(tenant_id=acorn.id, actor=ACTOR, quota_id=row.id)
        assert quotas.entries(acorn.id) == ()
        assert version(acorn.id) == began + 3
        log = AuditEntry.objects.filter(tenant_id=acorn.id, action__startswith="quota.").order_by("created_at")
        assert [(one.action, one.object_label) for one in log] == [("quota.set", "tenant"), ("quota.set", "tenant"), ("quota.remove", "tenant")]
        assert log[1].before == {"requests_per_minute": 5, "tokens_per_month": None}
        assert log[1].after == {"requests_per_minute": 6, "tokens_per_month": 9}


@pytest.mark.parametrize(
    ("wanted", "refusal", "field"),
    [
        ({"of": "planet"}, Invalid, "of"),
        ({"of": "tenant", "name": "x"}, Invalid, "name"),
        ({"of": "key", "name": "nobody"}, Invalid, "name"),
        ({"of": "endpoint", "name": ""}, Invalid, "name"),
        ({"of": "scope", "name": "no where"}, Invalid, "name"),
        ({"of": "scope", "name": "nowhere"}, Invalid, "name"),
        ({"of": "tenant", "requests_per_minute": 0}, Invalid, "requests_per_minute"),
        ({"of": "tenant", "tokens_per_minute": -1}, Invalid, "tokens_per_minute"),
        ({"of": "tenant", "tokens_per_month": quota.MAX_LIMIT + 1}, Invalid, "tokens_per_month"),
        ({"of": "tenant", "tokens_per_month": True}, Invalid, "tokens_per_month"),
        ({"of": "tenant", "tokens_per_month": None}, Invalid, "requests_per_minute"),
        ({"of": "platform"}, Forbidden, None),
    ],
)
def test_what_cannot_be_is_refused_by_field(acorn: Made, wanted: dict[str, Any], refusal: type[Refusal], field: str | None) -> None:
    limits = {} if any(name in wanted for name in quota.MEASURES) else {"tokens_per_month": 5}
    with pytest.raises(refusal) as refused, tenant_scope(acorn.id):
        quotas.put(tenant_id=acorn.id, actor=ACTOR, **{**wanted, **limits})
    assert refused.value.field == field


def test_the_platforms_own_quota_is_the_platforms(acorn: Made) -> None:
    """A tenant reads it and cannot change or remove it, and its own quota stands beside it."""
    with tenant_scope(acorn.id):
        row = quotas.put(tenant_id=acorn.id, actor=ACTOR, of="platform", tokens_per_month=5, platform=True)
        with pytest.raises(Forbidden):
            quotas.put(tenant_id=acorn.id, actor=ACTOR, of="platform", tokens_per_month=6)
        with pytest.raises(Forbidden):
            quotas.remove(tenant_id=acorn.id, actor=ACTOR, quota_id=row.id)
        put(acorn, tokens_per_month=50)
        assert {(one.of, one.tokens_per_month) for one in quotas.entries(acorn.id)} == {("platform", 5), ("tenant", 50)}
        quotas.remove(tenant_id=acorn.id, actor=ACTOR, quota_id=row.id, platform=True)
        assert len(quotas.entries(acorn.id)) == 1


def test_there_are_no_more_than_the_limit(acorn: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is refused; a change of one that is there is not."""
    monkeypatch.setattr(quotas, "MAX_QUOTAS_PER_TENANT", 1)
    put(acorn, tokens_per_month=5)
    put(acorn, tokens_per_month=6)
    with pytest.raises(LimitReached):
        put(acorn, "scope", "", tokens_per_month=5)


def test_another_tenants_quota_is_absent(acorn: Made, birch: Made) -> None:
    row = put(acorn)
    with pytest.raises(NotFound), tenant_scope(birch.id):
        quotas.remove(tenant_id=birch.id, actor=ACTOR, quota_id=row.id)
    with tenant_scope(birch.id):
        assert not Quota.objects.exists()
        assert quotas.entries(birch.id) == ()


def test_a_quota_follows_its_name(acorn: Made) -> None:
    """A key that is revoked takes its quota along into nothing; the one issued in its name finds it in place, and the month's use goes on."""
    with tenant_scope(acorn.id):
        first = api_keys.issue_inference(tenant_id=acorn.id, actor=ACTOR, name="app", now=NOW).key
        row = put(acorn, "key", "app")
        used(acorn, key_id=first.id, tokens=30)
        api_keys.revoke(tenant_id=acorn.id, actor=ACTOR, kind=Kind.INFERENCE, key_id=first.id, ceiling=Role.OWNER, now=NOW)
        assert [held.found for held in quotas.standings(acorn.id, [row], NOW)] == [False]
        second = api_keys.issue_inference(tenant_id=acorn.id, actor=ACTOR, name="app", now=NOW).key
        used(acorn, key_id=second.id, tokens=12)
        (held,) = quotas.standings(acorn.id, [row], NOW)
        assert held.found
        assert quotas._Names(acorn.id).used(row, "2027-01") == 42


def test_the_usage_of_each_quota_is_that_of_what_it_is_of(acorn: Made) -> None:
    """Tenant and platform: everything; a scope with those below it; key; endpoint; of this month alone, and of audits nothing."""
    with tenant_scope(acorn.id):
        for path in ("support", "support/emea", "sales"):
            scopes.create(tenant_id=acorn.id, actor=ACTOR, path=path)
        ids = dict(Scope.objects.filter(tenant_id=acorn.id).values_list("path", "id"))
        key = api_keys.issue_inference(tenant_id=acorn.id, actor=ACTOR, name="app", now=NOW).key
        chat = an_endpoint(acorn.id, "chat")
        used(acorn, tokens=1, scope_id=ids["support"], completion_tokens=100)
        used(acorn, tokens=2, scope_id=ids["support/emea"], key_id=key.id, cached_tokens=2)
        used(acorn, tokens=4, scope_id=ids["sales"], endpoint_id=chat.id)
        used(acorn, tokens=8, scope_id=ids[""])
        used(acorn, tokens=1000, key_id=None)
        used(acorn, tokens=5000, at=NOW - timedelta(days=15))
        used(acorn, tokens=5000, at=datetime(2027, 2, 1, tzinfo=UTC))
        wanted = {("tenant", ""): 115, ("scope", ""): 115, ("scope", "support"): 103, ("key", "app"): 2, ("endpoint", "chat"): 4}
        names = quotas._Names(acorn.id)
        assert {one: names.used(put(acorn, *one), "2027-01") for one in wanted} == wanted


def test_how_a_quota_stands(acorn: Made, valkey: redis.Redis) -> None:
    """Used, left and when it begins anew, from what routers wrote; reservations of requests under way count."""
    row = put(acorn, requests_per_minute=10, tokens_per_month=100)
    slot = int(NOW.timestamp()) // quota.SLOT_S - 5
    valkey.hset(quota.key_of(row.id, "requests_per_minute"), f"aaaa:{slot}", "9")
    valkey.hset(key_of(row), mapping={"aaaa": f"40:5:{int(NOW.timestamp())}", quota.GONE: "2"})
    with tenant_scope(acorn.id):
        (held,) = quotas.standings(acorn.id, [row], NOW)
    minute, month = held.standings
    assert (minute.used, minute.left, minute.near) == (9, 1, True)
    assert minute.reset_s is not None
    assert 50 <= minute.reset_s <= 55
    assert (month.used, month.left, month.near, month.reset_s) == (47, 53, False, 16.5 * 86_400)


def test_without_valkey_the_month_is_what_the_usage_says(acorn: Made, settings: Any) -> None:
    """And of minutes nobody knows, which is said."""
    settings.VALKEY_URL = "unix:///nowhere/at-all.sock"
    row = put(acorn, requests_per_minute=10, tokens_per_month=100)
    used(acorn, tokens=33)
    with tenant_scope(acorn.id):
        (held,) = quotas.standings(acorn.id, [row], NOW)
    assert [(one.used, one.left) for one in held.standings] == [(None, None), (33, 67)]


def test_a_valkey_that_lost_the_month_is_told_at_once(acorn: Made, valkey: redis.Redis) -> None:
    """What was used survives it; the control is the run after it, which finds nothing to do."""
    row = put(acorn)
    used(acorn, tokens=70)
    assert correct(acorn, valkey) == 1
    assert counted(valkey, row) == 70
    assert 0 < valkey.ttl(key_of(row)) <= quota.MONTH_KEPT_S
    assert correct(acorn, valkey) == 0
    used(acorn, tokens=5, at=NOW - timedelta(days=40))  # another month's
    assert correct(acorn, valkey) == 0


@pytest.mark.parametrize(("said", "stored"), [(100, 70), (40, 70)])
def test_a_difference_is_put_right_when_it_was_seen_twice(acorn: Made, valkey: redis.Redis, said: int, stored: int) -> None:
    """Up and down: what routers said gives way to what the records say, at the second look and not at the first."""
    row = put(acorn)
    valkey.hset(key_of(row), "aaaa", f"{said}:0:{int(NOW.timestamp())}")
    used(acorn, tokens=stored)
    assert correct(acorn, valkey) == 0
    assert counted(valkey, row) == said
    assert correct(acorn, valkey) == 1
    assert counted(valkey, row) == stored
    assert correct(acorn, valkey) == 0


def test_what_is_on_its_way_is_not_put_right(acorn: Made, valkey: redis.Redis) -> None:
    """Only the smaller of two differences in a row counts, so that tokens of the last moments are left alone."""
    row = put(acorn)
    for said, stored in ((30, 0), (30, 30), (50, 0), (75, 20)):
        valkey.hset(key_of(row), "aaaa", f"{said}:0:{int(NOW.timestamp())}")
        if stored:
            used(acorn, tokens=stored)
        correct(acorn, valkey)
    assert counted(valkey, row) == 55  # 75 said, 50 stored, 20 of the difference were seen twice


def test_records_that_wait_take_nothing_back(acorn: Made, valkey: redis.Redis) -> None:
    """While ingest is behind, what the database lacks is no sign that nobody used it."""
    row = put(acorn)
    valkey.hset(key_of(row), "aaaa", f"100:0:{int(NOW.timestamp())}")
    valkey.xgroup_create(records.STREAM, records.GROUP, id="0", mkstream=True)
    entry = valkey.xadd(records.STREAM, {"r": "r1"})
    assert isinstance(entry, bytes)
    for _ in range(3):
        assert correct(acorn, valkey) == 0
    valkey.xreadgroup(records.GROUP, "one", {records.STREAM: ">"})
    assert correct(acorn, valkey) == 0  # read, not stored yet
    valkey.xack(records.STREAM, records.GROUP, entry)
    assert correct(acorn, valkey) == 1
    assert counted(valkey, row) == 0


def test_the_sweep_takes_every_tenant(acorn: Made, birch: Made, valkey: redis.Redis) -> None:
    rows = [put(one) for one in (acorn, birch)]
    for one, tokens in ((acorn, 7), (birch, 9)):
        used(one, tokens=tokens)
    assert quotas.sweep(NOW) == 2
    assert [counted(valkey, row) for row in rows] == [7, 9]


def test_a_key_that_nobody_can_read_keeps_no_other_back(acorn: Made, birch: Made, valkey: redis.Redis) -> None:
    """Another kind of value, a sum that is no number, and a memory of the last comparison that is none: the other limits are put right."""
    rows = [put(one) for one in (acorn, birch)]
    minute, odd = put(acorn, of="scope", requests_per_minute=5), put(birch, of="scope", tokens_per_month=5)
    for one, tokens in ((acorn, 7), (birch, 9)):
        used(one, tokens=tokens)
    for key in (quotas.DRIFT, key_of(rows[0]), quota.key_of(minute.id, "requests_per_minute")):
        valkey.set(key, "of somebody's hand")
    valkey.hset(key_of(odd), mapping={quota.GONE: "x", "aaaa": "0:0:0"})
    assert quotas.sweep(NOW) == 1
    assert counted(valkey, rows[1]) == 9
    valkey.hset(quotas.DRIFT, key_of(rows[1]), "9" * 5000)
    assert quotas.sweep(NOW) == 0
    with tenant_scope(acorn.id):
        month, requests = quotas.standings(acorn.id, [rows[0], minute], NOW)
    assert [(one.measure, one.used) for one in (*month.standings, *requests.standings)] == [("tokens_per_month", 7), ("requests_per_minute", None)]


@pytest.mark.parametrize(("code", "bad"), [("quota_requests_per_minute", 0), ("queue_timeout", 1)])
def test_a_refusal_by_quota_is_no_miss_of_an_objective(acorn: Made, code: str, bad: int) -> None:
    """The tenant's own limit burns no budget; the control is a refusal for want of replicas, which does."""
    with tenant_scope(acorn.id):
        chat = an_endpoint(acorn.id, "chat", slo={"ttft_p95_ms": 1000})
        used(acorn, endpoint_id=chat.id, ttft_s=0.1)
        used(acorn, endpoint_id=chat.id, outcome="refused", status=429, error_code=code)
        chat = Endpoint.objects.select_related("slo_policy").get(id=chat.id)
        minutes = slo._minutes(acorn.id, chat, NOW + timedelta(seconds=30))
    assert [(one.total, one.bad) for one in minutes] == [(1 + bad, bad)]
