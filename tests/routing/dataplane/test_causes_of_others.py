"""No time is called others' where no others were: by scrapes, by siblings' words and by this router's own count. And what hung is called so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from routing.core.peering import BEAT, Beat, Head, Load, engine_id
from routing.core.residency import HistoryIndex
from routing.core.siblings import TRANSIT_S, Here, Siblings
from routing.dataplane.app import Router
from routing.dataplane.attempt import MAX_ANSWERS
from routing.dataplane.feeds.load import check
from routing.dataplane.ranks import Scrape
from tests.bench.causes import Stage, stage, text
from tests.fakes import rig as fakes
from tests.fakes.replica import Script, chunk, completion
from tests.fakes.rig import HI, Reply, Rig, until
from tests.services import Services

RUNNING = "vllm:num_requests_running {}\nvllm:num_requests_waiting {}\n"
SIBLING = b"s" * 16


async def _whole(it: Stage, seed: int, *, max_tokens: int = 20) -> None:
    await it.chat(text(seed, 40), "hi", max_tokens=max_tokens, stream=False)


def _parts(it: Stage) -> Mapping[str, int]:
    cause = it.last().cause
    assert cause is not None
    return cause.parts_us


async def test_a_request_does_not_wait_behind_one_that_a_scrape_showed_and_that_was_ours() -> None:
    """An answer that does not stream counts as waiting here for a while, and as running in the engine, where it is the only one."""
    async with stage(replicas=1, router={"record_sample": 1.0}) as it:
        engine = it.router.plane.engine(it.fleet[0].url)
        for seed in range(3):
            asked = asyncio.create_task(_whole(it, seed))
            await until(lambda: it.fleet[0].replica.engine.stats().running == 1)
            async with asyncio.timeout(10):
                while not engine.kv_used:  # gauges are set when a step ends
                    await it.scrape()
            await asked
            parts = _parts(it)
            assert "queue_engine" not in parts, parts
            assert parts["generation"] > 100_000
            engine.kv_used = None


@pytest.mark.parametrize(
    ("running", "waiting", "foreign"), [(1, 0, (0, 0)), (0, 1, (0, 0)), (2, 0, (0, 1)), (1, 1, (0, 1)), (0, 2, (1, 0)), (2, 3, (2, 2))]
)
async def test_foreign_is_what_an_engine_has_beyond_all_that_is_known(rig: Rig, running: int, waiting: int, foreign: tuple[float, float]) -> None:
    """Of this router there is one request, which it takes to be waiting."""
    rig.only_a()
    gate = asyncio.Event()
    rig.a.script = Script(hold=gate, body=completion())
    rig.a.on_path["/metrics"] = Script(body=RUNNING.format(running, waiting).encode())
    asked = asyncio.create_task(rig.chat())
    await rig.a.wait_for(1)
    engine = rig.router.plane.engine(rig.a.url)
    await check(rig.router.plane, rig.router.plane.replicas[rig.a.url])
    assert engine.scrape is not None
    assert (engine.scrape.foreign_waiting, engine.scrape.foreign_running) == foreign
    gate.set()
    await asked


@pytest.mark.parametrize(("running", "waiting", "foreign"), [(3, 0, (0, 0)), (1, 2, (0, 0)), (4, 0, (0, 1)), (3, 2, (1, 1))])
async def test_all_answers_of_one_request_are_its_own(rig: Rig, running: int, waiting: int, foreign: tuple[float, float]) -> None:
    """Engines count each of its three as a request; so do the decodes that a choice weighs, and the words to siblings, until it ends."""
    rig.only_a()
    gate = asyncio.Event()
    rig.a.script = Script(hold=gate, body=completion())
    rig.a.on_path["/metrics"] = Script(body=RUNNING.format(running, waiting).encode())
    asked = asyncio.create_task(rig.chat({**HI, "n": 3}))
    await rig.a.wait_for(1)
    engine = rig.router.plane.engine(rig.a.url)
    assert (engine.in_flight, engine.more_answers) == (1, 2)
    await check(rig.router.plane, rig.router.plane.replicas[rig.a.url])
    assert engine.scrape is not None
    assert (engine.scrape.foreign_waiting, engine.scrape.foreign_running) == foreign
    gate.set()
    await asked
    await rig.settled()
    assert (engine.in_flight, engine.more_answers) == (0, 0)


async def test_what_a_body_asks_for_beyond_reason_counts_as_much_as_an_engine_runs(rig: Rig) -> None:
    rig.only_a()
    gate = asyncio.Event()
    rig.a.script = Script(hold=gate, body=completion())
    asked = asyncio.create_task(rig.chat({**HI, "n": 1_000_000}))
    await rig.a.wait_for(1)
    engine = rig.router.plane.engine(rig.a.url)
    assert engine.more_answers == MAX_ANSWERS - 1
    gate.set()
    await asked
    await rig.settled()
    assert engine.more_answers == 0


@pytest.mark.parametrize(("reported", "foreign"), [((1, 0), (0, 0)), ((2, 0), (1, 0)), ((2, 1), (2, 0)), ((0, 2), (0, 1)), ((0, 0), (0, 0))])
def test_what_counts_as_running_here_may_wait_there(reported: tuple[float, float], foreign: tuple[float, float]) -> None:
    """An answer that does not stream counts as waiting until its first token was due. What the engine has beyond it is somebody's all the same."""
    found = Scrape.of(reported, (0, 1), None, None, 0.0)
    assert (found.foreign_waiting, found.foreign_running) == foreign


@pytest.mark.parametrize("leaving", [True, False])
def test_a_sibling_that_is_gone_has_nothing_there_any_more(*, leaving: bool) -> None:
    """By its own word, or after five seconds without one."""
    siblings, here = Siblings(b"m" * 16), Here(HistoryIndex(), (), {engine_id("http://e"): "http://e"})
    for number, (now_s, leaves) in enumerate([(10.0, False), (11.0, leaving)], start=1):
        head = Head(BEAT, SIBLING, number)
        beat = Beat("router-2", number=number, heard=(siblings.process,), loads=(Load(engine_id("http://e"), 0.0, 0, 1, 1),), leaving=leaves)
        assert siblings.hear(head, beat, now_s)
        siblings.take(head, beat, now_s, here)
    assert siblings.busy_s("http://e", 11.0) == 1.0
    siblings.tick(17.0, here)
    assert siblings.busy_s("http://e", 100.0) == (1.0 if leaving else 7.0)


async def test_a_request_that_ended_while_the_page_was_read_is_not_foreign(rig: Rig) -> None:
    rig.only_a()
    answer, page = asyncio.Event(), asyncio.Event()
    rig.a.script = Script(hold=answer, body=completion())
    rig.a.on_path["/metrics"] = Script(hold=page, body=RUNNING.format(1, 0).encode())
    asked = asyncio.create_task(rig.chat())
    await rig.a.wait_for(1)
    view, engine = rig.router.plane.replicas[rig.a.url], rig.router.plane.engine(rig.a.url)
    rig.a.probes.clear()
    scraping = asyncio.create_task(check(rig.router.plane, view))
    await until(lambda: any(probe.path == "/metrics" for probe in rig.a.probes))
    answer.set()
    await asked
    await rig.settled()
    page.set()
    await scraping
    assert engine.scrape is not None
    assert engine.scrape.foreign_running == 0
    await check(rig.router.plane, view)  # now there is none of ours that it could be
    assert engine.scrape.foreign_running == 1


class _Sibling:
    """What one sibling says of one engine, as it would be heard."""

    def __init__(self, router: Router, url: str) -> None:
        self._plane, self._url, self._number = router.plane, url, 0

    def say(self, in_flight: int, queued_tokens: float) -> None:
        self._number += 1
        siblings, now_s = self._plane.siblings, time.monotonic()
        load = Load(engine_id(self._url), queued_tokens, in_flight, in_flight, 1)
        beat = Beat("router-2", number=self._number, heard=(siblings.process,), loads=(load,))
        head = Head(BEAT, SIBLING, self._number)
        assert siblings.hear(head, beat, now_s)
        siblings.take(head, beat, now_s, Here(self._plane.index, (), {engine_id(self._url): self._url}))


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_sibling_s_request_whose_end_was_heard_a_moment_later_was_not_there(leaves: bool) -> None:
    """The end of a request travels for some milliseconds. One that is heard to stay was there: the positive control."""
    async with stage(replicas=1, router={"record_sample": 1.0}) as it:
        sibling, engine = _Sibling(it.router, it.fleet[0].url), it.router.plane.engine(it.fleet[0].url)
        sibling.say(1, 810.0)
        began_s = time.monotonic()
        asked = asyncio.create_task(_whole(it, 1, max_tokens=40))
        await until(lambda: engine.in_flight == 1)
        if leaves:
            sibling.say(0, 0.0)
        await asked
        parts, record = _parts(it), it.last()
        (candidate,) = record.candidates
        assert (candidate.in_flight, candidate.queued_tokens) == (1, 810.0)
        if leaves:
            assert "queue_engine" not in parts, parts
            assert parts["generation"] > 200_000
        else:
            assert 0 < parts["queue_engine"] <= (time.monotonic() - began_s) * 1e6


async def test_others_take_no_longer_than_they_are_there() -> None:
    """A long prompt is ahead of a short one, and its client leaves: from then on nobody was ahead."""
    async with stage(replicas=1, speed=0.25, router={"record_sample": 1.0}) as it:
        engine = it.router.plane.engine(it.fleet[0].url)
        ahead = asyncio.create_task(it.chat(text(1, 2000), "hi", max_tokens=100))
        await until(lambda: engine.in_flight == 1)
        began_s = time.monotonic()
        asked = asyncio.create_task(_whole(it, 2))
        await until(lambda: engine.in_flight == 2)
        ahead.cancel()
        await until(lambda: engine.in_flight < 2)
        left_s = time.monotonic()
        await asked
        parts = _short(it)
        assert parts.get("queue_engine", 0) <= (left_s - began_s) * 1e6, parts
        # The control: where it stays, it is what took the time.
        ahead = asyncio.create_task(it.chat(text(3, 2000), "hi"))
        await until(lambda: engine.in_flight == 1)
        await it.chat(text(4, 40), "hi")
        await ahead
        assert _short(it)["queue_engine"] > 50_000


def _short(it: Stage) -> Mapping[str, int]:
    """The parts of the latest request with a short prompt."""
    record = [one for one in it.router.plane.telemetry.waiting() if (one.prompt_tokens or 0) < 500][-1]
    assert record.cause is not None
    return record.cause.parts_us


@asynccontextmanager
async def _second(it: Stage, tmp_path: Path, url: str) -> AsyncIterator[Stage]:
    """One more router before the fleet of a stage."""
    config = replace(it.router.plane.config, router_id="router-2", state_dir=tmp_path, port=0, internal_port=0, valkey_url=url)
    router = Router(config, fakes.SECRETS)
    await router.start()
    try:
        made = Stage(router, it.fleet, it.client, it.policy)
        made.publish()
        yield made
    finally:
        await router.stop()


@pytest.mark.usefixtures("valkey_url")
async def test_two_routers_that_are_asked_in_turn_find_nobody_before_them(tmp_path: Path, valkey_server: Services) -> None:
    url = valkey_server.valkey_url("router")
    async with stage(replicas=1, router={"valkey_url": url, "record_sample": 1.0}) as one, _second(one, tmp_path, url) as two:
        both = (one, two)
        for it in both:
            for task in it.router._tasks:
                if task.get_name() == "records":  # so that they stay where a test can read them
                    task.cancel()
        await until(lambda: all(it.router.plane.siblings.believed(time.monotonic()) for it in both))
        judged = 0
        for seed in range(12):
            it = both[seed % 2]
            asked = asyncio.create_task(_whole(it, seed, max_tokens=10))
            late_s = await _until_heard(it)
            await asked
            await _settled(it)
            parts, (candidate,) = _parts(it), it.last().candidates
            if candidate.in_flight and late_s < TRANSIT_S / 2:  # a machine that is busier than that tells nothing of the product
                judged += 1
                assert "queue_engine" not in parts, parts
                assert parts["generation"] > 50_000
        assert judged > 0, "the sibling's word is on its way when the next request comes, or this shows nothing"


async def _until_heard(it: Stage) -> float:
    """Wait until a router has heard that its sibling has nothing at the engine any more; returns for how many seconds."""
    began_s, siblings = time.monotonic(), it.router.plane.siblings
    await until(lambda: siblings.load(it.fleet[0].url, time.monotonic()).in_flight == 0)
    return time.monotonic() - began_s


async def _settled(it: Stage) -> None:
    await until(lambda: it.router.plane.in_flight == 0)


async def parts_when_left(rig: Rig, asked: asyncio.Task[Reply], *, answers: bool) -> dict[str, int]:
    """The parts of the cause when the client leaves after one more health check of A, which it passes or not."""
    if not answers:
        rig.a.on_path["/health"] = Script(status=503)
    await check(rig.router.plane, rig.router.plane.replicas[rig.a.url])
    asked.cancel()
    await asyncio.wait([asked])
    await rig.settled()
    record = rig.records()[-1]
    assert record.status == 499
    assert record.cause is not None
    return record.cause.parts_us


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_a_hung_replica_is_told_that_it_did_not_answer(rig: Rig, answers: bool, stream: bool) -> None:
    """Where health checks are answered meanwhile, nothing is known: the control."""
    rig.only_a()
    plane, view = rig.router.plane, rig.router.plane.replicas[rig.a.url]
    await check(plane, view)
    rig.a.script = Script(hold=asyncio.Event())
    asked = asyncio.create_task(rig.chat({**HI, "stream": stream}))
    await rig.a.wait_for(1)
    parts_us = await parts_when_left(rig, asked, answers=answers)
    if answers:
        assert "no_answer" not in parts_us
    else:
        assert set(parts_us) <= {"router", "no_answer"}, "all that is not the router's own"
        assert parts_us["no_answer"] > 0


@pytest.mark.parametrize("answers", [True, False])
async def test_a_stream_that_hangs_in_its_middle_is_not_generating(rig: Rig, answers: bool) -> None:
    rig.only_a()
    plane, view = rig.router.plane, rig.router.plane.replicas[rig.a.url]
    await check(plane, view)
    rig.a.script = Script(sse=[chunk("hel"), chunk("lo", finish="stop"), "[DONE]"], gates={1: asyncio.Event()})
    asked = asyncio.create_task(rig.chat({**HI, "stream": True}))
    await until(lambda: plane.engine(rig.a.url).ledger.entries == {} and plane.engine(rig.a.url).in_flight == 1)
    parts_us = await parts_when_left(rig, asked, answers=answers)
    assert ("no_answer" in parts_us) is not answers
