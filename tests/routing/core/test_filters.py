"""Who may serve, and the one reason given when not."""

from __future__ import annotations

from typing import Any, get_args
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.engines import ENGINES
from routing.core.filters import Condition, isolates, refusal, refusal_of_pinned
from routing.core.snapshot import IsolationMode, IsolationState, ReplicaEntry

NS = "ns-" + "0" * 32


def _refusal(condition: Condition = Condition(), mode: Any = "declared", family: str = "vllm", **entry: Any) -> str | None:  # noqa: B008 - frozen
    one = ReplicaEntry(**{"id": UUID(int=1), "name": "a", "url": "http://a", "engine": "vllm", **entry})
    return refusal(one, ENGINES[one.engine], condition, mode=mode, family=family, namespace_id=NS)


@pytest.mark.parametrize(
    ("reason", "arguments"),
    [
        (None, {}),
        ("draining", {"state": "draining"}),
        ("paused", {"state": "paused"}),
        ("prefill_only", {"role": "prefill"}),
        ("other_engine", {"engine": "sglang"}),
        ("address_not_allowed", {"condition": Condition(blocked=True)}),
        ("credential", {"condition": Condition(credential_opens=False)}),
        ("tried", {"condition": Condition(tried=True)}),
        ("unreachable", {"condition": Condition(reachable=False)}),
        ("breaker_open", {"condition": Condition(breaker_allows=False)}),
        ("model_not_served", {"condition": Condition(serves=False)}),
        ("breaker_open", {"condition": Condition(serves=False, breaker_allows=False)}),
        ("model_not_served", {"mode": "audited", "condition": Condition(serves=False)}),
        ("isolation", {"mode": "audited"}),
        ("isolation", {"mode": "audited", "isolation": "suspect"}),
        (None, {"mode": "audited", "isolation": "isolated"}),
        (None, {"mode": "declared", "isolation": "suspect"}),
        ("quarantined", {"mode": "declared", "isolation": "quarantined"}),
        ("quarantined", {"mode": "dedicated", "isolation": "quarantined", "dedicated_namespace": NS}),
        ("unreachable", {"mode": "audited", "isolation": "quarantined", "condition": Condition(reachable=False)}),
        ("isolation", {"mode": "dedicated", "isolation": "isolated"}),
        ("isolation", {"mode": "audited", "isolation": "isolated", "engine": "llamacpp", "family": "llamacpp"}),
        ("isolation", {"mode": "dedicated"}),
        ("isolation", {"mode": "audited", "dedicated_namespace": "ns-other"}),
        (None, {"mode": "audited", "dedicated_namespace": NS}),
        (None, {"mode": "dedicated", "dedicated_namespace": NS}),
        ("isolation", {"engine": "llamacpp", "family": "llamacpp"}),
        (None, {"engine": "llamacpp", "family": "llamacpp", "dedicated_namespace": NS}),
        ("breaker_open", {"mode": "audited", "condition": Condition(breaker_allows=False)}),
    ],
)
def test_each_reason(reason: str | None, arguments: dict[str, Any]) -> None:
    assert _refusal(**arguments) == reason


namespaces = st.integers(0, 4).map(lambda number: f"ns-{number:032x}")
entries = st.builds(
    ReplicaEntry,
    id=st.just(UUID(int=1)),
    name=st.just("a"),
    url=st.just("http://a"),
    engine=st.sampled_from(sorted(ENGINES)),
    isolation=st.sampled_from(get_args(IsolationState)),
    dedicated_namespace=st.none() | namespaces,
)
modes: st.SearchStrategy[IsolationMode] = st.sampled_from(get_args(IsolationMode))


def _served(entry: ReplicaEntry, mode: IsolationMode) -> set[str]:
    """Of all namespaces there are, those that the replica may serve."""
    return {one for number in range(5) if isolates(entry, ENGINES[entry.engine], mode, one := f"ns-{number:032x}")}


@given(entries, modes)
def test_a_replica_serves_nobody_one_namespace_or_everybody(entry: ReplicaEntry, mode: IsolationMode) -> None:
    served = _served(entry, mode)
    assert len(served) in (0, 1, 5)
    if len(served) == 1:
        assert served == {entry.dedicated_namespace}


@given(entries, modes)
def test_quarantine_serves_nobody(entry: ReplicaEntry, mode: IsolationMode) -> None:
    assert (entry.isolation != "quarantined") or _served(entry, mode) == set()


@given(entries, modes)
def test_unproved_replicas_never_serve_two_namespaces(entry: ReplicaEntry, mode: IsolationMode) -> None:
    """Unproved: unverified or suspect in an audited pool, anything in a dedicated pool, an engine without salts anywhere."""
    proved = mode == "declared" or (mode == "audited" and entry.isolation == "isolated")
    if not proved or ENGINES[entry.engine].salt_field is None:
        assert len(_served(entry, mode)) <= 1


@given(entries, modes)
def test_what_is_assigned_never_takes_a_namespace_away(entry: ReplicaEntry, mode: IsolationMode) -> None:
    without = msgspec.structs.replace(entry, dedicated_namespace=None)
    assert _served(without, mode) <= _served(entry, mode)


@given(st.builds(Condition, *[st.booleans()] * 5))
def test_a_probe_is_kept_away_by_a_credential_and_its_own_first_try_alone(condition: Condition) -> None:
    assert (refusal_of_pinned(condition) is None) == (condition.credential_opens and not condition.tried)
