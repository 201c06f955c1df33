"""Trust with a real stream of events behind it: predictions that hold to the token, and what happens to events that answers contradict."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from routing.core.last_block import SURE
from routing.core.trust import DWELL, MAX_RETRY_S
from routing.dataplane import learn
from routing.dataplane.app import Router
from routing.dataplane.config import Config
from routing.dataplane.state import Plane
from routing.simulator.config import EngineConfig, ReplicaConfig, TimeModel
from routing.simulator.fleet import RunningReplica, running_fleet
from tests.bench.traffic import text
from tests.fakes import rig
from tests.fakes.rig import KEY_A, until

BLOCK = 16
ENGINE = EngineConfig(blocks=4000, block_size_tokens=BLOCK, time=TimeModel(speed=100))


@dataclass
class Pair:
    """A router, and the one engine that it reads the events of."""

    router: Router
    engine: RunningReplica
    client: aiohttp.ClientSession
    owner: bytes

    @property
    def plane(self) -> Plane:
        return self.router.plane

    @property
    def url(self) -> str:
        return self.engine.url

    async def ask(self, prompt: list[int]) -> int:
        """Cached tokens of an answer."""
        body = {"model": "m-7b", "prompt": prompt, "max_tokens": 2}
        async with self.client.post(
            f"http://127.0.0.1:{self.router.port}/v1/completions", json=body, headers={"Authorization": f"Bearer {KEY_A}"}
        ) as answer:
            assert answer.status == 200
            usage = (await answer.json())["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    def believes(self, tokens: int) -> bool:
        """Whether the index has taken in so many tokens of this engine."""
        return self.plane.events.sizes()[self.url, 0].credited * BLOCK >= tokens

    def residency(self) -> tuple[str, str]:
        shown = self.plane.residency.of(self.url)
        return shown.state, shown.reason

    def verdict(self) -> str:
        return self.plane.trust.verdict((self.url, 0))

    def forge(self, cached_tokens: int | None) -> None:
        self.engine.replica.faults = replace(self.engine.replica.faults, forge_cached_tokens=cached_tokens)


@asynccontextmanager
async def running(state: Path, engine: EngineConfig = ENGINE) -> AsyncIterator[Pair]:
    config = Config(router_id="r", state_dir=state, port=0, internal_port=0, allowed_ranges=rig.LOOPBACK, scrape_s=0.05)
    async with running_fleet(ReplicaConfig(engine=engine, model="m-7b"), replicas=1) as fleet, aiohttp.ClientSession() as client:
        router = Router(config, rig.SECRETS)
        await router.start()
        try:
            document = rig.tenant("acme", (rig.replica_entry(fleet[0].url, "r0"),), {KEY_A: ""})
            explained = tuple(msgspec.structs.replace(one, explain_until=time.time() + 3600) for one in document.endpoints)
            router.snapshots.apply({document.tenant_id: rig.sealed(msgspec.structs.replace(document, endpoints=explained))})
            pair = Pair(router, fleet[0], client, document.tenant_id.bytes)
            await until(lambda: pair.residency()[0] == "exact")
            yield pair
        finally:
            await router.stop()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with running(tmp_path / "state") as made:
        yield made


def prompts(count: int) -> Iterator[list[int]]:
    """Prompts of 21 blocks and a little that share no beginning."""
    for number in range(count):
        yield text(("trust", number), 21 * BLOCK + 3)


@pytest.mark.parametrize("tokens", [20 * BLOCK, 20 * BLOCK + 1, 20 * BLOCK + 15])
async def test_the_prediction_is_what_the_engine_takes_from_its_cache(pair: Pair, tokens: int) -> None:
    """The last token is always computed, so a prompt that is held whole still recomputes a block."""
    prompt = text("whole", tokens)
    assert await pair.ask(prompt) == 0
    await until(lambda: pair.believes(20 * BLOCK))
    cached_tokens = await pair.ask(prompt)
    record = pair.plane.telemetry.waiting()[-1]
    assert record.matched_tokens == record.cached_tokens == cached_tokens == (tokens - 1) // BLOCK * BLOCK
    assert record.candidates[0].evidence == "event"
    report = pair.plane.trust.report((pair.url, 0), time.monotonic())
    assert (report.answers, report.share_exact, report.median_error_tokens) == (1, 1.0, 0.0)


@pytest.mark.parametrize("drops", [False, True], ids=["control", "speculates"])
async def test_that_the_last_block_is_computed_anew_is_learned_and_shown(tmp_path: Path, drops: bool) -> None:
    """As vLLM does with EAGLE and MTP. From then on a prediction holds to the token again, also where history remembers the prompt too."""
    async with running(tmp_path / "state", replace(ENGINE, drops_last_block=drops)) as pair:
        made = list(prompts(2 * SURE + 4))
        for prompt in made:
            await pair.ask(prompt)
        await until(lambda: pair.believes(len(made) * 21 * BLOCK))
        cached = [await pair.ask(prompt) for prompt in made]
        records = list(pair.plane.telemetry.waiting())[-len(cached) :]
        assert cached == [(20 if drops else 21) * BLOCK] * len(cached)
        assert [record.matched_tokens for record in records] == [21 * BLOCK] * SURE + cached[SURE:]
        even = text("even", 22 * BLOCK + 3)  # which history remembers up to the engine's last block
        await pair.ask(even)
        await until(lambda: pair.believes((len(made) * 21 + 22) * BLOCK))
        cached_tokens = await pair.ask(even)
        record = pair.plane.telemetry.waiting()[-1]
        assert (record.matched_tokens, record.candidates[0].evidence) == (cached_tokens, "event")
        trust: Any = pair.plane.engine_report(time.monotonic())[pair.url]["trust"]
        assert (trust["verdict"], trust["withholds"]) == ("fine", drops)


async def contradict(pair: Pair, count: int) -> None:
    """Answers that report nothing cached of what the events show, while history promises nothing either."""
    made = list(prompts(count))
    for prompt in made:
        await pair.ask(prompt)
    await until(lambda: pair.believes(count * 21 * BLOCK))
    pair.plane.index.forget(pair.url)
    pair.forge(0)
    for prompt in made:
        await pair.ask(prompt)
    pair.forge(None)


async def test_events_that_answers_contradict_are_learned_anew_then_left_then_tried_again(pair: Pair) -> None:
    await contradict(pair, DWELL)
    assert pair.verdict() == "relearn"
    page = pair.plane.metrics.page().decode()
    assert 'saltroute_kv_messages_total{kind="relearn"} 1.0' in page
    assert 'saltroute_kv_messages_total{kind="asked"} 1.0' in page  # at the start: nothing was lost, so a replay would say the same again
    assert pair.plane.events.counters["set_semantics"] == 1
    assert pair.residency() == ("exact", "ok")
    before = pair.plane.events.sizes()[pair.url, 0].credited

    await pair.ask(text("full", 300))
    bodies: list[Any] = [msgspec.json.decode(one.body) for one in pair.engine.replica.requests if one.path == "/v1/completions"]
    assert bodies[-1]["vllm_xargs"] == {"kv_cache_report_mode": "full"}
    assert sum("vllm_xargs" in body for body in bodies) == 1
    assert before >= DWELL * 21

    pair.plane.index.forget(pair.url)
    pair.forge(0)
    for prompt in prompts(DWELL):
        await pair.ask(prompt)
    pair.forge(None)
    assert pair.verdict() == "demote"
    await until(lambda: pair.residency() == ("history", "kappa"))
    await pair.ask(next(prompts(1)))
    assert pair.plane.telemetry.waiting()[-1].candidates[0].residency == "history"

    learn.act(pair.plane, pair.plane.trust.retry(time.monotonic() + MAX_RETRY_S))
    assert pair.verdict() == "relearn"
    await until(lambda: pair.residency() == ("exact", "ok"))
    for prompt in prompts(DWELL):
        await pair.ask(prompt)
    assert pair.verdict() == "fine"


async def test_where_messages_were_lost_learning_anew_forgets_first(pair: Pair) -> None:
    """What is replayed counts from nothing, so no block of the past counts as present meanwhile."""
    (subscription,) = pair.router.kv._subscriptions.values()
    subscription._lost = True
    await contradict(pair, DWELL)
    assert pair.verdict() == "relearn"
    page = pair.plane.metrics.page().decode()
    assert 'saltroute_kv_messages_total{kind="forgotten"} 1.0' in page
    assert 'saltroute_kv_messages_total{kind="asked"} 2.0' in page
    await until(lambda: pair.believes(DWELL * 21 * BLOCK))  # the replay brought all of it back


async def test_where_history_knows_no_better_events_are_not_left(pair: Pair) -> None:
    made = list(prompts(2 * DWELL))
    for prompt in made:
        await pair.ask(prompt)
    await until(lambda: pair.believes(2 * DWELL * 21 * BLOCK))
    pair.forge(0)
    for prompt in made:
        await pair.ask(prompt)
    assert pair.verdict() == "fine"
    record = pair.plane.telemetry.waiting()[-1]
    assert record.matched_tokens == 21 * BLOCK
    assert record.expected_cached_tokens < record.matched_tokens / 2  # but expected less
