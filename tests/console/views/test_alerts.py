"""Alerts in the console: what fires, objectives, webhooks for those who configure, and the test button."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from routing.models import Alert, Webhook, WebhookDelivery
from tenants.scoping import tenant_scope
from tests.console.rows import Made, Town

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
EVIL = "<img src=x onerror=alert(1)>"
PATH = "/t/acorn/alerts"


def _page(town: Town, who: str = "owner") -> str:
    response = getattr(town, who).get(PATH)
    assert response.status_code == 200
    text: str = response.content.decode()
    return text


def _alert(made: Made, **fields: Any) -> Alert:
    now = timezone.now()
    given: dict[str, Any] = {"kind": "key_expiring", "severity": "warning", "state": "firing", "subject_kind": "key", "subject_id": "1"}
    given |= {"subject": "app", "explanation": "It expires.", "began_at": now, "last_seen_at": now, **fields}
    with tenant_scope(made.tenant_id):
        return Alert.objects.create(tenant_id=made.tenant_id, **given)


def _hook(made: Made, **fields: Any) -> Webhook:
    with tenant_scope(made.tenant_id):
        given = {"name": "ops", "url": "https://hooks.example.org/secret-path", "secret": b"sealed", **fields}
        return Webhook.objects.create(tenant_id=made.tenant_id, **given)


def test_an_empty_page_says_what_would_be_here(town: Town) -> None:
    page = _page(town)
    assert "Nothing fires" in page
    assert "/api/v1/webhooks" in page


def test_what_fires_and_what_is_over_in_words_and_escaped(town: Town) -> None:
    _alert(town.acorn, subject=EVIL, explanation=EVIL)
    _alert(town.acorn, subject_id="2", subject="old", state="resolved", resolved_at=timezone.now())
    page = _page(town, "viewer")
    assert EVIL not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") >= 2
    assert "A key expires soon" in page
    assert "old" in page


def test_addresses_are_shown_to_those_who_configure(town: Town) -> None:
    _hook(town.acorn)
    assert "secret-path" in _page(town)
    assert "secret-path" not in _page(town, "viewer")


def test_the_test_button_queues_one_message(town: Town) -> None:
    hook = _hook(town.acorn)
    assert town.viewer.post(f"{PATH}/webhooks/{hook.id}/test").status_code == 403
    assert town.owner.post(f"{PATH}/webhooks/{hook.id}/test").status_code == 302
    with tenant_scope(town.acorn.tenant_id):
        assert [row.event for row in WebhookDelivery.objects.all()] == ["test"]


def test_another_tenants_webhook_is_absent(town: Town) -> None:
    hook = _hook(town.birch)
    assert town.owner.post(f"{PATH}/webhooks/{hook.id}/test").status_code == 404
    with tenant_scope(town.birch.tenant_id):
        assert WebhookDelivery.objects.count() == 0
