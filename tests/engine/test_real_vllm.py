"""The whole product in front of two real vLLM replicas: reuse where it is allowed, and none where it is not, by the engines' own count."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.engine import events, wire
from tests.engine.installation import Installation
from tests.engine.rig import KEYS, PAIR, SOLO, Rig
from tests.engine.vllm_cpu import BLOCK_TOKENS, Replica
from tests.engine.waiting import until
from tests.product import Product, fresh_home, remove

pytestmark = pytest.mark.engine

Message = dict[str, str]
LONG_ANSWER_TOKENS = 3000  # about half a minute on these engines
ABORTED_S = 5.0


@pytest.fixture(scope="module")
def rig(replicas: list[Replica]) -> Iterator[Rig]:
    home = fresh_home()
    try:
        product = Product.start(home, fleet=0)
        try:
            yield Rig.declare(product, replicas, Installation.default().model / "tokenizer.json")
        finally:
            product.stop()
    finally:
        remove(home)


def _fresh_text() -> str:
    """About 400 tokens that nobody has sent before."""
    return f"{uuid.uuid4()} " + "Brine from the upper basin is led through the second gate when the wind has turned. " * 22


def _conversation() -> list[Message]:
    return [{"role": "system", "content": _fresh_text()}, {"role": "user", "content": "Which gate is open?"}]


def _next_turn(messages: list[Message], answer: wire.Answer) -> list[Message]:
    """The conversation with the engine's answer and one more question."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        said = "".join(event["choices"][0]["delta"].get("content") or "" for event in answer.events() if event["choices"])
    else:
        said = answer.json()["choices"][0]["message"]["content"]
    return [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "And after the wind turns?"}]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_second_turn_meets_the_cache_of_the_first(rig: Rig, stream: bool) -> None:
    used: set[str] = set()
    for _ in range(40):  # until both replicas were somebody's first choice: staying must not be the only thing that can happen
        messages = _conversation()
        first_replica, first = rig.served_by(partial(rig.chat, "support", messages, model=PAIR, stream=stream))
        assert first.cached_tokens() == 0
        later = _next_turn(messages, first)
        second_replica, second = rig.served_by(partial(rig.chat, "support", later, model=PAIR, stream=stream))
        assert second_replica == first_replica
        assert second.cached_tokens() >= first.usage()["prompt_tokens"] - 2 * BLOCK_TOKENS
        used.add(first_replica.name)
        if len(used) == len(rig.replicas):
            return
    pytest.fail(f"40 conversations all began on {used}")


def _senders(rig: Rig, route: str, stream: bool) -> Callable[[str, str], wire.Answer]:
    def send(key: str, text: str) -> wire.Answer:
        if route == "chat":
            return rig.chat(key, [{"role": "user", "content": text}], model=SOLO, stream=stream)
        return rig.completion(key, text, model=SOLO, stream=stream)

    return send


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("route", ["chat", "completions"])
def test_one_prompt_is_shared_inside_a_scope_and_with_nobody_else(rig: Rig, route: str, stream: bool) -> None:
    send, text = _senders(rig, route, stream), _fresh_text()
    assert send("support", text).cached_tokens() == 0
    assert send("support", text).cached_tokens() > 0  # the positive control: without it the zeros below say nothing
    assert send("research", text).cached_tokens() == 0
    assert send("stranger", text).cached_tokens() == 0
    assert send("research", text).cached_tokens() > 0
    assert send("stranger", text).cached_tokens() > 0
    assert send("support", text).cached_tokens() > 0


def test_streaming_and_whole_answers_share_inside_one_scope(rig: Rig) -> None:
    text = _fresh_text()
    assert rig.completion("support", text, model=SOLO).cached_tokens() == 0
    assert rig.completion("support", text, model=SOLO, stream=True).cached_tokens() > 0


def test_two_endpoints_of_one_model_share(rig: Rig) -> None:
    text = _fresh_text()
    while True:  # until the endpoint over both replicas happens to choose the one that the other endpoint has
        replica, _ = rig.served_by(partial(rig.completion, "support", text, model=PAIR))
        if replica == rig.replicas[0]:
            break
        text = _fresh_text()
    assert rig.completion("support", text, model=SOLO).cached_tokens() > 0


def test_a_client_salt_neither_opens_another_cache_nor_leaves_its_own(rig: Rig) -> None:
    text = _fresh_text()
    salted: dict[str, Any] = {
        "cache_salt": "guess",
        "vllm_xargs": {"cache_salt": "guess"},
        "kv_transfer_params": {"do_remote_prefill": True, "remote_prefill_cached_tokens": 999},
    }
    assert rig.completion("support", text, model=SOLO, **salted).cached_tokens() == 0
    assert rig.completion("research", text, model=SOLO, **salted).cached_tokens() == 0
    assert rig.completion("support", text, model=SOLO).cached_tokens() > 0  # stripped: the same namespace with and without it


def test_a_new_context_version_starts_cold_and_the_old_one_stays_warm(rig: Rig) -> None:
    text = _fresh_text()

    def send(version: str) -> int:
        headers = {"x-saltroute-context": f"repo={version}"}
        return rig.completion("support", text, model=SOLO, extra_headers=headers).cached_tokens()

    assert send("abc123") == 0
    assert send("abc123") > 0
    assert send("def456") == 0
    assert send("abc123") > 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_leaves_frees_the_engine(rig: Rig, stream: bool) -> None:
    url, headers = f"{rig.product.router_url}/v1/completions", rig.bearer("support")
    body = {"model": PAIR, "prompt": _fresh_text(), "max_tokens": LONG_ANSWER_TOKENS, "ignore_eos": True, "stream": stream}
    with wire.open_request(url, body, headers=headers) as connection:
        until("the engine works", lambda: rig.running() == 1, within_s=ABORTED_S)
        if stream:
            assert connection.getresponse().readline().startswith(b"data: ")
    until("the engine is idle", lambda: rig.running() == 0, within_s=ABORTED_S)
    assert rig.completion("support", "still there?", model=PAIR).status == 200


def test_the_decision_record_tells_what_the_engine_reported(rig: Rig) -> None:
    messages = _conversation()
    first = rig.chat("support", messages, model=PAIR, stream=True)
    later = _next_turn(messages, first)
    replica, second = rig.served_by(partial(rig.chat, "support", later, model=PAIR, stream=True))
    record = rig.decision("acme", second.headers["x-saltroute-decision"])
    assert record["cached_tokens"] == second.cached_tokens()
    assert record["prompt_tokens"] == second.usage()["prompt_tokens"]
    assert record["matched_tokens"] > 0
    assert record["ttft_s"] > 0
    decision = record["decision"]
    assert decision["replica"] == f"vllm-{replica.name}"
    assert {each["replica"] for each in decision["candidates"]} == {f"vllm-{each.name}" for each in rig.replicas}
    [chosen] = [each for each in decision["candidates"] if each["chosen"]]
    assert chosen["matched_tokens"] == record["matched_tokens"]


def test_every_caller_has_a_salt_of_its_own_at_the_engine_and_none_is_a_clients(rig: Rig) -> None:
    text, mark = _fresh_text(), events.last_sequence(rig.replicas[0])
    for key in KEYS:
        rig.completion(key, text, model=SOLO, cache_salt=f"from-{key}")
    salts: set[str] = set()

    def seen() -> bool:
        salts.update(events.salts_since(rig.replicas[0], mark))
        return len(salts) >= len(KEYS)

    until("a salt for each caller", seen, within_s=5)
    assert len(salts) == len(KEYS)
    assert all(re.fullmatch(r"sr1-[A-Za-z0-9_-]{43}", salt) for salt in salts)
