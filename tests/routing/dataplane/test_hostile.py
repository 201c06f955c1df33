"""Requests made to hurt others: each is refused early, or hurts its sender alone."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from types import FrameType

import msgspec
import pytest

from routing.core import sse
from routing.core.body import MAX_VALUES
from tests.fakes.replica import Script, chunk, completion, event
from tests.fakes.rig import HI, KEY_A, KEY_B, Rig, bumped, replica_entry, until


async def test_a_body_that_breaks_every_engine_opens_no_breaker(rig: Rig) -> None:
    """Two engines failing on one body speak against the body: other tenants are served by both all the while."""
    rig.a.script = rig.b.script = Script(status=500, body=b"{}")
    for _ in range(6):
        assert (await rig.chat()).status == 502
    rig.a.script = rig.b.script = Script(body=completion())
    assert (await rig.chat(key=KEY_B)).status == 200
    assert {engine.breaker.in_a_row for engine in rig.router.plane.engines.values()} <= {0, 1}


async def test_an_engine_that_fails_alone_is_still_taken_out(rig: Rig) -> None:
    """The control of the test above: A fails, B answers, and A's breaker opens."""
    rig.a.script, rig.b.script = Script(status=500, body=b"{}"), Script(body=completion())
    for number in range(20):
        body = {**HI, "messages": [{"role": "user", "content": f"question {number}"}]}
        assert (await rig.chat(body)).status == 200
    assert rig.router.plane.engines[rig.a.url].breaker.opened_total == 1
    assert len(rig.a.requests) == 3


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compressed_bodies_are_refused_unread(rig: Rig, encoding: str) -> None:
    """No header tells how large they become."""
    reply = await rig.chat(body=gzip.compress(json.dumps(HI).encode()), headers={"Content-Encoding": encoding})
    assert (reply.status, reply.error["code"]) == (415, "unsupported_encoding")
    assert rig.served() == 0
    assert (await rig.chat(headers={"Content-Encoding": "identity"})).status == 200


async def test_a_body_of_very_many_values_is_refused_before_it_is_built(rig: Rig) -> None:
    """A value costs a hundred bytes once read; one less than the bound is served."""
    start = b'{"model":"m-7b","messages":[{"role":"user","content":"hi"}],"x":['
    signs = start.count(b",") + start.count(b"{") + start.count(b"[")
    fits = start + b",".join([b"1"] * (MAX_VALUES - signs + 1)) + b"]}"
    assert (await rig.chat(body=fits)).status == 200
    reply = await rig.chat(body=fits[:-2] + b",1]}")
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    assert rig.served() == 1


async def test_a_router_registered_as_a_replica_ends_the_loop_at_once(rig: Rig) -> None:
    """One request through an endpoint that points back at this router comes back once and is refused there."""
    loop = msgspec.structs.replace(replica_entry(rig.url, "loop"), state="active")
    pool = msgspec.structs.replace(rig.acme.pools[0], replicas=(loop,))
    rig.publish(bumped(rig.acme, pools=(pool,)))
    reply = await rig.chat()
    assert reply.status in (502, 503)
    rig.assert_nothing_held()
    assert (await rig.chat(headers={"X-Saltroute-Hop": "1"})).error["code"] == "loop_detected"


async def test_more_credentials_than_anybody_has_are_none(rig: Rig) -> None:
    """A second valid key cannot hide behind junk."""
    junk = [("Authorization", f"Bearer junk-{number}-junk-junk-junk") for number in range(3)]
    headers = [("Authorization", f"Bearer {KEY_A}"), *junk, ("Authorization", f"Bearer {KEY_B}")]
    text = "".join(f"{name}: {value}\r\n" for name, value in headers)
    answer = await rig.raw(f"GET /v1/models HTTP/1.1\r\nHost: r\r\nConnection: close\r\n{text}\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 401 ")


async def test_a_client_cannot_name_media_in_an_engines_cache(rig: Rig) -> None:
    """Engines look media up by a part's uuid in a cache that knows no salt."""
    part = {"type": "image_url", "image_url": None, "uuid": "somebody-elses-image"}
    reply = await rig.chat({"model": "m-7b", "messages": [{"role": "user", "content": [part]}]})
    assert (reply.status, reply.error["code"]) == (400, "media_uuid_not_allowed")
    assert rig.served() == 0


@pytest.mark.parametrize("member", ["lora_path", "lora_request", "lora", "id_slot", "disaggregated_params"])
async def test_fields_that_choose_an_adapter_or_a_slot_do_not_pass(rig: Rig, member: str) -> None:
    """The adapter is part of the identity: a client may not choose one beside it."""
    assert (await rig.chat({**HI, member: "other"})).status == 200
    assert member not in rig.received()


async def test_comments_before_an_answer_are_looked_at_once(rig: Rig) -> None:
    """An engine that drips comments must not make each drop cost as much as all before it. Counted are calls, not time."""
    drops, looked = 200, 0

    def count(frame: FrameType, what: str, _: object) -> None:
        nonlocal looked
        looked += what == "call" and frame.f_code is sse.data_of.__code__

    gates = {place: asyncio.Event() for place in range(drops)}
    last = [event(chunk("hi")), event(chunk(finish="stop")), event("[DONE]")]
    rig.a.script = rig.b.script = Script(pieces=[b":\n\n"] * drops + last, gates=gates)
    asked = asyncio.create_task(rig.chat({**HI, "stream": True}))
    await until(lambda: rig.served() == 1)
    sys.setprofile(count)
    try:
        for gate in gates.values():
            gate.set()
            for _ in range(10):
                await asyncio.sleep(0)  # the router reads one drop
        assert (await asked).status == 200
    finally:
        sys.setprofile(None)
    assert drops <= looked <= drops + 20
