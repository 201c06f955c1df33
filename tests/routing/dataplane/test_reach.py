"""Whether a router says that an engine is away, and since when: by its health checks, by requests that fail, and when it is back."""

from __future__ import annotations

import asyncio
import time

from routing.core.reach import AWAY, CONDITIONS, UNKNOWN
from routing.dataplane.engine import Engine
from routing.dataplane.feeds import load
from tests.fakes.replica import Script
from tests.fakes.rig import Rig, prefer_a


def _a(rig: Rig) -> Engine:
    return rig.router.plane.engines[rig.a.url]


async def _check(rig: Rig) -> str:
    """One health check of a; what the router then says of it."""
    await load.check(rig.router.plane, rig.router.plane.replicas[rig.a.url])
    said = rig.router.plane.engine_report(time.monotonic())[rig.a.url]
    assert (said["away_since"] is not None) == (said["condition"] in AWAY)
    assert said["condition"] in CONDITIONS
    return str(said["condition"])


async def test_one_that_nobody_answers_for_is_away_from_the_second_check_until_it_answers(rig: Rig) -> None:
    before = time.time()
    assert await _check(rig) == "ok"
    port = rig.a.port
    await rig.a.stop()
    assert await _check(rig) == "ok"  # one lost answer is nothing
    assert await _check(rig) == "failing (active)"
    since = _a(rig).away_since
    assert since is not None
    assert before <= since <= time.time()
    assert await _check(rig) == "failing (active)"
    assert _a(rig).away_since == since
    await rig.a.start(port)
    assert await _check(rig) == "ok"


async def test_one_whose_requests_fail_is_away_until_one_succeeds(rig: Rig) -> None:
    """Its health check is fine all the while, and after the rest nobody knows until a request was tried."""
    prefer_a(rig)
    rig.a.script = Script(status=500, body={})
    rig.a.on_path["/health"] = Script(body=b"")
    while _a(rig).breaker.opened_at_s is None:
        assert (await rig.chat()).status == 200
    assert await _check(rig) == "failing (passive)"
    since = _a(rig).away_since
    _a(rig).breaker.opened_at_s = 0.0  # the rest is over
    assert await _check(rig) == "failing (passive)"
    assert _a(rig).away_since == since
    rig.a.script = None
    while _a(rig).breaker.opened_at_s is not None:
        assert (await rig.chat()).status == 200
    assert await _check(rig) == "ok"


async def test_one_that_is_back_from_an_outage_is_not_away_though_its_next_request_is_a_trial(rig: Rig) -> None:
    """Otherwise an engine that nobody asks anything would be told to be away for ever."""
    prefer_a(rig)
    port = rig.a.port
    await rig.a.stop()
    while _a(rig).breaker.opened_at_s is None:
        assert (await rig.chat()).status == 200
    for _ in range(2):
        assert await _check(rig) == "failing (passive)"
    await rig.a.start(port)
    assert await _check(rig) == "returning"
    while _a(rig).breaker.opened_at_s is not None:
        assert (await rig.chat()).status == 200
    assert await _check(rig) == "ok"


async def test_one_that_was_not_asked_yet_is_neither_here_nor_away(rig: Rig) -> None:
    said = rig.router.plane.engine_report(asyncio.get_running_loop().time())[rig.a.url]
    assert said["condition"] in UNKNOWN
    assert said["away_since"] is None


def test_words_are_of_one_list() -> None:
    assert set(CONDITIONS) >= AWAY | (UNKNOWN - {""})
    assert not AWAY & UNKNOWN
