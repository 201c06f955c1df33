"""Two and three real routers before the same engines, telling one another through a real Valkey under the rights that routers have there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from deploy.local.places import Home, short_temporary_home
from deploy.local.valkey import USERS, Valkey
from routing.core import peering
from routing.core.peering import BEAT, Beat
from routing.core.prefix import chain, prompt_units
from routing.dataplane.config import Secrets
from routing.dataplane.feeds.load import check
from routing.dataplane.feeds.peers import CHANNEL, PeerFeed
from routing.dataplane.keys import Keys
from tests.fakes.replica import Script, chunk, completion, usage
from tests.fakes.rig import HI, KEY_A, KEY_B, SECRETS, Rig, until
from tests.product import remove
from tests.routing.dataplane.conftest import MakeRig
from tests.services import Services

TEXT = "one two three four five six seven eight nine ten " * 120  # 5,880 bytes: 35 blocks
LONG = {**HI, "messages": [{"role": "user", "content": TEXT}]}


@pytest.fixture
def url(valkey_url: str, valkey_server: Services) -> str:
    """An empty Valkey, as a router may use it."""
    return valkey_server.valkey_url("router")


def _keep_records(rig: Rig) -> None:
    """Let decision records stay in the router, where a test can read them."""
    for task in rig.router._tasks:
        if task.get_name() == "records":
            task.cancel()


async def _pair(make_rig: MakeRig, url: str) -> tuple[Rig, Rig]:
    """Two routers before A and B that believe one another."""
    one = await make_rig(valkey_url=url, router_id="router-1")
    two = await make_rig(valkey_url=url, router_id="router-2", fakes=(one.a, one.b))
    await _met(one, two)
    _keep_records(one)
    _keep_records(two)
    return one, two


async def _met(*rigs: Rig) -> None:
    await until(lambda: all(len(rig.router.plane.siblings.believed(time.monotonic())) == len(rigs) - 1 for rig in rigs))


def _matched(rig: Rig, body: dict[str, Any], *, key: str = KEY_A, scope: str = "") -> dict[str, int]:
    """Blocks of a prompt that a router believes each engine holds, under the namespace of a key."""
    namespace = rig.namespace(key, scope)
    digests = chain(namespace.index_seed, prompt_units(body))
    name = namespace.key
    owner = (rig.acme if key == KEY_A else rig.globex).tenant_id.bytes
    index, now_s = rig.router.plane.index, time.monotonic()
    return {url: index.match(name, digests, url, now_s, owner=owner).blocks for url in (rig.a.url, rig.b.url)}


@asynccontextmanager
async def _ear(url: str) -> AsyncIterator[list[bytes]]:
    """Everything said on the routers' channel meanwhile."""
    heard: list[bytes] = []
    async with Redis.from_url(url) as valkey, valkey.pubsub(ignore_subscribe_messages=True) as subscription:
        await subscription.subscribe(CHANNEL)

        async def listen() -> None:
            async for message in subscription.listen():
                heard.append(message["data"])  # noqa: PERF401 - it is looked at meanwhile

        task = asyncio.create_task(listen())
        try:
            yield heard
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_each_sees_what_the_other_has_in_flight(make_rig: MakeRig, url: str) -> None:
    one, two = await _pair(make_rig, url)
    one.only_a()
    gate = asyncio.Event()
    one.a.script = Script(hold=gate, sse=[chunk("x"), chunk(finish="stop"), "[DONE]"])
    asked = asyncio.create_task(one.chat({**LONG, "stream": True}))
    siblings, engine = two.router.plane.siblings, one.router.plane.engine(one.a.url)
    await until(lambda: siblings.load(one.a.url, time.monotonic()).in_flight == 1)
    shared = siblings.load(one.a.url, time.monotonic())
    assert shared.waiting == 1
    assert shared.queued_tokens == pytest.approx(engine.ledger.queued(time.monotonic())[0])
    assert shared.queued_tokens > 1000
    assert siblings.load(one.b.url, time.monotonic()).in_flight == 0  # and the other engine has nothing
    await two.chat({**LONG, "messages": [{"role": "user", "content": "another " * 500}]})
    seen = {candidate.replica_name: candidate for candidate in two.records()[-1].candidates}
    assert seen["A"].in_flight == 1
    assert seen["A"].queued_tokens > 1000
    assert two.records()[-1].replica_name == "B"
    gate.set()
    assert (await asked).status == 200
    await until(lambda: siblings.load(one.a.url, time.monotonic()).in_flight == 0)


async def test_what_a_sibling_has_there_is_not_foreign_as_well(make_rig: MakeRig, url: str) -> None:
    one, two = await _pair(make_rig, url)
    one.only_a()
    gate = asyncio.Event()
    one.a.script = Script(hold=gate, body=completion())
    one.a.on_path["/metrics"] = Script(body=b"vllm:num_requests_running 0.0\nvllm:num_requests_waiting 2.0\n")
    engine = two.router.plane.engine(one.a.url)
    await check(two.router.plane, two.router.plane.replicas[one.a.url])
    assert engine.scrape is not None
    assert engine.scrape.foreign_waiting == 0  # a sibling may have begun it a moment ago
    await check(two.router.plane, two.router.plane.replicas[one.a.url])
    assert engine.scrape.foreign_waiting == 2
    asked = asyncio.create_task(one.chat(LONG))
    await until(lambda: two.router.plane.siblings.load(one.a.url, time.monotonic()).waiting == 1)
    await check(two.router.plane, two.router.plane.replicas[one.a.url])
    assert engine.scrape.foreign_waiting == pytest.approx(1)
    gate.set()
    await asked


async def test_a_prompt_that_one_placed_is_found_by_the_other(make_rig: MakeRig, url: str) -> None:
    one, two = await _pair(make_rig, url)
    gate = asyncio.Event()
    for fake in (one.a, one.b):
        fake.script = Script(hold=gate, body=completion())
    asked = asyncio.create_task(one.chat(LONG))
    await until(lambda: sum(_matched(two, LONG).values()) > 30)  # pending already
    assert [name for name, blocks in _matched(two, LONG).items() if blocks] == [name for name, blocks in _matched(one, LONG).items() if blocks]
    gate.set()
    assert (await asked).status == 200
    await until(lambda: two.router.plane.siblings.open_placements() == 0)  # settled, hence resident
    await two.chat(LONG)
    first, second = one.records()[-1], two.records()[-1]
    assert second.replica_name == first.replica_name
    chosen = next(candidate for candidate in second.candidates if candidate.replica_name == second.replica_name)
    assert chosen.evidence == "inferred"
    assert second.matched_tokens > 1000
    others = [_matched(two, LONG, key=KEY_B), _matched(two, LONG, scope="support")]
    assert not [blocks for matched in others for blocks in matched.values() if blocks]


async def test_a_number_of_answers_that_fits_into_no_message_silences_no_router(make_rig: MakeRig, url: str) -> None:
    """One request of anybody's could else end what this router tells its siblings, for all tenants."""
    one, two = await _pair(make_rig, url)
    odd: list[dict[str, Any]] = [{"n": 10**30}, *[{"best_of": 2**62}] * 9, {"n": -(10**30)}, {"n": 1e300}]
    for body in odd:
        assert (await one.chat({**HI, **body})).status == 200
    assert (await one.chat(LONG)).status == 200
    await until(lambda: sum(_matched(two, LONG).values()) > 30)


async def test_a_conversation_goes_on_at_the_other_router(make_rig: MakeRig, url: str) -> None:
    """Each turn at another router: only new blocks travel, and each router knows the whole."""
    rigs = await _pair(make_rig, url)
    messages = [{"role": "user", "content": TEXT}]
    homes = set()
    for turn in range(6):
        rig, other = rigs[turn % 2], rigs[1 - turn % 2]
        body = {**HI, "messages": messages}
        await rig.chat(body)
        homes.add(rig.records()[-1].replica_name)
        whole = len(chain(rig.namespace().index_seed, prompt_units(body)))
        await until(lambda: max(_matched(other, body).values()) == whole)  # noqa: B023 - looked at before the next turn
        messages += [{"role": "assistant", "content": f"answer {turn}"}, {"role": "user", "content": f"question {turn} " * 40}]
    assert len(homes) == 1
    assert rigs[0].router.plane.siblings.counts["orphaned"] == rigs[1].router.plane.siblings.counts["orphaned"] == 0


async def test_a_refused_prompt_is_forgotten_by_all(make_rig: MakeRig, url: str) -> None:
    one, two = await _pair(make_rig, url)
    one.only_a()
    gate = asyncio.Event()
    one.a.script = Script(hold=gate, status=400, body={"error": {"message": "no", "type": "BadRequestError", "code": 400}})
    asked = asyncio.create_task(one.chat(LONG))
    await until(lambda: _matched(two, LONG)[one.a.url] > 0)
    gate.set()
    assert (await asked).status == 400
    await until(lambda: _matched(two, LONG)[one.a.url] == 0)
    assert two.router.plane.siblings.open_placements() == 0


async def test_who_leaves_is_let_go_at_once(make_rig: MakeRig, url: str, tmp_path: Path) -> None:
    one, two = await _pair(make_rig, url)
    await one.router.stop()
    await until(lambda: two.router.plane.siblings.heard() == [])
    await until(lambda: not two.router.plane.outbox.listening)


async def test_valkey_learns_nothing(make_rig: MakeRig, url: str, valkey_url: str) -> None:
    async with _ear(valkey_url) as heard:
        one, two = await _pair(make_rig, url)
        await one.chat(LONG)
        await until(lambda: two.router.plane.siblings.counts["placed"] > 0)
    said = b"".join(heard)
    namespace = one.namespace()
    digests = chain(namespace.index_seed, prompt_units(LONG))
    assert len(said) > 16 * len(digests)  # they did travel
    secrets = (*digests, bytes.fromhex(namespace.public_id[3:]), one.acme.tenant_id.bytes, one.a.url.encode(), b"router-1", b"one two three")
    assert not [secret for secret in secrets if secret in said]


# -- messages that are no sibling's -------------------------------------------------------------------------------------------------


def _counts(rig: Rig) -> dict[str, int]:
    return rig.router.plane.siblings.counts


async def test_forged_replayed_and_foreign_messages_are_refused_and_counted(make_rig: MakeRig, url: str, valkey_url: str) -> None:
    async with _ear(valkey_url) as heard, Redis.from_url(valkey_url) as valkey:
        one, two = await _pair(make_rig, url)
        heard.clear()
        await one.chat(LONG)
        await until(lambda: _counts(two)["placed"] == 1 and two.router.plane.siblings.open_placements() == 0)
        said = [message for message in heard if message[5:21] == one.router.peers.process]
        before = _matched(two, LONG)
        for message in said:
            await valkey.publish(CHANNEL, message)
        await until(lambda: _counts(two)["replayed"] == len(said))
        changed = [
            said[-1][:-1] + bytes([said[-1][-1] ^ 1]),  # the tag
            said[-1][:28] + bytes([said[-1][28] ^ 1]) + said[-1][29:],  # the counter
            said[-1][:5] + bytes(16) + said[-1][21:],  # another process
            said[-1][:4] + b"\x02" + said[-1][5:],  # another kind
        ]
        for message in changed:
            await valkey.publish(CHANNEL, message)
        await until(lambda: _counts(two)["forged"] == len(changed))
        for message in (b"", b"hello", b"SRP1", bytes(2 * 1024 * 1024)):
            await valkey.publish(CHANNEL, message)
        await until(lambda: _counts(two)["malformed"] == 4)
        stranger = _stranger(two, root=bytes(32))
        await valkey.publish(CHANNEL, stranger._sealed(BEAT, peering.encode(Beat(router_id="x", heard=(two.router.peers.process,)))))
        await until(lambda: _counts(two)["forged"] == len(changed) + 1)
        assert _counts(two)["placed"] == 1
        assert _matched(two, LONG) == before
        assert len(two.router.plane.siblings.heard()) == 1
        await one.chat({**LONG, "messages": [{"role": "user", "content": "after " + TEXT}]})
        await until(lambda: _counts(two)["placed"] == 2)  # and those that are siblings' still count


def _stranger(rig: Rig, *, root: bytes) -> PeerFeed:
    """What seals as a router of another installation would. It has no plane of its own: it is only asked to seal."""
    secrets = Secrets(root=root, publish_public_key=SECRETS.publish_public_key, records_key=SECRETS.records_key)
    feed = PeerFeed.__new__(PeerFeed)
    feed.process = b"s" * 16
    feed._seal = Keys(secrets).sibling_seal(feed.process)
    feed._counter = 0
    return feed


async def test_what_was_said_before_this_process_began_is_not_believed(make_rig: MakeRig, url: str, valkey_url: str) -> None:
    async with _ear(valkey_url) as heard:
        one, two = await _pair(make_rig, url)
        await one.chat(LONG)
        await until(lambda: _counts(two)["placed"] == 1)
    await one.router.stop()
    await two.router.stop()
    old = [message for message in heard if message[4] == BEAT and message[5:21] == one.router.peers.process]
    three = await make_rig(valkey_url=url, router_id="router-3", fakes=(one.a, one.b))
    async with Redis.from_url(valkey_url) as valkey:
        for message in old:
            await valkey.publish(CHANNEL, message)
    await until(lambda: _counts(three)["unproven"] == len(old))  # authentic all of them, and from nobody who lives
    assert _counts(three)["believed"] == 0
    assert set(_matched(three, LONG).values()) == {0}


async def test_a_placement_of_a_tenant_unknown_here_is_ignored(make_rig: MakeRig, url: str) -> None:
    one = await make_rig(valkey_url=url, router_id="router-1")
    two = await make_rig(valkey_url=url, router_id="router-2", fakes=(one.a, one.b), deliver=False)
    two.publish(two.acme)
    await _met(one, two)
    await one.chat(LONG, key=KEY_B)
    await until(lambda: _counts(two)["unknown_owner"] == 1)
    await one.chat(LONG)
    await until(lambda: _counts(two)["placed"] == 1)
    assert max(_matched(two, LONG).values()) > 30
    assert set(two.router.plane.index.owners(one.a.url)) | set(two.router.plane.index.owners(one.b.url)) == {one.acme.tenant_id.bytes}


# -- alarms -------------------------------------------------------------------------------------------------------------------------


async def _whole(rig: Rig, finished: int = 0) -> None:
    """A began after all routers and has finished so many requests."""
    lines = [f"process_start_time_seconds {time.time() + 600:.0f}", f'vllm:request_success_total{{finished_reason="stop"}} {finished}.0']
    lines += ["vllm:num_requests_running 0.0", "vllm:num_requests_waiting 0.0"]
    if rig.a.on_path.get("/metrics") is None or finished:
        began = rig.a.on_path["/metrics"].body.split(b"\n")[0] if "/metrics" in rig.a.on_path else lines[0].encode()  # type: ignore[union-attr]
        rig.a.on_path["/metrics"] = Script(body=b"\n".join([began, *(line.encode() for line in lines[1:])]) + b"\n")
    await check(rig.router.plane, rig.router.plane.replicas[rig.a.url])


async def _streamed(rig: Rig, body: dict[str, Any], cached: int, heard_by: Rig | None = None) -> str | None:
    """A stream whose usage comes after siblings had time to speak; the alarm of its record."""
    gate = asyncio.Event()
    last = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m-7b", "choices": [], "usage": usage(1400, 1, cached)}
    rig.a.script = Script(sse=[chunk("x"), chunk(finish="stop"), last, "[DONE]"], gates={2: gate})
    asked = asyncio.create_task(rig.chat({**body, "stream": True}))
    await until(lambda: rig.router.plane.engine(rig.a.url).in_flight == 1 and rig.router.plane.engine(rig.a.url).ledger.entries == {})
    first_byte_s = time.monotonic()
    if heard_by is not None:
        await until(lambda: rig.router.plane.siblings.told_all_before(first_byte_s))
    gate.set()
    assert (await asked).status == 200
    return rig.records()[-1].alarm


async def test_a_siblings_traffic_explains_hits_and_raises_no_alarm(make_rig: MakeRig, url: str) -> None:
    one, two = await _pair(make_rig, url)
    for rig in (one, two):
        rig.only_a()
        await _whole(rig)
    one.a.script = Script(body=completion(usage=usage(1400, 1, 0)))
    assert (await one.chat(LONG)).status == 200
    await until(lambda: _counts(two)["placed"] == 1 and two.router.plane.siblings.open_placements() == 0)
    await _whole(two, finished=1)
    assert not two.router.plane.engine(one.a.url).served_others  # the sibling said that it was its own
    assert await _streamed(two, LONG, 1300, heard_by=one) is None
    stolen = {**LONG, "messages": [{"role": "user", "content": "unlike " + TEXT}]}
    assert await _streamed(two, stolen, 1300, heard_by=one) == "cached_more_than_owned"  # the alarm still works


async def test_a_sibling_that_was_not_heard_silences_the_alarm(make_rig: MakeRig, url: str) -> None:
    one, two = await _pair(make_rig, url)
    for rig in (one, two):
        rig.only_a()
        await _whole(rig)
    for task in one.router._tasks:
        if task.get_name() == "word to siblings":
            task.cancel()  # it lives, and says nothing
    first_byte_s = time.monotonic()
    assert await _streamed(two, LONG, 1300) is None
    assert not two.router.plane.siblings.told_all_before(first_byte_s)
    await until(lambda: two.router.plane.siblings.heard() == [])
    assert not two.router.plane.engine(one.a.url).served_others  # it had asked that engine for nothing, as far as it said


# -- beginning late -----------------------------------------------------------------------------------------------------------------


async def _busy_pair(make_rig: MakeRig, url: str) -> tuple[Rig, Rig, list[dict[str, Any]]]:
    one, two = await _pair(make_rig, url)
    bodies = [{**HI, "messages": [{"role": "user", "content": f"{place} {TEXT}"}]} for place in range(6)]
    for place, body in enumerate(bodies):
        await (one, two)[place % 2].chat(body)
    await one.chat(LONG, key=KEY_B)
    for rig in (one, two):
        await until(lambda: rig.router.plane.siblings.open_placements() == 0 and rig.router.plane.outbox.backlog() == 0)  # noqa: B023
    return one, two, bodies


async def test_a_third_router_hits_at_once(make_rig: MakeRig, url: str) -> None:
    one, _, bodies = await _busy_pair(make_rig, url)
    one.router.plane.engine(one.a.url).calibration.own_rate = 12_345.0
    state = one.router.plane.endpoint_state(one.acme.endpoints[0].id)
    three = await make_rig(valkey_url=url, router_id="router-3", fakes=(one.a, one.b), deliver=False)
    for document in (three.acme, three.globex):
        three.publish(document)
    assert set(_matched(three, bodies[0]).values()) == {0}  # it had no tenants when it asked: nobody's history was taken
    await three.router.stop()
    await until(lambda: len(one.router.plane.siblings.heard()) == 1)
    four = await _late(make_rig, url, one)
    for body in bodies:
        assert _matched(four, body) == _matched(one, body)
    await four.chat(bodies[0])
    record = four.records()[-1]
    assert record.matched_tokens > 1000
    chosen = next(candidate for candidate in record.candidates if candidate.replica_name == record.replica_name)
    assert chosen.evidence == "inferred"
    assert 60 <= chosen.evidence_age_s < 90  # believed less than one's own
    plane = four.router.plane
    assert plane.siblings.counts["warmed"] > 200
    assert plane.endpoint_state(one.acme.endpoints[0].id).ratio.bytes_per_token == pytest.approx(state.ratio.bytes_per_token, rel=0.5)
    rates = [plane.engine(fake).calibration.own_rate for fake in (one.a.url, one.b.url)]
    assert 12_345.0 in rates or plane.siblings.believed(time.monotonic())  # if it asked the one that had learned it


async def _late(make_rig: MakeRig, url: str, first: Rig) -> Rig:
    """A router that has its configuration on disk, and begins among others."""
    state_dir = first.router.config.state_dir.parent / "late"
    before = await make_rig(state_dir=state_dir, fakes=(first.a, first.b))
    await before.router.snapshots.save()
    late = await make_rig(valkey_url=url, router_id="router-late", fakes=(first.a, first.b), state_dir=state_dir, deliver=False)
    _keep_records(late)
    return late


async def test_without_a_sibling_a_late_router_begins_cold(make_rig: MakeRig, url: str) -> None:
    one, two, bodies = await _busy_pair(make_rig, url)
    await one.router.stop()
    await two.router.stop()
    late = await _late(make_rig, url, one)
    assert all(set(_matched(late, body).values()) == {0} for body in bodies)
    assert late.router.plane.siblings.counts["warmed"] == 0


async def test_after_a_warm_up_no_namespace_matches_anothers_prompts(make_rig: MakeRig, url: str) -> None:
    one, _, bodies = await _busy_pair(make_rig, url)
    late = await _late(make_rig, url, one)
    assert all(max(_matched(late, body).values()) > 30 for body in bodies)  # acme's own
    assert max(_matched(late, LONG, key=KEY_B).values()) > 30  # globex's own
    crossed = [_matched(late, body, key=KEY_B) for body in bodies]
    crossed += [_matched(late, body, scope=scope) for body in bodies for scope in ("support", "support/emea")]
    crossed.append(_matched(late, LONG))
    assert not [blocks for matched in crossed for blocks in matched.values() if blocks]


async def test_an_engine_that_restarted_meanwhile_is_not_believed_to_hold_anything(make_rig: MakeRig, url: str) -> None:
    one, two, bodies = await _busy_pair(make_rig, url)
    for rig in (one, two):
        rig.router.plane.engine(one.a.url).started_at = 1000.0
    late = await _late(make_rig, url, one)
    engine = late.router.plane.engine(one.a.url)
    assert engine.started_at == 1000.0
    assert any(_matched(late, body)[one.a.url] for body in bodies)
    one.a.on_path["/metrics"] = Script(body=b"process_start_time_seconds 2000\n")
    await check(late.router.plane, late.router.plane.replicas[one.a.url])
    assert not any(_matched(late, body)[one.a.url] for body in bodies)


# -- Valkey comes and goes ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def mortal() -> Iterator[Valkey]:
    """A Valkey that a test may kill and start again."""
    home = Home(short_temporary_home("srv-"))
    home.make()
    valkey = Valkey(home, {user: f"password-of-{user}-for-tests" for user in USERS}, persistent=False)
    valkey.start()
    yield valkey
    valkey.stop()
    remove(home)


async def test_without_valkey_each_goes_by_its_own_view_and_nothing_fails(make_rig: MakeRig, mortal: Valkey) -> None:
    url = mortal.url("router").replace("{password}", "password-of-router-for-tests")
    one, two = await _pair(make_rig, url)
    one.only_a()
    gate = asyncio.Event()
    one.a.script = Script(hold=gate, body=completion())
    asked = asyncio.create_task(one.chat(LONG))
    await until(lambda: two.router.plane.siblings.load(one.a.url, time.monotonic()).in_flight == 1)
    assert mortal.child is not None
    await asyncio.to_thread(mortal.child.stop)
    await until(lambda: two.router.plane.siblings.load(one.a.url, time.monotonic()).in_flight == 0)  # its last word faded
    gate.set()
    assert (await asked).status == 200
    one.a.script = None
    for rig in (one, two):
        assert (await rig.chat(LONG)).status == 200
    await until(lambda: all(rig.router.plane.siblings.heard() == [] for rig in (one, two)))
    assert two.router.plane.siblings.open_placements() == 0
    page = two.router.plane.metrics.page().decode()
    assert "saltroute_siblings 0.0" in page
    assert b'"siblings":[]' in two.router.snapshots.status()
    assert _counts(two)["unsent"] > 0
    one.assert_nothing_held()
    two.assert_nothing_held()
    await asyncio.to_thread(mortal.start)
    await _met(one, two)
    new = {**LONG, "messages": [{"role": "user", "content": "afterwards " + TEXT}]}
    await one.chat(new)
    await until(lambda: max(_matched(two, new).values()) > 30)
    assert "saltroute_siblings 1.0" in two.router.plane.metrics.page().decode()
    assert b'"router_id":"router-1"' in two.router.snapshots.status()


async def test_what_was_missed_while_valkey_was_away_is_asked_for(make_rig: MakeRig, mortal: Valkey) -> None:
    url = mortal.url("router").replace("{password}", "password-of-router-for-tests")
    one, two = await _pair(make_rig, url)
    two.router.peers._asked_at_s = None  # it asked when it began; half a minute has passed
    assert mortal.child is not None
    await asyncio.to_thread(mortal.child.stop)
    await until(lambda: two.router.plane.siblings.heard() == [])
    await one.chat(LONG)
    await asyncio.to_thread(mortal.start)
    await until(lambda: max(_matched(two, LONG).values()) > 30)
