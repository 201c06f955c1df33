"""An engine of several data-parallel ranks behind one URL: each is a target of its own, and requests say which one they are for."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from routing.core.policy import RoutingPolicy
from routing.core.ranks import OTHER_RANK
from routing.core.record import DecisionRecord
from routing.core.types import Candidate
from routing.dataplane.choose import choose
from routing.dataplane.feeds import kv_sources, load
from routing.dataplane.ranks import key
from routing.simulator.config import EngineConfig, ReplicaConfig, TimeModel
from routing.simulator.fleet import RunningReplica, running_fleet
from routing.simulator.ranks import RANK_HEADER
from tests.bench.decide import pool
from tests.fakes.replica import Script
from tests.fakes.rig import KEY_B, Rig, bumped, replica_entry, until
from tests.routing.dataplane.conftest import MakeRig
from tests.routing.dataplane.feeds.test_kv_simulated import BLOCK, FIRST, ask, more
from tests.routing.dataplane.test_probes import ask as probe

ENGINE = EngineConfig(blocks=400, block_size_tokens=BLOCK, max_model_len_tokens=4096, time=TimeModel(speed=200.0))
RANKS = 4


@pytest.fixture
async def engine() -> AsyncIterator[RunningReplica]:
    async with running_fleet(ReplicaConfig(engine=ENGINE, model="m-7b", data_parallel=RANKS)) as fleet:
        yield fleet[0]


async def scrape(rig: Rig) -> None:
    for replica in rig.router.plane.replicas.values():
        rig.router.plane.engine(replica.url).facts_due_s = 0.0
        await load.check(rig.router.plane, replica)


async def before(make_rig: MakeRig, *engines: RunningReplica, events: bool = True, **settings: Any) -> Rig:
    """A router in front of the engines that has scraped them and follows their events."""
    rig = await make_rig(kv_replay_s=0.5, kv_retry_s=0.02, **settings)
    entries = tuple(replica_entry(one.url, f"sim {number}") for number, one in enumerate(engines))
    for document in (rig.acme, rig.globex):
        rig.publish(bumped(document, pools=tuple(msgspec.structs.replace(pool, replicas=entries) for pool in document.pools)))
    await scrape(rig)
    await scrape(rig)  # what it says of its events came after its metrics
    if events:
        await until(lambda: all(rig.router.plane.residency.of(one.url).state == "exact" for one in engines))
        await until(lambda: all(len(rig.router.plane.residency.of(one.url).targets) == len(one.ranks) for one in engines))
    return rig


def named(engine: RunningReplica) -> list[str | None]:
    """The rank that each request named, as it reached the engine."""
    return [dict(one.headers).get(RANK_HEADER.lower()) for one in engine.replica.requests if one.path.startswith("/v1/")]


def blocks(rig: Rig, engine: RunningReplica) -> list[int]:
    """Blocks that events show at each rank."""
    sizes = rig.router.plane.events.sizes()
    return [sizes[engine.url, rank].credited if (engine.url, rank) in sizes else 0 for rank in range(len(engine.ranks))]


def rank_of(record: DecisionRecord) -> int | None:
    return record.attempts[-1].dp_rank


async def test_the_next_turn_goes_to_the_rank_that_holds_the_conversation(make_rig: MakeRig, engine: RunningReplica) -> None:
    """The header names it, the engine finds there what was promised, and record and candidates say which rank it was."""
    rig = await before(make_rig, engine)
    begun = await ask(rig, FIRST)
    await until(lambda: sum(blocks(rig, engine)) >= 40)
    chosen = rank_of(begun)
    assert chosen is not None
    assert [count >= 40 for count in blocks(rig, engine)] == [rank == chosen for rank in range(RANKS)]
    gone_on = await ask(rig, more(FIRST))
    assert (rank_of(gone_on), gone_on.matched_tokens, gone_on.cached_tokens) == (chosen, 40 * BLOCK, 40 * BLOCK)
    assert named(engine) == [str(chosen)] * 2
    best, *others = gone_on.candidates
    assert (best.dp_rank, best.refusal, best.evidence) == (chosen, None, "event")
    assert {(one.dp_rank, one.refusal, one.matched_tokens) for one in others} == {(rank, OTHER_RANK, 0) for rank in range(RANKS) if rank != chosen}
    assert rig.router.plane.trust.report((engine.url, chosen), 0.0).share_exact == 1.0
    assert [rig.router.plane.trust.report((engine.url, rank), 0.0).answers for rank in range(RANKS) if rank != chosen] == [0] * (RANKS - 1)


async def test_history_is_kept_by_rank_where_there_are_no_events(make_rig: MakeRig) -> None:
    """What was sent to one rank promises nothing of another."""
    async with running_fleet(ReplicaConfig(engine=ENGINE, model="m-7b", data_parallel=2, kv_port=None)) as fleet:
        rig = await before(make_rig, fleet[0], events=False)
        begun = await ask(rig, FIRST)
        gone_on = await ask(rig, more(FIRST))
        assert rank_of(gone_on) == rank_of(begun)
        assert gone_on.cached_tokens == 40 * BLOCK
        assert gone_on.matched_tokens > 30 * BLOCK
        assert [one.matched_tokens > 0 for one in gone_on.candidates] == [True, False]
        sizes = rig.router.plane.index.sizes()
        held = [sizes.get(key(fleet[0].url, rank), (0, 0))[0] for rank in range(2)]
        assert [count > 0 for count in held] == [rank == rank_of(begun) for rank in range(2)]
        assert sizes.get(fleet[0].url, (0, 0))[0] == 0


async def test_a_prefix_that_everybody_sends_does_not_fill_one_rank(make_rig: MakeRig, engine: RunningReplica) -> None:
    """Its queue is weighed against what it holds, so some of a flood go elsewhere, and everybody is given back."""
    rig = await before(make_rig, engine)
    await ask(rig, FIRST)
    await until(lambda: sum(blocks(rig, engine)) >= 40)
    seen: list[int] = []

    async def one(number: int) -> None:
        prompt = [*FIRST, *range(60_000 + 2000 * number, 60_000 + 2000 * number + 1500)]
        answer = await rig.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": prompt, "max_tokens": 4})
        assert answer.status == 200, answer.body

    await asyncio.gather(*[one(number) for number in range(24)])
    await rig.settled()
    seen = [rank for record in rig.records()[1:] if (rank := rank_of(record)) is not None]
    assert len(seen) == 24
    counts = Counter(seen)
    assert len(counts) >= 2, counts
    assert max(counts.values()) < 24
    state = rig.router.plane.engine(engine.url)
    assert state.in_flight == 0
    assert [(rank.in_flight, rank.ledger.entries) for rank in state.ranks] == [(0, {})] * RANKS
    rig.assert_nothing_held()


async def test_cold_prompts_spread_over_the_ranks(make_rig: MakeRig, engine: RunningReplica) -> None:
    """Equal ranks are told apart by the prompt: no rank is the first for all."""
    rig = await before(make_rig, engine)
    ranks = {rank_of(await ask(rig, list(range(start, start + 400)))) for start in range(1000, 90_000, 5000)}
    assert ranks == set(range(RANKS))


async def test_load_of_others_counts_at_the_rank_that_has_it(make_rig: MakeRig, engine: RunningReplica) -> None:
    """Rows of metrics are taken rank by rank, less what is ours there."""
    rig = await before(make_rig, engine)
    state = rig.router.plane.engine(engine.url)
    engine.ranks[2].metrics._running.set(3)
    engine.ranks[2].metrics._waiting.set(5)
    state.ranks[1].in_flight = 2
    engine.ranks[1].metrics._running.set(2)
    for busy in (1, 2):
        engine.ranks[busy].metrics.stepped = True
    await scrape(rig)
    now_s = time.monotonic()
    shown = [rank.foreign(now_s) for rank in state.ranks]
    assert [(waiting > 0, running > 0) for waiting, running in shown] == [(False, False), (False, False), (True, True), (False, False)]


async def test_a_rank_is_named_although_another_served_nothing_yet(make_rig: MakeRig, engine: RunningReplica) -> None:
    """A rank's gauges appear with its first request; one that had none is named all the same."""
    rig = await before(make_rig, engine)
    await rig.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": list(range(1000, 1500)), "max_tokens": 2})
    await scrape(rig)
    stepped = [rank.metrics.stepped for rank in engine.ranks]
    assert sum(stepped) == 1
    assert len(rig.router.plane.engine(engine.url).ranks) == RANKS


async def test_all_probes_of_one_audit_meet_one_rank_and_other_audits_others(make_rig: MakeRig, engine: RunningReplica) -> None:
    """An audit that met another cache each time would find no sharing anywhere."""
    rig = await before(make_rig, engine)
    for run in range(RANKS):
        for scope in ("A", "B", "A"):
            assert (
                await probe(
                    rig, {"model": "m-7b", "messages": [{"role": "user", "content": "hi"}]}, replica="sim 0", scope=scope, run=UUID(int=run + 8)
                )
            ).status == 200
    assert named(engine) == [str(run) for run in range(RANKS) for _ in range(3)]


async def test_an_engine_of_one_rank_is_asked_as_ever(make_rig: MakeRig) -> None:
    """No header, no rank in the record, one key in the index; also where the one rank is the third of a deployment of one URL each."""
    single = ReplicaConfig(engine=ENGINE, model="m-7b")
    async with running_fleet(single) as fleet, running_fleet(ReplicaConfig(engine=ENGINE, model="m-7b", data_parallel_rank=3)) as third:
        rig = await before(make_rig, fleet[0], third[0])
        for start in range(1000, 40_000, 5000):
            record = await ask(rig, list(range(start, start + 400)))
            assert [one.dp_rank for one in record.candidates] == [None, None]
            assert rank_of(record) is None
        assert {*named(fleet[0]), *named(third[0])} == {None}
        assert not rig.router.plane.ranks
        assert set(rig.router.plane.index.sizes()) <= {fleet[0].url, third[0].url}


async def test_the_operator_may_leave_the_rank_to_the_engine(make_rig: MakeRig, engine: RunningReplica) -> None:
    """Then nothing names one, and the engine is worth the mean of its ranks."""
    rig = await before(make_rig, engine, name_ranks=False)
    record = await ask(rig, FIRST)
    await until(lambda: sum(blocks(rig, engine)) >= 40)
    following = await ask(rig, more(FIRST))
    assert named(engine) == [None, None]
    assert [rank_of(one) for one in (record, following)] == [None, None]
    assert [one.dp_rank for one in following.candidates] == [None]
    assert not rig.router.plane.ranks


async def test_a_client_cannot_name_a_rank(make_rig: MakeRig, engine: RunningReplica) -> None:
    """Its header goes no further; the router's own is the only one."""
    rig = await before(make_rig, engine)
    answer = await rig.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": FIRST, "max_tokens": 1}, headers={RANK_HEADER: "77"})
    assert answer.status == 200
    (header,) = named(engine)
    assert header in {str(rank) for rank in range(RANKS)}


async def test_another_tenant_finds_nothing_at_any_rank(make_rig: MakeRig, engine: RunningReplica) -> None:
    """Ranks are places, not namespaces: what one tenant put at a rank is no match for another."""
    rig = await before(make_rig, engine)
    await ask(rig, FIRST)
    await until(lambda: sum(blocks(rig, engine)) >= 40)
    other = await ask(rig, more(FIRST), key=KEY_B)
    assert other.cached_tokens == 0
    assert [one.matched_tokens for one in other.candidates] == [0] * RANKS


async def test_a_restart_forgets_every_rank(make_rig: MakeRig, engine: RunningReplica) -> None:
    """Their caches are gone with the process, and what was learned of each."""
    rig = await before(make_rig, engine)
    rank = rank_of(await ask(rig, FIRST))
    assert rank is not None
    plane, state = rig.router.plane, rig.router.plane.engine(engine.url)
    await until(lambda: sum(blocks(rig, engine)) >= 40)
    await ask(rig, more(FIRST))
    assert plane.index.size(state.ranks[rank].key) > 0
    assert plane.trust.report((engine.url, rank), 0.0).answers > 0
    state.started_at = (state.started_at or 0.0) - 60.0  # as if another process had run there before
    await scrape(rig)
    assert state.restarts == 1
    assert [plane.index.size(one.key) for one in state.ranks] == [0] * RANKS
    assert plane.trust.report((engine.url, rank), 0.0).answers == 0


async def test_an_engine_that_becomes_one_rank_is_named_no_longer(make_rig: MakeRig, engine: RunningReplica) -> None:
    """What is under way at a rank is given back all the same."""
    rig = await before(make_rig, engine)
    plane = rig.router.plane
    state = plane.engine(engine.url)
    first = state.ranks[0]
    first.take(answers=3)
    assert (first.more_answers, state.more_answers) == (2, 2)
    plane.config = dataclasses.replace(plane.config, name_ranks=False)  # so that no look at it that is under way names them again
    plane.set_ranks(state, 0)
    assert (state.ranks, plane.ranks, state.in_flight) == ((), {}, 1)
    first.give_back(answers=3)
    assert (state.in_flight, first.in_flight, state.more_answers, first.more_answers) == (0, 0, 0, 0)
    await ask(rig, FIRST)
    assert named(engine) == [None]


POLICIES = ("ettft", "weighted", "round_robin", "least_outstanding", "bounded_hash", "longest_prefix")


@pytest.mark.parametrize("residency", ["history", "events"])
async def test_an_engine_of_one_named_rank_is_weighed_as_an_engine(residency: str, tmp_path: Path) -> None:
    """Whatever the loads and the policy: were the only rank of each engine named, each decision would be the one that is made without a name."""
    dice = random.Random(5)
    async with pool(tmp_path, replicas=4, blocks=32, residency=residency, prompts=4) as here:
        plane, now_s = here.plane, time.monotonic()

        def decided(policy: str, number: int) -> list[Candidate]:
            view = dataclasses.replace(here.endpoint, policy=RoutingPolicy(policy=policy))  # type: ignore[arg-type]  # names of policies
            with here.flight(number) as flight:
                flight.outcome, flight.endpoint = "client_cancelled", view
                here.measure(flight, number)
                plane.endpoint_state(view.entry.id).sequence = number
                return list(choose(plane, flight, tried=(), now_s=now_s).decision.candidates)

        for number, policy in enumerate(POLICIES * 3):
            for engine in plane.engines.values():
                engine.in_flight = dice.randrange(10)
                engine.ledger.entries.clear()
                engine.ledger.add(dice.uniform(0, 50_000), until_s=now_s + 3600)
            unnamed = decided(policy, number)
            for engine in plane.engines.values():
                plane.set_ranks(engine, 1)
                (rank,) = engine.ranks
                rank.ledger, rank.working_set, rank.in_flight = engine.ledger, engine.working_set, engine.in_flight
                plane.index._replicas[rank.key] = plane.index._replicas[engine.url]
            named_one = decided(policy, number)
            assert [dataclasses.replace(one, dp_rank=None) for one in named_one] == unnamed
            assert {one.dp_rank for one in named_one} == {0}
            for engine in plane.engines.values():
                plane.set_ranks(engine, 0)


async def test_ranks_are_named_before_an_engine_has_served_anybody(make_rig: MakeRig) -> None:
    """vLLM of several ranks shows no rows of load before its first request; that its events have several sources is enough, and rows that contradict
    them are believed first."""
    rig = await make_rig()
    plane = rig.router.plane
    engine = plane.engine(rig.a.url)
    engine.sources = tuple(kv_sources.Source(rank=rank, port=5557 + rank, replay_port=None, topic=None) for rank in range(2))
    replica = plane.replicas[rig.a.url]
    rig.a.on_path["/metrics"] = Script(body=b"vllm:prompt_tokens_total 0\n", headers={"Content-Type": "text/plain"})
    await load.scrape(plane, replica, engine)
    assert [rank.number for rank in engine.ranks] == [0, 1]
    rows = b'vllm:num_requests_running{engine="0"} 0\nvllm:num_requests_waiting{engine="0"} 0\n'
    rig.a.on_path["/metrics"] = Script(body=rows, headers={"Content-Type": "text/plain"})
    await load.scrape(plane, replica, engine)
    assert engine.ranks == ()
