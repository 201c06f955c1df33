"""KV events into a running router: a real router, scripted engines, scripted event sources on real sockets."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import time
from typing import Any

import msgspec
import pytest

from routing.core import sequence
from routing.core.sequence import Apply, CaughtUp
from routing.core.snapshot import KvEvents
from routing.dataplane.feeds import kv_followed, load
from routing.dataplane.feeds.kv_subscription import Subscription
from tenants.core import api_key
from tests.fakes.artifacts import TEMPLATE, TOKENIZER, digest, naming
from tests.fakes.events import CLEARED, FakeSource, removed, running_source, stored
from tests.fakes.replica import FakeReplica, Script
from tests.fakes.rig import KEY_A, KEY_B, Rig, bumped, replica_entry, until
from tests.routing.dataplane.conftest import MakeRig
from tests.routing.outbound.test_literal import Names

BLOCK = 16
FAST = {"kv_replay_s": 0.2, "kv_retry_s": 0.02}


def tokens(blocks: int, *, first: int = 1000) -> list[int]:
    return list(range(first, first + blocks * BLOCK))


def prompt(blocks: int, *, first: int = 1000) -> dict[str, Any]:
    """A completion whose prompt is token ids: exact without any tokenizer; one token more than whole blocks."""
    return {"model": "m-7b", "prompt": [*tokens(blocks, first=first), 7]}


def chain(blocks: int, salt: str, *, first: int = 1000, base: int = 1, **more: Any) -> dict[str, Any]:
    """The event by which an engine stores the first blocks of :func:`prompt`."""
    return stored(range(base, base + blocks), tokens=tokens(blocks, first=first), salt=salt, **more)


def speak(fake: FakeReplica, *sources: dict[str, Any], started: float | None = 1000.0) -> None:
    """Let an engine say where its events are, and when it began; None: vLLM does not say it with several API processes."""
    said = {name: entry for source in sources for name, entry in source.items()}
    fake.on_path["/kv_event_sources"] = Script(body=said)
    start = "" if started is None else f"process_start_time_seconds {started}\n"
    page = f'{start}vllm:cache_config_info{{block_size="{BLOCK}",num_gpu_blocks="4000"}} 1.0\n'
    fake.on_path["/metrics"] = Script(body=page.encode(), headers={"Content-Type": "text/plain"})


async def check(rig: Rig) -> None:
    """One round of health checks, as if the minute between two questions were over."""
    for replica in rig.router.plane.replicas.values():
        rig.router.plane.engine(replica.url).facts_due_s = 0.0
        await load.check(rig.router.plane, replica)


def standing(rig: Rig, fake: FakeReplica) -> tuple[str, str]:
    shown = rig.router.plane.residency.of(fake.url)
    return shown.state, shown.reason


async def becomes(rig: Rig, fake: FakeReplica, state: str, reason: str = "ok") -> None:
    await until(lambda: standing(rig, fake) == (state, reason))


def counted(rig: Rig, kind: str) -> float:
    return float(rig.router.plane.metrics.registry.get_sample_value("saltroute_kv_messages_total", {"kind": kind}) or 0.0)


def held(rig: Rig, fake: FakeReplica, rank: int = 0) -> int:
    """Blocks credited to namespaces at an engine."""
    sizes = rig.router.plane.events.sizes().get((fake.url, rank))
    return 0 if sizes is None else sizes.credited


async def asked(rig: Rig, body: dict[str, Any], *, key: str = KEY_A) -> dict[str, Any]:
    """Send a completion; returns what the decision says of the candidates, by replica name, and who was chosen."""
    before = len(rig.records())
    assert (await rig.call("POST", "/v1/completions", json=body, key=key)).status == 200
    await until(lambda: len(rig.records()) > before)
    record = rig.records()[-1]
    return {"chosen": record.replica_name, **{one.replica_name: one for one in record.candidates}}


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    return await make_rig(**FAST)


async def known(rig: Rig, key: str = KEY_A, *, at: FakeReplica | None = None) -> str:
    """The salt of a namespace after its first request, hence claimed."""
    await asked(rig, prompt(1, first=900_000), key=key)
    return rig.namespace(key).salt


async def test_a_late_router_learns_what_was_said_before_and_routes_by_it(rig: Rig, source: FakeSource) -> None:
    """Nothing of this conversation ever passed this router: only events can know."""
    salt = rig.namespace().salt
    source.say(chain(20, salt), live=False)
    source.say(stored([21, 22], tokens=tokens(2, first=1000 + 20 * BLOCK), parent=20), live=False)
    for fake in (rig.a, rig.b):
        speak(fake)
    speak(rig.b, source.said())
    await check(rig)
    await becomes(rig, rig.b, "exact")
    assert source.asked == [0]
    seen = await asked(rig, prompt(30))
    assert seen["chosen"] == "B"
    there, elsewhere = seen["B"], seen["A"]
    assert (there.evidence, there.matched_tokens, there.residency) == ("event", 22 * BLOCK, "exact")
    assert there.expected_cached_tokens == pytest.approx(22 * BLOCK * 0.995)
    assert (elsewhere.evidence, elsewhere.matched_tokens, elsewhere.residency) == ("none", 0, "history")


async def exact(rig: Rig, source: FakeSource, **more: Any) -> str:
    """A router that follows A's events and a namespace that it knows; returns the salt."""
    rig.only_a()
    speak(rig.a, source.said(), **more)
    await check(rig)
    salt = await known(rig)
    await source.subscribed()
    await becomes(rig, rig.a, "exact")
    return salt


async def test_live_events_count_and_removed_blocks_do_not(rig: Rig, source: FakeSource) -> None:
    salt = await exact(rig, source)
    source.say(chain(20, salt))
    await until(lambda: held(rig, rig.a) == 20)
    assert (await asked(rig, prompt(20)))["A"].matched_tokens == 20 * BLOCK
    source.say(removed(20), removed(19))
    await until(lambda: held(rig, rig.a) == 18)
    await forget_fresh(rig)
    assert (await asked(rig, prompt(20)))["A"].matched_tokens == 18 * BLOCK
    source.say(CLEARED)
    await until(lambda: held(rig, rig.a) == 0)
    await forget_fresh(rig)
    assert (await asked(rig, prompt(20)))["A"].matched_tokens == 0


async def forget_fresh(rig: Rig) -> None:
    """As if the last answers were older than the events' lag."""
    for replica in rig.router.plane.index._replicas.values():
        for entries in replica.owners.values():
            for entry in entries.values():
                if entry.inferred_at_s is not None:
                    entry.inferred_at_s -= 10.0


async def test_where_events_are_exact_an_old_answer_proves_nothing_and_a_fresh_one_does(rig: Rig, source: FakeSource) -> None:
    await exact(rig, source)
    await asked(rig, prompt(20))
    fresh = (await asked(rig, prompt(20)))["A"]
    assert fresh.evidence == "inferred"
    assert fresh.matched_tokens > 18 * BLOCK
    await forget_fresh(rig)
    assert (await asked(rig, prompt(20)))["A"].matched_tokens == 0  # the engine would have told by now
    await forget_fresh(rig)
    source.answers = False
    source.say("x", live=False)
    source.say("x")  # a gap: no longer exact, so history counts again
    await until(lambda: standing(rig, rig.a)[0] == "degraded")
    assert (await asked(rig, prompt(20)))["A"].matched_tokens > 18 * BLOCK


@pytest.mark.parametrize("gone", [pytest.param(removed(20, 19, 18), id="removed"), pytest.param(CLEARED, id="cleared")])
async def test_an_answer_counts_no_longer_than_until_the_engine_removes_what_it_showed(rig: Rig, source: FakeSource, gone: Any) -> None:
    """A small cache turns over sooner than an answer grows old: the event that took a block away is the younger evidence, until the next answer."""
    salt = await exact(rig, source)
    source.say(chain(20, salt))
    await until(lambda: held(rig, rig.a) == 20)
    await asked(rig, prompt(20))
    assert (await asked(rig, prompt(20)))["A"].matched_tokens == 20 * BLOCK
    source.say(gone)
    await until(lambda: held(rig, rig.a) < 20)
    left = held(rig, rig.a) * BLOCK
    after = (await asked(rig, prompt(20)))["A"]
    assert (after.matched_tokens, after.residency) == (left, "exact")
    again = (await asked(rig, prompt(20)))["A"]  # that request was answered after the removal; its own event may still come
    assert again.evidence == "inferred"
    assert again.matched_tokens > 18 * BLOCK


async def test_a_prompt_without_exact_tokens_goes_by_history(rig: Rig, source: FakeSource) -> None:
    await exact(rig, source)
    text = {"model": "m-7b", "prompt": "x" * 4000}
    await asked(rig, text)
    await forget_fresh(rig)
    seen = (await asked(rig, text))["A"]
    assert (seen.evidence, seen.residency, standing(rig, rig.a)) == ("inferred", "history", ("exact", "ok"))
    assert seen.matched_tokens > 900


async def test_a_gap_is_repaired_by_a_replay_and_nothing_is_forgotten(rig: Rig, source: FakeSource) -> None:
    salt = await exact(rig, source)
    source.say(chain(4, salt))
    source.say(stored([5, 6], tokens=tokens(2, first=1000 + 4 * BLOCK), parent=4), live=False)
    source.say(stored([7], tokens=tokens(1, first=1000 + 6 * BLOCK), parent=6))
    await until(lambda: held(rig, rig.a) == 7)
    await becomes(rig, rig.a, "exact")
    assert source.asked == [0, 0]  # from the last one that was applied
    assert counted(rig, "gap") == 0
    assert (await asked(rig, prompt(20)))["A"].matched_tokens == 7 * BLOCK


async def test_while_messages_are_missing_events_count_half(rig: Rig, source: FakeSource) -> None:
    salt = await exact(rig, source)
    source.say(chain(20, salt))
    await until(lambda: held(rig, rig.a) == 20)
    source.answers = False
    source.say("x", live=False)
    source.say("x")
    await until(lambda: standing(rig, rig.a) == ("degraded", "replay"))
    seen = (await asked(rig, prompt(20)))["A"]
    assert (seen.evidence, seen.residency, seen.matched_tokens) == ("event", "degraded", 20 * BLOCK)
    assert seen.expected_cached_tokens == pytest.approx(20 * BLOCK * 0.995 / 2)


async def test_a_gap_that_no_replay_fills_empties_the_engine_and_what_comes_after_counts(rig: Rig, source: FakeSource) -> None:
    """Removals may be among what was lost."""
    salt = await exact(rig, source)
    source.say(chain(20, salt))
    await until(lambda: held(rig, rig.a) == 20)
    source.say(removed(20), live=False, keep=False)
    source.say(chain(3, salt, first=50_000, base=100))
    await becomes(rig, rig.a, "degraded", "gap")
    await until(lambda: held(rig, rig.a) == 3)
    assert counted(rig, "gap") == 1
    assert (await asked(rig, prompt(20)))["A"].matched_tokens == 0
    assert (await asked(rig, prompt(3, first=50_000)))["A"].matched_tokens == 3 * BLOCK
    source.say(CLEARED)
    await becomes(rig, rig.a, "exact")


async def test_a_buffer_that_does_not_reach_back_leaves_a_router_warming(rig: Rig, source: FakeSource) -> None:
    """What it claims is true, what it lacks says little: so the router's own history still counts in full."""
    salt = rig.namespace().salt
    source.next = 5000
    source.say(chain(4, salt), live=False)
    rig.only_a()
    speak(rig.a, source.said())
    await check(rig)
    await becomes(rig, rig.a, "warming", "late_join")
    assert (await asked(rig, prompt(20)))["A"].matched_tokens == 4 * BLOCK
    await forget_fresh(rig)
    seen = (await asked(rig, prompt(20)))["A"]
    assert seen.matched_tokens > 18 * BLOCK
    assert seen.residency == "warming"


async def test_an_end_marker_that_never_comes_is_asked_for_again_and_then_given_up(rig: Rig, source: FakeSource) -> None:
    salt = rig.namespace().salt
    source.say(chain(4, salt), live=False)
    source.send_end = False
    rig.only_a()
    speak(rig.a, source.said())
    await check(rig)
    await until(lambda: len(source.asked) == 3)
    await until(lambda: standing(rig, rig.a) == ("degraded", "gap") and counted(rig, "gap") == 1)
    assert source.asked == [0, 0, 0]
    await known(rig)
    source.say(chain(5, salt, first=50_000, base=100))
    await until(lambda: held(rig, rig.a) >= 5)
    assert (await asked(rig, prompt(5, first=50_000)))["A"].matched_tokens == 5 * BLOCK


async def test_a_restarted_engine_holds_nothing_whether_numbers_or_its_start_time_tell(rig: Rig, source: FakeSource) -> None:
    salt = await exact(rig, source)
    for _ in range(3):
        source.say("x")
    source.say(chain(20, salt))
    await until(lambda: held(rig, rig.a) == 20)
    await asked(rig, prompt(20))
    assert rig.router.plane.index.sizes()[rig.a.url][0] > 0
    source.next = 0  # another process on the same connection: only the numbers tell
    source.kept.clear()
    source.say(chain(2, salt))
    await until(lambda: held(rig, rig.a) == 2)
    await becomes(rig, rig.a, "exact")
    assert counted(rig, "restart") == 1
    assert rig.a.url not in rig.router.plane.index.sizes()  # nor does history credit it
    speak(rig.a, source.said(), started=2000.0)  # the same restart, as metrics tell it
    await check(rig)
    assert (counted(rig, "restart"), held(rig, rig.a)) == (1, 2)


async def test_a_restart_that_no_number_shows_is_seen_by_the_start_time(rig: Rig, source: FakeSource) -> None:
    salt = await exact(rig, source)
    source.say(chain(20, salt))
    await until(lambda: held(rig, rig.a) == 20)
    source.kept.clear()
    speak(rig.a, source.said(), started=2000.0)
    await check(rig)
    assert held(rig, rig.a) == 0
    await becomes(rig, rig.a, "exact")
    assert counted(rig, "restart") == 1


async def test_a_source_that_comes_back_is_asked_for_what_was_missed(rig: Rig, source: FakeSource) -> None:
    salt = await exact(rig, source)
    source.say({"type": "Odd"})
    source.say(chain(2, salt))
    await until(lambda: held(rig, rig.a) == 2)
    kept = dict(source.kept)
    await source.stop()
    await until(lambda: standing(rig, rig.a) == ("degraded", "stale"))
    source.kept = kept
    source.next = 2
    await source.start()
    source.say(stored([3], tokens=tokens(1, first=1000 + 2 * BLOCK), parent=2), live=False)
    await until(lambda: held(rig, rig.a) == 3)
    await becomes(rig, rig.a, "exact")
    assert source.asked == [0, 1]  # from the last one that was applied
    assert counted(rig, "restart") == 0


async def test_what_was_caught_up_before_the_connection_was_lost_makes_nothing_exact(rig: Rig, source: FakeSource) -> None:
    """It was still to be done when the connection ended: the state would be exact as long as nobody is there."""
    await exact(rig, source)
    (subscription,) = rig.router.kv._subscriptions.values()
    assert isinstance(subscription, Subscription)
    rig.router.plane.residency.add(subscription.target, "replay", time.monotonic())
    subscription._act([CaughtUp(-1)])
    await becomes(rig, rig.a, "exact")  # the control
    await source.stop()
    await until(lambda: standing(rig, rig.a) == ("degraded", "stale"))
    subscription._act([CaughtUp(-1)])
    await until(lambda: not subscription._todo)
    assert standing(rig, rig.a) == ("degraded", "stale")


@pytest.mark.parametrize("said", [0, 5], ids=["said nothing yet", "said more than the old one"])
async def test_a_restart_between_two_connections_is_seen_without_any_start_time(rig: Rig, source: FakeSource, said: int) -> None:
    """No number goes back and no metrics tell: that the new process's last batches are others does. The control is the test before."""
    salt = await exact(rig, source, started=None)
    source.say(chain(20, salt))
    await until(lambda: held(rig, rig.a) == 20)
    await source.stop()
    await until(lambda: standing(rig, rig.a) == ("degraded", "stale"))
    source.kept, source.next = {}, 0
    for number in range(said):
        source.say(chain(1, salt, first=500_000 + number * BLOCK, base=100 + number), live=False)
    await source.start()
    await until(lambda: counted(rig, "restart") == 1)
    await becomes(rig, rig.a, "exact")
    assert held(rig, rig.a) == said
    source.say(chain(1, salt, first=700_000, base=200))
    await until(lambda: held(rig, rig.a) == said + 1)
    await forget_fresh(rig)
    assert (await asked(rig, prompt(20)))["A"].matched_tokens == 0
    assert (await asked(rig, prompt(1, first=700_000)))["A"].matched_tokens == BLOCK
    assert source.asked == [0, 0, 0]


@pytest.mark.parametrize("blip", [True, False])
async def test_without_replay_a_blip_changes_nothing_and_a_longer_absence_is_a_gap(
    rig: Rig, source: FakeSource, blip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine may have been started anew meanwhile, and have said as much as before. What it says before that is judged waits."""
    monkeypatch.setattr(sequence, "BLIP_S", 3600.0 if blip else 0.0)
    source.replay_port = 0
    rig.only_a()
    speak(rig.a, source.said(), started=None)
    await check(rig)
    salt = await known(rig)
    await source.subscribed()
    source.say(CLEARED)
    source.say(chain(20, salt))
    await becomes(rig, rig.a, "exact")
    await until(lambda: held(rig, rig.a) == 20)
    await source.stop()
    await until(lambda: standing(rig, rig.a) == ("degraded", "stale"))
    hold = asyncio.Event()
    rig.a.on_path["/metrics"] = dataclasses.replace(rig.a.on_path["/metrics"], hold=hold)
    await source.start(replay=False)
    await source.subscribed()
    source.say(chain(2, salt, first=50_000, base=100))
    await until(lambda: rig.router.plane.kv_waiting.used_bytes > 0)  # it waits until the engine was asked for its start time
    hold.set()
    await until(lambda: held(rig, rig.a) == (22 if blip else 2))
    assert standing(rig, rig.a) == (("exact", "ok") if blip else ("degraded", "gap"))
    assert (counted(rig, "restart"), source.asked) == (0, [])


async def test_after_long_silence_everything_is_forgotten_and_asked_for_again(rig: Rig, source: FakeSource) -> None:
    salt = await exact(rig, source)
    source.say(chain(20, salt))
    await until(lambda: held(rig, rig.a) == 20)
    kept = dict(source.kept)
    await source.stop()
    await until(lambda: standing(rig, rig.a) == ("degraded", "stale"))
    (subscription,) = rig.router.kv._subscriptions.values()
    assert isinstance(subscription, Subscription)
    subscription.tick(time.monotonic() + 29.0)
    assert held(rig, rig.a) == 20
    for _ in range(3):
        subscription.tick(time.monotonic() + 31.0)
    assert (held(rig, rig.a), counted(rig, "forgotten")) == (0, 1)
    source.kept = kept
    await source.start()
    await becomes(rig, rig.a, "exact")
    assert held(rig, rig.a) == 20
    assert source.asked == [0, 0]
    assert counted(rig, "restart") == 0
    speak(rig.a, source.said(), started=2000.0)  # the process is still told from the next one
    source.kept.clear()
    await check(rig)
    await becomes(rig, rig.a, "exact")
    assert (held(rig, rig.a), counted(rig, "restart")) == (0, 1)


async def test_a_replica_that_left_is_forgotten_and_what_it_still_says_is_not_applied(rig: Rig, source: FakeSource) -> None:
    salt = await exact(rig, source)
    source.say(chain(20, salt))
    await until(lambda: held(rig, rig.a) == 20)
    for number in range(2000):
        source.say(chain(1, salt, first=60_000 + number * BLOCK, base=1000 + number))
    pools = tuple(msgspec.structs.replace(pool, replicas=(replica_entry(rig.b),)) for pool in rig.acme.pools)
    rig.publish(bumped(rig.acme, pools=pools))
    rig.publish(bumped(rig.globex, pools=tuple(msgspec.structs.replace(pool, replicas=(replica_entry(rig.b),)) for pool in rig.globex.pools)))
    await until(lambda: not rig.router.kv._subscriptions)
    applied = rig.router.plane.events.counters["stored"]
    assert (rig.a.url, 0) not in rig.router.plane.events.sizes()
    for _ in range(50):
        source.say(chain(1, salt, first=90_000))
    await asked(rig, prompt(1))
    assert rig.router.plane.events.counters["stored"] == applied
    assert standing(rig, rig.a) == ("history", "no_events")


async def test_another_topic_is_not_believed(rig: Rig, source: FakeSource) -> None:
    salt = await exact(rig, source)
    for topic in (b"kv2", b"other"):
        source.send(topic, (0).to_bytes(8, "big"), source.batch(chain(9, salt)))
    source.say(chain(2, salt, first=50_000, base=100))
    await until(lambda: held(rig, rig.a) == 2)
    assert counted(rig, "topic") == 1  # the filter is by prefix; the other one never arrives
    assert (await asked(rig, prompt(9)))["A"].matched_tokens == 0
    assert (await asked(rig, prompt(2, first=50_000)))["A"].matched_tokens == 2 * BLOCK


async def test_what_cannot_be_decoded_degrades_the_state_and_stops_nothing(rig: Rig, source: FakeSource) -> None:
    salt = await exact(rig, source)
    source.send(b"kv", (0).to_bytes(8, "big"), b"\xc1 no message pack")
    source.next = 1
    await becomes(rig, rig.a, "degraded", "malformed")
    source.say(chain(2, salt))
    await until(lambda: held(rig, rig.a) == 2)
    assert counted(rig, "undecodable") == 1


async def test_the_highest_number_there_is_ends_no_subscription(rig: Rig, source: FakeSource) -> None:
    salt = await exact(rig, source)
    source.say(number=2**64 - 1, keep=False)
    await becomes(rig, rig.a, "degraded", "malformed")
    await source.stop()
    await until(lambda: counted(rig, "unreachable") > 0)
    source.next = 0
    source.kept = {}
    await source.start()
    source.say(chain(2, salt))
    await until(lambda: held(rig, rig.a) == 2)
    assert counted(rig, "mistake") == 0


async def test_each_rank_is_a_target_of_its_own_and_an_engine_is_worth_their_mean(rig: Rig, source: FakeSource) -> None:
    """Its own balancer picks the rank, where requests do not name it. A batch that names another rank than its socket's is not applied."""
    rig.router.plane.config = dataclasses.replace(rig.router.plane.config, name_ranks=False)
    async with running_source() as second:
        rig.only_a()
        speak(rig.a, source.said(), second.said(rank=1))
        await check(rig)
        salt = await known(rig)
        for one in (source, second):
            await one.subscribed()
        await becomes(rig, rig.a, "exact")
        source.say(chain(20, salt))
        second.say(chain(10, salt), rank=1)
        await until(lambda: (held(rig, rig.a, 0), held(rig, rig.a, 1)) == (20, 10))
        assert (await asked(rig, prompt(30)))["A"].matched_tokens == 15 * BLOCK
        second.say(chain(30, salt, base=500), rank=0)
        await becomes(rig, rig.a, "degraded", "malformed")
        assert (held(rig, rig.a, 0), held(rig, rig.a, 1), counted(rig, "other_rank")) == (20, 10, 1)
        second.next = 0
        second.say(chain(3, salt), rank=1)  # one rank's process began again; the other keeps its blocks
        await until(lambda: (held(rig, rig.a, 0), held(rig, rig.a, 1)) == (20, 3))


def declared(rig: Rig, url: str, source: FakeSource) -> None:
    """Both tenants' pools: one replica at ``url`` whose events are declared."""
    events = KvEvents(endpoint=f"tcp://10.1.2.3:{source.port}", replay=f"tcp://10.1.2.3:{source.replay_port}", topic="kv")
    entry = replica_entry(url, "A", kv_events=events)
    for document in (rig.acme, rig.globex):
        pools = tuple(msgspec.structs.replace(pool, replicas=(entry,)) for pool in document.pools)
        rig.publish(bumped(document, pools=pools))


@pytest.mark.parametrize("allowed", [True, False])
async def test_events_come_from_checked_addresses_only(make_rig: MakeRig, source: FakeSource, allowed: bool) -> None:
    """The host is the replica's own, and it must be in the ranges; what a declaration or an engine says of a host is not read."""
    names = Names(**{"gpu.example": ["127.0.0.1" if allowed else "10.9.9.9"]})
    rig = await make_rig(resolver=names, **FAST)
    declared(rig, f"http://gpu.example:{rig.a.port}", source)
    if allowed:
        assert await source.subscribed() == [b"kv"]
        await until(lambda: rig.router.plane.residency.of(f"http://gpu.example:{rig.a.port}").state == "exact")
        assert counted(rig, "refused") == 0
        return
    await until(lambda: counted(rig, "refused") > 2)
    assert rig.router.plane.residency.of(f"http://gpu.example:{rig.a.port}").reason == "no_events"
    assert counted(rig, "connected") == 0


@pytest.mark.parametrize("alone", [False, True])
async def test_what_one_engine_publishes_is_not_what_its_owners_other_engine_holds(rig: Rig, source: FakeSource, alone: bool) -> None:
    """B was declared with A's sockets. Only where there is no A is it believed."""
    speak(rig.a, source.said())
    speak(rig.b)
    events = KvEvents(endpoint=f"tcp://127.0.0.1:{source.port}", replay=f"tcp://127.0.0.1:{source.replay_port}", topic="kv")
    replicas = (replica_entry(rig.b, kv_events=events),) if alone else (replica_entry(rig.a), replica_entry(rig.b, kv_events=events))
    for document, mine in ((rig.globex, ()), (rig.acme, replicas)):
        rig.publish(bumped(document, pools=tuple(msgspec.structs.replace(pool, replicas=mine) for pool in document.pools)))
    await check(rig)
    await becomes(rig, rig.b if alone else rig.a, "exact")
    assert standing(rig, rig.b) == (("exact", "ok") if alone else ("history", "no_events"))
    assert (rig.b.url, 0) in rig.router.plane.events.sizes() if alone else (rig.b.url, 0) not in rig.router.plane.events.sizes()


async def test_the_address_is_checked_again_before_every_connection(make_rig: MakeRig, source: FakeSource) -> None:
    """A name that turned to an inner address between two connections is not followed there."""
    names = Names(**{"gpu.example": ["127.0.0.1"]})
    rig = await make_rig(resolver=names, **FAST)
    declared(rig, f"http://gpu.example:{rig.a.port}", source)
    await source.subscribed()
    await until(lambda: counted(rig, "connected") == 1)
    names.known["gpu.example"] = ["169.254.169.254"]
    await source.restart()
    await until(lambda: counted(rig, "refused") > 0)
    assert counted(rig, "connected") == 1
    names.known["gpu.example"] = ["127.0.0.1"]
    await source.subscribed()
    await until(lambda: counted(rig, "connected") == 2)


async def test_two_tenants_on_one_engine_never_see_each_others_blocks(rig: Rig, source: FakeSource) -> None:
    """One subscription serves both; the same tokens under one salt are nobody else's."""
    speak(rig.a, source.said())
    speak(rig.b)
    await check(rig)
    acme, globex = await known(rig, KEY_A), await known(rig, KEY_B)
    assert acme != globex
    assert await source.subscribed() == [b"kv"]
    await becomes(rig, rig.a, "exact")
    source.say(chain(20, acme))
    source.say(chain(5, globex, base=100))
    source.say(chain(30, "sr1-" + "x" * 43, base=200), chain(30, "their own", base=300), stored(range(400, 430), tokens=tokens(30)))
    await until(lambda: rig.router.plane.events.sizes()[rig.a.url, 0].parked == 30)
    assert (await asked(rig, prompt(40), key=KEY_A))["A"].matched_tokens == 20 * BLOCK
    assert (await asked(rig, prompt(40), key=KEY_B))["A"].matched_tokens == 5 * BLOCK
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await source.subscribed()  # nobody subscribes a second time


async def test_a_restarted_router_serves_hits_once_it_has_read_the_replay(make_rig: MakeRig, source: FakeSource) -> None:
    first = await make_rig(**FAST)
    salt = await exact(first, source)
    source.say(chain(20, salt))
    await until(lambda: held(first, first.a) == 20)
    second = await make_rig(fakes=(first.a, first.b), **FAST)
    second.only_a()
    await check(second)
    await becomes(second, second.a, "exact")
    seen = (await asked(second, prompt(20)))["A"]
    assert (seen.evidence, seen.matched_tokens) == ("event", 20 * BLOCK)


async def test_a_flood_of_events_starves_no_request(rig: Rig, source: FakeSource) -> None:
    salt = await exact(rig, source)
    plane = rig.router.plane
    flooding = True

    async def flood() -> int:
        number = 0
        while flooding:
            for _ in range(20):
                source.say(chain(8, salt, first=100_000 + number * 8 * BLOCK, base=1000 + number * 8), keep=False)
                number += 1
            await asyncio.sleep(0)
        return number

    flooder = asyncio.create_task(flood())
    await until(lambda: plane.events.counters["stored"] > 1000)
    before = plane.events.counters["stored"]
    for _ in range(30):
        await asked(rig, prompt(1))
    during = plane.events.counters["stored"] - before
    flooding = False
    await flooder
    assert during > 0  # events went on while requests did
    assert len(rig.a.requests) == 31


async def test_a_huge_batch_and_thousands_that_waited_are_applied_a_piece_at_a_time(rig: Rig, source: FakeSource) -> None:
    """One step of the pump does a bounded piece of work, whatever came in at once; and in order."""
    salt = await exact(rig, source)
    (subscription,) = rig.router.kv._subscriptions.values()
    assert isinstance(subscription, Subscription)
    waited = [Apply(number, source.batch(chain(1, salt, first=70_000 + number * BLOCK, base=9000 + number)), 0) for number in range(300)]
    subscription._act([Apply(0, source.batch(chain(2000, salt)), 0), *waited, Apply(1, source.batch(removed(*range(2000, 1500, -1))), 0)])
    before, steps, largest = 0, 0, 0
    while subscription._todo:  # no await: nobody else turns
        subscription.step()
        steps, largest, before = steps + 1, max(largest, abs(held(rig, rig.a) - before)), held(rig, rig.a)
    assert largest == kv_followed.PIECE_BLOCKS
    assert steps > 600
    assert before == 1800
    assert (await asked(rig, prompt(200)))["A"].matched_tokens == 200 * BLOCK


async def test_a_late_router_is_exact_once_it_saw_as_much_as_the_cache_holds(rig: Rig, source: FakeSource) -> None:
    source.next = 5000
    rig.only_a()
    speak(rig.a, source.said())
    source.say(removed(424_242), live=False)
    await check(rig)
    salt = await known(rig)
    await becomes(rig, rig.a, "warming", "late_join")
    rig.router.plane.engine(rig.a.url).capacity_tokens = 40 * BLOCK
    source.say(chain(30, salt))
    await until(lambda: held(rig, rig.a) == 30)
    look(rig)
    assert standing(rig, rig.a) == ("warming", "late_join")
    source.say(chain(9, salt, first=60_000, base=100))
    await until(lambda: held(rig, rig.a) == 39)
    look(rig)
    assert standing(rig, rig.a) == ("exact", "ok")


def look(rig: Rig) -> None:
    """As if the second between two looks at the index were over."""
    rig.router.kv._looked_s = 0.0
    rig.router.kv._tick(time.monotonic())


async def test_an_index_over_its_budget_is_not_exact(make_rig: MakeRig, source: FakeSource) -> None:
    rig = await make_rig(event_index_bytes=1024 * 1024, **FAST)
    salt = await exact(rig, source)
    source.say(chain(3000, salt))
    await until(lambda: held(rig, rig.a) == 3000)
    look(rig)
    assert standing(rig, rig.a) == ("exact", "ok")
    source.say(chain(3000, salt, first=200_000, base=10_000))
    await until(lambda: rig.router.plane.events.counters["evicted"] > 0 and rig.router.plane.events.counters["stored"] == 6000)
    look(rig)
    assert standing(rig, rig.a) == ("degraded", "budget")
    rig.router.kv._evicted_s -= 61.0
    look(rig)
    assert standing(rig, rig.a) == ("exact", "ok")


async def test_events_leave_no_trace_in_logs_reports_and_metrics(rig: Rig, source: FakeSource, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        salt = await exact(rig, source)
        source.say(chain(3, salt, first=4_040_404))
        source.send(b"kv", (1).to_bytes(8, "big"), b"\xc1" + salt.encode())
        await becomes(rig, rig.a, "degraded", "malformed")
        await source.stop()
        await until(lambda: counted(rig, "unreachable") > 0)
    said = (
        "".join(record.getMessage() for record in caplog.records) + rig.router.snapshots.status().decode() + rig.router.plane.metrics.page().decode()
    )
    for secret in (salt, "4040404", str(source.port), str(source.replay_port)):
        assert not re.search(rf"(?<!\d){re.escape(secret)}(?!\d)", said)  # times in metrics hold any five digits
    assert "degraded" in said


async def test_changes_are_reported_counted_and_shown_by_engine(rig: Rig, source: FakeSource) -> None:
    """With the blocks of every namespace of ours, those too of which this router has had no request yet, and nobody else's."""
    for content, kind in ((TOKENIZER, "tokenizer"), (TEMPLATE, "chat_template")):
        rig.router.plane.tokens.prompts.load(digest(content), content, kind)  # type: ignore[arg-type]
    rig.publish(naming(rig.acme))
    await until(lambda: rig.a.url in rig.router.plane.replicas and rig.a.url not in rig.router.plane.residency.lacking, 30)
    await exact(rig, source)
    told = msgspec.json.decode(rig.router.snapshots.status())
    mine = told["replicas"][rig.a.url]
    assert (mine["residency"], mine["residency_reason"]) == ("exact", "ok")
    assert mine["residency_for_s"] >= 0
    changes = [(one["replica"], one["rank"], one["before"], one["after"]) for one in told["residency_changes"]]
    assert changes[:1] == [(rig.a.url, 0, "history", "warming")]
    assert changes[-1][3] == "exact"
    source.say(chain(4, "sr1-" + "z" * 43, base=100), chain(2, "theirs", base=200))
    await until(lambda: rig.router.plane.events.sizes()[rig.a.url, 0].ignored == 2)
    assert msgspec.json.decode(rig.router.snapshots.status())["replicas"][rig.a.url]["event_blocks"] == 4
    page = rig.router.plane.metrics.page().decode()
    assert 'saltroute_replicas_by_residency{state="exact"} 1.0' in page
    assert 'saltroute_residency_changes_total{after="warming",before="history"} 1.0' in page
    assert f'saltroute_replica_event_blocks{{replica="{rig.a.url}"}} 4.0' in page


async def test_what_engines_send_makes_no_series(rig: Rig, source: FakeSource) -> None:
    salt = await exact(rig, source)
    source.say({"type": "Odd"}, chain(1, salt, medium="odd tier"))
    await until(lambda: held(rig, rig.a) == 1 or rig.router.plane.events.counters["unknown_medium"] > 0)
    lines = rig.router.plane.metrics.page().count(b"\n")
    for number in range(50):
        source.say({"type": f"Odd{number}"}, chain(1, salt, base=number + 10, first=number * 100, medium=f"tier-{number}", kv_cache_spec_kind=None))
    await until(lambda: rig.router.plane.events.counters["unknown_events"] >= 51)
    page = rig.router.plane.metrics.page()
    assert page.count(b"\n") == lines
    assert b"tier-" not in page


async def test_what_comes_in_while_a_source_closes_is_on_no_account(rig: Rig, source: FakeSource) -> None:
    """Nobody would ever take it off again, and what is common to all tenants would be the less."""
    await exact(rig, source)
    followed = rig.router.kv._subscriptions[rig.a.url, 0]
    assert isinstance(followed, Subscription)
    assert followed._admit(1000)  # the control
    for document in (rig.acme, rig.globex):
        rig.publish(bumped(document, pools=(msgspec.structs.replace(document.pools[0], replicas=()),)))
    await until(lambda: not rig.router.kv._subscriptions)
    followed._todo_bytes = 5000
    assert not followed._admit(1000)
    assert rig.router.plane.kv_waiting.used_bytes == 0


async def test_chains_are_made_beforehand_for_block_sizes_that_only_events_show(rig: Rig, source: FakeSource) -> None:
    """An engine that does not say its block size, or not this one: a decision must not hash a long prompt on the event loop."""
    salt = await exact(rig, source)
    (endpoint,) = rig.router.plane.view.keys[api_key.digest(KEY_A)].tenant.endpoints.values()
    assert rig.router.plane.block_sizes(endpoint) == (BLOCK,)
    ids = tokens(1, first=70_000)
    source.say({**stored([77, 78], tokens=ids, salt=salt), "block_size": BLOCK // 2, "group_idx": 1})
    await until(lambda: set(rig.router.plane.block_sizes(endpoint)) == {BLOCK, BLOCK // 2})
