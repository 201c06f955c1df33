"""A prompt's digests belong to its namespace: whoever holds the same text under another one can neither match nor guess them."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import FrameType

import msgspec
import pytest

from namespaces.core.salts import Namespace
from routing.dataplane import openai
from routing.dataplane.choose import choose, measure
from tests.bench.decide import pool

HERE = Namespace(public_id="ns-" + "0" * 32, salt="sr1-a", index_seed=b"a" * 32)
THERE = Namespace(public_id="ns-" + "1" * 32, salt="sr1-b", index_seed=b"b" * 32)


def _call(text: str) -> openai.Call:
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": text}]})
    return openai.read(body, openai.check_chat, ())


@pytest.mark.parametrize("text", ["x" * 4000, "hi"], ids=["several blocks", "less than a block"])
def test_one_prompt_has_no_digest_in_common_between_two_namespaces(text: str) -> None:
    here, there = measure(_call(text), HERE, 4.0), measure(_call(text), THERE, 4.0)
    assert not {*here.digests, *here.head} & {*there.digests, *there.head}
    assert measure(_call(text), HERE, 4.0) == here


def test_prompts_with_one_beginning_share_its_digests_inside_a_namespace() -> None:
    one, other = measure(_call("x" * 4000 + "one"), HERE, 4.0), measure(_call("x" * 4000 + "other"), HERE, 4.0)
    assert len(one.digests) > 4
    assert one.digests[:4] == other.digests[:4]


async def _calls(folder: Path, replicas: int, residency: str) -> int:
    """Calls of Python functions in one decision."""
    count = 0

    def called(_frame: FrameType, event: str, _what: object) -> None:
        nonlocal count
        count += event == "call"

    async with pool(folder, replicas=replicas, blocks=64, residency=residency, prompts=2) as here:
        with here.flight(0) as flight:
            flight.outcome = "client_cancelled"
            here.measure(flight, 0)
            choose(here.plane, flight, tried=(), now_s=time.monotonic())  # what is remembered from one decision to the next is there now
            sys.setprofile(called)
            try:
                choose(here.plane, flight, tried=(), now_s=time.monotonic())
            finally:
                sys.setprofile(None)
    return count


@pytest.mark.parametrize(("residency", "most"), [("history", 60), ("events", 70)])
async def test_one_more_replica_costs_a_decision_so_many_calls(residency: str, most: int, tmp_path: Path) -> None:
    """The cost of a decision grows by a bounded number of function calls for each replica, and by some at all."""
    few, many = await _calls(tmp_path / "few", 8, residency), await _calls(tmp_path / "many", 24, residency)
    assert 16 * 10 < many - few <= 16 * most, (many - few) / 16
