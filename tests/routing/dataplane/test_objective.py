"""What an objective is worth to one request: the time that is left of it when the request is placed, however that time went.

Read from the record: past 80 % of what is left the guard's term is T - 0.8 * left, so a replica whose T is known tells what was left.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from routing.core.calibration import DEFAULT_RATE
from routing.core.record import CandidateRecord, DecisionRecord
from routing.core.snapshot import PolicyEntry
from tests.fakes.replica import Script
from tests.fakes.rig import Rig, bumped, endpoint, until

SLO_S = 100.0
BUSY_S = 90.0  # of others' work: past the guard's 80 %, and yet in time
ROUNDING_S = 1e-6


def slo(rig: Rig, **spec: int) -> None:
    """Give acme's endpoint an objective; none where nothing is said."""
    entry = PolicyEntry(name="slo", version=1, spec=spec) if spec else None
    rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0], slo=entry),)))


def busy(rig: Rig, url: str) -> int:
    """Let a replica have ``BUSY_S`` of work ahead; returns the entry of its ledger."""
    return rig.router.plane.engine(url).ledger.add(BUSY_S * DEFAULT_RATE, until_s=time.monotonic() + 3600)


def of(record: DecisionRecord, name: str) -> CandidateRecord:
    return next(one for one in record.candidates if one.replica_name == name)


def left_s(candidate: CandidateRecord) -> float:
    """What was left of the objective, by the guard's term."""
    guard_s = candidate.terms["slo_guard"]
    assert guard_s > 0
    return (candidate.expected_ttft_s - guard_s) / 0.8


def took_s(record: DecisionRecord) -> float:
    assert record.e2e_s is not None
    return record.e2e_s


async def test_a_request_that_is_placed_at_once_has_its_whole_objective(rig: Rig) -> None:
    slo(rig, ttft_p95_ms=round(SLO_S * 1000))
    busy(rig, rig.b.url)
    assert (await rig.chat()).status == 200
    (record,) = rig.records()
    assert record.replica_name == "A"
    assert SLO_S - took_s(record) - ROUNDING_S <= left_s(of(record, "B")) <= SLO_S + ROUNDING_S
    assert record.slo_attainable


async def test_what_a_failed_attempt_took_is_gone_from_the_objective_of_the_next(rig: Rig) -> None:
    slo(rig, ttft_p95_ms=round(SLO_S * 1000))
    busy(rig, rig.b.url)
    rig.a.script = Script(status=500, body={})
    assert (await rig.chat()).status == 200
    (record,) = rig.records()
    failed, answered = record.attempts
    assert (failed.status, answered.status, record.replica_name) == (500, 200, "B")
    assert SLO_S - took_s(record) - ROUNDING_S <= left_s(of(record, "B")) <= SLO_S - failed.duration_s + ROUNDING_S


async def test_what_a_request_waited_in_line_is_gone_from_its_objective(rig: Rig) -> None:
    slo(rig, ttft_p95_ms=round(SLO_S * 1000), max_queue_ms=60_000)
    busy(rig, rig.b.url)
    entry = busy(rig, rig.a.url)
    held = asyncio.create_task(rig.chat())
    await until(lambda: len(rig.router.plane.waiting) == 1)
    began_s = time.monotonic()
    assert (await rig.call("GET", "/v1/models")).status == 200  # something that takes a while
    waited_s = time.monotonic() - began_s
    rig.router.plane.engine(rig.a.url).ledger.release(entry)
    assert (await held).status == 200
    record = next(one for one in rig.records() if one.queue_s is not None)
    assert record.replica_name == "A"
    assert SLO_S - took_s(record) - ROUNDING_S <= left_s(of(record, "B")) <= SLO_S - waited_s + ROUNDING_S


@pytest.mark.parametrize(("spec", "target_s"), [({"ttft_p50_ms": 95_000, "ttft_p99_ms": 105_000}, 105.0), ({"ttft_p50_ms": 95_000}, 95.0)])
async def test_the_target_that_is_steered_by_is_p95_else_p99_else_p50(rig: Rig, spec: dict[str, int], target_s: float) -> None:
    slo(rig, **spec)
    busy(rig, rig.b.url)
    assert (await rig.chat()).status == 200
    (record,) = rig.records()
    assert target_s - took_s(record) - ROUNDING_S <= left_s(of(record, "B")) <= target_s + ROUNDING_S


@pytest.mark.parametrize("spec", [{}, {"e2e_p95_ms": 50}], ids=["no policy", "none for the first token"])
async def test_without_an_objective_for_the_first_token_nothing_is_guarded_and_nothing_missed(rig: Rig, spec: dict[str, int]) -> None:
    """As above, where a minute and a half ahead made the guard speak."""
    slo(rig, **spec)
    busy(rig, rig.b.url)
    rig.a.script = Script(status=500, body={})
    assert (await rig.chat()).status == 200
    (record,) = rig.records()
    assert of(record, "B").expected_ttft_s > 0.8 * BUSY_S
    assert of(record, "B").terms["slo_guard"] == 0.0
    assert record.slo_attainable
