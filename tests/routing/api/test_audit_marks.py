"""Probes of isolation audits are marked in their records, and left out of what tells of the tenant's own requests."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from routing.core.policy import compile_routing
from routing.models import Endpoint
from routing.services import dry_run, rollups, usage
from tenants.core.roles import Role
from tests.routing.api.test_usage import keep
from tests.routing.services.rows import an_endpoint
from tests.tenants.houses import House

pytestmark = pytest.mark.django_db


@pytest.fixture
def endpoint(acorn: House) -> Endpoint:
    """One request and one probe at an endpoint, alike but for the mark."""
    with acorn.scope():
        made = an_endpoint(acorn.id, "chat")
    for audit in (False, True):
        keep(
            acorn, endpoint_id=made.id, prompt_tokens=100 if not audit else 7_000, completion_tokens=5, audit=audit, error_code="x" if audit else None
        )
    return made


def test_neither_usage_nor_rollups_hold_them(acorn: House, endpoint: Endpoint) -> None:
    """The request beside them is counted, to the token."""
    today = timezone.now().date()
    with acorn.scope():
        found = usage.report(acorn.id, since=today, until=today, by=())
        rolled = rollups.total(
            one for key, one in rollups.read(acorn.id, since=timezone.now() - timedelta(minutes=5), until=timezone.now()) if key.width_s == 60
        )
    assert (found.total.requests, found.total.input_tokens, found.total.output_tokens) == (1, 100, 5)
    assert (rolled.requests, rolled.prompt_tokens, dict(rolled.codes)) == (1, 100, {})


def test_lists_show_them_by_a_filter_alone(acorn: House, endpoint: Endpoint) -> None:
    api = acorn.api(Role.VIEWER)

    def tokens(query: str) -> set[int]:
        return {row["prompt_tokens"] for row in api.get(f"decisions{query}").json()["results"]}

    assert tokens("") == tokens("?audits=none") == {100}
    assert tokens("?audits=only") == {7_000}
    assert tokens("?audits=all") == {100, 7_000}
    assert api.get("decisions?audits=some").json()["error"]["field"] == "audits"
    (probe,) = api.get("decisions?audits=only").json()["results"]
    assert api.get(f"decisions/{probe['id']}").json()["decision"]["record"]["audit"] is True


def test_dry_runs_redo_none_of_them(acorn: House, endpoint: Endpoint) -> None:
    """With candidates on both, the request alone is redone."""
    candidates = ({"replica_id": "r", "replica_name": "a", "score_s": 1.0, "terms": {"wait": 1.0}},)
    for audit in (False, True):
        keep(acorn, endpoint_id=endpoint.id, candidates=candidates, replica_id="r", policy="ettft", policy_version=1, audit=audit)
    with acorn.scope():
        policy = compile_routing({"policy": "round_robin"})
        found = dry_run.run(tenant_id=acorn.id, endpoint=endpoint, policy=policy, whole=True, own_replica_ids=None, now=timezone.now())
    assert found.decisions == 1
