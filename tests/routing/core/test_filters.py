"""Who may serve, and the one reason given when not."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from routing.core.engines import ENGINES
from routing.core.filters import Condition, refusal
from routing.core.snapshot import ReplicaEntry

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
        ("isolation", {"mode": "audited"}),
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
