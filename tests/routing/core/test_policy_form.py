"""A policy document as texts of a form, and back."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.policy import PolicyError, compile_routing, compile_slo
from routing.core.policy_form import POLICIES, Kind, document, form_fields, values


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("routing", {"policy": "ettft"}),
        ("routing", {"policy": "ettft", "price_of_recomputation": "auto", "tie_s": 0.01}),
        ("routing", {"policy": "weighted", "weights": {"wait": 1, "prefill": 0.5}, "pressure": 2}),
        ("routing", {"policy": "bounded_hash", "load_factor": 1.5, "prefix_tokens": 64}),
        ("slo", {"ttft_p95_ms": 2000, "overload": "spill", "spill_pool": "7", "priority": "batch"}),
        ("slo", {}),
    ],
)
def test_a_document_survives_the_form(kind: Kind, spec: dict[str, Any]) -> None:
    """Every field comes back with its value and its type."""
    assert document(kind, values(kind, spec)) == spec


@given(st.sampled_from(POLICIES), st.dictionaries(st.sampled_from([one.name for one in form_fields("routing", "weighted")]), st.text(max_size=20)))
def test_any_text_is_compiled_or_refused(policy: str, texts: dict[str, str]) -> None:
    """Nothing that is written into a form is anything but a policy or a refusal of one."""
    with contextlib.suppress(PolicyError):
        compile_routing(document("routing", {"policy": policy, **texts}))


def test_what_another_way_of_routing_uses_is_left_out() -> None:
    """A field that was filled in before the way of routing was changed is no error and no part of the document; empty fields are defaults."""
    texts = {"policy": "round_robin", "load_factor": "2", "weights.wait": "1"}
    assert document("routing", texts) == {"policy": "round_robin"}
    assert document("routing", {**texts, "policy": "session"}) == {"policy": "session", "load_factor": 2}
    assert compile_slo(document("slo", {"ttft_p95_ms": " ", "max_queue_ms": ""})) == compile_slo({})
