"""Where events cannot say all of a prompt although the engine's are exact: what the router remembers itself decides there."""

from __future__ import annotations

import threading
from array import array

import pytest

from routing.core import blocks, event_index
from routing.dataplane import choose
from tests.fakes.events import CLEARED, FakeSource, stored
from tests.fakes.rig import Rig, until
from tests.routing.dataplane.conftest import MakeRig
from tests.routing.dataplane.feeds import test_kv as kv
from tests.routing.dataplane.feeds.test_kv import BLOCK, FAST, asked, chain, exact, forget_fresh, held, prompt, tokens


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    return await make_rig(**FAST)


async def nine_are_held(rig: Rig, source: FakeSource) -> str:
    """A prompt of 20 blocks was asked, and long ago, of which the engine says that it holds 9; returns its namespace's salt."""
    salt = await exact(rig, source)
    await asked(rig, prompt(20))
    source.say(chain(9, salt))
    await until(lambda: held(rig, rig.a) == 9)
    await forget_fresh(rig)
    return salt


async def test_beyond_the_longest_chain_of_a_prompt_history_decides(rig: Rig, source: FakeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    await nine_are_held(rig, source)
    seen = (await asked(rig, prompt(20)))["A"]
    assert (seen.matched_tokens, seen.evidence) == (9 * BLOCK, "event")  # the engine would have told of more
    monkeypatch.setattr(choose, "MAX_DIGESTS", 9)
    await forget_fresh(rig)
    seen = (await asked(rig, prompt(20)))["A"]
    assert seen.matched_tokens > 18 * BLOCK
    assert seen.evidence == "inferred"
    monkeypatch.setattr(choose, "MAX_DIGESTS", 10)
    await forget_fresh(rig)
    assert (await asked(rig, prompt(20)))["A"].matched_tokens == 9 * BLOCK


@pytest.mark.parametrize("small", [True, False])
async def test_chains_of_small_blocks_are_made_off_the_event_loop(small: bool, rig: Rig, source: FakeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    salt = await exact(rig, source)
    size = 1 if small else 8
    source.say({**stored([77], tokens=tokens(1)[:size], salt=salt), "block_size": size, "group_idx": 1})
    await until(lambda: held(rig, rig.a) == 1)
    made: dict[int, bool] = {}
    real = blocks.token_chain

    def noting(seed: bytes, token_ids: array[int], block_tokens: int) -> tuple[bytes, ...]:
        made[block_tokens] = threading.current_thread() is threading.main_thread()
        return real(seed, token_ids, block_tokens)

    monkeypatch.setattr(blocks, "token_chain", noting)
    await asked(rig, prompt(300))
    assert made == {BLOCK: not small, size: not small}


async def test_of_a_namespace_that_was_forgotten_and_comes_back_history_decides(
    rig: Rig, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant with more namespaces than the index takes of one: the engine still holds the prompt, and its events for it were long ago."""
    monkeypatch.setattr(event_index, "MAX_CLAIMS", 2)
    salt = await nine_are_held(rig, source)
    seen = (await asked(rig, prompt(20)))["A"]
    assert (seen.matched_tokens, seen.evidence, seen.residency) == (9 * BLOCK, "event", "exact")
    for number in range(2):
        rig.router.plane.events.claim(f"sr1-{number}", ns_key=bytes([number]), owner=rig.acme.tenant_id.bytes, seed=bytes(32))
    assert held(rig, rig.a) == 0
    await forget_fresh(rig)
    seen = (await asked(rig, prompt(20)))["A"]
    assert seen.matched_tokens > 18 * BLOCK
    assert (seen.evidence, seen.residency, kv.standing(rig, rig.a)) == ("inferred", "degraded", ("exact", "ok"))
    source.say(CLEARED, chain(9, salt))
    await until(lambda: held(rig, rig.a) == 9)
    await forget_fresh(rig)
    seen = (await asked(rig, prompt(20)))["A"]
    assert (seen.matched_tokens, seen.evidence, seen.residency) == (9 * BLOCK, "event", "exact")
