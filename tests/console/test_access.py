"""Every page of a tenant, opened by everybody: who gets it, who is refused, and who learns nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern

from console import urls
from console.access import TenantPage
from tenants.models import AuditEntry, Tenant
from tenants.scoping import tenant_scope
from tests.console import rows
from tests.console.rows import Made, Town

pytestmark = pytest.mark.django_db

# name of the URL -> path below /t/<slug>, given the tenant and the id that a stored decision and a stored audit have
PAGES: dict[str, Callable[[Made, uuid.UUID], str]] = {
    "overview": lambda made, decision: "",
    "applied": lambda made, decision: "/applied",
    "pools": lambda made, decision: "/pools",
    "replica_verb": lambda made, decision: f"/replicas/{made.replica_ids[0]}/drain",
    "replica_remove": lambda made, decision: f"/replicas/{made.replica_ids[0]}/remove",
    "endpoints": lambda made, decision: "/endpoints",
    "endpoint": lambda made, decision: f"/endpoints/{made.endpoint_id}",
    "endpoint_rotate": lambda made, decision: f"/endpoints/{made.endpoint_id}/rotate-epoch",
    "endpoint_try": lambda made, decision: f"/endpoints/{made.endpoint_id}/trial",
    "endpoint_write": lambda made, decision: f"/endpoints/{made.endpoint_id}/trial/write",
    "endpoint_promote": lambda made, decision: f"/endpoints/{made.endpoint_id}/promote",
    "endpoint_rollback": lambda made, decision: f"/endpoints/{made.endpoint_id}/rollback",
    "endpoint_dry_run": lambda made, decision: f"/endpoints/{made.endpoint_id}/dry-run",
    "policies": lambda made, decision: "/policies",
    "policy_new": lambda made, decision: "/policies/new/routing",
    "policy_check": lambda made, decision: "/policies/check/slo",
    "policy": lambda made, decision: f"/policies/{made.policy_id}",
    "policy_edit": lambda made, decision: f"/policies/{made.policy_id}/edit",
    "isolation": lambda made, decision: "/isolation",
    "audit_run": lambda made, decision: f"/isolation/audits/{decision}",
    "audit_report": lambda made, decision: f"/isolation/audits/{decision}/report",
    "terms": lambda made, decision: "/terms",
    "namespaces": lambda made, decision: "/namespaces",
    "namespace": lambda made, decision: "/namespaces/ns-1f2e3d",
    "reconciliation": lambda made, decision: "/reconciliation",
    "quotas": lambda made, decision: "/quotas",
    "quota_remove": lambda made, decision: f"/quotas/{made.quota_id}/remove",
    "keys": lambda made, decision: "/keys",
    "key_issue": lambda made, decision: "/keys/new",
    "key_revoke": lambda made, decision: f"/keys/{made.key_id}/revoke",
    "decisions": lambda made, decision: "/decisions",
    "decision": lambda made, decision: f"/decisions/{decision}",
    "causes": lambda made, decision: "/causes",
    "usage": lambda made, decision: "/usage",
    "usage_export": lambda made, decision: "/usage/export",
    "alerts": lambda made, decision: "/alerts",
    "overview_replicas": lambda made, decision: "/overview/replicas",
    "replica": lambda made, decision: f"/replicas/{made.replica_ids[0]}",
    "traces": lambda made, decision: "/traces",
    "members": lambda made, decision: "/members",
    "member_invite": lambda made, decision: "/members/invite",
    "member_role": lambda made, decision: f"/members/{made.member_id}/role",
    "member_remove": lambda made, decision: f"/members/{made.member_id}/remove",
    "invitation_revoke": lambda made, decision: f"/members/invitations/{made.invitation_id}/revoke",
    "require_second_factor": lambda made, decision: "/members/second-factor",
    "audit": lambda made, decision: "/audit",
}
# Taken by POST alone.
DEEDS: dict[str, Callable[[Made, uuid.UUID], str]] = {
    "webhook_test": lambda made, decision: f"/alerts/webhooks/{decision}/test",
}
# Pages whose objects other tests make and hold an owner and a viewer to; tests/console/test_walls.py walks over them for strangers.
ELSEWHERE = {
    "endpoint_by_name",
    *("endpoint_capture", "endpoint_capture_off", "endpoint_capture_delete", "endpoint_capture_export"),
    *("policy_activate", "key_rotate", "replica_check", "replica_new", "playground", "playground_key", "playground_send", "playground_decision"),
    *("trace_file_delete", "trace_ask", "trace_job", "trace_job_cancel", "trace_job_delete", "trace_job_file", "trace_job_plot"),
}
OPERATED = {"endpoint_try", "endpoint_write", "endpoint_promote", "endpoint_rollback", "policy_new", "policy_edit"}
OF_PEOPLE = {"members", "member_invite", "member_role", "member_remove", "invitation_revoke", "require_second_factor"}
REPLICAS = {"replica_verb", "replica_remove"}
FOR_MORE_THAN_VIEWERS = OPERATED | OF_PEOPLE | REPLICAS | {"endpoint_rotate", "key_issue", "key_revoke", "quota_remove", "audit"}


def _answer(response: Any) -> tuple[int, bytes, dict[str, str]]:
    return response.status_code, response.content, dict(response.headers)


def test_the_list_of_pages_is_complete() -> None:
    """A page added later is opened by these tests, or they fail."""
    named = {
        pattern.name
        for pattern in urls.urlpatterns
        if isinstance(pattern, URLPattern) and issubclass(getattr(pattern.callback, "view_class", object), TenantPage)
    }
    assert named == {*PAGES, *DEEDS, *ELSEWHERE}


@pytest.mark.parametrize("name", PAGES)
def test_owner_and_operator_get_it_and_the_viewer_reads_only(town: Town, as_owner: rows.AsOwner, name: str) -> None:
    decision = rows.record(town.acorn)
    rows.store(as_owner, town.acorn, decision)
    rows.audit_run(town.acorn, id=decision.id)
    url = f"/t/acorn{PAGES[name](town.acorn, decision.id)}"
    assert town.owner.get(url).status_code == 200
    assert town.owner.get(url + "/").status_code == 200
    assert town.operator.get(url).status_code == 200
    assert town.viewer.get(url).status_code == (403 if name in FOR_MORE_THAN_VIEWERS else 200)


@pytest.mark.parametrize("name", [*PAGES, *DEEDS])
def test_a_stranger_cannot_tell_it_from_what_does_not_exist(town: Town, as_owner: rows.AsOwner, name: str) -> None:
    """The same status, bytes and headers for another tenant's page, a tenant that is not there, and an object that is not there."""
    decision = rows.record(town.acorn)
    rows.store(as_owner, town.acorn, decision)
    rows.audit_run(town.acorn, id=decision.id)
    path = {**PAGES, **DEEDS}[name](town.acorn, decision.id)
    foreign = _answer(town.stranger.get(f"/t/acorn{path}"))
    assert foreign[0] == 404
    assert foreign == _answer(town.stranger.get(f"/t/nowhere{path}"))
    assert foreign == _answer(town.stranger.get(f"/t/birch/endpoints/{uuid.uuid4()}"))
    assert foreign == _answer(town.stranger.post(f"/t/acorn{path}"))


@pytest.mark.parametrize(
    "path",
    [
        "endpoints/{endpoint_id}",
        "endpoints/{endpoint_id}/rotate-epoch",
        "endpoints/{endpoint_id}/trial",
        "endpoints/{endpoint_id}/promote",
        "endpoints/{endpoint_id}/rollback",
        "endpoints/{endpoint_id}/dry-run",
        "policies/{policy_id}",
        "policies/{policy_id}/edit",
        "keys/{key_id}/revoke",
        "replicas/{replica_id}/drain",
        "decisions/{decision_id}",
        "isolation/audits/{decision_id}",
        "isolation/audits/{decision_id}/report",
    ],
)
def test_another_tenants_object_under_ones_own_tenant_is_absent(town: Town, as_owner: rows.AsOwner, path: str) -> None:
    decision = rows.record(town.acorn)
    rows.store(as_owner, town.acorn, decision)
    rows.audit_run(town.acorn, id=decision.id)
    made = town.acorn
    ids = {"endpoint_id": made.endpoint_id, "key_id": made.key_id, "replica_id": made.replica_ids[0], "decision_id": decision.id}
    ids["policy_id"] = made.policy_id
    absent = dict.fromkeys(ids, uuid.uuid4())
    assert _answer(town.stranger.get(f"/t/birch/{path.format(**ids)}")) == _answer(town.stranger.get(f"/t/birch/{path.format(**absent)}"))
    assert town.stranger.get(f"/t/birch/{path.format(**ids)}").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/keys/new",
        "/keys/{key_id}/revoke",
        "/replicas/{replica_id}/drain",
        "/endpoints/{endpoint_id}/rotate-epoch",
        "/endpoints/{endpoint_id}/trial",
        "/endpoints/{endpoint_id}/promote",
        "/endpoints/{endpoint_id}/rollback",
        "/policies/new/slo",
        "/policies/{policy_id}/edit",
        "/isolation",
        "/reconciliation",
    ],
)
def test_a_viewer_changes_nothing_and_the_attempt_is_noted(town: Town, path: str) -> None:
    made = town.acorn
    url = "/t/acorn" + path.format(key_id=made.key_id, replica_id=made.replica_ids[0], endpoint_id=made.endpoint_id, policy_id=made.policy_id)
    response = town.viewer.post(url, {"name": "sneaky", "scope": "", "reason": "sneaky", "endpoint": str(town.acorn.endpoint_id)})
    assert response.status_code == 403
    assert "Your role in this tenant does not allow this" in response.content.decode()
    with tenant_scope(town.acorn.tenant_id):
        entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor_label, entry.object_label) == ("request.denied", "viewer@example.com", f"POST {url}")


@pytest.mark.parametrize("name", PAGES)
def test_without_a_session_one_is_sent_to_sign_in_and_back(town: Town, name: str) -> None:
    path = f"/t/acorn{PAGES[name](town.acorn, uuid.uuid4())}"
    response = Client().get(path)
    assert (response.status_code, response.headers["Location"]) == (302, f"/login?next={path.replace('/', '%2F')}")
    fragment = Client().get(path, headers={"HX-Request": "true"})
    assert (fragment.status_code, fragment.headers["HX-Redirect"]) == (401, "/login")


def test_a_person_switched_off_is_out_at_once(town: Town) -> None:
    from tenants.models import User

    assert town.owner.get("/t/acorn").status_code == 200
    User.objects.filter(email="owner@example.com").update(is_active=False)
    assert town.owner.get("/t/acorn").status_code == 302


def test_a_suspended_tenant_is_read_only_except_for_operators(town: Town) -> None:
    with tenant_scope(town.acorn.tenant_id):
        Tenant.objects.update(suspended=True)
    url = f"/t/acorn/keys/{town.acorn.key_id}/revoke"
    assert "suspended: read only" in town.owner.get("/t/acorn").content.decode()
    assert town.owner.post(url).status_code == 403
    assert town.operator.post(url).status_code == 302


def test_a_method_that_a_page_does_not_have_is_405(town: Town) -> None:
    assert town.owner.post("/t/acorn/decisions").status_code == 405
    assert town.owner.delete("/t/acorn/keys").status_code == 405


def test_an_operator_sees_every_tenant_and_a_member_their_own(town: Town) -> None:
    everything = town.operator.get("/tenants").content.decode()
    assert "/t/acorn" in everything
    assert "/t/birch" in everything
    assert "birch" not in town.owner.get("/tenants").content.decode()
    assert town.owner.get("/").headers["Location"] == "/t/acorn"
    assert town.operator.get("/").headers["Location"] == "/tenants"
    found = town.operator.get("/tenants?q=BIR").content.decode()
    assert "/t/birch" in found
    assert "/t/acorn" not in found


@pytest.mark.parametrize("path", ["/keys/{key_id}/revoke", "/isolation", "/reconciliation", "/endpoints/{endpoint_id}/rotate-epoch"])
def test_changes_need_the_csrf_token(town: Town, path: str) -> None:
    client = Client(enforce_csrf_checks=True)
    assert client.login(username="owner@example.com", password=rows.PASSWORD)
    response = client.post("/t/acorn" + path.format(key_id=town.acorn.key_id, endpoint_id=town.acorn.endpoint_id), {"reason": "because"})
    assert response.status_code == 403
    assert "This form has expired" in response.content.decode()
