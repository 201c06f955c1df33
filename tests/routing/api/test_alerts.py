"""Alerts, webhooks and objectives over the API: who may, what is shown once, and that nobody reads another's."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.utils import timezone

from namespaces.core import keyring
from routing.models import Alert, SloMinute, Webhook
from tenants.core.roles import Role

if TYPE_CHECKING:
    from tests.tenants.houses import Api, House

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
URL = "https://hooks.example.org/alerts"


@pytest.fixture(autouse=True)
def seal_key(settings: Any) -> None:
    settings.SEAL_PUBLIC_KEY = keyring.seal_public_key(bytes(32))


def an_alert(house: House, **fields: Any) -> Alert:
    now = timezone.now()
    given: dict[str, Any] = {"kind": "key_expiring", "severity": "warning", "state": "firing", "subject_kind": "key", "subject_id": "1"}
    given |= {"subject": "app", "explanation": "It expires.", "began_at": now, "last_seen_at": now, **fields}
    with house.scope():
        return Alert.objects.create(tenant_id=house.id, **given)


def test_alerts_are_listed_narrowed_and_read(acorn: House, birch: House) -> None:
    old = an_alert(acorn, state="resolved", subject_id="0", resolved_at=timezone.now())
    now = an_alert(acorn)
    api = acorn.api(Role.VIEWER)

    def ids(query: str = "") -> list[str]:
        return [one["id"] for one in api.get(f"alerts{query}").json()["results"]]

    assert ids() == [str(now.id), str(old.id)]
    assert ids("?state=firing&kind=key_expiring") == [str(now.id)]
    assert ids("?kind=slo_burn") == []
    assert api.get("alerts?kind=nonsense").json()["error"]["field"] == "kind"
    read = api.get(f"alerts/{now.id}").json()
    assert (read["title"], read["subject"]) == ("A key expires soon", {"kind": "key", "id": "1", "name": "app"})
    assert birch.api().get("alerts").json()["results"] == []
    assert birch.api().get(f"alerts/{now.id}").status_code == 404


def test_a_webhook_from_registration_to_its_end(acorn: House) -> None:
    """The secret is shown at creation and rotation, and never again; a test message shows in the log."""
    api = acorn.api(Role.ADMIN)
    made = api.post("webhooks", {"name": "ops", "url": URL, "kinds": ["slo_burn"]})
    assert made.status_code == 201, made.content
    assert made.json()["secret"].startswith("srwh-")
    assert "secret" not in api.get("webhooks/ops").json()
    assert api.get("webhooks").json()["results"][0]["kinds"] == ["slo_burn"]
    rotated = api.post("webhooks/ops/rotate-secret").json()
    assert rotated["secret"] != made.json()["secret"]
    tested = api.post("webhooks/ops/test")
    assert (tested.status_code, tested.json()["event"], tested.json()["state"]) == (202, "test", "queued")
    (delivery,) = api.get("webhooks/ops/deliveries").json()["results"]
    assert delivery["id"] == tested.json()["id"]
    assert api.get("webhooks/ops").json()["waiting"] == 1
    assert api.patch("webhooks/ops", {"enabled": False}).json()["enabled"] is False
    assert api.post("webhooks/ops/test").status_code == 409
    assert api.delete("webhooks/ops").status_code == 200
    assert api.get("webhooks/ops").status_code == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "ops", "url": "http://hooks.example.org/x"}, "url"),
        ({"name": "ops", "url": "https://10.0.0.1/x"}, "url"),
        ({"name": "ops", "url": URL, "kinds": ["nonsense"]}, "kinds"),
        ({"name": "", "url": URL}, "name"),
        ({"name": "ops"}, "url"),
    ],
)
def test_a_refusal_names_the_field(acorn: House, body: dict[str, Any], field: str) -> None:
    answer = acorn.api().post("webhooks", body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_addresses_are_for_those_who_configure(acorn: House, role: Role) -> None:
    acorn.api(Role.ADMIN).post("webhooks", {"name": "ops", "url": URL})
    api = acorn.api(role)
    answers = [api.get("webhooks"), api.get("webhooks/ops"), api.get("webhooks/ops/deliveries"), api.post("webhooks/ops/test")]
    answers += [api.post("webhooks/ops/rotate-secret"), api.patch("webhooks/ops", {}), api.delete("webhooks/ops")]
    answers.append(api.post("webhooks", {"name": "mine", "url": URL}))
    assert [answer.status_code for answer in answers] == [403] * 8
    with acorn.scope():
        assert [row.name for row in Webhook.objects.all()] == ["ops"]


def test_a_strangers_webhook_is_absent(acorn: House, birch: House) -> None:
    made = acorn.api().post("webhooks", {"name": "ops", "url": URL}).json()
    api = birch.api()
    for reference in ("ops", made["id"]):
        answers = [api.get(f"webhooks/{reference}"), api.delete(f"webhooks/{reference}"), api.post(f"webhooks/{reference}/test")]
        assert [answer.status_code for answer in answers] == [404] * 3


def furnish(api: Api, port: int = 9001) -> None:
    """Two pools, a model and an endpoint."""
    for path, body in (
        ("models", {"name": "m", "revision": "r1"}),
        ("pools", {"name": "home"}),
        ("pools", {"name": "other"}),
        ("replicas", {"pool": "home", "name": "a", "url": f"http://127.0.0.1:{port}"}),
        ("endpoints", {"name": "chat", "pool": "home", "model": "m", "slo": {"ttft_p95_ms": 1000}}),
    ):
        assert api.post(path, body).status_code == 201, path


def test_how_an_endpoint_keeps_its_objectives(acorn: House) -> None:
    api = acorn.api()
    furnish(api)
    endpoint = api.get("endpoints/chat").json()
    at = (timezone.now() - timedelta(seconds=90)).replace(second=0, microsecond=0)
    with acorn.scope():
        SloMinute.objects.create(tenant_id=acorn.id, endpoint_id=endpoint["id"], objective="ttft_p95", minute=at, total=40, bad=4)
    (objective,) = acorn.api(Role.VIEWER).get("endpoints/chat/slo").json()["objectives"]
    assert (objective["objective"], objective["target_s"], objective["share"]) == ("ttft_p95", 1.0, 0.95)
    assert [(one["seconds"], one["requests"], one["missed"]) for one in objective["windows"]] == [(300, 40, 4), (3600, 40, 4), (21600, 40, 4)]
    assert objective["windows"][0]["burn_rate"] == pytest.approx(2.0)


def test_an_endpoint_spills_only_to_what_the_tenant_has_and_what_can_serve_it(acorn: House, birch: House) -> None:
    furnish(birch.api(), 9003)
    api = acorn.api()
    furnish(api)

    def refused(field: str, **spec: Any) -> None:
        answer = api.patch("endpoints/chat", {"slo": {"overload": "spill", **spec}})
        assert (answer.status_code, answer.json()["error"]["field"]) == (400, field), answer.content

    refused("slo.spill_pool", spill_pool="nowhere")
    refused("slo.spill_pool", spill_pool="home")
    refused("slo.spill_pool")
    refused("slo.spill_model", spill_model="chat")
    refused("slo.spill_model", spill_model="nothing")
    foreign = birch.api().get("pools/other").json()["id"]
    refused("slo.spill_pool", spill_pool=foreign)
    assert api.patch("endpoints/chat", {"slo": {"overload": "spill", "spill_pool": "other"}}).status_code == 200
    assert api.delete("pools/other").status_code == 409
    assert api.patch("pools/other", {"name": "renamed"}).status_code == 409
    assert api.post("replicas", {"pool": "other", "name": "x", "url": "http://127.0.0.1:9002", "engine": "sglang"}).status_code == 201
    refused("slo.spill_pool", spill_pool="other", max_queue_ms=5)
    assert api.patch("endpoints/chat", {"slo": {"ttft_p95_ms": 1000}}).status_code == 200
    assert api.delete("pools/other").status_code == 200


def test_weights_are_the_platforms(acorn: House, platform: Api) -> None:
    assert platform.post("pools", {"name": "shared"}).status_code == 201
    made = platform.post("pools/shared/grants", {"tenant": "acorn"})
    assert (made.status_code, made.json()["weight"]) == (201, 1.0)
    assert platform.post("pools/shared/grants", {"tenant": "acorn", "weight": 2.5}).json()["weight"] == 2.5
    assert platform.post("pools/shared/grants", {"tenant": "acorn"}).json()["weight"] == 2.5
    assert [(one["tenant"], one["weight"]) for one in platform.get("pools/shared/grants").json()["results"]] == [("acorn", 2.5)]
    for weight in (0, -1, 1000, True):
        assert platform.post("pools/shared/grants", {"tenant": "acorn", "weight": weight}).status_code == 400
    assert acorn.api(Role.OWNER).post("pools/shared/grants", {"tenant": "acorn", "weight": 100}).status_code == 403
