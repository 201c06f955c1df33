"""Policies in the console: versions and their difference, and a form that stores only what routers would take."""

from __future__ import annotations

from typing import Any

import pytest

from routing.models import Endpoint, Policy, PolicyVersion
from tenants.models import AuditEntry
from tenants.scoping import tenant_scope
from tests.console.rows import Town

pytestmark = pytest.mark.django_db


def edit(town: Town, text: str, **more: str) -> Any:
    return town.owner.post(f"/t/acorn/policies/{town.acorn.policy_id}/edit", {"spec": text, **more})


def versions(town: Town) -> list[dict[str, Any]]:
    with tenant_scope(town.acorn.tenant_id):
        return [row.spec for row in PolicyVersion.objects.filter(policy_id=town.acorn.policy_id).order_by("version")]


def test_the_list_says_who_runs_what(town: Town) -> None:
    page = town.viewer.get("/t/acorn/policies").content.decode()
    assert "Routing policies" in page
    assert "Latency targets" in page
    assert f'/t/acorn/policies/{town.acorn.policy_id}"' in page
    assert '<span class="muted">runs v1</span>' in page
    assert "/policies/new/routing" not in page  # a viewer writes none
    assert "/policies/new/routing" in town.owner.get("/t/acorn/policies").content.decode()


def test_a_version_is_written_and_compared_and_moves_endpoints_only_when_asked(town: Town) -> None:
    assert edit(town, "policy: ettft\npressure: 2\n").status_code == 302
    assert edit(town, "policy: ettft\npressure: 3\n", activate="on").status_code == 302
    assert versions(town) == [{"policy": "ettft"}, {"policy": "ettft", "pressure": 2}, {"policy": "ettft", "pressure": 3}]
    with tenant_scope(town.acorn.tenant_id):
        assert Endpoint.objects.select_related("routing_policy").get().routing_policy.version == 3
        assert list(AuditEntry.objects.values_list("action", "actor_label")) == [("routing_policy.version", "owner@example.com")] * 2
    page = town.owner.get(f"/t/acorn/policies/{town.acorn.policy_id}?from=1&to=3").content.decode()
    assert "What changes from v1 to v3" in page
    assert '<th scope="row" class="mono">pressure</th><td class="mono break" data-label="Before">1.0</td>' in page
    assert "can go back to v1" in page
    for odd in ("?from=9&to=x", "?from=-1", "?to=99999999999"):
        assert town.owner.get(f"/t/acorn/policies/{town.acorn.policy_id}{odd}").status_code == 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("policy: magic", "spec.policy"),
        ("policy: ettft\npressure: -1", "spec.pressure"),
        ("policy: ettft\npressure: .nan", "spec.pressure"),
        ("policy: weighted\nweights: {luck: 1}", "spec.weights.luck"),
        ("a: &a [x]\nb: [*a, *a]", "aliases are not read"),
        ("policy: [", "This is no YAML"),
        ("", "Write a policy document"),
    ],
)
def test_what_cannot_run_is_said_while_it_is_typed_and_never_stored(town: Town, text: str, said: str) -> None:
    """The text stays in the form, as text."""
    typed = town.owner.post("/t/acorn/policies/check/routing", {"spec": text})
    assert (typed.status_code, said in typed.content.decode()) == (200, True)
    refused = edit(town, f"{text} # <b>")
    assert (refused.status_code, said in refused.content.decode() or "no YAML" in refused.content.decode()) == (400, True)
    assert "# &lt;b&gt;" in refused.content.decode()
    assert len(versions(town)) == 1
    good = town.owner.post("/t/acorn/policies/check/slo", {"spec": "ttft_p95_ms: 500"}).content.decode()
    assert "Routers would take this." in good
    assert "<html" not in good


def test_a_policy_is_made_and_its_name_is_taken_once(town: Town) -> None:
    body = {"name": "night", "spec": "policy: round_robin\n"}
    assert town.owner.post("/t/acorn/policies/new/routing", body).status_code == 302
    again = town.owner.post("/t/acorn/policies/new/routing", body)
    assert (again.status_code, "There is a policy of this name already" in again.content.decode()) == (409, True)
    with tenant_scope(town.acorn.tenant_id):
        assert Policy.objects.filter(name="night").count() == 1
    assert town.owner.post("/t/acorn/policies/new/magic", body).status_code == 404
