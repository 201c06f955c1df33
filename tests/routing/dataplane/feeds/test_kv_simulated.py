"""The whole path: a real router and simulated engines that publish events. What only the engines can know decides where a conversation goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from routing.core import sequence
from routing.core.record import DecisionRecord
from routing.dataplane.feeds import load
from routing.simulator.config import EngineConfig, ReplicaConfig, TimeModel
from routing.simulator.fleet import Fleet, running_fleet
from tests.fakes.rig import KEY_A, KEY_B, Rig, bumped, replica_entry, until
from tests.routing.dataplane.conftest import MakeRig

BLOCK = 16
ENGINE = EngineConfig(blocks=400, block_size_tokens=BLOCK, max_model_len_tokens=4096, time=TimeModel(speed=200.0))
FIRST = list(range(1000, 1000 + 40 * BLOCK + 5))


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with running_fleet(ReplicaConfig(engine=ENGINE, model="m-7b"), replicas=3) as running:
        yield running


async def check(rig: Rig) -> None:
    for replica in rig.router.plane.replicas.values():
        rig.router.plane.engine(replica.url).facts_due_s = 0.0
        await load.check(rig.router.plane, replica)


async def routed(make_rig: MakeRig, fleet: Fleet) -> Rig:
    """A router in front of the fleet that follows all its events."""
    rig = await make_rig(kv_replay_s=0.5, kv_retry_s=0.02)
    entries = tuple(replica_entry(running.url, f"sim {number}") for number, running in enumerate(fleet.replicas))
    for document in (rig.acme, rig.globex):
        rig.publish(bumped(document, pools=tuple(msgspec.structs.replace(pool, replicas=entries) for pool in document.pools)))
    await check(rig)
    await until(lambda: all(rig.router.plane.residency.of(running.url).state == "exact" for running in fleet.replicas))
    return rig


async def ask(rig: Rig, prompt: list[int], *, key: str = KEY_A) -> DecisionRecord:
    before = len(rig.records())
    answer = await rig.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": prompt, "max_tokens": 4}, key=key)
    assert answer.status == 200, answer.body
    await until(lambda: len(rig.records()) > before)
    return rig.records()[-1]


def shown(rig: Rig, fleet: Fleet) -> list[int]:
    """Blocks that events show at each replica."""
    sizes = rig.router.plane.events.sizes()
    return [sizes[running.url, 0].credited + sizes[running.url, 0].parked for running in fleet.replicas]


def more(prompt: list[int]) -> list[int]:
    """The next turn."""
    return [*prompt, *range(50_000, 50_200)]


async def test_a_conversation_goes_on_where_another_router_began_it(make_rig: MakeRig, fleet: Fleet) -> None:
    first, second = await routed(make_rig, fleet), await routed(make_rig, fleet)
    begun = await ask(first, FIRST)
    await until(lambda: sum(shown(second, fleet)) >= 40)
    assert sum(blocks for blocks, _ in second.router.plane.index.sizes().values()) == 0  # it sent nobody anywhere
    gone_on = await ask(second, more(FIRST))
    assert gone_on.replica_name == begun.replica_name
    assert gone_on.matched_tokens == 40 * BLOCK
    assert gone_on.cached_tokens == 40 * BLOCK  # the engine says the same
    evidence = {one.replica_name: one.evidence for one in gone_on.candidates}
    assert evidence.pop(str(begun.replica_name)) == "event"
    assert set(evidence.values()) == {"none"}


@pytest.mark.parametrize("salted", [True, False])
async def test_what_came_round_every_router_counts_under_the_right_salt_alone(make_rig: MakeRig, fleet: Fleet, salted: bool) -> None:
    rig = await routed(make_rig, fleet)
    salt = rig.namespace().salt if salted else "sr1-" + "A" * 43
    body = {"model": "m-7b", "prompt": FIRST, "max_tokens": 1, "cache_salt": salt}
    async with aiohttp.ClientSession() as client, client.post(f"{fleet[2].url}/v1/completions", json=body) as answer:
        assert answer.status == 200
    await until(lambda: shown(rig, fleet)[2] >= 40)
    seen = await ask(rig, more(FIRST))
    expected: tuple[Any, ...] = ("sim 2", 40 * BLOCK, 40 * BLOCK) if salted else (seen.replica_name, 0, 0)
    assert (seen.replica_name, seen.matched_tokens, seen.cached_tokens) == expected


async def test_another_tenants_conversation_on_the_same_engines_is_invisible(make_rig: MakeRig, fleet: Fleet) -> None:
    rig = await routed(make_rig, fleet)
    mine = await ask(rig, FIRST)
    await until(lambda: sum(shown(rig, fleet)) >= 40)
    theirs = await ask(rig, FIRST, key=KEY_B)
    assert (theirs.matched_tokens, theirs.cached_tokens) == (0, 0)
    assert {one.matched_tokens for one in theirs.candidates} == {0}
    again = await ask(rig, FIRST)
    assert (again.replica_name, again.matched_tokens) == (mine.replica_name, 40 * BLOCK)


async def test_lost_messages_are_replayed_and_older_vllms_arrays_are_read(make_rig: MakeRig, fleet: Fleet) -> None:
    rig = await routed(make_rig, fleet)
    where = fleet.replicas.index(await _holder(rig, fleet))
    replica = fleet[where].replica
    replica.set_mode({"kv_drop_live": True, "kv_array_events": True})
    await ask(rig, more(FIRST))
    lost = shown(rig, fleet)[where]
    replica.set_mode({"kv_drop_live": False})
    await ask(rig, more(more(FIRST)))
    await until(lambda: shown(rig, fleet)[where] > lost)
    await until(lambda: rig.router.plane.residency.of(fleet[where].url).state == "exact")
    seen = await ask(rig, more(more(more(FIRST))))
    assert (seen.matched_tokens, seen.cached_tokens) == (1040 // BLOCK * BLOCK, 1040 // BLOCK * BLOCK)


async def _holder(rig: Rig, fleet: Fleet) -> Any:
    """The replica that the first turn went to."""
    begun = await ask(rig, FIRST)
    await until(lambda: sum(shown(rig, fleet)) >= 40)
    return fleet.replicas[int(str(begun.replica_name).removeprefix("sim "))]


async def test_a_restarted_engine_is_no_longer_credited(make_rig: MakeRig, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "START_TOLERANCE_S", 0.0)  # no real engine comes back within a second
    rig = await routed(make_rig, fleet)
    holder = await _holder(rig, fleet)
    await holder.restart()
    await until(lambda: rig.router.plane.residency.of(holder.url).state == "degraded")
    await until(lambda: rig.router.plane.residency.of(holder.url).state == "exact")
    assert sum(shown(rig, fleet)) == 0
    seen = await ask(rig, more(FIRST))
    assert seen.matched_tokens == 0
    assert seen.cached_tokens == 0
