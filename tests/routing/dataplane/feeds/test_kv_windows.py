"""Engines whose windowed KV groups keep some of a prompt alone, as vLLM's do from the start: their events leave blocks out."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.fakes.events import FakeSource
from tests.fakes.rig import Rig, until
from tests.routing.dataplane.conftest import MakeRig
from tests.routing.dataplane.feeds.test_kv import BLOCK, FAST, asked, becomes, chain, counted, exact, forget_fresh, held, prompt, standing

WINDOW: dict[str, Any] = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 2 * BLOCK + 1}


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    return await make_rig(**FAST)


def windowed(blocks: int, salt: str, kept: list[int], **more: Any) -> dict[str, Any]:
    """The windowed group's event of the same prompt as :func:`chain`; the blocks that are kept, by place."""
    event = chain(blocks, salt, **WINDOW, **more)
    hashes, keys = event["block_hashes"], event["extra_keys"]
    return {**event, "block_hashes": [hashes[place] for place in kept], "extra_keys": [keys[place] for place in kept]}


@pytest.mark.parametrize(("kept", "hit"), [([18, 19], 20), (list(range(20)), 20), ([8, 9], 10), ([19], 0), ([], 0)])
async def test_what_a_window_keeps_decides_and_the_state_stays(kept: list[int], hit: int, rig: Rig, source: FakeSource) -> None:
    salt = await exact(rig, source)
    await asked(rig, prompt(20))
    for prompts in (1, 2):
        source.say(windowed(20, salt, kept), chain(20, salt))
        await until(lambda: held(rig, rig.a) >= 20)
        await forget_fresh(rig)
        seen = (await asked(rig, prompt(20)))["A"]
        assert (seen.matched_tokens, standing(rig, rig.a)) == (hit * BLOCK, ("exact", "ok")), prompts
        for subscription in rig.router.kv._subscriptions.values():
            subscription.tick(time.monotonic() + 31)
    assert (counted(rig, "undecodable"), counted(rig, "forgotten"), standing(rig, rig.a)) == (0, 0, ("exact", "ok"))


async def test_a_window_alone_makes_a_steady_state_that_says_so(rig: Rig, source: FakeSource) -> None:
    salt = await exact(rig, source)
    source.say(windowed(20, salt, [18, 19]), windowed(20, salt, [18, 19], first=5000, base=50))
    await becomes(rig, rig.a, "history", "unknown_spec_kind")
    for subscription in rig.router.kv._subscriptions.values():
        subscription.tick(time.monotonic() + 31)
    source.say(windowed(20, salt, [18, 19], first=9000, base=90))
    await until(lambda: counted(rig, "live") >= 2)
    assert (standing(rig, rig.a), counted(rig, "forgotten")) == (("history", "unknown_spec_kind"), 0)
