"""Routers that keep one limit through a real Valkey, under the rights that routers have there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
import redis
from redis.asyncio import Redis

from deploy.local.places import Home, short_temporary_home
from deploy.local.valkey import USERS, Valkey
from routing.core import quota
from routing.core.quota import MINUTE_SLICES, MonthMeter, Terms
from routing.core.snapshot import QuotaEntry
from tests.fakes.replica import Script, completion, usage
from tests.fakes.rig import HI, Rig, bumped, named, until
from tests.product import remove
from tests.routing.dataplane.conftest import MakeRig
from tests.services import Services

LIMIT = 40
ENTRY = QuotaEntry(id=named("quota of acme"), of="tenant", requests_per_minute=LIMIT, tokens_per_month=1_000_000)


@pytest.fixture
def url(valkey_url: str, valkey_server: Services) -> str:
    """An empty Valkey, as a router may use it."""
    return valkey_server.valkey_url("router")


async def _pair(make_rig: MakeRig, url: str, *entries: QuotaEntry) -> tuple[Rig, Rig]:
    """Two routers before A and B that share acme's quotas and know it."""
    one = await make_rig(valkey_url=url, router_id="router-1")
    two = await make_rig(valkey_url=url, router_id="router-2", fakes=(one.a, one.b))
    for rig in (one, two):
        rig.publish(bumped(rig.acme, quotas=entries))
    await until(lambda: all(rig.router.plane.quotas.routers == 2 and _heard(rig) for rig in (one, two)))
    return one, two


def _heard(rig: Rig) -> bool:
    desk = rig.router.plane.quotas
    return not any(True for _ in desk.overdue(desk.now_s()))


def _left(rig: Rig, measure: quota.Measure = "requests_per_minute") -> int:
    desk = rig.router.plane.quotas
    limit = getattr(ENTRY, measure)
    meter = desk.meter(ENTRY, measure, quota.month_of(desk.now_s()))
    return meter.left(desk.now_s(), desk.terms(limit, meter))


def _spoilt(rig: Rig) -> list[quota.Measure]:
    return [name[1] for name, meter in rig.router.plane.quotas.meters.items() if meter.spoilt]


async def _drive(*rigs: Rig, requests: int, at_once: int = 4) -> list[int]:
    """Statuses of as many requests to each router, some at once."""

    async def client(rig: Rig, count: int) -> list[int]:
        return [(await rig.chat()).status for _ in range(count)]

    found = await asyncio.gather(*(client(rig, requests // at_once) for rig in rigs for _ in range(at_once)))
    return [status for one in found for status in one]


async def test_fields_that_nobody_understands_end_no_exchange(make_rig: MakeRig, url: str) -> None:
    """Of another version, or of somebody's hand: routers go on counting together, and sweep what is no minute's."""
    one, two = await _pair(make_rig, url, ENTRY)
    month = quota.month_of(one.router.plane.quotas.now_s())
    async with Redis.from_url(url) as valkey:
        for key in (quota.key_of(ENTRY.id, "requests_per_minute"), quota.key_of(ENTRY.id, "tokens_per_month", month), quota.ROUTERS):
            await valkey.hset(key, mapping={"x": "y", "z:": "1:", b"\xff": b"\xfe", "far:9999999999": "1000000"})
        assert await _drive(one, two, requests=4) == [200] * 8
        await until(lambda: _left(one) == _left(two) == LIMIT - 8)
        names = await valkey.hgetall(quota.key_of(ENTRY.id, "requests_per_minute"))
        assert not {b"x", b"z:", b"far:9999999999"} & names.keys()
    assert one.router.plane.quotas.routers == 2


async def test_a_key_of_another_kind_costs_its_own_limit_alone(make_rig: MakeRig, url: str, valkey_url: str) -> None:
    """One limit's key holds a text: of that one each router keeps its share, the other is kept together. The key gone, both are again."""
    one, two = await _pair(make_rig, url, ENTRY)
    key = quota.key_of(ENTRY.id, "requests_per_minute")
    async with Redis.from_url(valkey_url) as valkey:
        await valkey.delete(key)
        await valkey.set(key, "of somebody's hand")
        assert await _drive(one, two, requests=4) == [200] * 8
        await until(lambda: _spoilt(one) == _spoilt(two) == ["requests_per_minute"])
        await until(lambda: _left(one, "tokens_per_month") == _left(two, "tokens_per_month") == 1_000_000 - 8 * 14)
        assert not one.router.plane.quotas.lost
        statuses = [(await one.chat()).status for _ in range(LIMIT)]
        assert statuses == [200] * (LIMIT // 2 - 4) + [429] * (LIMIT // 2 + 4)
        page = one.router.plane.metrics.page().decode()
        assert 'why="share"' in page
        assert "saltroute_quota_spoilt 1.0" in page
        await valkey.delete(key)
        await until(lambda: _spoilt(one) == _spoilt(two) == [])
        await until(lambda: _left(one) == _left(two) == LIMIT // 2 - 4)


async def test_routers_that_cannot_be_counted_are_as_many_as_before(make_rig: MakeRig, url: str, valkey_url: str) -> None:
    """The list of routers holds a text: limits are kept together all the same, among as many as were counted last."""
    one, two = await _pair(make_rig, url, ENTRY)
    async with Redis.from_url(valkey_url) as valkey:
        await valkey.delete(quota.ROUTERS)
        await valkey.set(quota.ROUTERS, "of somebody's hand")
        assert await _drive(one, two, requests=4) == [200] * 8
        await until(lambda: _left(one) == _left(two) == LIMIT - 8)
        assert [rig.router.plane.quotas.routers for rig in (one, two)] == [2, 2]
        await valkey.delete(quota.ROUTERS)
        await valkey.hset(quota.ROUTERS, "odd", "9" * 5000)
        assert (await one.chat()).status == 200
        await until(lambda: _left(one) == _left(two) == LIMIT - 9)
    assert not one.router.plane.quotas.lost


async def test_two_routers_keep_one_limit(make_rig: MakeRig, url: str) -> None:
    """Twice the limit is asked of each of two: what passes is the limit, and at most a slice for each router more. The control: most of it passes."""
    one, two = await _pair(make_rig, url, ENTRY)
    statuses = await _drive(one, two, requests=2 * LIMIT)
    assert set(statuses) == {200, 429}
    passed = statuses.count(200)
    assert passed <= LIMIT + 2 * Terms(LIMIT, 2).slice(MINUTE_SLICES)
    for _ in range(LIMIT):  # what slices were too small for in a rush is there afterwards
        if _left(one) == 0:
            break
        await until(lambda: _heard(one) and _heard(two))
        passed += (await one.chat()).status == 200
    assert LIMIT <= passed <= LIMIT + 2 * Terms(LIMIT, 2).slice(MINUTE_SLICES)
    await until(lambda: _left(one) == _left(two) == 0)  # what one heard last may be FRESH_S old: until then it has a slice, though all is used
    assert (await one.chat()).error["code"] == (await two.chat()).error["code"] == "quota_requests_per_minute"


async def test_a_router_hears_what_the_other_used(make_rig: MakeRig, url: str) -> None:
    """Requests and tokens that one let through are gone at the other; without a request that waited for it."""
    one, two = await _pair(make_rig, url, ENTRY)
    one.a.script = one.b.script = Script(body=completion(usage=usage(prompt=400, completion=100)))
    assert (await two.chat()).status == 200  # what is in use there is asked about anew
    assert (await one.chat()).status == 200
    await until(lambda: _left(two) == LIMIT - 2 and _left(two, "tokens_per_month") == 1_000_000 - 1000)


async def test_reservations_of_one_router_count_at_the_other(make_rig: MakeRig, url: str) -> None:
    """What a request under way may come to use is told before it ends."""
    one, two = await _pair(make_rig, url, ENTRY)
    assert (await two.chat()).status == 200
    gate = asyncio.Event()
    one.a.script = one.b.script = Script(hold=gate, body=completion())
    asked = asyncio.create_task(one.chat({**HI, "max_tokens": 9_000}))
    await until(lambda: _left(two, "tokens_per_month") < 1_000_000 - 9_000)
    gate.set()
    await asked
    await until(lambda: _left(two, "tokens_per_month") == 1_000_000 - 28)


async def test_what_was_used_survives_a_router(make_rig: MakeRig, url: str, valkey_url: str) -> None:
    """A router that ends tells all it used; the one that comes in its place begins with it, before its first request."""
    one = await make_rig(valkey_url=url, router_id="router-1")
    one.publish(bumped(one.acme, quotas=(ENTRY,)))
    for _ in range(3):
        assert (await one.chat()).status == 200
    await one.router.stop()
    with redis.Redis.from_url(valkey_url, decode_responses=True) as valkey:
        held = valkey.hgetall(quota.key_of(ENTRY.id, "tokens_per_month", quota.month_of(time.time())))
        assert held == {quota.GONE: "42"}
        assert valkey.hgetall(quota.ROUTERS) == {}
    late = await make_rig(valkey_url=url, router_id="router-2")
    late.publish(bumped(late.acme, quotas=(ENTRY,)))
    await until(lambda: _left(late) == LIMIT - 3 and _left(late, "tokens_per_month") == 1_000_000 - 42)


async def test_what_valkey_forgot_it_is_told_again(make_rig: MakeRig, url: str, valkey_url: str) -> None:
    """A Valkey that lost everything holds, after the next word, all that the living have used, not only what they use from then on."""
    one, _ = await _pair(make_rig, url, ENTRY)
    for _ in range(3):
        await one.chat()
    await until(lambda: _heard(one))
    key = quota.key_of(ENTRY.id, "tokens_per_month", quota.month_of(time.time()))
    with redis.Redis.from_url(valkey_url, decode_responses=True) as valkey:
        valkey.delete(key)
        await one.chat()
        await until(lambda: quota.month_used(valkey.hgetall(key), time.time())[0] == 56)


async def test_no_request_asks_valkey(make_rig: MakeRig, url: str) -> None:
    """With the feed at rest, requests are let through and refused all the same: nothing of it is on their way."""
    one, _ = await _pair(make_rig, url, ENTRY)
    for task in one.router._tasks:
        if task.get_name() == "quotas":
            task.cancel()
    statuses = [(await one.chat()).status for _ in range(LIMIT)]
    assert statuses.count(200) == Terms(LIMIT, 2).slice(MINUTE_SLICES)  # one slice, then nothing: it hears no more
    refused = await one.chat()
    assert refused.headers["Retry-After"] == "1"  # not the limit is reached, a slice is used up
    assert 'why="slice"' in one.router.plane.metrics.page().decode()


@pytest.fixture
def mortal() -> Iterator[Valkey]:
    """A Valkey that a test may kill and start again; what it held is gone then."""
    home = Home(short_temporary_home("srq-"))
    home.make()
    valkey = Valkey(home, {user: f"password-of-{user}-for-tests" for user in USERS}, persistent=False)
    valkey.start()
    yield valkey
    valkey.stop()
    remove(home)


async def test_without_valkey_each_goes_on_with_its_share(make_rig: MakeRig, mortal: Valkey) -> None:
    """Valkey stops: both go on, each up to its half of the limit, and refuse beyond. It comes back empty: what was used is told to it again."""
    url = mortal.url("router").replace("{password}", "password-of-router-for-tests")
    one, two = await _pair(make_rig, url, ENTRY)
    assert mortal.child is not None
    await asyncio.to_thread(mortal.child.stop)
    for rig in (one, two):
        rig.router.plane.quotas.wake.set()
    await until(lambda: one.router.plane.quotas.lost and two.router.plane.quotas.lost)
    for rig in (one, two):
        statuses = [(await rig.chat()).status for _ in range(LIMIT)]
        assert statuses == [200] * (LIMIT // 2) + [429] * (LIMIT // 2)
        assert 'why="share"' in rig.router.plane.metrics.page().decode()
        assert "saltroute_quota_lost 1.0" in rig.router.plane.metrics.page().decode()
    await asyncio.to_thread(mortal.start)
    await until(lambda: not one.router.plane.quotas.lost and not two.router.plane.quotas.lost)
    await until(lambda: (_left(one), _left(two)) == (0, 0))
    assert one.router.plane.quotas.routers == two.router.plane.quotas.routers == 2
    assert (await one.chat()).status == (await two.chat()).status == 429


async def test_many_limits_are_told_in_turns(make_rig: MakeRig, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More limits than one transaction holds are all heard of, none twice as often."""
    monkeypatch.setattr("routing.dataplane.feeds.quotas.BATCH", 7)
    entries = tuple(QuotaEntry(id=named(f"quota {place}"), of="key", name=f"key {place}", tokens_per_month=100) for place in range(30))
    one, _ = await _pair(make_rig, url, *entries)
    meters = one.router.plane.quotas.meters.values()
    assert len(meters) == 30
    assert all(isinstance(meter, MonthMeter) and meter.heard_at_s > 0 for meter in meters)


async def test_a_dead_routers_word_is_swept(make_rig: MakeRig, url: str, valkey_url: str) -> None:
    """A process that has not spoken for a while is not counted among those that share, and its field goes."""
    async with Redis.from_url(valkey_url) as valkey:
        await valkey.hset(quota.ROUTERS, "dead", str(int(time.time()) - 60))
        one, _ = await _pair(make_rig, url, ENTRY)
        await one.chat()
        async with asyncio.timeout(10):
            while await valkey.hexists(quota.ROUTERS, "dead"):
                one.router.plane.quotas.wake.set()
                await asyncio.sleep(0.01)
        assert one.router.plane.quotas.routers == 2
