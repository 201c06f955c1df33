"""The sentence that answers "why was this slow, or fast?"."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from console import why
from routing.core.record import AttemptRecord, CandidateRecord, DecisionRecord
from routing.services.disclosure import disclose

_HELD = "replica sim-1 held 900 of 1,000 prompt tokens (90 %), so 100 had to be computed"


def _candidate(replica_id: str, **fields: Any) -> CandidateRecord:
    return CandidateRecord(replica_id=replica_id, replica_name=f"sim-{replica_id}", **fields)


def _record(**fields: Any) -> DecisionRecord:
    usual: dict[str, Any] = {
        "id": uuid.UUID(int=1),
        "tenant_id": uuid.UUID(int=2),
        "started_at": 0.0,
        "route": "/v1/chat/completions",
        "outcome": "ok",
        "status": 200,
        "router_id": "r",
        "config_version": 1,
        "replica_id": "1",
        "replica_name": "sim-1",
        "prompt_tokens": 1000,
        "expected_ttft_s": 0.2,
        "ttft_s": 0.2,
    }
    return DecisionRecord(**{**usual, **fields})


@pytest.mark.parametrize(
    ("fields", "said", "tone"),
    [
        (
            {"cached_tokens": 900, "expected_cached_tokens": 880.0, "slo_ttft_s": 1.0},
            f"Fast enough, first token after 200 ms against a target of 1.00 s: {_HELD}.",
            "good",
        ),
        (
            {"cached_tokens": 0, "expected_cached_tokens": 880.0, "slo_ttft_s": 1.0, "ttft_s": 1.5, "expected_ttft_s": 0.2},
            "Too slow, first token after 1.50 s against a target of 1.00 s: replica sim-1 was expected to hold 880 of 1,000 prompt tokens but had 0: "
            "they were evicted or never stored; 1.30 s came on top that the estimate did not foresee.",
            "warn",
        ),
        (
            {"cached_tokens": 0},
            "As expected, first token after 200 ms: nothing of the 1,000 prompt tokens was cached anywhere, so replica sim-1 computed all of them.",
            "good",
        ),
        (
            {"cached_tokens": 0, "policy": "round_robin", "candidates": (_candidate("1", terms={}), _candidate("2", matched_tokens=800, terms={}))},
            "As expected, first token after 200 ms: another replica held 800 of 1,000 prompt tokens, but round_robin does not go by expected time, "
            "so replica sim-1 computed the prompt.",
            "good",
        ),
        (
            {
                "cached_tokens": 0,
                "ttft_s": 2.5,
                "expected_ttft_s": 2.4,
                "slo_ttft_s": 2.0,
                "slo_attainable": False,
                "candidates": (_candidate("1", terms={"wait": 1.9, "prefill": 0.5}), _candidate("2", matched_tokens=800, terms={"wait": 5.0})),
            },
            "Too slow, first token after 2.50 s against a target of 2.00 s, which no replica could meet: "
            "another replica held 800 of 1,000 prompt tokens but would have taken longer, "
            "so replica sim-1 computed the prompt; most of the wait was others' work ahead of it, about 1.90 s.",
            "warn",
        ),
        (
            {
                "cached_tokens": 900,
                "ttft_s": 3.1,
                "attempts": (AttemptRecord(replica_id="2", error="connect_failed", duration_s=2.9), AttemptRecord(replica_id="1", status=200)),
            },
            f"Slower than the 200 ms expected, first token after 3.10 s: {_HELD}; 2.90 s went to 1 failed attempt before it.",
            "good",
        ),
        (
            {"cached_tokens": None, "expected_cached_tokens": 500.0},
            "As expected, first token after 200 ms: replica sim-1 was expected to hold 500 of 1,000 prompt tokens and did not say how many it did.",
            "good",
        ),
        (
            {"outcome": "incomplete", "cached_tokens": 900},
            f"As expected, first token after 200 ms: {_HELD}; the answer broke off before the end.",
            "bad",
        ),
        (
            {
                "outcome": "refused",
                "status": 503,
                "error_code": "no_ready_replica",
                "replica_id": None,
                "replica_name": None,
                "candidates": (_candidate("1", refusal="paused"), _candidate("2", refusal="unreachable"), _candidate("3", refusal="paused")),
            },
            "Refused with 503 (no_ready_replica): no replica could take it (2 paused, 1 unreachable).",
            "warn",
        ),
        (
            {"outcome": "refused", "status": 429, "error_code": "quota_exceeded", "replica_id": None},
            "Refused with 429 (quota_exceeded) before any replica was asked.",
            "warn",
        ),
        (
            {"outcome": "client_error", "status": 404, "error_code": "model_not_found"},
            "The request was answered 404 (model_not_found): the client has to change it, no replica is to blame.",
            "warn",
        ),
        (
            {"outcome": "client_cancelled", "ttft_s": None, "e2e_s": 0.8},
            "The client left after 800 ms, before the first token.",
            "warn",
        ),
        (
            {
                "outcome": "timeout",
                "ttft_s": None,
                "error_code": "first_byte_timeout",
                "attempts": (AttemptRecord(replica_id="1", error="first_byte_timeout", duration_s=30.0),),
            },
            "It timed out before the first token (first_byte_timeout): 1 attempt, the last one (first byte timeout after 30.00 s).",
            "bad",
        ),
        (
            {"ttft_s": None, "e2e_s": 0.288, "cached_tokens": 900},
            f"Answered whole after 288 ms, not streamed: {_HELD}.",
            "good",
        ),
        ({"outcome": "upstream_error", "ttft_s": None}, "It failed before the first token.", "bad"),
        ({"prompt_tokens": None, "ttft_s": None, "replica_id": None}, "No time was measured: the replica took it.", "good"),
    ],
)
def test_one_sentence_names_the_cause(fields: dict[str, Any], said: str, tone: str) -> None:
    record = _record(**fields)
    assert why.sentence(record, disclose(record, own_replica_ids=None)) == said
    assert why.tone(record) == tone


@pytest.mark.parametrize(
    ("wait_s", "said"),
    [(0.3, None), (0.9, None), (2.2, "most of the wait was others' work ahead of it, up to 2.50 s")],
)
def test_on_a_platform_pool_only_what_its_reader_may_see_is_said(wait_s: float, said: str | None) -> None:
    """No name of a replica, and a wait only where even its lower bound explains the time."""
    shared = _candidate("1", terms={"wait": wait_s, "prefill": 0.6})
    record = _record(cached_tokens=0, candidates=(shared, _candidate("2", terms={"wait": wait_s + 1})))
    sentence = why.sentence(record, disclose(record, own_replica_ids=set()))
    assert "sim-1" not in sentence
    assert "so replica 1 computed all of them" in sentence
    assert (said in sentence) if said else "others' work" not in sentence
