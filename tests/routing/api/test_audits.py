"""Isolation audits over the API."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from namespaces.audit import evidence
from routing.models import AuditRun, Replica
from tenants.core.roles import Role
from tests.tenants.houses import ABSENT, Api, House

pytestmark = pytest.mark.django_db
EVIDENCE = {"format": "saltroute-audit/1", "outcome": "pass"}
CASE = {
    "name": "two_salts",
    "title": "same tokens",
    "rows": [1, 2],
    "outcome": "pass",
    "reason": "",
    "rounds": 2,
    "negative_probes": 4,
    "controls_seen": 4,
}


def a_setup(house: House) -> dict[str, Any]:
    """A pool with a replica and an endpoint; the replica as answered."""
    api = house.api()
    api.post("pools", {"name": "gpu"})
    replica: dict[str, Any] = api.post("replicas", {"pool": "gpu", "name": "a", "url": "http://127.0.0.1:9001"}).json()
    api.post("models", {"name": "m", "revision": "r1"})
    made = api.post("endpoints", {"name": "chat", "pool": "gpu", "model": "m", "routing_policy": {"policy": "ettft"}})
    assert made.status_code == 201, made.content
    return replica


def finish(house: House, audit_id: str) -> None:
    """As the worker leaves a run that passed."""
    signature, key = evidence.sign(EVIDENCE, bytes(32))
    with house.scope():
        AuditRun.objects.filter(id=audit_id).update(
            state="finished",
            outcome="pass",
            negative_probes=60,
            failure_bound_ppm=50_000,
            tokens_spent=1234,
            cases=[CASE],
            evidence=EVIDENCE,
            signature=signature,
            evidence_key=key,
            finished_at=timezone.now(),
        )


def test_order_read_export(acorn: House) -> None:
    """One order for each replica of the pool; the report verifies; who ordered it is in the log."""
    replica = a_setup(acorn)
    api = acorn.api(Role.OPERATOR)
    ordered = api.post("audits", {"endpoint": "chat", "repeat": 5})
    assert ordered.status_code == 202
    (audit,) = ordered.json()["results"]
    assert (audit["state"], audit["outcome"], audit["trigger"]) == ("queued", None, "demand")
    assert (audit["replica_id"], audit["replica"]) == (replica["id"], "a")
    assert api.get(f"audits/{audit['id']}/export").status_code == 404
    finish(acorn, audit["id"])
    detail = api.get(f"audits/{audit['id']}/").json()
    assert (detail["outcome"], detail["failure_rate_bound"], detail["tokens_spent"]) == ("pass", 0.05, 1234)
    assert detail["cases"] == [CASE]
    exported = api.get(f"audits/{audit['id']}/export")
    assert evidence.verify(exported.content) == EVIDENCE
    assert exported.headers["Cache-Control"] == "private, no-store"
    assert [one["id"] for one in api.get("audits?state=finished").json()["results"]] == [audit["id"]]
    assert api.get("audits?state=queued").json()["results"] == []
    assert [entry.actor_label for entry in acorn.log("audit.order")] == ["operator-token"]


def test_roles(acorn: House) -> None:
    a_setup(acorn)
    assert [acorn.api(role).get("audits").status_code for role in Role] == [200] * 4
    assert [acorn.api(role).post("audits", {"endpoint": "chat"}).status_code for role in Role] == [403, 202, 202, 202]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "endpoint"),
        ({"endpoint": "nothing"}, "endpoint"),
        ({"endpoint": 7}, "endpoint"),
        ({"endpoint": "chat", "replica": "b"}, "replica"),
        ({"endpoint": "chat", "replica": ABSENT}, "replica"),
        ({"endpoint": "chat", "repeat": 0}, "repeat"),
        ({"endpoint": "chat", "repeat": 251}, "repeat"),
        ({"endpoint": "chat", "door": "http://x"}, "door"),
    ],
)
def test_malformed_orders_name_the_field(acorn: House, body: object, field: str) -> None:
    a_setup(acorn)
    answer = acorn.api().post("audits", body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
    with acorn.scope():
        assert not AuditRun.objects.exists()


def test_a_stranger_and_an_absent_id_get_the_same_bytes(acorn: House, birch: House) -> None:
    replica = a_setup(birch)
    (audit,) = birch.api().post("audits", {"endpoint": "chat"}).json()["results"]
    finish(birch, audit["id"])
    api, answers = acorn.api(), set()
    for reference in (audit["id"], ABSENT, "x", "%00"):
        for path in (f"audits/{reference}", f"audits/{reference}/export"):
            answer = api.get(path)
            answers.add((answer.status_code, answer.content))
    assert len(answers) == 1
    assert answers.pop()[0] == 404
    assert api.get("audits").json()["results"] == []
    assert api.post(f"replicas/{replica['id']}/repaired", {"reason": "x"}).content == api.post(f"replicas/{ABSENT}/repaired", {"reason": "x"}).content


def test_a_granted_pools_replicas_are_not_named(acorn: House, platform: Api) -> None:
    """The tenant sees that its endpoint's pool was audited, at what cost; names and addresses are the platform's."""
    platform.post("pools", {"name": "shared"})
    platform.post("replicas", {"pool": "shared", "name": "secret-name", "url": "http://127.0.0.1:9001"})
    platform.post("pools/shared/grants", {"tenant": "acorn"})
    api = acorn.api()
    api.post("models", {"name": "m", "revision": "r1"})
    assert api.post("endpoints", {"name": "chat", "pool": "shared", "model": "m", "routing_policy": {"policy": "ettft"}}).status_code == 201
    assert api.post("audits", {"endpoint": "chat", "replica": "secret-name"}).status_code == 400
    answer = platform.post("audits", {"endpoint": "chat"}, X_Saltroute_Tenant="acorn")
    assert answer.status_code == 202
    assert answer.json()["results"][0]["replica"] is None
    assert b"secret-name" not in answer.content
    assert b"9001" not in answer.content


def test_the_budget_of_a_granted_pool_is_the_platforms_to_spend(acorn: House, platform: Api) -> None:
    """An order of the tenant's is refused by field; the platform's own through the same endpoint, and the tenant's on its own pool, are not."""
    a_setup(acorn)
    platform.post("pools", {"name": "shared"})
    platform.post("replicas", {"pool": "shared", "name": "secret-name", "url": "http://127.0.0.1:9002"})
    platform.post("pools/shared/grants", {"tenant": "acorn"})
    api = acorn.api()
    made = api.post("endpoints", {"name": "common", "pool": "shared", "model": "m", "routing_policy": {"policy": "ettft"}})
    assert made.status_code == 201, made.content
    refused = api.post("audits", {"endpoint": "common"})
    assert (refused.status_code, refused.json()["error"]["code"], refused.json()["error"]["field"]) == (403, "forbidden", "endpoint")
    assert api.get("audits").json()["results"] == []
    assert api.post("audits", {"endpoint": "chat"}).status_code == 202
    assert platform.post("audits", {"endpoint": "common"}, X_Saltroute_Tenant="acorn").status_code == 202


def test_the_evidence_key_is_public(settings: Any) -> None:
    settings.EVIDENCE_PUBLIC_KEY = bytes(range(32))
    assert Api().get("evidence-key").json() == {"algorithm": "ed25519", "public_key": bytes(range(32)).hex()}
    settings.EVIDENCE_PUBLIC_KEY = None
    assert Api().get("evidence-key/").status_code == 503


def test_a_replica_shows_its_state_and_the_way_out(acorn: House) -> None:
    """Quarantined: only with a reason and a flush or a restart; the endpoint's epoch rises."""
    replica = a_setup(acorn)
    assert (replica["isolation"], replica["build"], replica["audit_tokens_today"]) == ("unverified", None, 0)
    api = acorn.api(Role.OPERATOR)
    assert api.post("replicas/a/repaired", {"reason": "x", "flushed": True}).status_code == 409
    with acorn.scope():
        Replica.objects.update(isolation_state="quarantined", isolation_since=timezone.now(), isolation_reason="audit 1: two_salts")
    assert api.get("replicas/a").json()["isolation_reason"] == "audit 1: two_salts"
    assert api.post("replicas/a/repaired", {"reason": "x"}).status_code == 409
    assert api.post("replicas/a/repaired", {"reason": "", "flushed": True}).status_code == 400
    assert acorn.api(Role.VIEWER).post("replicas/a/repaired", {"reason": "x", "flushed": True}).status_code == 403
    answer = api.post("replicas/a/repaired", {"reason": "new engine", "flushed": True})
    assert (answer.status_code, answer.json()["isolation"]) == (200, "quarantined")
    assert api.get("endpoints/chat").json()["epoch"] == 2
