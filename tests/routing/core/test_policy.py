"""Policies: everything is either compiled or refused with a field; nothing in between, and nothing else is raised."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.policy import SCORERS, PolicyError, PolicyName, RoutingPolicy, SloPolicy, compile_routing, compile_slo
from routing.core.scorers import REGISTER
from routing.dataplane.waiting import DEFAULT_QUEUE_S

FIELDS = ["policy", "weights", "price_of_recomputation", "pressure", "load_factor", "prefix_tokens", "concurrency_threshold", "tie_share", "tie_s"]
SLO_FIELDS = ["ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms", "e2e_p50_ms", "e2e_p95_ms", "e2e_p99_ms", "max_queue_ms", "overload", "spill_pool"]
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(get_args(PolicyName))
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.sampled_from([*SCORERS, "x"]), scalars, max_size=3)


def _refusal(compile_document: Callable[[Any], object], spec: Any) -> PolicyError | None:
    """The refusal of a document, or None if it compiles; anything else that is raised is a failure."""
    try:
        compile_document(spec)
    except PolicyError as error:
        return error
    return None


@given(values | st.dictionaries(st.sampled_from([*FIELDS, "x"]), values, max_size=4))
def test_any_value_is_compiled_or_refused(spec: Any) -> None:
    refusal = _refusal(compile_routing, spec)
    if refusal is not None:
        assert refusal.field
        assert refusal.message
        return
    policy = compile_routing(spec)
    assert policy.policy in get_args(PolicyName)
    assert all(math.isfinite(weight) and weight >= 0 for _, weight in policy.weights)
    assert any(weight > 0 for _, weight in policy.weights)
    numbers = (policy.price_of_recomputation, policy.pressure, policy.tie_share, policy.tie_s)
    assert all(math.isfinite(number) and number >= 0 for number in numbers)
    assert policy.load_factor >= 1
    assert compile_routing(spec) == policy


@given(values | st.dictionaries(st.sampled_from([*SLO_FIELDS, "x"]), values | st.integers(0, 10_000), max_size=4))
def test_any_objective_is_compiled_or_refused(spec: Any) -> None:
    refusal = _refusal(compile_slo, spec)
    if refusal is not None:
        assert refusal.field
        return
    slo = compile_slo(spec)
    ordered = [target for target in (slo.ttft_p50_ms, slo.ttft_p95_ms, slo.ttft_p99_ms) if target is not None]
    assert ordered == sorted(ordered)
    assert slo.ttft_s is None or slo.ttft_s * 1000 in ordered


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ([], "routing_policy"),
        ({"policy": "fastest"}, "policy"),
        ({"policy": ["ettft"]}, "policy"),
        ({"policy": "round_robin", "load_factor": 2}, "load_factor"),
        ({"policy": "ettft", "weights": {"wait": 1}}, "weights"),
        ({"policy": "weighted", "weights": {}}, "weights"),
        ({"policy": "weighted", "weights": {"wait": 0}}, "weights"),
        ({"policy": "weighted", "weights": {"luck": 1}}, "weights.luck"),
        ({"policy": "weighted", "weights": {"wait": True}}, "weights.wait"),
        ({"policy": "ettft", "pressure": math.nan}, "pressure"),
        ({"policy": "ettft", "pressure": -1}, "pressure"),
        ({"policy": "bounded_hash", "load_factor": 0.5}, "load_factor"),
        ({"policy": "bounded_hash", "prefix_tokens": 16.5}, "prefix_tokens"),
    ],
)
def test_a_refusal_names_the_field(spec: Any, field: str) -> None:
    with pytest.raises(PolicyError) as refused:
        compile_routing(spec)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (3, "slo"),
        ({"ttft_p97_ms": 5}, "ttft_p97_ms"),
        ({"ttft_p95_ms": 0}, "ttft_p95_ms"),
        ({"ttft_p95_ms": True}, "ttft_p95_ms"),
        ({"ttft_p95_ms": 100, "ttft_p99_ms": 50}, "ttft_p99_ms"),
        ({"ttft_p50_ms": 100, "ttft_p99_ms": 50}, "ttft_p99_ms"),
        ({"e2e_p50_ms": 100, "e2e_p95_ms": 50}, "e2e_p95_ms"),
        ({"e2e_p95_ms": 100, "ttft_p95_ms": 200}, "e2e_p95_ms"),
        ({"overload": "panic"}, "overload"),
        ({"overload": ["hold"]}, "overload"),
        ({"overload": "shed", "max_queue_ms": 100}, "max_queue_ms"),
        ({"overload": "hold", "max_queue_ms": 0}, "max_queue_ms"),
        ({"overload": "spill"}, "spill_pool"),
        ({"spill_pool": "other"}, "spill_pool"),
        ({"overload": "shed", "spill_model": "small"}, "spill_model"),
        ({"overload": "spill", "spill_pool": ""}, "spill_pool"),
        ({"overload": "spill", "spill_model": 7}, "spill_model"),
        ({"overload": "spill", "spill_pool": "a\nb"}, "spill_pool"),
    ],
)
def test_a_refused_objective_names_the_field(spec: Any, field: str) -> None:
    with pytest.raises(PolicyError) as refused:
        compile_slo(spec)
    assert refused.value.field == field


def test_what_to_do_on_overload() -> None:
    """A time of 0 alone meant to refuse at once before there was a word for it, and still does."""
    assert compile_slo({"max_queue_ms": 0}).overload == "shed"
    assert compile_slo({"overload": "shed"}).max_queue_ms == 0
    assert compile_slo({"max_queue_ms": 5}).overload == "hold"
    spill = compile_slo({"overload": "spill", "spill_pool": "other", "max_queue_ms": 0})
    assert (spill.overload, spill.spill_pool, spill.spill_model, spill.max_queue_ms) == ("spill", "other", None, 0)


def test_objectives_are_shares_and_seconds() -> None:
    slo = compile_slo({"ttft_p95_ms": 2000, "ttft_p50_ms": 500, "e2e_p99_ms": 30_000})
    assert slo.objectives == (("ttft_p50", 0.5, 0.5), ("ttft_p95", 0.95, 2.0), ("e2e_p99", 0.99, 30.0))


def test_an_empty_document_is_the_default() -> None:
    assert compile_routing({}) == RoutingPolicy()
    assert compile_slo({}) == SloPolicy()
    assert compile_slo({}).ttft_s is None
    assert compile_slo({}).max_queue_ms == DEFAULT_QUEUE_S * 1000  # as where there is no policy


def test_policies_and_the_register_know_the_same_scorers() -> None:
    assert tuple(scorer.name for scorer in REGISTER) == SCORERS


def test_everything_that_is_wrong_with_an_objective_is_told_at_once() -> None:
    """Each field once, in the order of the document; what only follows from another error is left out, and one error has no others."""
    refusal = _refusal(compile_slo, {"ttft_p95_ms": 0, "priority": "urgent", "luck": 1, "e2e_p50_ms": 900, "e2e_p95_ms": 800})
    assert refusal is not None
    assert [refusal.field, *(one.field for one in refusal.others)] == ["ttft_p95_ms", "priority", "luck", "e2e_p95_ms"]
    alone = _refusal(compile_slo, {"overload": "spill", "spill_pool": ""})
    assert alone is not None
    assert (alone.field, alone.others) == ("spill_pool", ())
