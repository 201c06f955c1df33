"""Events of an engine that is asked for them: a real router, a scripted engine over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from routing.core.kv_events_trtllm import MAX_ANSWER_BYTES
from routing.dataplane.feeds import kv_polled
from tests.fakes.replica import Script
from tests.fakes.rig import KEY_B, Rig, bumped, replica_entry, until
from tests.fakes.trtllm import FakePolled, block, removed, running_polled, stored
from tests.routing.dataplane.conftest import MakeRig
from tests.routing.dataplane.feeds.test_kv import BLOCK, asked, becomes, check, counted, held, prompt, speak, tokens


@pytest.fixture
async def fake(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakePolled]:
    monkeypatch.setattr(kv_polled, "POLL_S", 0.02)
    async with running_polled() as one:
        yield one


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    return await make_rig()


def on(rig: Rig, fake: FakePolled) -> None:
    """Acme's pool is this engine alone."""
    replica = msgspec.structs.replace(replica_entry(fake), engine="trtllm")
    endpoints = tuple(msgspec.structs.replace(one, engine="trtllm") for one in rig.acme.endpoints)
    rig.publish(bumped(rig.acme, pools=(msgspec.structs.replace(rig.acme.pools[0], replicas=(replica,)),), endpoints=endpoints))


def prefix(blocks: int, salt: str, *, first: int = 1000, base: int = 1, size: int = BLOCK) -> dict[str, Any]:
    """The event of a prompt's first blocks, and of the partial one behind them."""
    ids = tokens(blocks * size // BLOCK, first=first)
    whole = [block(base + number, ids[number * size : (number + 1) * size], salt=salt) for number in range(blocks)]
    return stored([*whole, block(base + 9000, [7], salt=salt)])


async def exact(rig: Rig, fake: FakePolled) -> str:
    """A router that follows the engine's events and a namespace that it knows; returns the salt."""
    on(rig, fake)
    await asked(rig, prompt(1, first=900_000))
    salt = rig.namespace().salt
    assert rig.router.plane.residency.of(fake.url).state == "history"
    fake.say(prefix(2, salt, first=500_000, base=5000))
    await becomes(rig, fake, "exact")
    return salt


async def test_polled_events_count_and_removed_blocks_do_not(rig: Rig, fake: FakePolled) -> None:
    """What the engine stored for whomever is matched; a block that is gone is not, and a partial one never was."""
    salt = await exact(rig, fake)
    fake.say(prefix(20, salt))
    await until(lambda: held(rig, fake) == 22)
    seen = await asked(rig, prompt(20))
    (candidate,) = [one for name, one in seen.items() if name != "chosen"]
    assert (candidate.evidence, candidate.residency, candidate.matched_tokens) == ("event", "exact", 20 * BLOCK)
    fake.say(removed(20, 19))
    await until(lambda: held(rig, fake) == 20)
    assert counted(rig, "mistake") == 0


async def test_another_namespaces_blocks_are_not_matched(rig: Rig, fake: FakePolled) -> None:
    salt = await exact(rig, fake)
    fake.say(prefix(8, rig.namespace(KEY_B).salt, base=100), prefix(3, salt, base=200))
    await until(lambda: held(rig, fake) == 5)
    seen = await asked(rig, prompt(8))
    assert [one.matched_tokens for name, one in seen.items() if name != "chosen"] == [3 * BLOCK]


async def test_events_that_fell_out_of_the_buffer_are_a_gap(rig: Rig, fake: FakePolled) -> None:
    """Or that somebody else took: nothing can be asked for again, so what was known is forgotten."""
    salt = await exact(rig, fake)
    fake.say(prefix(20, salt))
    await until(lambda: held(rig, fake) == 22)
    fake.next += 3
    fake.say(prefix(4, salt, first=60_000, base=100))
    await becomes(rig, fake, "degraded", "gap")
    await until(lambda: held(rig, fake) == 4)


async def test_numbers_that_begin_again_are_another_process(rig: Rig, fake: FakePolled) -> None:
    salt = await exact(rig, fake)
    fake.say(prefix(20, salt))
    await until(lambda: held(rig, fake) == 22)
    fake.begin()
    await becomes(rig, fake, "history", "unsupported")
    assert held(rig, fake) == 0
    fake.say(prefix(4, salt))
    await becomes(rig, fake, "exact")
    assert held(rig, fake) == 4


@pytest.mark.parametrize("shown_by", ["numbers", "start time"])
async def test_another_process_may_have_blocks_of_another_size(rig: Rig, fake: FakePolled, shown_by: str) -> None:
    """Its size is learned anew, and its blocks count."""
    speak(fake)
    salt = await exact(rig, fake)
    await check(rig)
    fake.say(prefix(20, salt))
    await until(lambda: held(rig, fake) == 22)
    if shown_by == "numbers":
        fake.begin()
    else:
        speak(fake, started=2000.0)
        await check(rig)
    await until(lambda: held(rig, fake) == 0)
    fake.say(prefix(4, salt, size=2 * BLOCK))
    await until(lambda: held(rig, fake) == 4)
    assert rig.router.plane.events.block_sizes((fake.url, 0)) == (2 * BLOCK,)
    assert counted(rig, "restart") == 1


async def test_an_engine_whose_events_show_no_salts_goes_by_history(rig: Rig, fake: FakePolled) -> None:
    """It would look empty. So does one of several attention ranks, since nobody chooses among them."""
    on(rig, fake)
    await asked(rig, prompt(1, first=900_000))
    bare = prefix(3, "")
    for one in bare["blocks"]:
        del one["cache_salt"]
    fake.say(bare)
    await until(lambda: rig.router.plane.events.counters["ignored_foreign"] > 0)
    assert rig.router.plane.residency.of(fake.url).reason == "unsupported"
    fake.say(prefix(3, rig.namespace().salt, base=50))
    await becomes(rig, fake, "exact")
    fake.say(prefix(3, rig.namespace().salt, base=70), attention_dp_rank=1)
    await becomes(rig, fake, "history", "unsupported")


async def test_an_engine_without_the_path_is_not_asked_again_soon(rig: Rig, fake: FakePolled) -> None:
    fake.absent = True
    on(rig, fake)
    await until(lambda: counted(rig, "refused") == 1)
    assert rig.router.plane.residency.of(fake.url).reason == "no_events"
    await asked(rig, prompt(1))
    assert counted(rig, "refused") == 1


async def test_an_answer_that_is_too_long_or_no_list_is_not_believed(rig: Rig, fake: FakePolled, caplog: pytest.LogCaptureFixture) -> None:
    """What was drained with it is lost; the next answers count, and nothing of any is logged."""
    salt = await exact(rig, fake)
    with caplog.at_level(logging.DEBUG):
        fake.say({"type": "odd", "filler": "4040404" * (MAX_ANSWER_BYTES // 7)})
        await becomes(rig, fake, "degraded", "gap")
        assert counted(rig, "too_large") == 1
        fake.buffer.append({"event_id": "4040404"})
        await until(lambda: counted(rig, "undecodable") == 1)
        fake.say(prefix(4, salt, first=60_000, base=100))
        await until(lambda: held(rig, fake) == 4)
    await until(lambda: rig.router.plane.kv_waiting.used_bytes == 0)
    said = "".join(record.getMessage() for record in caplog.records)
    assert salt not in said
    assert "4040404" not in said


@pytest.mark.parametrize("allowed", [True, False])
async def test_events_are_asked_for_at_checked_addresses_only(make_rig: MakeRig, fake: FakePolled, allowed: bool) -> None:
    rig = await make_rig(**({} if allowed else {"allowed_ranges": ()}))
    on(rig, fake)
    if allowed:
        await until(lambda: fake.drained > 1)
    else:
        await until(lambda: counted(rig, "unreachable") > 0)
        assert fake.drained == 0


async def test_an_answer_that_breaks_off_leaves_nothing_on_the_account(rig: Rig, fake: FakePolled, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next question may be a minute away, and what waits of one engine is taken from all."""
    await exact(rig, fake)
    half = asyncio.Event()
    broken = Script(pieces=[b"[" + b" " * 5000, b" "], gates={1: half}, chunked_end=False, then="close")
    real = fake._script_for
    monkeypatch.setattr(fake, "_script_for", lambda received: broken if received.path == "/kv_cache_events" else real(received))
    await until(lambda: rig.router.plane.kv_waiting.used_bytes >= 5000)
    before = counted(rig, "unreachable")
    monkeypatch.setattr(kv_polled, "POLL_S", 3600.0)
    half.set()
    await until(lambda: counted(rig, "unreachable") > before)
    await until(lambda: rig.router.plane.kv_waiting.used_bytes == 0)
