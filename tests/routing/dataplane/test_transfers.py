"""Requests on two replicas: what each is sent, what is believed, and what becomes of a request when one of them fails or its client leaves."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from routing.core.record import DecisionRecord
from routing.core.snapshot import PolicyEntry
from routing.dataplane.routes import ENGINE_ROUTES, Route
from tests.fakes.replica import FakeReplica, Received, Script, chunk, completion, usage
from tests.fakes.rig import HI, Rig, bumped, replica_entry, until
from tests.fakes.split import ASKED, LONG, PrefillFake, handed, speeds, split
from tests.routing.dataplane.conftest import MakeRig
from tests.routing.dataplane.test_isolation import EVIL, EVIL_HEADERS

STREAM = {**ASKED, "stream": True}
BODIES: dict[str, dict[str, Any]] = {"chat_completions": ASKED, "completions": {"model": "m-7b", "prompt": LONG}}
TOO_LONG = {"error": {"message": "This model's maximum context length is 4096 tokens.", "type": "BadRequestError", "param": None, "code": 400}}
BROKEN = {"error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}}


@pytest.fixture
async def pair(make_rig: MakeRig) -> Rig:
    """A decodes, B computes prompts."""
    rig = await make_rig(fakes=(FakeReplica("A"), PrefillFake("B")))
    split(rig)
    return rig


def prefill_of(rig: Rig) -> PrefillFake:
    assert isinstance(rig.b, PrefillFake)
    return rig.b


def last(rig: Rig) -> DecisionRecord:
    return rig.records()[-1]


def counted(rig: Rig, result: str) -> float:
    return float(rig.router.plane.metrics.transfers.labels(result=result)._value.get())


def orphans(rig: Rig) -> float:
    return float(rig.router.plane.metrics.transfer_orphans._value.get())


def assert_free(rig: Rig) -> None:
    rig.assert_nothing_held()
    assert all(engine.promised_tokens == 0 for engine in rig.router.plane.engines.values())


def plain(received: Received) -> bool:
    return "kv_transfer_params" not in received.json


@pytest.mark.parametrize("stream", [False, True])
async def test_the_prompt_is_computed_on_one_and_answered_by_the_other(pair: Rig, stream: bool) -> None:
    sent = {**ASKED, "stream": stream, "max_tokens": 300, "temperature": 0}
    reply = await pair.chat(sent)
    assert reply.status == 200
    (first,), (second,) = pair.b.requests, pair.a.requests
    assert first.json["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False}
    assert (first.json["max_tokens"], first.json["stream"], "stream_options" in first.json) == (1, False, False)
    assert second.json["kv_transfer_params"] == handed(first)
    assert (second.json["max_tokens"], second.json["stream"]) == (300, stream)
    assert first.json["messages"] == second.json["messages"] == sent["messages"]
    assert first.json["cache_salt"] == second.json["cache_salt"] == pair.namespace().salt
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert b"hello" in reply.body or b"hel" in reply.body
    assert b"kv_transfer_params" not in reply.body
    record = last(pair)
    entries = {entry.name: str(entry.id) for entry in pair.acme.pools[0].replicas}
    assert (record.replica_name, record.outcome) == ("A", "ok")
    assert [(one.replica_id, one.part, one.status) for one in record.attempts] == [(entries["B"], "prefill", 200), (entries["A"], "answer", 200)]
    assert record.transfer is not None
    assert (record.transfer.replica_name, record.transfer.result, record.transfer.orphaned) == ("B", "ok", False)
    assert record.transfer.prefill_s is not None
    assert (record.transfer.first_byte_s is not None) is stream
    assert record.expected_ttft_s is not None
    assert record.expected_ttft_s < 0.9 * record.transfer.expected_local_ttft_s
    assert sum(record.candidates[0].terms.values()) == pytest.approx(record.expected_ttft_s)
    assert record.cause is not None
    assert ("transfer" in record.cause.parts_us) is stream  # an answer that comes whole does not tell its first byte
    assert (counted(pair, "ok"), orphans(pair)) == (1, 0)
    assert_free(pair)


@pytest.mark.parametrize("route", ENGINE_ROUTES, ids=lambda route: route.name)
async def test_on_every_route_both_calls_carry_our_salt_and_no_transfer_of_the_clients(pair: Rig, route: Route) -> None:
    """Where a client wants blocks to come from, and what it says its hits were, reaches neither replica."""
    sent = BODIES[route.name]
    assert (await pair.call("POST", route.path, json={**sent, **EVIL}, headers=EVIL_HEADERS)).status == 200
    (first,), (second,) = pair.b.requests, pair.a.requests
    assert (first.path, second.path) == (route.engine_path, route.engine_path)
    kept = {**sent, "vllm_xargs": {"kept": 1}, "nvext": {"agent_hints": 1}, "extra_body": {"kept": 1}, "cache_salt": pair.namespace().salt}
    asked = {"do_remote_decode": True, "do_remote_prefill": False}
    assert first.json == {**kept, "max_tokens": 1, "stream": False, "kv_transfer_params": asked}
    assert second.json == {**kept, "kv_transfer_params": handed(first)}
    for received in (first, second):
        assert not {name.lower() for name in EVIL_HEADERS} - {"host"} & set(received.headers)


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": HI["messages"]},  # short
        {"n": 2},
        {"prompt_logprobs": 1},
        {"use_beam_search": True},
    ],
)
async def test_what_is_short_or_cannot_be_handed_over_takes_one_replica(pair: Rig, changes: dict[str, Any]) -> None:
    assert (await pair.chat({**ASKED, **changes})).status == 200
    assert (len(pair.b.requests), len(pair.a.requests)) == (0, 1)
    assert plain(pair.a.requests[0])
    assert last(pair).transfer is None
    assert (await pair.chat(ASKED)).status == 200  # and what can be, is
    assert len(pair.b.requests) == 1


async def test_a_prompt_that_the_decode_replica_holds_stays_there(pair: Rig) -> None:
    """It holds it by its own events or by a transfer that it took in: residency counts on both sides apart."""
    sent = {**ASKED, "messages": [{"role": "user", "content": LONG[:8000]}]}
    assert (await pair.chat(sent)).status == 200
    sizes = pair.router.plane.index.sizes()
    assert sizes[pair.a.url][0] == sizes[pair.b.url][0] > 0
    assert (await pair.chat(sent)).status == 200
    assert (len(pair.b.requests), len(pair.a.requests)) == (1, 2)
    assert plain(pair.a.requests[1])


@pytest.mark.parametrize("policy", ["round_robin", "least_outstanding", "longest_prefix", "bounded_hash"])
async def test_policies_that_do_not_weigh_seconds_do_not_split(pair: Rig, policy: str) -> None:
    spec = PolicyEntry(name="p", version=1, spec={"policy": policy})
    pair.publish(bumped(pair.acme, endpoints=tuple(msgspec.structs.replace(one, routing_policy=spec) for one in pair.acme.endpoints)))
    assert (await pair.chat(ASKED)).status == 200
    assert (len(pair.b.requests), len(pair.a.requests)) == (0, 1)


# ---- isolation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "of_prefill", "splits"),
    [
        ("audited", {"isolation": "unverified"}, False),
        ("audited", {"isolation": "suspect"}, False),
        ("audited", {"isolation": "quarantined"}, False),
        ("declared", {"isolation": "quarantined"}, False),
        ("audited", {"isolation": "isolated"}, True),
        ("declared", {"isolation": "unverified"}, True),
        ("audited", {"dedicated_namespace": "ns-00000000000000000000000000000000"}, False),
        ("audited", {"isolation": "isolated", "state": "draining"}, False),
    ],
)
async def test_who_may_not_serve_the_namespace_does_not_compute_its_prompts(pair: Rig, mode: str, of_prefill: dict[str, Any], splits: bool) -> None:
    split(pair, mode=mode, **of_prefill)
    assert (await pair.chat(ASKED)).status == 200
    assert len(pair.b.requests) == splits
    assert (len(pair.a.requests), plain(pair.a.requests[0])) == (1, not splits)


@pytest.mark.parametrize(("limit", "splits"), [(0, False), (1, True), (None, True)])
async def test_a_full_replica_computes_nobodys_prompts(pair: Rig, limit: int | None, splits: bool) -> None:
    """0 cannot be declared; here it stands for a replica that has all it may."""
    split(pair, max_concurrency=limit)
    assert (await pair.chat(ASKED)).status == 200
    assert len(pair.b.requests) == splits


async def test_dedicated_replicas_share_a_request_of_the_one_namespace_that_both_have(pair: Rig) -> None:
    ours = pair.namespace().public_id
    a = replica_entry(pair.a, role="decode", dedicated_namespace=ours)
    for theirs, splits in (("ns-00000000000000000000000000000000", False), (ours, True)):
        pool = msgspec.structs.replace(
            pair.acme.pools[0], isolation="dedicated", replicas=(a, replica_entry(pair.b, role="prefill", dedicated_namespace=theirs))
        )
        pair.publish(bumped(pair.acme, pools=(pool,)))
        speeds(pair)
        assert (await pair.chat({**ASKED, "messages": [{"role": "user", "content": f"{splits} {LONG}"}]})).status == 200
        assert len(pair.b.requests) == splits


# ---- the prefill replica fails -----------------------------------------------------------------------------------------


async def test_a_dead_prefill_replica_costs_a_try_and_is_left_alone_after_a_few(pair: Rig) -> None:
    await pair.b.stop()
    for number in range(8):
        assert (await pair.chat({**STREAM, "messages": [{"role": "user", "content": f"{number} {LONG}"}]})).status == 200
    assert all(map(plain, pair.a.requests))
    assert counted(pair, "prefill_failed") == pair.router.config.breaker_failures
    record = pair.records()[0]
    assert [(one.part, one.error) for one in record.attempts] == [("prefill", "connect"), ("answer", None)]
    assert record.transfer is not None
    assert (record.transfer.result, record.transfer.orphaned) == ("prefill_failed", False)
    assert record.candidates[0].terms.keys() != {"prefill", "transfer", "admit"}  # what is shown is the plain decision
    assert orphans(pair) == 0
    assert_free(pair)


@pytest.mark.parametrize(
    ("script", "result", "error"),
    [
        (Script(status=500, body=BROKEN), "prefill_failed", "status_500"),
        (Script(status=200, body=b"<html>it works</html>"), "prefill_failed", "status_502"),
        (Script(status=200, body=BROKEN), "prefill_failed", "status_500"),
        (Script(status=401, body={"error": "Unauthorized"}), "prefill_failed", "status_401"),
        (Script(status=400, body=TOO_LONG), "prefill_refused", "client_error"),
        (Script(status=429, body={}), "prefill_refused", "status_429"),
        (Script(pieces=[], then="rst"), "prefill_failed", "broken"),
        (Script(body=completion(choices=[{"index": 0, "finish_reason": "abort"}])), "prefill_failed", "aborted"),
    ],
    ids=["500", "page", "error under 200", "401", "400", "429", "reset", "aborted"],
)
async def test_whatever_the_prefill_replica_answers_but_a_prompt_ends_in_a_plain_request(pair: Rig, script: Script, result: str, error: str) -> None:
    pair.b.scripts = [script]
    reply = await pair.chat(STREAM)
    assert reply.status == 200
    assert (len(pair.b.requests), len(pair.a.requests)) == (1, 1)
    assert plain(pair.a.requests[0])
    assert pair.a.requests[0].json["cache_salt"] == pair.namespace().salt
    record = last(pair)
    assert record.transfer is not None
    assert (record.transfer.result, record.attempts[0].error, record.outcome) == (result, error, "ok")
    assert (counted(pair, result), orphans(pair)) == (1, 0)
    assert pair.router.plane.engines[pair.b.url].breaker.in_a_row == (0 if result == "prefill_refused" else 1)
    assert_free(pair)


async def test_a_prefill_replica_that_says_nothing_is_not_waited_for_longer_than_for_a_first_byte(make_rig: MakeRig) -> None:
    rig = await make_rig(fakes=(FakeReplica("A"), PrefillFake("B")), first_byte_s=0.3)
    split(rig)
    rig.b.scripts = [Script(hold=asyncio.Event())]
    assert (await rig.chat(ASKED)).status == 200
    assert last(rig).attempts[0].error == "first_byte_timeout"
    assert plain(rig.a.requests[0])
    await asyncio.wait_for(rig.b.requests[0].closed.wait(), 5)  # so the engine stops computing
    assert_free(rig)


# ---- what it hands over ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"remote_host": "10.0.0.9"},
        {"remote_host": "localhost.evil.example"},
        {"remote_port": 22},
        {"remote_request_id": "chatcmpl-of-another-81bc3cf5"},
        {"remote_prefill_cached_tokens": 99999},
        {"remote_block_ids": "all"},
        {"do_remote_decode": True},
        {"transfer_mode": "push"},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_what_an_engine_forges_goes_nowhere(pair: Rig, changes: dict[str, Any]) -> None:
    """Neither where the decode replica would connect to, nor whose blocks it would read, nor how many hits it would report."""
    prefill_of(pair).handing = lambda received: handed(received, **changes)
    reply = await pair.chat(ASKED)
    assert (reply.status, len(pair.a.requests)) == (200, 1)
    assert plain(pair.a.requests[0])
    record = last(pair)
    assert record.transfer is not None
    assert (record.transfer.result, record.transfer.orphaned) == ("not_believed", True)
    assert (record.attempts[0].error or "").startswith("handed_")
    assert (counted(pair, "not_believed"), orphans(pair)) == (1, 1)
    assert_free(pair)


async def test_fields_that_nobody_knows_are_left_behind(pair: Rig) -> None:
    prefill_of(pair).handing = lambda received: handed(received, connect_to="http://10.0.0.9", cache_salt="theirs")
    assert (await pair.chat(ASKED)).status == 200
    assert pair.a.requests[0].json["kv_transfer_params"] == handed(pair.b.requests[0])


async def test_an_engine_without_a_connector_hands_over_nothing_and_is_left_alone_for_a_while(pair: Rig) -> None:
    """It holds no blocks for anybody, so nothing is orphaned; the way is tried again later."""
    prefill_of(pair).handing = lambda _received: None
    for number in range(3):
        assert (await pair.chat({**ASKED, "messages": [{"role": "user", "content": f"{number} {LONG}"}]})).status == 200
    assert (len(pair.b.requests), len(pair.a.requests)) == (1, 3)
    assert all(map(plain, pair.a.requests))
    assert (counted(pair, "not_believed"), orphans(pair)) == (1, 0)


# ---- the decode replica fails ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_4xx_of_the_decode_replica_is_the_clients(pair: Rig, stream: bool) -> None:
    """Unchanged, not tried again, no breaker; the decode replica itself tells the other one to give the blocks back."""
    pair.a.script = Script(status=400, body=TOO_LONG)
    reply = await pair.chat({**ASKED, "stream": stream})
    assert (reply.status, reply.body) == (400, msgspec.json.encode(TOO_LONG))
    assert (len(pair.b.requests), len(pair.a.requests)) == (1, 1)
    record = last(pair)
    assert record.transfer is not None
    assert (record.outcome, record.transfer.result, record.transfer.orphaned) == ("client_error", "decode_refused", False)
    assert all(engine.breaker.in_a_row == 0 for engine in pair.router.plane.engines.values())
    assert_free(pair)


@pytest.mark.parametrize(
    "script",
    [Script(status=500, body=BROKEN), Script(status=200, body=BROKEN), Script(sse=[BROKEN, "[DONE]"])],
    ids=["500", "error under 200", "error in a stream"],
)
async def test_a_transfer_that_breaks_is_repeated_plainly_on_the_same_replica(pair: Rig, script: Script) -> None:
    """A decode replica that cannot reach the other says 500: neither is broken, the way between them is, and is left alone for a while."""
    pair.a.scripts = [script]
    assert (await pair.chat(STREAM)).status == 200
    first, second = pair.a.requests
    assert (plain(first), plain(second), len(pair.b.requests)) == (False, True, 1)
    assert first.json["cache_salt"] == second.json["cache_salt"] == pair.namespace().salt
    assert {name: value for name, value in first.json.items() if name != "kv_transfer_params"} == second.json
    record = last(pair)
    assert record.transfer is not None
    assert (record.transfer.result, [one.error for one in record.attempts]) == ("decode_failed", [None, "status_500", None])
    assert all(engine.breaker.in_a_row == 0 for engine in pair.router.plane.engines.values())
    assert (await pair.chat({**ASKED, "messages": [{"role": "user", "content": f"other {LONG}"}]})).status == 200
    assert len(pair.b.requests) == 1
    assert plain(pair.a.requests[2])
    assert_free(pair)


async def test_a_body_that_breaks_every_replica_ends_in_an_error_and_counts_against_one(pair: Rig) -> None:
    pair.a.script = pair.b.script = Script(status=500, body=BROKEN)
    assert (await pair.chat(ASKED)).status == 502
    assert (len(pair.b.requests), len(pair.a.requests)) == (1, 1)
    assert pair.router.plane.engines[pair.a.url].breaker.in_a_row == 0
    assert pair.router.plane.engines[pair.b.url].breaker.in_a_row == 0
    assert_free(pair)


async def test_a_dead_decode_replica_orphans_the_blocks_and_another_answers(pair: Rig) -> None:
    """Nobody can give them back but the end of their lease: that is counted, and said in the record."""
    c = FakeReplica("C")
    await c.start()
    pair.extra.append(c)
    split(pair, replica_entry(c, role="decode"))
    pair.router.plane.engines[c.url].calibration.fixed_s  # noqa: B018 - C is known
    await pair.a.stop()
    pair.router.plane.engines[c.url].in_flight += 1  # so that A is the first choice
    try:
        reply = await pair.chat(ASKED)
    finally:
        pair.router.plane.engines[c.url].in_flight -= 1
    assert reply.status == 200
    record = last(pair)
    assert record.transfer is not None
    if record.attempts[1].error is None:  # C was chosen after all: nothing to see here
        pytest.fail("the first choice was not the dead one")
    assert ([one.error for one in record.attempts], plain(c.requests[0])) == ([None, "connect", None], True)
    assert (record.transfer.result, record.transfer.orphaned, orphans(pair)) == ("decode_failed", True, 1)
    assert_free(pair)


# ---- the client leaves -------------------------------------------------------------------------------------------------


async def test_a_client_that_leaves_while_the_prompt_is_computed_ends_that_and_nobody_else_is_called(pair: Rig) -> None:
    pair.b.scripts = [Script(hold=asyncio.Event())]
    asking = asyncio.create_task(pair.chat(STREAM))
    received = await pair.b.wait_for(1)
    plane = pair.router.plane
    assert [plane.engines[fake.url].in_flight for fake in (pair.a, pair.b)] == [1, 1]
    assert [len(plane.engines[fake.url].ledger.entries) for fake in (pair.a, pair.b)] == [1, 1]
    assert plane.engines[pair.b.url].ledger.queued(0.0)[0] > 2000
    assert plane.engines[pair.a.url].ledger.queued(0.0)[0] < 2
    asking.cancel()
    await asyncio.wait_for(received.closed.wait(), 5)
    await pair.settled()
    assert pair.a.requests == []
    record = last(pair)
    assert record.transfer is not None
    assert (record.outcome, record.transfer.result, record.transfer.orphaned) == ("client_cancelled", "abandoned", False)
    assert [one.part for one in record.attempts] == ["prefill"]
    assert plane.index.sizes().get(pair.a.url, (0, 0))[0] == 0  # the other one never saw the prompt
    assert_free(pair)


async def test_a_client_that_leaves_before_the_blocks_are_fetched_orphans_them(pair: Rig) -> None:
    pair.a.scripts = [Script(hold=asyncio.Event())]
    asking = asyncio.create_task(pair.chat(STREAM))
    received = await pair.a.wait_for(1)
    assert pair.router.plane.engines[pair.b.url].in_flight == 0  # its part is over
    asking.cancel()
    await asyncio.wait_for(received.closed.wait(), 5)
    await pair.settled()
    record = last(pair)
    assert record.transfer is not None
    assert (record.transfer.result, record.transfer.orphaned, orphans(pair)) == ("abandoned", True, 1)
    assert_free(pair)


async def test_a_client_that_leaves_in_mid_answer_leaves_nothing_behind(pair: Rig) -> None:
    pair.a.scripts = [Script(sse=[chunk("a"), chunk("b")], gates={1: asyncio.Event()})]
    async with pair.client.post(f"{pair.url}/v1/chat/completions", json=STREAM, headers={"Authorization": "Bearer " + _key()}) as answer:
        assert b"data:" in await answer.content.readany()
    await pair.settled()
    record = last(pair)
    assert record.transfer is not None
    assert (record.outcome, record.transfer.result, record.transfer.orphaned) == ("client_cancelled", "ok", False)
    assert_free(pair)


def _key() -> str:
    from tests.fakes.rig import KEY_A

    return KEY_A


# ---- what is learned ---------------------------------------------------------------------------------------------------


async def test_hits_are_credited_to_the_replica_that_had_them(pair: Rig) -> None:
    """The decode replica reports the other's hits as if they were its own; only the other's prediction is held against them."""
    prefill = prefill_of(pair)
    plane = pair.router.plane
    for number in range(4):
        prefill.cached = 0 if number == 0 else 2900
        pair.a.scripts = [Script(body=completion(usage=usage(3000, 2, prefill.cached)))]
        plane.index.forget(pair.a.url)  # so that it is cold again
        assert (await pair.chat(ASKED)).status == 200
    assert len(prefill.requests) == 4
    reports = [plane.trust.report((fake.url, 0), 0.0) for fake in (pair.b, pair.a)]
    assert (reports[0].answers, reports[1].answers) == (3, 0)  # the first was expected to find nothing, and found nothing
    record = last(pair)
    assert record.transfer is not None
    assert (record.cached_tokens, record.transfer.cached_tokens) == (2900, 2900)
    assert record.matched_tokens > 2000
    assert record.alarm is None


async def test_a_way_learns_how_long_it_takes(pair: Rig) -> None:
    plane = pair.router.plane
    for _ in range(4):
        plane.index.forget(pair.a.url)
        assert (await pair.chat(STREAM)).status == 200
    link = plane.links.take(pair.b.url, pair.a.url)
    assert len(link.rates) == 4
    assert len(plane.engines[pair.b.url].calibration.rates) == 4
    assert len(plane.engines[pair.a.url].calibration.rates) == 0  # it computed nothing


# ---- storms ------------------------------------------------------------------------------------------------------------


async def test_after_a_storm_of_all_endings_nothing_is_held(pair: Rig) -> None:
    rng = random.Random(11)
    bad = [
        Script(status=500, body=BROKEN),
        Script(status=400, body=TOO_LONG),
        Script(status=429, body={}),
        Script(pieces=[], then="rst"),
        Script(sse=[BROKEN, "[DONE]"]),
    ]
    plane = pair.router.plane

    async def one(number: int) -> None:
        if rng.random() < 0.4:
            pair.a.scripts.append(rng.choice(bad))
        if rng.random() < 0.3:
            pair.b.scripts.append(rng.choice(bad))
        sent = {**ASKED, "stream": rng.random() < 0.5, "messages": [{"role": "user", "content": f"{number} {LONG}"}]}
        asking = asyncio.create_task(pair.chat(sent))
        if rng.random() < 0.3:
            for _ in range(rng.randrange(40)):
                await asyncio.sleep(0)
            asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        for engine in plane.engines.values():  # nobody stays out of the storm
            engine.breaker.opened_at_s = None
        plane.links.forget(pair.a.url)

    for start in range(0, 120, 4):
        speeds(pair)
        await asyncio.gather(*(one(start + number) for number in range(4)))
        pair.a.scripts.clear()
        pair.b.scripts.clear()
    await pair.settled()
    assert len(pair.b.requests) > 20
    results = {record.transfer.result for record in pair.records() if record.transfer is not None}
    assert results >= {"ok", "prefill_failed", "decode_failed", "abandoned"}
    assert_free(pair)
    await until(lambda: len(plane.waiting) == 0)
