"""What becomes of a request that its own pool has no time for: another pool of the same model, another model that the answer names, or a refusal."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from routing.core.snapshot import PolicyEntry, PoolEntry, ReplicaEntry
from tests.fakes.replica import FakeReplica, Script, chunk, completion, event, usage_chunk
from tests.fakes.rig import KEY_A, KEY_B, Reply, Rig, bumped, endpoint, named, replica_entry, until
from tests.routing.dataplane.conftest import MakeRig
from tests.routing.dataplane.test_waiting import LONG, Busy, prompt

OTHER = named("pool other")


async def spill_to(rig: Rig, *, isolation: str = "declared", changes: dict[str, Any] | None = None, **spec: Any) -> FakeReplica:
    """Give acme a second pool with replica C, and its endpoint a policy that spills there."""
    c = FakeReplica("C")
    await c.start()
    rig.extra.append(c)
    entry: ReplicaEntry = replica_entry(c, **(changes or {}))
    home = rig.acme.pools[0]
    other = PoolEntry(id=OTHER, name="other", owner_tenant_id=rig.acme.tenant_id, isolation=isolation, replicas=(entry,))  # type: ignore[arg-type]  # a mode as text
    policy = PolicyEntry(name="slo", version=1, spec={"overload": "spill", "spill_pool": "other", **spec})
    rig.publish(bumped(rig.acme, pools=(home, other), endpoints=(endpoint(home, slo=policy, spill_pool_id=OTHER),)))
    return c


async def test_an_idle_pool_spills_nothing(rig: Rig) -> None:
    c = await spill_to(rig)
    for number in range(4):
        assert (await rig.chat(prompt(f"number {number}", 400))).status == 200
    assert not c.requests
    assert {one.spilled for one in rig.records()} == {None}


async def test_a_busy_pool_spills_to_the_other_at_once_under_the_same_salt(rig: Rig) -> None:
    c = await spill_to(rig)
    busy = Busy(rig)
    await busy.fill()
    reply = await rig.chat(prompt("a short one", 400))
    assert reply.status == 200
    assert "X-Saltroute-Model" not in reply.headers
    (received,) = c.requests
    assert received.json["cache_salt"] == rig.a.requests[0].json["cache_salt"]
    record = next(one for one in rig.records() if one.spilled)
    assert (record.spilled, record.replica_name, record.endpoint) == ("pool", "C", "m-7b")
    await busy.end()
    assert (await rig.chat(prompt("later", 400))).status == 200
    assert len(c.requests) == 1  # the pool of its own has time again


async def test_a_pool_without_any_replica_spills_too(rig: Rig) -> None:
    c = await spill_to(rig)
    for fake in (rig.a, rig.b):
        rig.router.plane.engine(fake.url).misses = 9
    assert (await rig.chat()).status == 200
    assert len(c.requests) == 1


async def test_where_neither_has_a_replica_the_refusal_is_the_one_of_its_own_pool(rig: Rig) -> None:
    await spill_to(rig, isolation="audited")  # refuses for isolation
    for fake in (rig.a, rig.b):
        rig.router.plane.engine(fake.url).misses = 9
    refused = await rig.chat()
    assert (refused.status, refused.error["code"]) == (503, "no_ready_replica")
    rig.assert_nothing_held()


async def test_where_neither_has_time_the_request_waits_for_whichever_is_first(rig: Rig) -> None:
    c = await spill_to(rig)
    gate = asyncio.Event()
    c.script = Script(hold=gate, body=completion())
    busy = Busy(rig)
    await busy.fill()
    busy.calls.append(asyncio.create_task(rig.chat(prompt("fills the other", LONG, stream=True))))
    await until(lambda: len(c.requests) == 1)
    held = [asyncio.create_task(rig.chat(prompt(f"short {number}", 400))) for number in range(3)]
    await busy.wait(3)
    c.script = Script(body=completion())
    gate.set()
    assert [reply.status for reply in await asyncio.gather(*held)] == [200] * 3
    assert len(c.requests) == 4
    await busy.end()
    assert all(not room.queue and not room.waiting for room in rig.router.plane.waiting._rooms.values())


async def test_the_last_replica_of_one_pool_leaves_the_place_in_the_others_queue(rig: Rig) -> None:
    c = await spill_to(rig)
    gate = asyncio.Event()
    c.script = Script(hold=gate, body=completion())
    busy = Busy(rig)
    await busy.fill()
    busy.calls.append(asyncio.create_task(rig.chat(prompt("fills the other", LONG, stream=True))))
    await until(lambda: len(c.requests) == 1)
    held = asyncio.create_task(rig.chat(prompt("short", 400)))
    await busy.wait(1)
    for fake in (rig.a, rig.b):
        rig.router.plane.engine(fake.url).misses = 9
    c.script = Script(body=completion())
    gate.set()
    assert (await held).status == 200
    await busy.end()


@pytest.mark.parametrize(("isolation", "changes"), [("audited", {"isolation": "quarantined"}), ("audited", {}), ("declared", {"engine": "sglang"})])
async def test_isolation_and_engine_family_count_at_the_other_pool_as_everywhere(rig: Rig, isolation: str, changes: dict[str, Any]) -> None:
    """Quarantined, unverified without an assignment, another family: no spill; the refusal is the one of a pool that has no time."""
    c = await spill_to(rig, isolation=isolation, changes=changes, max_queue_ms=0)
    busy = Busy(rig)
    await busy.fill()
    refused = await rig.chat(prompt("short", 400))
    assert (refused.status, refused.error["code"]) == (429, "shed")
    assert not c.requests
    await busy.end()


async def test_a_pool_that_the_tenant_may_not_use_any_more_is_no_way_out(rig: Rig) -> None:
    """The snapshot names a pool that it does not hold: the request waits as if nothing had been said."""
    policy = PolicyEntry(name="slo", version=1, spec={"overload": "spill", "spill_pool": "gone", "max_queue_ms": 0})
    rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0], slo=policy, spill_pool_id=None),)))
    busy = Busy(rig)
    await busy.fill()
    assert (await rig.chat(prompt("short", 400))).error["code"] == "shed"
    await busy.end()


# ---- another model -----------------------------------------------------------------------------------------------------


async def small_model(rig: Rig, **spec: Any) -> FakeReplica:
    """Endpoint ``small`` on a pool of its own, and a policy of ``m-7b`` that falls back to it."""
    c = FakeReplica("C")
    await c.start()
    rig.extra.append(c)
    home = rig.acme.pools[0]
    other = PoolEntry(id=OTHER, name="other", owner_tenant_id=rig.acme.tenant_id, isolation="declared", replicas=(replica_entry(c),))
    policy = PolicyEntry(name="slo", version=1, spec={"overload": "spill", "spill_model": "small", **spec})
    small = endpoint(other, "small", model=msgspec.structs.replace(rig.acme.endpoints[0].model, name="m-1b"), served_model="org/m-1b")
    rig.publish(bumped(rig.acme, pools=(home, other), endpoints=(endpoint(home, slo=policy), small)))
    return c


async def test_another_model_answers_under_its_own_identity_and_the_answer_names_it(rig: Rig) -> None:
    c = await small_model(rig, max_queue_ms=20)
    busy = Busy(rig)
    await busy.fill()
    reply = await rig.chat(prompt("short", 400))
    assert reply.status == 200
    assert reply.headers["X-Saltroute-Model"] == "small"
    assert reply.json["model"] == "small"
    (received,) = c.requests
    assert received.json["model"] == "org/m-1b"
    assert received.json["cache_salt"] != rig.a.requests[0].json["cache_salt"]
    record = next(one for one in rig.records() if one.spilled)
    assert (record.spilled, record.endpoint, record.model) == ("model", "m-7b", "m-1b")
    await busy.end()


async def test_a_stream_of_another_model_names_it_in_header_and_chunks(rig: Rig) -> None:
    c = await small_model(rig, max_queue_ms=0)
    c.script = Script(pieces=[event(chunk("x", model="org/m-1b")), event(chunk(finish="stop")), event(usage_chunk()), event("[DONE]")])
    busy = Busy(rig)
    await busy.fill()
    reply = await rig.chat(prompt("short", 400, stream=True))
    assert reply.headers["X-Saltroute-Model"] == "small"
    assert b'"model":"small"' in reply.body.replace(b" ", b"")
    assert b"org/m-1b" not in reply.body
    await busy.end()


async def test_a_key_that_may_not_use_the_other_model_gets_the_refusal(rig: Rig) -> None:
    c = await small_model(rig, max_queue_ms=0)
    keys = tuple(msgspec.structs.replace(key, endpoints=("m-7b",)) for key in rig.acme.keys)
    rig.publish(bumped(rig.acme, keys=keys))
    busy = Busy(rig)
    await busy.fill()
    assert (await rig.chat(prompt("short", 400))).error["code"] == "shed"
    assert not c.requests
    await busy.end()


async def test_an_engines_own_refusal_is_not_answered_by_another_model(rig: Rig) -> None:
    """Only want of time spills: a request that is wrong stays wrong."""
    c = await small_model(rig)
    rig.a.script = rig.b.script = Script(status=400, body={"error": {"message": "no", "type": "invalid_request_error"}})
    assert (await rig.chat()).status == 400
    assert not c.requests


# ---- weights and caps --------------------------------------------------------------------------------------------------


def share_pool(rig: Rig, *, acme: float = 1.0, globex: float = 1.0, **spec: Any) -> None:
    """Both tenants on acme's pool, each with a weight of its own."""
    pool = msgspec.structs.replace(rig.acme.pools[0], shared=True)
    slo = PolicyEntry(name="slo", version=1, spec=spec) if spec else None
    for document, weight in ((rig.acme, acme), (rig.globex, globex)):
        mine = msgspec.structs.replace(pool, weight=weight)
        rig.publish(bumped(document, pools=(mine,), endpoints=(endpoint(mine, id=document.endpoints[0].id, slo=slo),)))


async def test_turns_follow_the_weights_that_the_platform_set(rig: Rig) -> None:
    """Twelve equal requests wait for each; of the first twelve started after the occupants eight are of the tenant that weighs twice as much."""
    share_pool(rig, acme=2.0, globex=1.0)
    busy = Busy(rig)
    await busy.fill()
    size = 40_000
    for number in range(12):
        for name, key in (("acme", KEY_A), ("glob", KEY_B)):
            busy.calls.append(asyncio.create_task(rig.chat(prompt(f"{name} {number}", size, stream=True), key=key)))
    await busy.wait(24)
    order: list[str] = []
    queues = [room.queue for room in rig.router.plane.waiting._rooms.values()]
    real = queues[0].take

    def noted(waiter_id: int) -> Any:
        waiter = real(waiter_id)
        order.append("acme" if waiter.tenant == rig.acme.tenant_id.bytes else "glob")
        return waiter

    queues[0].take = noted  # type: ignore[method-assign]  # only listens
    await busy.end()
    assert order[:12].count("acme") == 8


def measured(rig: Rig, tokens_per_s: float) -> None:
    """Both replicas' speeds are known."""
    for fake in (rig.a, rig.b):
        calibration = rig.router.plane.engine(fake.url).calibration
        calibration.own_rate = calibration.ceiling = tokens_per_s


async def test_a_tenant_may_not_queue_more_than_its_part_of_what_starts_in_time(make_rig: MakeRig) -> None:
    """Two replicas of 8,000 tokens/s start 32,000 tokens in two seconds: one prompt of 20,000 waits, the second is refused, another's waits."""
    rig = await make_rig()
    share_pool(rig, max_queue_ms=2000)
    measured(rig, 8000.0)
    busy = Busy(rig)
    await busy.fill()
    measured(rig, 8000.0)
    waits: list[asyncio.Task[Reply]] = [asyncio.create_task(rig.chat(prompt("the first", 80_000, stream=True)))]
    await busy.wait(1)
    refused = await rig.chat(prompt("the second", 80_000))
    assert (refused.status, refused.error["code"]) == (429, "queue_full")
    assert rig.router.plane.metrics.queue_refused.labels(reason="queue_share")._value.get() == 1
    waits.append(asyncio.create_task(rig.chat(prompt("another tenant's", 80_000, stream=True), key=KEY_B)))
    await busy.wait(2)
    busy.calls.extend(waits)
    await busy.end()
