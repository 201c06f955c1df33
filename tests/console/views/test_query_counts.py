"""What a page asks the database does not grow with what it shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from routing.models import Endpoint, Policy, PolicyVersion
from tenants.scoping import tenant_scope
from tests.console.rows import Made, Town

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
PAGES = (
    "policies",
    "policies/{policy}",
    "policies/{policy}/edit",
    "policies/{policy}/versions/1/activate",
    "endpoints",
    "endpoints/{endpoint}",
    "endpoints/{endpoint}/trial",
    "endpoints/{endpoint}/trial/write",
    "endpoints/{endpoint}/dry-run",
    "playground",
    "traces",
)


@pytest.fixture
def asked(town: Town) -> Callable[[str], int]:
    """``asked(page)``: the number of statements that one GET of it sends."""

    def count(page: str) -> int:
        path = f"/t/acorn/{page.format(policy=town.acorn.policy_id, endpoint=town.acorn.endpoint_id)}"
        statements = 0

        def note(execute: Any, *given: Any) -> Any:
            nonlocal statements
            statements += 1
            return execute(*given)

        with connection.execute_wrapper(note):
            assert town.owner.get(path).status_code == 200, path
        return statements

    return count


def _more(made: Made, numbers: range) -> None:
    """Endpoints of these numbers, each with a policy and a target of its own; some try another version, some can go back to the shared policy."""
    with tenant_scope(made.tenant_id):
        for number in numbers:
            row = Endpoint.objects.get(id=made.endpoint_id)
            shared = row.routing_policy
            versions = {}
            for kind in ("routing", "slo"):
                policy = Policy.objects.create(tenant_id=made.tenant_id, kind=kind, name=f"{kind} {number}")
                spec = {"policy": "ettft"} if kind == "routing" else {"ttft_p95_ms": 500 + number}
                versions[kind] = [PolicyVersion.objects.create(tenant_id=made.tenant_id, policy=policy, version=n, spec=spec) for n in (1, 2)]
            trial = {"candidate_policy": versions["routing"][1]} if number % 2 else {"previous_policy": shared}
            made_of = {"routing_policy": versions["routing"][0], "slo_policy": versions["slo"][1], **trial}
            row.id, row.name = None, f"another-{number}"
            row._state.adding = True
            for column, value in made_of.items():
                setattr(row, column, value)
            row.save()
            following = PolicyVersion.objects.filter(policy_id=made.policy_id).count() + 1
            PolicyVersion.objects.create(tenant_id=made.tenant_id, policy_id=made.policy_id, version=following, spec={"pressure": following})


def test_a_page_asks_the_same_however_many_endpoints_and_policies_there_are(town: Town, asked: Callable[[str], int]) -> None:
    """The first visit of each is left out: it notes that the member has been here."""
    _more(town.acorn, range(2))
    for page in PAGES:
        asked(page)
    few = {page: asked(page) for page in PAGES}
    _more(town.acorn, range(2, 8))
    assert {page: asked(page) for page in PAGES} == few
    assert all(number > 3 for number in few.values()), few  # the control: statements are counted
