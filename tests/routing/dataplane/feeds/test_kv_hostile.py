"""Engines whose events are more than a router may hold, or of shapes that it does not know: a real router, scripted sources on real sockets."""

from __future__ import annotations

import struct
from typing import Any

from routing.core import sequence
from routing.dataplane.feeds import kv_sockets
from tests.fakes.events import CLEARED, FakeSource, removed, running_source, stored
from tests.fakes.rig import Rig, until
from tests.routing.dataplane.conftest import MakeRig
from tests.routing.dataplane.feeds.test_kv import BLOCK, FAST, asked, becomes, chain, check, counted, exact, held, prompt, rig, speak
from tests.routing.dataplane.feeds.test_kv import tokens as tokens_of

__all__ = ["rig"]
MIB = 1024 * 1024
READ_BYTES = 300 * 1024  # what the loop reads in one go comes in before anybody can refuse it


def filler(source: FakeSource, count: int) -> None:
    """Batches of an eighth of a megabyte that say nothing, in forty thousand events: read more slowly than they come."""
    payload = source.batch(*[["x"]] * 40_000)
    for _ in range(count):
        source.kept[source.next] = payload
        source.next += 1


async def test_a_replay_of_more_than_may_wait_is_read_in_several_goes(make_rig: MakeRig, source: FakeSource) -> None:
    """Nothing waits beyond the source's part, and an honest source with a large buffer is known in full all the same."""
    rig = await make_rig(kv_waiting_bytes=2 * MIB, **FAST)
    plane, most = rig.router.plane, 0
    salt = rig.namespace().salt
    source.say(chain(4, salt), live=False)
    filler(source, 24)
    source.say(stored([5], tokens=tokens_of(1, first=1000 + 4 * BLOCK), parent=4), live=False)
    rig.only_a()
    speak(rig.a, source.said())
    await check(rig)

    def known() -> bool:
        nonlocal most
        most = max(most, plane.kv_waiting.used_bytes)
        return rig.router.plane.residency.of(rig.a.url).state == "exact"

    await until(known, within_s=30)
    assert len(source.asked) > 1
    assert sorted(source.asked) == source.asked
    assert 0 < most <= 2 * MIB // 4 + READ_BYTES
    assert (await asked(rig, prompt(20)))["A"].matched_tokens == 5 * BLOCK
    assert counted(rig, "gap") == 0
    assert plane.kv_waiting.used_bytes == 0


async def test_a_replay_that_brings_nothing_is_given_up_and_none_is_asked_for_during_a_while(make_rig: MakeRig, source: FakeSource) -> None:
    """Not even its first message may wait: what the source says live is all that counts."""
    rig = await make_rig(kv_waiting_bytes=MIB // 4, **FAST)
    salt = rig.namespace().salt
    source.say({"type": "Odd", "filler": bytes(MIB)}, live=False)
    rig.only_a()
    speak(rig.a, source.said())
    await check(rig)
    await becomes(rig, rig.a, "warming", "late_join")
    assert source.asked == [0]
    assert rig.router.plane.kv_waiting.refused > 0
    await asked(rig, prompt(1, first=900_000))
    source.say(chain(3, salt))
    await until(lambda: held(rig, rig.a) == 3)
    source.next = 3000
    source.say(chain(2, salt, first=50_000, base=100))
    await becomes(rig, rig.a, "degraded", "gap")
    await until(lambda: held(rig, rig.a) == 2)
    assert source.asked == [0]
    (subscription,) = rig.router.kv._subscriptions.values()
    subscription.tracker._rests_until_s -= sequence.REST_S
    source.next = 4000
    source.say(chain(2, salt, first=60_000, base=200))
    await until(lambda: source.asked[:2] == [0, 3000])


async def test_a_flood_of_one_tenants_engine_leaves_another_engine_its_floor(make_rig: MakeRig, source: FakeSource) -> None:
    """What is common is full, for good: an engine of another owner is replayed in small goes, and known."""
    rig = await make_rig(kv_waiting_bytes=8 * MIB, **FAST)
    budget = rig.router.plane.kv_waiting
    salt = rig.namespace().salt
    flooder = [budget.account("another tenant") for _ in range(4)]
    for account in flooder:
        while account.fits(account.held_bytes + MIB // 4):
            account.set(account.held_bytes + MIB // 4)
    assert budget.used_bytes >= 4 * MIB
    source.say(chain(4, salt), live=False)
    filler(source, 24)
    rig.only_a()
    speak(rig.a, source.said())
    await check(rig)
    await until(lambda: rig.router.plane.residency.of(rig.a.url).state == "exact", within_s=30)
    assert len(source.asked) > 1
    assert budget.used_bytes == sum(account.held_bytes for account in flooder)


async def test_live_batches_that_wait_for_a_replay_are_bounded_too(make_rig: MakeRig, source: FakeSource) -> None:
    """A source whose replay never ends, while it floods live: the replay is given up, and what it says from then on counts."""
    rig = await make_rig(kv_waiting_bytes=2 * MIB, kv_replay_s=30.0, kv_retry_s=0.02)
    salt = rig.namespace().salt
    source.answers = False  # the replay that the first message asks for
    rig.only_a()
    speak(rig.a, source.said())
    await check(rig)
    await source.subscribed()
    await asked(rig, prompt(1, first=900_000))
    source.say(chain(4, salt))
    for _ in range(10):
        source.say({"type": "Odd", "filler": bytes(MIB // 8)}, keep=False)
    await until(lambda: counted(rig, "replay_over_budget") == 1)
    source.say(chain(3, salt, first=50_000, base=100))
    await until(lambda: held(rig, rig.a) in (3, 7))  # where a batch of the flood found no room, there is a gap before these
    await until(lambda: rig.router.plane.kv_waiting.used_bytes == 0)


async def test_a_message_too_long_to_be_read_is_a_gap_and_ends_no_connection(rig: Rig, source: FakeSource) -> None:
    salt = await exact(rig, source)
    source.say(chain(20, salt))
    await until(lambda: held(rig, rig.a) == 20)
    source.say({"type": "Odd", "filler": bytes(kv_sockets.MAX_MESSAGE_BYTES)})
    source.say(chain(3, salt, first=50_000, base=100))
    await becomes(rig, rig.a, "degraded", "gap")
    await until(lambda: held(rig, rig.a) == 3)
    assert counted(rig, "too_large") >= 1
    assert counted(rig, "connected") == 1


async def test_a_gap_older_than_the_buffer_is_no_certainty(rig: Rig, source: FakeSource) -> None:
    """Field case FC-KV-03: degraded, reason gap; what the engine says counts half, until a clear, a restart, or all it holds was seen."""
    salt = await exact(rig, source)
    source.say(chain(10, salt))
    await until(lambda: held(rig, rig.a) == 10)
    source.kept = {}
    source.next = 10_002
    source.say(removed(424_242), live=False)
    source.next = 20_001
    source.say(chain(20, salt))
    await becomes(rig, rig.a, "degraded", "gap")
    await until(lambda: held(rig, rig.a) == 20)
    seen = (await asked(rig, prompt(20)))["A"]
    assert (seen.evidence, seen.residency, seen.matched_tokens) == ("event", "degraded", 20 * BLOCK)
    assert seen.expected_cached_tokens <= 20 * BLOCK * 0.995 / 2 + 1
    source.say(removed(20))
    await until(lambda: held(rig, rig.a) == 19)
    assert rig.router.plane.residency.of(rig.a.url).state == "degraded"
    assert counted(rig, "mistake") == 0
    source.say(CLEARED)
    await becomes(rig, rig.a, "exact")


async def test_other_framings_are_counted_by_kind_and_the_subscription_goes_on(rig: Rig, source: FakeSource) -> None:
    """Field case FC-KV-11: of seven messages the last two are applied, and an event of an unknown kind is counted."""
    salt = await exact(rig, source)
    number = struct.Struct(">Q").pack
    unknown = source.batch({"type": "BlockMoved", "x": 1})
    trailing = source.batch(chain(1, salt, one=1, two=2, three=3))
    good = source.batch(stored([2], tokens=tokens_of(1, first=1000 + BLOCK), parent=1))
    source.send(source.batch())
    for frames in ((b"kv", good), (b"kv", b"\0\0\0\0", good), (b"kv", number(0), b"\xc1"), (b"kv", number(1), unknown)):
        source.send(*frames)
    source.kept = {0: b"\xc1", 1: unknown, 2: trailing, 3: good}
    source.send(b"kv", number(2), trailing)
    source.send(b"kv", number(3), good)
    counters = rig.router.plane.events.counters
    await until(lambda: held(rig, rig.a) == 2)
    # A message of one frame cannot name the topic, so a PUB socket never sends it to a subscriber of one.
    assert (counted(rig, "malformed"), counted(rig, "undecodable")) == (2, 1)
    assert (counters["unknown_events"], counters["unknown_fields"]) == (1, 3)
    assert (counted(rig, "connected"), counted(rig, "mistake"), counted(rig, "restart")) == (1, 0, 0)
    assert rig.router.plane.residency.of(rig.a.url).state == "degraded"


async def test_what_waits_is_told_in_the_metrics(rig: Rig) -> None:
    page = rig.router.plane.metrics.page().decode()
    assert "saltroute_kv_waiting_bytes 0.0" in page
    assert "saltroute_kv_waiting_refused_total 0.0" in page


async def test_many_ranks_of_a_hostile_engine_share_one_bound(make_rig: MakeRig) -> None:
    """Eight ranks replay without end, together far more than may wait."""
    rig = await make_rig(kv_waiting_bytes=2 * MIB, **FAST)
    budget, most = rig.router.plane.kv_waiting, 0
    async with running_source() as first:
        filler(first, 24)
        said: dict[str, Any] = {}
        sources = [first]
        for _ in range(7):
            one = FakeSource()
            one.kept = first.kept
            await one.start()
            sources.append(one)
        for rank, one in enumerate(sources):
            said |= one.said(rank=rank)
        rig.only_a()
        speak(rig.a, said)
        await check(rig)

        def all_done() -> bool:
            nonlocal most
            most = max(most, budget.used_bytes)
            return len(rig.router.kv._subscriptions) == 8 and all(not one.tracker._behind for one in rig.router.kv._subscriptions.values())

        await until(all_done, within_s=30)
        assert 0 < most <= 2 * MIB
        for one in sources[1:]:
            await one.stop()
