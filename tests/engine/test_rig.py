"""The rig's own controls: without the router, a salt both shares and separates, so the router's tests mean something."""

from __future__ import annotations

import uuid

import pytest

from tests.engine import wire
from tests.engine.vllm_cpu import BLOCK_TOKENS, MODEL_NAME, Replica
from tests.engine.waiting import until

pytestmark = pytest.mark.engine


def _completion(replica: Replica, prompt: str, salt: str) -> wire.Answer:
    answer = wire.post(
        f"{replica.url}/v1/completions",
        {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 1, "temperature": 0, "cache_salt": salt},
    )
    assert answer.status == 200, answer.body
    return answer


def _fresh_prompt() -> str:
    """About 300 tokens that no earlier test has sent."""
    return f"{uuid.uuid4()} " + "the tide turns twice a day and leaves its salt behind. " * 25


def test_one_salt_shares_and_another_does_not(replicas: list[Replica]) -> None:
    prompt = _fresh_prompt()
    assert _completion(replicas[0], prompt, "first").cached_tokens() == 0
    again = _completion(replicas[0], prompt, "first")
    assert again.cached_tokens() >= again.usage()["prompt_tokens"] - BLOCK_TOKENS
    assert _completion(replicas[0], prompt, "second").cached_tokens() == 0


def test_replicas_do_not_share_a_cache(replicas: list[Replica]) -> None:
    prompt = _fresh_prompt()
    _completion(replicas[0], prompt, "first")
    assert _completion(replicas[0], prompt, "first").cached_tokens() > 0
    assert _completion(replicas[1], prompt, "first").cached_tokens() == 0


def test_a_client_that_leaves_is_seen_in_the_engine_metrics(replicas: list[Replica]) -> None:
    replica = replicas[0]
    body = {"model": MODEL_NAME, "prompt": _fresh_prompt(), "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with wire.open_request(f"{replica.url}/v1/completions", body) as connection:
        assert connection.getresponse().readline().startswith(b"data: ")
        assert replica.metric("vllm:num_requests_running") == 1
    # 3000 tokens take half a minute: zero within seconds means that the request was aborted, not finished.
    until("the engine is idle", lambda: replica.metric("vllm:num_requests_running") == 0, within_s=5)
