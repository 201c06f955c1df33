"""What a router captures: nothing where nobody asked, whole conversations where somebody did, and never what was said."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import msgspec
import pytest

from namespaces.core.captures import capture_key
from routing.core import capture
from routing.core.capture import CaptureRecord
from routing.core.snapshot import CaptureEntry
from routing.dataplane import captures
from tests.fakes.replica import Script
from tests.fakes.rig import HI, KEY_A, KEY_A_EMEA, KEY_B, Rig, bumped, endpoint, named, tenant_key, until
from tests.routing.dataplane.conftest import MakeRig
from tests.routing.dataplane.test_probes import ask
from tests.routing.dataplane.test_tokens import load

CAPTURE = UUID(int=5)
SEED = b"s" * 32
KEY = capture_key(tenant_key(named("tenant acme")), CAPTURE, SEED)
TOKENS = list(range(1000, 2500))


def switch_on(rig: Rig, **changes: Any) -> None:
    """Publish a running capture of acme's endpoint."""
    entry = msgspec.structs.replace(CaptureEntry(id=CAPTURE, seed=SEED, share=1.0, until=time.time() + 600), **changes)
    rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0], capture=entry),)))


def captured(rig: Rig) -> list[CaptureRecord]:
    return rig.router.plane.captures.waiting()


def talk(*texts: str) -> dict[str, Any]:
    """A conversation of these words in turn, the user's first."""
    return {"model": "m-7b", "messages": [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]}


async def test_off_means_that_not_a_byte_leaves(make_rig: MakeRig) -> None:
    """On is the control: then the same requests leave one record each."""
    rig = await make_rig()
    for _ in range(3):
        assert (await rig.chat()).status == 200
    assert captured(rig) == []
    switch_on(rig)
    for _ in range(3):
        assert (await rig.chat()).status == 200
    assert [one.serial for one in captured(rig)] == [1, 2, 3]
    assert len(rig.records()) == 6


async def test_it_ends_by_the_clock_and_with_the_next_configuration(make_rig: MakeRig) -> None:
    rig = await make_rig()
    switch_on(rig, until=time.time() - 1)
    await rig.chat()
    assert captured(rig) == []
    switch_on(rig)
    await rig.chat()
    rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0]),)))
    await rig.chat()
    assert len(captured(rig)) == 1


async def test_a_seed_of_another_length_captures_nothing(make_rig: MakeRig) -> None:
    rig = await make_rig()
    switch_on(rig, seed=b"short")
    assert (await rig.chat()).status == 200
    assert captured(rig) == []


async def test_another_tenant_s_requests_are_not_captured(make_rig: MakeRig) -> None:
    rig = await make_rig()
    switch_on(rig)
    assert (await rig.chat(key=KEY_B)).status == 200
    assert captured(rig) == []
    assert (await rig.chat(key=KEY_A)).status == 200
    assert {one.tenant_id for one in captured(rig)} == {rig.acme.tenant_id}


async def test_a_record_says_when_how_long_and_which_blocks(make_rig: MakeRig) -> None:
    """By the exact tokens where they are known, else by bytes, four to a token; in either measure the blocks cover the prompt."""
    rig = await make_rig()
    switch_on(rig)
    began = time.time()
    assert (await rig.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": TOKENS})).status == 200
    assert (await rig.chat(talk("x" * 5000))).status == 200
    by_tokens, by_text = captured(rig)
    assert (by_tokens.exact, by_tokens.prompt_tokens, by_tokens.blocks) == (True, 1500, capture.token_blocks(KEY, TOKENS))
    assert not by_text.exact
    assert len(capture.ids(by_text.blocks)) == -(-by_text.prompt_tokens // capture.BLOCK_TOKENS) == 3
    assert (by_tokens.session, by_text.named) == (0, False)  # a bare prompt belongs to no conversation that is known
    assert by_text.session
    assert began - 1 <= by_tokens.at <= time.time()
    assert by_tokens.duration_ms >= 0
    assert (by_tokens.kind, by_text.kind, by_text.turn) == ("single", "single", 0)


async def test_turns_share_their_prefix_their_session_and_their_scope(make_rig: MakeRig) -> None:
    """A second turn begins with the blocks of the first; another scope's same words are another scope with the same blocks."""
    rig = await make_rig()
    switch_on(rig)
    await rig.chat(talk("a" * 6000))
    await rig.chat(talk("a" * 6000, "b" * 3000, "c"))
    await rig.chat(talk("a" * 6000), key=KEY_A_EMEA)
    first, second, elsewhere = captured(rig)
    whole = first.prompt_tokens // capture.BLOCK_TOKENS
    assert capture.ids(first.blocks)[:whole] == capture.ids(second.blocks)[:whole]
    assert (first.session, first.scope) == (second.session, second.scope)
    assert (second.kind, second.turn) == ("conversation", 1)
    assert elsewhere.blocks == first.blocks
    assert elsewhere.scope != first.scope
    assert elsewhere.session != first.session


async def test_a_named_session_is_one_conversation_whatever_is_said(make_rig: MakeRig) -> None:
    rig = await make_rig()
    switch_on(rig)
    for text, session in (("one", "s"), ("two", "s"), ("one", "t")):
        await rig.chat(talk(text), headers={"X-Session-ID": session})
    first, second, other = captured(rig)
    assert first.session == second.session != other.session
    assert all(one.named for one in captured(rig))


async def test_a_share_takes_whole_conversations(make_rig: MakeRig) -> None:
    """Of forty conversations of three turns about half are captured, each of those with all of its turns."""
    rig = await make_rig()
    switch_on(rig, share=0.5)
    for number in range(40):
        words = [f"question {number}"]
        for turn in range(3):
            assert (await rig.chat(talk(*words))).status == 200
            words += [f"answer {turn}", f"then {turn}"]
    sessions = [one.session for one in captured(rig)]
    assert {sessions.count(session) for session in sessions} == {3}
    assert 8 <= len(set(sessions)) <= 32


async def test_what_no_engine_answered_is_not_captured(make_rig: MakeRig) -> None:
    rig = await make_rig()
    switch_on(rig)
    for fake in (rig.a, rig.b):
        fake.script = Script(status=400, body={"error": {"message": "no"}})
    assert (await rig.chat()).status == 400
    assert (await rig.chat({**HI, "model": "none"})).status == 404
    assert captured(rig) == []


async def test_a_picture_is_part_of_the_prompt(make_rig: MakeRig) -> None:
    """Two pictures behind the same words are two prompts."""
    rig = await make_rig()
    switch_on(rig)
    for data in ("AAAA", "BBBB"):
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        message = {"role": "user", "content": [{"type": "text", "text": "look"}, picture]}
        assert (await rig.chat({"model": "m-7b", "messages": [message]})).status == 200
    first, second = captured(rig)
    assert first.blocks != second.blocks
    assert not first.exact


async def test_exact_tokens_are_what_is_cut_and_those_before_a_picture_are_not_the_prompt(make_rig: MakeRig) -> None:
    """With a tokenizer a chat is captured by its tokens; with a picture in it by its bytes, since only the tokens before that are known."""
    rig = await make_rig(tokens_s=30.0, poll_s=0.02)
    await load(rig)
    entry = CaptureEntry(id=CAPTURE, seed=SEED, share=1.0, until=time.time() + 600)
    rig.publish(bumped(rig.acme, endpoints=(msgspec.structs.replace(rig.acme.endpoints[0], capture=entry),)))
    words = {"type": "text", "text": "look at this, and say what it is " * 300}
    assert (await rig.chat({"model": "m-7b", "messages": [{"role": "user", "content": words["text"]}]})).status == 200
    for data in ("AAAA", "BBBB"):
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        assert (await rig.chat({"model": "m-7b", "messages": [{"role": "user", "content": [words, picture]}]})).status == 200
    plain, one, other = captured(rig)
    assert (plain.exact, one.exact, other.exact) == (True, False, False)
    assert len(capture.ids(plain.blocks)) == -(-plain.prompt_tokens // capture.BLOCK_TOKENS)
    assert one.blocks != other.blocks


async def test_an_audit_s_probe_is_not_the_tenant_s_traffic(make_rig: MakeRig) -> None:
    """It reaches the engine by the same way, and leaves nothing; a client's request is the control."""
    rig = await make_rig()
    switch_on(rig)
    assert (await ask(rig)).status == 200
    assert rig.served() == 1
    assert captured(rig) == []
    assert (await rig.chat()).status == 200
    assert len(captured(rig)) == 1


async def test_long_prompts_are_cut_off_the_loop_and_too_many_are_counted(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "OFF_LOOP_BYTES", 1000)
    rig = await make_rig()
    switch_on(rig)
    await rig.chat(talk("a" * 5000))
    await until(lambda: len(captured(rig)) == 1)
    assert len(capture.ids(captured(rig)[0].blocks)) == 3
    monkeypatch.setattr(captures, "MAX_BUSY", 0)
    await rig.chat(talk("a" * 5000))
    assert b'saltroute_captures_dropped_total{reason="busy"} 1.0' in rig.router.plane.metrics.page()
    await rig.chat(talk("a"))
    assert [one.serial for one in captured(rig)] == [1, 3]  # the lost one has a number


async def test_a_tenant_sends_no_more_than_its_rate(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "BYTES_PER_S", 100.0)
    rig = await make_rig()
    switch_on(rig)
    for _ in range(5):
        await rig.chat()
    assert 1 <= len(captured(rig)) < 5
    dropped = 5 - len(captured(rig))
    assert f'saltroute_captures_dropped_total{{reason="rate"}} {dropped}.0'.encode() in rig.router.plane.metrics.page()


async def test_a_mistake_in_capturing_costs_no_answer(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It is counted and logged by its type, without its message."""

    def broken(*_: object) -> bytes:
        raise ValueError("secretword")

    rig = await make_rig()
    switch_on(rig)
    monkeypatch.setattr(capture, "text_blocks", broken)
    assert (await rig.chat()).status == 200
    assert captured(rig) == []
    assert b'saltroute_captures_dropped_total{reason="mistake"} 1.0' in rig.router.plane.metrics.page()
    assert "ValueError" in caplog.text
    assert "secretword" not in caplog.text
