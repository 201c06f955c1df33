"""More cached tokens than the namespace's own requests can have left there raise an alarm; what the router cannot know of raises none."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from routing.dataplane.feeds import load
from tests.fakes.replica import Script, chunk, completion, usage, usage_chunk
from tests.fakes.rig import HI, Rig, until
from tests.routing.dataplane.test_probes import ask

STOLEN = 900
TEXT = "one two three four five six seven eight nine ten " * 80  # 3,900 bytes


def chat(*more: str) -> dict[str, Any]:
    return {**HI, "messages": [{"role": "user", "content": TEXT}, *({"role": "user", "content": text} for text in more)]}


def unlike(text: str) -> dict[str, Any]:
    """A prompt that shares no beginning with any other."""
    return {**HI, "messages": [{"role": "user", "content": text + TEXT}]}


def reports(rig: Rig, cached_tokens: int) -> None:
    """A says it cached so many of a thousand prompt tokens."""
    rig.a.script = Script(body=completion(usage=usage(1000, 1, cached_tokens)))


async def scraped(rig: Rig, *, finished: int | None = 0, started: float | None = None) -> None:
    """A check of A, which says how many requests it has finished since it began: a minute after this router, unless told otherwise."""
    began_at = rig.router.plane.began_at + 60 if started is None else started
    lines = ["vllm:num_requests_running 0.0", "vllm:num_requests_waiting 0.0", f"process_start_time_seconds {began_at}"]
    if finished is not None:
        lines.append(f'vllm:request_success_total{{engine="0",finished_reason="stop"}} {finished}.0')
    rig.a.on_path["/metrics"] = Script(body="\n".join(lines).encode() + b"\n")
    await load.check(rig.router.plane, rig.router.plane.replicas[rig.a.url])


async def alarms(rig: Rig, *bodies: dict[str, Any], **more: Any) -> list[str | None]:
    """Send requests; the alarm of each."""
    for body in bodies:
        assert (await rig.chat(body, **more)).status == 200
    return [record.alarm for record in rig.records()[-len(bodies) :]]


@pytest.fixture
async def whole(rig: Rig) -> Rig:
    """A alone, begun under the router's eyes."""
    rig.only_a()
    await scraped(rig)
    return rig


def counted(rig: Rig) -> bool:
    return 'saltroute_alarms_total{kind="cached_more_than_owned"}' in rig.router.plane.metrics.page().decode()


async def test_a_first_prompt_that_hits_is_an_alarm(whole: Rig) -> None:
    reports(whole, STOLEN)
    assert await alarms(whole, chat()) == ["cached_more_than_owned"]
    assert 'saltroute_alarms_total{kind="cached_more_than_owned"} 1.0' in whole.router.plane.metrics.page().decode()


async def test_a_stream_is_judged_like_a_whole_answer(whole: Rig) -> None:
    whole.a.script = Script(sse=[chunk("x"), chunk(finish="stop"), usage_chunk(1000, 1, STOLEN), "[DONE]"])
    assert await alarms(whole, {**chat(), "stream": True}) == ["cached_more_than_owned"]


async def test_ones_own_history_explains_a_hit_however_old(whole: Rig) -> None:
    reports(whole, 0)
    await alarms(whole, chat())
    for held in whole.router.plane.index._replicas[whole.a.url].owners.values():
        for entry in held.values():
            entry.inferred_at_s = time.monotonic() - 1e6
    reports(whole, STOLEN)
    assert await alarms(whole, chat("next"), chat("next", "again")) == [None, None]
    assert not counted(whole)


async def test_another_namespaces_history_explains_nothing(whole: Rig) -> None:
    reports(whole, 0)
    await alarms(whole, chat())
    reports(whole, STOLEN)
    assert await alarms(whole, chat(), headers={"X-Saltroute-Scope": "support"}) == ["cached_more_than_owned"]


async def test_a_request_in_flight_may_have_been_served_first(whole: Rig) -> None:
    gate = asyncio.Event()
    whole.a.scripts = [Script(hold=gate, body=completion(usage=usage(1000, 1, STOLEN)))]
    late = asyncio.create_task(whole.chat(chat()))
    await until(lambda: whole.served() == 1)
    reports(whole, 0)
    assert await alarms(whole, chat()) == [None]
    gate.set()
    await late
    assert [record.alarm for record in whole.records()] == [None, None]


async def test_a_router_that_began_after_the_engine_cannot_tell(rig: Rig) -> None:
    rig.only_a()
    reports(rig, STOLEN)
    assert await alarms(rig, chat()) == [None]  # never scraped
    await scraped(rig, started=rig.router.plane.began_at - 1)
    assert await alarms(rig, unlike("b")) == [None]


async def test_a_siblings_traffic_raises_nothing(whole: Rig) -> None:
    await scraped(whole, finished=1)  # and this router has sent nothing yet
    reports(whole, STOLEN)
    assert await alarms(whole, chat()) == [None]
    await scraped(whole, finished=1)
    assert await alarms(whole, unlike("b")) == [None]


async def test_ones_own_requests_are_no_siblings(whole: Rig) -> None:
    reports(whole, 0)
    await alarms(whole, {**HI, "n": 3}, HI)
    await scraped(whole, finished=4)
    reports(whole, STOLEN)
    assert await alarms(whole, chat()) == ["cached_more_than_owned"]
    await scraped(whole, finished=6)
    assert await alarms(whole, unlike("b")) == [None]


async def test_an_engine_that_restarted_begins_anew(whole: Rig) -> None:
    await scraped(whole, finished=7)
    later = whole.router.plane.began_at + 120
    await scraped(whole, finished=0, started=later)
    reports(whole, STOLEN)
    assert await alarms(whole, chat()) == ["cached_more_than_owned"]


async def test_an_engine_that_does_not_count_its_requests_raises_nothing(rig: Rig) -> None:
    rig.only_a()
    await scraped(rig, finished=None)
    reports(rig, STOLEN)
    assert await alarms(rig, chat()) == [None]


async def test_what_was_evicted_from_the_index_explains_everything(whole: Rig) -> None:
    reports(whole, 0)
    await alarms(whole, chat())
    whole.router.plane.index.set_capacity(whole.a.url, 2)
    reports(whole, STOLEN)
    assert await alarms(whole, chat()) == [None]


async def test_a_prompt_that_may_have_run_although_it_failed_explains_everything(whole: Rig) -> None:
    whole.a.script = Script(status=500, body={"error": {"message": "broken", "code": 500}})
    assert (await whole.chat(chat())).status == 502
    reports(whole, STOLEN)
    assert await alarms(whole, chat()) == [None]


async def test_a_refusal_explains_nothing(whole: Rig) -> None:
    whole.a.script = Script(status=400, body={"error": {"message": "no", "type": "BadRequestError", "code": 400}})
    assert (await whole.chat(chat())).status == 400
    reports(whole, STOLEN)
    assert await alarms(whole, chat()) == ["cached_more_than_owned"]


_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4000}}
_SEEN = {**HI, "messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}, _IMAGE]}]}


@pytest.mark.parametrize("body", [{**chat(), "n": 2}, _SEEN], ids=["two choices", "image"])
async def test_nothing_is_said_of_what_cannot_be_counted(whole: Rig, body: dict[str, Any]) -> None:
    reports(whole, STOLEN)
    assert await alarms(whole, body) == [None]


async def test_a_probes_hits_are_the_audits_to_judge(whole: Rig) -> None:
    reports(whole, STOLEN)
    assert (await ask(whole, json=chat())).status == 200
    assert whole.records()[-1].alarm is None


async def test_an_alarm_keeps_nobody_away(whole: Rig) -> None:
    reports(whole, STOLEN)
    assert await alarms(whole, chat("a"), chat("b"), chat("c")) == ["cached_more_than_owned", None, None]
    assert {record.outcome for record in whole.records()} == {"ok"}
    assert whole.served() == 3
