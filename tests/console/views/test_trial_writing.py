"""A policy is written on an endpoint's page: held against the past, tried, or activated; what is refused leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest

from routing.models import Endpoint, Policy, PolicyVersion
from tenants.models import AuditEntry
from tenants.scoping import tenant_scope
from tests.console import rows
from tests.console.rows import AsOwner, Town

pytestmark = pytest.mark.django_db
TURNS = {"way": "yaml", "spec": "policy: round_robin\n", "percent": "0"}


def path(town: Town) -> str:
    return f"/t/acorn/endpoints/{town.acorn.endpoint_id}/trial/write"


def send(town: Town, do: str, **fields: str) -> Any:
    return town.owner.post(path(town), {**TURNS, "name": "default", **fields, "do": do})


def stored(town: Town) -> set[tuple[str, int]]:
    with tenant_scope(town.acorn.tenant_id):
        return set(PolicyVersion.objects.filter(policy__kind="routing").values_list("policy__name", "version"))


def endpoint(town: Town) -> Endpoint:
    with tenant_scope(town.acorn.tenant_id):
        related = ("routing_policy__policy", "candidate_policy__policy", "previous_policy__policy")
        return Endpoint.objects.select_related(*related).get(id=town.acorn.endpoint_id)


def test_the_form_begins_with_what_runs_and_turns_into_yaml(town: Town) -> None:
    """Reached from the question which policy is tried, which says so even where there is no other version yet."""
    asked = town.owner.get(f"/t/acorn/endpoints/{town.acorn.endpoint_id}/trial", headers={"HX-Request": "true"}).content.decode()
    assert "There is no other version yet." in asked
    assert f'href="{path(town)}"' in asked
    with tenant_scope(town.acorn.tenant_id):
        another = Policy.objects.create(tenant_id=town.acorn.tenant_id, kind="routing", name="another")
        PolicyVersion.objects.create(tenant_id=town.acorn.tenant_id, policy=another, version=1, spec={"policy": "session"})
    asked = town.owner.get(f"/t/acorn/endpoints/{town.acorn.endpoint_id}/trial").content.decode()
    assert "another v1: session" in asked
    assert f'href="{path(town)}"' in asked
    page = town.owner.get(path(town)).content.decode()
    assert 'name="tie_s"' in page
    assert 'name="name" required maxlength="100" autocomplete="off" value="default"' in page
    yaml = town.owner.post(
        path(town), {"way": "form", "policy": "ettft", "pressure": "2", "do": "yaml", "name": "x", "percent": "5"}
    ).content.decode()
    assert "policy: ettft\npressure: 2\n</textarea>" in yaml
    assert 'value="x"' in yaml
    assert 'value="5"' in yaml
    assert stored(town) == {("default", 1), ("another", 1)}
    assert town.viewer.get(path(town)).status_code == 403


def test_a_dry_run_stores_nothing_and_says_what_cannot_run(town: Town, as_owner: AsOwner) -> None:
    rows.store(as_owner, town.acorn, rows.record(town.acorn))
    answer = send(town, "dry")
    assert answer.status_code == 200
    assert "<dt>Decisions redone</dt><dd>1</dd>" in answer.content.decode()
    wrong = send(town, "dry", spec="policy: ettft\npressure: -1")
    found = wrong.content.decode().partition('id="found"')[2]
    assert (wrong.status_code, "<code>spec.pressure</code>" in found) == (200, True)
    assert "Decisions redone" not in found
    with tenant_scope(town.acorn.tenant_id):
        assert not AuditEntry.objects.exists()
    assert stored(town) == {("default", 1)}


def test_it_is_tried_as_the_next_version_of_what_runs(town: Town) -> None:
    """And what runs stays as it is."""
    assert send(town, "try", percent="25").status_code == 302
    assert stored(town) == {("default", 1), ("default", 2)}
    now = endpoint(town)
    assert now.candidate_policy is not None
    assert (now.routing_policy.version, now.candidate_policy.version, now.canary_share) == (1, 2, 0.25)
    assert "another trial takes its place" in town.owner.get(path(town)).content.decode()
    with tenant_scope(town.acorn.tenant_id):
        told = list(AuditEntry.objects.order_by("created_at").values_list("action", flat=True))
    assert told == ["routing_policy.version", "endpoint.trial"]


def test_it_is_activated_under_a_name_of_its_own_and_rolled_back(town: Town) -> None:
    assert send(town, "activate", name="turns", percent="").status_code == 302
    now = endpoint(town)
    assert now.previous_policy is not None
    assert (now.routing_policy.policy.name, now.routing_policy.version, now.previous_policy.policy.name) == ("turns", 1, "default")
    assert town.owner.post(f"/t/acorn/endpoints/{town.acorn.endpoint_id}/rollback", {"reason": ""}).status_code == 302
    assert endpoint(town).routing_policy.policy.name == "default"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"percent": "101"}, "Give the share of prompts"),
        ({"percent": "half"}, "Give a number from 0 to 100."),
        ({"name": ""}, 'id="name-wrong"'),
        ({"name": "x" * 101}, 'id="name-wrong"'),
        ({"spec": "policy: magic"}, "<code>spec.policy</code>"),
        ({"spec": "policy: ["}, "This is no YAML"),
        ({"spec": "policy: ettft\n"}, "there is nothing to try"),
    ],
)
def test_what_cannot_be_tried_is_said_and_not_stored(town: Town, fields: dict[str, str], said: str) -> None:
    """At its field, with what was typed. The control: what can be tried is, above."""
    answer = send(town, "try", **fields)
    assert (answer.status_code, said in answer.content.decode()) == (400, True)
    assert stored(town) == {("default", 1)}
    assert endpoint(town).candidate_policy is None


def test_a_latency_target_of_the_same_name_is_another_policy(town: Town) -> None:
    send(town, "try", name="chat")
    with tenant_scope(town.acorn.tenant_id):
        assert set(Policy.objects.filter(name="chat").values_list("kind", flat=True)) == {"slo", "routing"}
        assert PolicyVersion.objects.filter(policy__name="chat", policy__kind="slo").count() == 1
