"""The sentence that answers "why was this slow, or fast?"."""

from __future__ import annotations

import uuid
from typing import Any, get_args

import pytest

from console import why
from routing.core import glossary
from routing.core.record import AttemptRecord, CandidateRecord, CauseRecord, DecisionRecord, Outcome
from routing.services.disclosure import disclose

_HELD = "Replica sim-1 held 900 of 1,000 prompt tokens (90 %) in its cache, so 100 had to be computed."


_NONE = "Replica sim-1 had none of the 1,000 prompt tokens in its cache, and no other replica was known to have more, so it computed them all."


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
            f"Fast enough: the first token came after 200 ms, and the target is 1.00 s. {_HELD}",
            "good",
        ),
        (
            {"cached_tokens": 0, "expected_cached_tokens": 880.0, "slo_ttft_s": 1.0, "ttft_s": 1.5, "expected_ttft_s": 0.2},
            "Too slow: the first token came after 1.50 s, and the target is 1.00 s. Replica sim-1 was expected to hold 880 of 1,000 prompt tokens "
            "in its cache but had 0: they were evicted or never stored. 1.30 s came on top that the estimate did not foresee.",
            "warn",
        ),
        (
            {"cached_tokens": 0},
            f"As expected: the first token came after 200 ms. {_NONE}",
            "good",
        ),
        (
            {"cached_tokens": 0, "policy": "round_robin", "candidates": (_candidate("1", terms={}), _candidate("2", matched_tokens=800, terms={}))},
            "As expected: the first token came after 200 ms. Another replica held 800 of 1,000 prompt tokens in its cache, but the policy "
            "round_robin does not go by expected time, so replica sim-1 computed the prompt.",
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
            "Too slow: the first token came after 2.50 s, and the target is 2.00 s, though 2.40 s were expected when a replica was chosen. "
            "Another replica held 800 of 1,000 prompt tokens in its cache but would have taken longer, "
            "so replica sim-1 computed the prompt. Most of the wait was for other requests ahead of it: about 1.90 s.",
            "warn",
        ),
        (
            {
                "cached_tokens": 900,
                "ttft_s": 2.1,
                "expected_ttft_s": 1.23,
                "slo_ttft_s": 2.0,
                "slo_attainable": False,
                "decide_s": 0.002,
                "queue_s": 0.798,
                "policy": "weighted",
                "candidates": (_candidate("1", terms={"wait": 1.93, "prefill": 0.5}),),
            },
            "Too slow: the first token came after 2.10 s, and the target is 2.00 s, of which 1.20 s were left when a replica was chosen, "
            f"and 1.23 s were expected from there. {_HELD} 870 ms came on top that the estimate did not foresee.",
            "warn",
        ),
        (
            {"cached_tokens": 110, "expected_cached_tokens": 960.0},
            "As expected: the first token came after 200 ms. Replica sim-1 was expected to hold 960 of 1,000 prompt tokens in its cache and held 110 "
            "(11 %), so 890 had to be computed.",
            "good",
        ),
        (
            {
                "cached_tokens": 900,
                "ttft_s": 3.1,
                "attempts": (AttemptRecord(replica_id="2", error="connect_failed", duration_s=2.9), AttemptRecord(replica_id="1", status=200)),
            },
            f"Slower than expected: the first token came after 3.10 s instead of 200 ms. {_HELD} 2.90 s went to 1 attempt before it that failed.",
            "good",
        ),
        (
            {"cached_tokens": None, "expected_cached_tokens": 500.0},
            "As expected: the first token came after 200 ms. Replica sim-1 was expected to hold 500 of 1,000 prompt tokens in its cache "
            "and did not say how many it did.",
            "good",
        ),
        (
            {"outcome": "incomplete", "cached_tokens": 900},
            f"As expected: the first token came after 200 ms. {_HELD} The answer broke off before the end.",
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
                "outcome": "client_cancelled",
                "ttft_s": None,
                "e2e_s": 49.86,
                "cause": CauseRecord(parts_us={"router": 10_000, "no_answer": 49_850_000}, main="no_answer"),
            },
            "The client left after 49.86 s, before the first token. Of the 49.86 s that it took in all, "
            "49.85 s passed while the replica did not answer, and failed its health checks.",
            "warn",
        ),
        (
            {
                "outcome": "timeout",
                "ttft_s": None,
                "error_code": "first_byte_timeout",
                "attempts": (AttemptRecord(replica_id="1", error="first_byte_timeout", duration_s=30.0),),
            },
            "It timed out before the first token (first_byte_timeout): 1 attempt, the last one (no answer in time, after 30.00 s).",
            "bad",
        ),
        (
            {"ttft_s": None, "e2e_s": 0.288, "cached_tokens": 900},
            f"The whole answer came after 288 ms; it was not streamed. {_HELD}",
            "good",
        ),
        ({"outcome": "upstream_error", "ttft_s": None}, "It failed before the first token.", "bad"),
        ({"prompt_tokens": None, "ttft_s": None, "replica_id": None}, "No time was measured. The replica took it.", "good"),
    ],
)
def test_a_few_sentences_name_the_cause(fields: dict[str, Any], said: str, tone: str) -> None:
    record = _record(**fields)
    assert why.sentence(record, disclose(record, own_replica_ids=None)) == said
    assert why.tone(record) == tone


@pytest.mark.parametrize(
    ("wait_s", "said"),
    [(0.3, None), (0.9, None), (2.2, "Most of the wait was for other requests ahead of it: up to 2.50 s.")],
)
def test_on_a_platform_pool_only_what_its_reader_may_see_is_said(wait_s: float, said: str | None) -> None:
    """No name of a replica, and a wait only where even its lower bound explains the time."""
    shared = _candidate("1", terms={"wait": wait_s, "prefill": 0.6})
    record = _record(cached_tokens=0, candidates=(shared, _candidate("2", terms={"wait": wait_s + 1})))
    sentence = why.sentence(record, disclose(record, own_replica_ids=set()))
    assert "sim-1" not in sentence
    assert "Replica 1 had none of the 1,000 prompt tokens in its cache" in sentence
    assert (said in sentence) if said else "other requests" not in sentence


def test_where_the_time_is_split_what_was_cached_elsewhere_is_not_guessed() -> None:
    """The cause knows of caches under another identity, or lost with a replica, which no candidate shows."""
    cause = CauseRecord(parts_us={"missed_namespace_changed": 200_000}, main="missed_namespace_changed", missed_tokens={"namespace_changed": 960})
    record = _record(cached_tokens=16, cause=cause)
    assert why.sentence(record, disclose(record, own_replica_ids=None)) == (
        "As expected: the first token came after 200 ms. Replica sim-1 had 16 of the 1,000 prompt tokens in its cache and computed the rest. "
        "Of the 200 ms that it took in all, about 200 ms went to computing 960 prompt tokens that were cached before their cache identity changed."
    )


@pytest.mark.parametrize("reason", glossary.GROUPS["refusal"].terms)
def test_every_refusal_is_said_by_its_term(reason: str) -> None:
    record = _record(outcome="refused", status=503, replica_id=None, candidates=(_candidate("1", refusal=reason),))
    said = why.sentence(record, disclose(record, own_replica_ids=None))
    assert said == f"Refused with 503: no replica could take it (1 {glossary.label('refusal', reason)})."


@pytest.mark.parametrize("error", [*glossary.GROUPS["failure"].terms, "status_503"])
def test_every_failure_of_an_attempt_is_said_by_its_term(error: str) -> None:
    record = _record(outcome="upstream_error", ttft_s=None, attempts=(AttemptRecord(replica_id="1", error=error, duration_s=2.0),))
    said = why.sentence(record, disclose(record, own_replica_ids=None))
    assert said == f"It failed before the first token: 1 attempt, the last one ({glossary.label('failure', error)}, after 2.00 s)."
    assert "_" not in said


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_every_outcome_is_told_with_a_first_token_and_without(outcome: Outcome) -> None:
    """In whole sentences, without a code of ours."""
    for ttft_s in (0.2, None):
        record = _record(outcome=outcome, ttft_s=ttft_s, e2e_s=0.5, cached_tokens=900)
        said = why.sentence(record, disclose(record, own_replica_ids=None))
        assert said[0].isupper()
        assert said.endswith(".")
        assert "_" not in said
        assert ".." not in said
