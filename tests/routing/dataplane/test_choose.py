"""A prompt's digests belong to its namespace: whoever holds the same text under another one can neither match nor guess them."""

from __future__ import annotations

import sys
import time
from array import array
from pathlib import Path
from types import FrameType

import msgspec
import pytest

from namespaces.core.salts import Namespace
from routing.core import blocks
from routing.dataplane import openai
from routing.dataplane.choice import LOOP_DIGESTS, MAX_DIGESTS
from routing.dataplane.choose import choose, measure, work_bytes
from routing.dataplane.holdings import OFF_LOOP_BYTES
from routing.dataplane.tokens import Found
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


def _exact(count: int) -> Found:
    return Found(ids=array("I", range(count)), whole=True)


def test_a_prompt_has_so_many_digests_at_most_whatever_blocks_engines_show() -> None:
    """The widest blocks first: those of a token each, which an engine may name, take nothing from the others."""
    count = MAX_DIGESTS + 100
    prompt = measure(_call("hello"), HERE, 4.0, _exact(count), (1, 16, 2))
    lengths = [len(prompt.chain(size)) for size in (16, 2, 1)]
    assert lengths == [count // 16, count // 2, MAX_DIGESTS - count // 16 - count // 2]
    assert prompt.chain(1) == blocks.token_chain(HERE.index_seed, range(lengths[2]), 1)
    short = measure(_call("hello"), HERE, 4.0, _exact(64), (1, 16, 2))
    assert [len(short.chain(size)) for size in (16, 2, 1)] == [4, 32, 64]


def test_blocks_that_nobody_had_shown_when_a_prompt_was_measured_get_a_short_chain() -> None:
    """It is made on the event loop, where the decision is."""
    prompt = measure(_call("hello"), HERE, 4.0, _exact(3 * LOOP_DIGESTS), (1,))
    assert (len(prompt.chain(1)), len(prompt.chain(2)), len(prompt.chain(16))) == (3 * LOOP_DIGESTS, LOOP_DIGESTS, 3 * LOOP_DIGESTS // 16)


def test_small_blocks_are_as_much_work_as_a_long_prompt() -> None:
    short, long = _exact(LOOP_DIGESTS), _exact(16 * LOOP_DIGESTS + 1)
    assert [work_bytes(_call("hello"), short, sizes) > OFF_LOOP_BYTES for sizes in ((16,), (1,), (1, 2))] == [False, False, True]
    assert [work_bytes(_call("hello"), long, sizes) > OFF_LOOP_BYTES for sizes in ((16,), (32,), (16, 32), (8,))] == [False, False, True, True]
    assert work_bytes(_call("x" * OFF_LOOP_BYTES), Found(why_not="deadline"), (16,)) > OFF_LOOP_BYTES
