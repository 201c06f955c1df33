"""A look at an engine before it is added: what a router finds, of whom it says nothing, and who may ask."""

from __future__ import annotations

import dataclasses
import time
from typing import Any
from uuid import UUID

import msgspec
import pytest

from namespaces.core import check as orders
from namespaces.core import keyring
from namespaces.core.check import Order
from routing.core.replica_check import UNANSWERED, CheckReport
from routing.dataplane import checks
from routing.simulator.config import EngineConfig, ReplicaConfig
from routing.simulator.fleet import Fleet, fleet_configs, running_fleet
from tests.fakes.replica import Script
from tests.fakes.rig import PUBLISH, ROOT, Reply, Rig
from tests.routing.dataplane.conftest import MakeRig
from tests.routing.dataplane.test_ranks import named as named_ranks

CHECK = UUID("cccccccc-0000-4000-8000-000000000001")
MODELS = {"object": "list", "data": [{"id": "m-7b", "object": "model", "owned_by": "vllm", "root": "m-7b", "parent": None}]}
_NONCES = iter(range(10**6))


def order(rig: Rig, url: str, **more: Any) -> Order:
    usual: dict[str, Any] = {"engine": "vllm", "exp": time.time() + 30, "nonce": f"n{next(_NONCES)}"}
    return Order(tenant=rig.acme.tenant_id, check=CHECK, url=url, **{**usual, **more})


async def send(rig: Rig, text: str) -> Reply:
    async with rig.client.post(f"{rig.internal}{checks.PATH}", data=text.encode()) as answer:
        return Reply(status=answer.status, headers=answer.headers, body=await answer.read())


async def found(rig: Rig, url: str, **more: Any) -> CheckReport:
    reply = await send(rig, orders.sign(order(rig, url, **more), PUBLISH))
    assert reply.status == 200, reply.body
    return msgspec.json.decode(reply.body, type=CheckReport)


def answered(cached: int | None) -> Script:
    usage: dict[str, Any] = {"prompt_tokens": 500, "completion_tokens": 1, "total_tokens": 501}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return Script(body={"object": "text_completion", "choices": [{"index": 0, "text": "a", "finish_reason": "length"}], "usage": usage})


async def test_what_an_engine_is_is_found(rig: Rig) -> None:
    """A simulated engine outside every pool: models, block size, capacity, events, and two salts that share nothing; then one that ignores them."""
    fleet = Fleet(fleet_configs(ReplicaConfig(engine=EngineConfig(blocks=4000), kv_port=0, replay_port=0), 1))
    await fleet.start()
    try:
        seen = await found(rig, fleet[0].url)
        assert (seen.answered, seen.family, seen.served, seen.block_tokens) == (True, "vllm", None, 16)
        assert seen.models[0] == seen.served_model
        assert (seen.events, seen.event_ranks, seen.event_replay) == ("published", 1, True)
        assert seen.capacity_tokens == 4000 * 16
        assert seen.version
        assert (seen.salts.verdict, seen.salts.first, seen.salts.other) == ("honoured", 0, 0)
        assert (seen.salts.again or 0) > 16
        assert seen.parity.state == "not asked"
        fleet[0].replica.set_mode({"salt_mode": "ignore_salt"})
        assert (await found(rig, fleet[0].url)).salts.verdict == "ignored"
        assert (await found(rig, fleet[0].url, served_model="nobody")).served is False
    finally:
        await fleet.stop()


@pytest.mark.parametrize("name_ranks", [True, False])
async def test_all_probes_of_one_check_meet_one_rank(make_rig: MakeRig, name_ranks: bool) -> None:
    """An engine of several spreads what names none, and three caches would be taken for one that forgets; where the operator leaves ranks to the
    engine none is named. Of an engine of one rank none is named either."""
    simulated = ReplicaConfig(engine=EngineConfig(blocks=4000), model="m-7b", data_parallel=4, balance_s=None)
    async with running_fleet(simulated) as several, running_fleet(dataclasses.replace(simulated, data_parallel=1)) as one:
        rig = await make_rig(name_ranks=name_ranks)
        assert (await found(rig, several[0].url)).salts.verdict == ("honoured" if name_ranks else "no hit")
        assert (await found(rig, one[0].url)).salts.verdict == "honoured"
        assert named_ranks(several[0]) == ["0" if name_ranks else None] * 3
        assert named_ranks(one[0]) == [None] * 3


@pytest.mark.parametrize(
    ("cached", "verdict"),
    [((0, 496, 0), "honoured"), ((0, 496, 496), "ignored"), ((0, 0, 0), "no hit"), ((496, 496, 0), "odd"), ((None, None, None), "not reported")],
)
async def test_salts_are_judged_by_three_uses_of_one_prompt(rig: Rig, cached: tuple[int | None, ...], verdict: str) -> None:
    """The first two under one salt, the third under another, none of them a namespace's; the prompt is the same and new each time."""
    rig.a.on_path["/v1/models"] = Script(body=MODELS)
    rig.a.scripts = [answered(one) for one in cached]
    assert (await found(rig, rig.a.url)).salts.verdict == verdict
    sent = [received.json for received in rig.a.requests]
    assert len({one["prompt"] for one in sent}) == 1
    first, again, other = (one["cache_salt"] for one in sent)
    assert first == again != other
    assert {len(first), len(other)} == {len(rig.namespace().salt)}
    assert rig.namespace().salt not in (first, other)
    rig.assert_nothing_held()


async def test_an_engine_that_wants_a_credential_gets_the_sealed_one(rig: Rig) -> None:
    """Sealed to this check; without it, or bound to another check, the engine's refusal is told."""
    rig.a.on_path["/v1/models"] = Script(status=401, body={"error": "who?"})
    assert (await found(rig, rig.a.url)).refused_status == 401
    public = keyring.seal_public_key(ROOT)
    sealed = keyring.seal(public, b"of-the-engine", info=keyring.credential_info(rig.acme.tenant_id, CHECK))
    await found(rig, rig.a.url, credential=sealed)
    assert rig.a.probes[-1].headers["authorization"] == "Bearer of-the-engine"
    other = keyring.seal(public, b"of-the-engine", info=keyring.credential_info(rig.acme.tenant_id, rig.acme.tenant_id))
    await found(rig, rig.a.url, credential=other)
    assert "authorization" not in rig.a.probes[-1].headers


async def test_what_is_no_engine_is_told_from_nothing_by_nobody(rig: Rig, make_rig: MakeRig) -> None:
    """A closed port, another service, and an address that is not allowed give the same bytes."""
    gone = rig.b.url
    await rig.b.stop()
    said = [await send(rig, orders.sign(order(rig, url), PUBLISH)) for url in (gone, rig.a.url, "http://10.1.2.3:9000")]
    walled = await make_rig(allowed_ranges=())
    walled.a.on_path["/v1/models"] = Script(body=MODELS)
    said.append(await send(walled, orders.sign(order(walled, walled.a.url), PUBLISH)))
    assert {one.body for one in said} == {msgspec.json.encode(UNANSWERED)}
    assert walled.a.probes == []
    rig.a.on_path["/v1/models"] = Script(body=MODELS)  # the control: the same address, now an engine
    assert (await found(rig, rig.a.url)).answered


async def test_only_the_control_plane_orders_a_check_and_each_order_once(rig: Rig) -> None:
    """Unsigned, changed, expired, far ahead, repeated, or at the public port: nothing is sent anywhere."""
    good = order(rig, rig.a.url)
    text = orders.sign(good, PUBLISH)
    late = orders.sign(order(rig, rig.a.url, exp=time.time() - 1), PUBLISH)
    far = orders.sign(order(rig, rig.a.url, exp=time.time() + 600), PUBLISH)
    forged = orders.sign(order(rig, rig.a.url), bytes(32))
    for bad in ("", "x.y", text[:-4] + "AAA=", late, far, forged, "a" * 20_000):
        assert (await send(rig, bad)).status == 401, bad[:20]
    async with rig.client.post(f"{rig.url}{checks.PATH}", data=text.encode()) as answer:
        assert answer.status == 404
    assert rig.a.probes == []
    assert (await send(rig, text)).status == 200
    asked = len(rig.a.probes)
    assert asked > 0
    assert (await send(rig, text)).status == 401
    assert len(rig.a.probes) == asked


async def test_a_router_checks_so_many_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is told to come again, and counted."""
    monkeypatch.setattr(checks, "AT_ONCE", 0)
    assert (await send(rig, orders.sign(order(rig, rig.a.url), PUBLISH))).status == 503
    assert rig.router.plane.metrics.registry.get_sample_value("saltroute_replica_checks_total", {"result": "busy"}) == 1
