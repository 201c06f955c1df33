"""Prefill and decode on two real engines with NixlConnector: the same tokens as from one alone, hits credited where they were, and what happens when
the decode replica refuses, when the prefill replica is dead, and when it dies with the blocks."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from routing.core.record import DecisionRecord, TransferRecord
from routing.core.snapshot import KvEvents, ReplicaEntry, ReplicaRole
from tests.engine.conftest import required
from tests.engine.installation import EngineUnavailableError, Installation
from tests.engine.vllm_cpu import BLOCK_TOKENS, MODEL_NAME, Replica, start_pair, stop
from tests.fakes.rig import KEY_A, Reply, Rig, bumped, endpoint, named, standard_rig, until

pytestmark = pytest.mark.engine

DECODE_CONTEXT_TOKENS = 3328  # less than the prefill replica's, so that it refuses what the other one accepts
VOCABULARY = (1000, 100_000)  # ordinary tokens of the model
ANSWER_TOKENS = 8
SETTLED_S = 20.0
DRAWN = random.Random(11)  # one for all tests here: another one's prompts would be warm


@dataclass
class Relay:
    """HTTP between the router and the prefill replica, with a moment between its answer and the router's reading it."""

    target: str
    url: str = ""
    before_answer: Callable[[], Awaitable[None]] | None = None

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers = {name: request.headers[name] for name in ("Content-Type", "X-Request-Id") if name in request.headers}
        async with (
            aiohttp.ClientSession() as client,
            client.request(request.method, self.target + request.path, data=body, headers=headers) as answer,
        ):
            whole = await answer.read()
            if self.before_answer is not None and request.method == "POST":
                await self.before_answer()
            return web.Response(body=whole, status=answer.status, content_type=answer.content_type)


@dataclass
class Course:
    """A router before the two engines."""

    rig: Rig
    p: Replica
    d: Replica
    relay: Relay
    rng: random.Random

    def tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(*VOCABULARY) for _ in range(count)]

    async def ask(self, prompt: list[int], **more: Any) -> Reply:
        """One completion. What has been learned of speeds is set back: two equal engines on one machine would never share a request."""
        engines = self.rig.router.plane.engines
        for url, engine in engines.items():
            engine.calibration.own_rate = 8000.0 if url == self.relay.url else 800.0
            engine.calibration.rate_at_s = time.monotonic()
            engine.calibration.rates.clear()
        return await self.rig.call("POST", "/v1/completions", key=KEY_A, json=body_of(prompt, **{"model": "m-7b", **more}))

    def record(self) -> DecisionRecord:
        return self.rig.records()[-1]

    def transfer(self) -> TransferRecord:
        found = self.record().transfer
        assert found is not None
        return found

    def blocks(self, url: str) -> int:
        sizes = self.rig.router.plane.events.sizes()
        return sizes[url, 0].credited if (url, 0) in sizes else 0


def body_of(prompt: list[int], **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **more}


async def alone(replica: Replica, prompt: list[int]) -> list[int]:
    """The answer of one engine that is asked directly, under a salt of the test's."""
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{replica.url}/v1/completions", json=body_of(prompt, model=MODEL_NAME, cache_salt="of-the-test")) as answer,
    ):
        assert answer.status == 200
        said: list[int] = (await answer.json())["choices"][0]["token_ids"]
        return said


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Replica, Replica]]:
    installation = Installation.default()
    try:
        installation.ensure_transfers()
        pair = start_pair(installation, decode_context_tokens=DECODE_CONTEXT_TOKENS)
    except EngineUnavailableError as error:
        if required():
            pytest.fail(f"no engine: {error}", pytrace=False)
        pytest.skip(f"no engine: {error}")
    yield pair
    stop(pair)


def _entry(name: str, url: str, role: ReplicaRole, engine: Replica) -> ReplicaEntry:
    events = KvEvents(endpoint=engine.events, replay=engine.replay)
    return ReplicaEntry(id=named(f"replica {name}"), name=name, url=url, engine="vllm", role=role, kv_events=events)


@pytest.fixture
async def course(tmp_path: Path, engines: tuple[Replica, Replica]) -> AsyncIterator[Course]:
    p, d = engines
    relay = Relay(p.url)
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", relay.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    relay.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with standard_rig(tmp_path / "state", scrape_s=0.5, breaker_open_s=0.5) as rig:
        entries = (_entry("P", relay.url, "prefill", p), _entry("D", d.url, "decode", d))
        pool = rig.acme.pools[0].__class__(
            id=rig.acme.pools[0].id, name="real", owner_tenant_id=rig.acme.tenant_id, isolation="declared", replicas=entries
        )
        rig.publish(bumped(rig.acme, pools=(pool,), endpoints=(endpoint(pool, served_model=MODEL_NAME),)))
        made = Course(rig, p, d, relay, DRAWN)
        await until(lambda: all(rig.router.plane.residency.of(url).state == "exact" for url in (relay.url, d.url)), within_s=SETTLED_S)
        yield made
    await runner.cleanup()


async def test_a_conversation_says_what_one_replica_would_say_and_hits_are_credited_where_they_were(course: Course) -> None:
    plane, said = course.rig.router.plane, course.tokens(1300)
    pulled = course.d.metric("vllm:external_prefix_cache_hits_total")
    held_before = 0
    for turn in range(3):
        reply = await course.ask(said)
        assert reply.status == 200, reply.body
        answer = reply.json["choices"][0]["token_ids"]
        transfer, record = course.transfer(), course.record()
        sys.stdout.write(
            f"\nturn {turn + 1}: {len(said)} tokens, {transfer.result}, prefill {transfer.prefill_s:.3f} s, hits {transfer.cached_tokens} (P) "
            f"{record.cached_tokens} (said by D), expected {record.matched_tokens}, moved {transfer.moved_tokens:.0f} expected"
        )
        assert transfer.result == "ok"
        assert answer == await alone(course.p, said) == await alone(course.d, said)
        assert record.cached_tokens == transfer.cached_tokens == held_before // BLOCK_TOKENS * BLOCK_TOKENS == record.matched_tokens
        blocks = len(said) // BLOCK_TOKENS
        await until(lambda least=blocks: min(map(course.blocks, (course.d.url, course.relay.url))) >= least, within_s=SETTLED_S)  # type: ignore[misc]  # mypy cannot type a lambda's default
        held_before = len(said)  # the answer's tokens are the decode replica's alone
        said = [*said, *answer, *course.tokens(700)]
    assert course.d.metric("vllm:external_prefix_cache_hits_total") - pulled > 2 * 1300
    assert plane.trust.report((course.relay.url, 0), 0.0).answers >= 2
    assert plane.trust.report((course.d.url, 0), 0.0).answers == 0
    assert all(record.alarm is None for record in course.rig.records())
    course.rig.assert_nothing_held()


async def test_a_stream_is_answered_by_the_decode_replica(course: Course) -> None:
    reply = await course.ask(course.tokens(1200), stream=True)
    assert (reply.status, reply.body.count(b"data: [DONE]")) == (200, 1)
    transfer = course.transfer()
    assert (transfer.result, transfer.orphaned) == ("ok", False)
    assert transfer.first_byte_s is not None
    sys.stdout.write(f"\nstream: prefill {transfer.prefill_s:.3f} s, then {transfer.first_byte_s:.3f} s to the first byte")


async def test_what_the_decode_replica_refuses_is_the_clients_and_it_gives_the_blocks_back(course: Course) -> None:
    reply = await course.ask(course.tokens(DECODE_CONTEXT_TOKENS + 100))
    assert reply.status == 400
    assert "maximum context length" in reply.error["message"]
    assert (course.transfer().result, course.transfer().orphaned) == ("decode_refused", False)
    await until(lambda: course.p.metric("vllm:kv_cache_usage_perc") == 0, within_s=SETTLED_S)


async def test_a_prefill_replica_that_dies_with_the_blocks_or_is_dead_costs_a_plain_request(course: Course) -> None:
    """Last in this file: the prefill replica does not come back."""

    async def die() -> None:
        course.relay.before_answer = None
        await asyncio.to_thread(stop, [course.p])

    course.relay.before_answer = die
    began_s = time.monotonic()
    prompt = course.tokens(1200)
    reply = await course.ask(prompt)
    assert reply.status == 200, reply.body
    sys.stdout.write(f"\nP died with the blocks: answered after {time.monotonic() - began_s:.1f} s, attempts {course.record().attempts}")
    assert course.transfer().result == "decode_failed"
    assert reply.json["choices"][0]["token_ids"] == await alone(course.d, prompt)
    reply = await course.ask(course.tokens(1200))
    assert reply.status == 200
    record = course.record()
    assert record.transfer is None or record.transfer.result == "prefill_failed"
    course.rig.assert_nothing_held()
