"""The capture panel of an endpoint: its empty state teaches, its buttons are for those who may, and it does what the API does."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.utils import timezone

from routing.models import TraceCapture
from tenants.models import AuditEntry
from tenants.scoping import tenant_scope
from tests.console.rows import Town
from tests.routing.services.captured import keep, record

pytestmark = pytest.mark.django_db


def path(town: Town, rest: str = "") -> str:
    return f"/t/acorn/endpoints/{town.acorn.endpoint_id}{rest}"


def switch_on(town: Town, days: str = "3", percent: str = "25") -> Any:
    return town.owner.post(path(town, "/capture"), {"days": days, "percent": percent})


def kept(town: Town) -> list[TraceCapture]:
    with tenant_scope(town.acorn.tenant_id):
        return list(TraceCapture.objects.order_by("began_at"))


def page(town: Town, who: Any) -> str:
    return str(who.get(path(town)).content.decode())


def test_the_empty_panel_teaches_and_offers(town: Town) -> None:
    """To an owner the switch, to a viewer whom to ask."""
    own, theirs = page(town, town.owner), page(town, town.viewer)
    for text in (own, theirs):
        assert "Trace capture" in text
        assert "keyed block ids, never what is said" in text
    assert "/capture" in own
    assert 'action="' not in own.split('id="capture"')[1].split("</section>")[0]
    assert "Owners and admins" in theirs
    assert path(town, "/capture") not in theirs


def test_on_off_and_delete(town: Town) -> None:
    asked = town.owner.get(path(town, "/capture")).content.decode()
    assert "made for this capture and deleted with it" in asked
    assert switch_on(town).status_code == 302
    (one,) = kept(town)
    assert (one.share, one.begun_by) == (0.25, "owner@example.com")
    keep(record(town.acorn.tenant_id, one.id, timezone.now()))
    text = page(town, town.owner)
    for said in ("25", "Switch off", "Download", "owner@example.com"):
        assert said in text
    assert town.owner.post(path(town, "/capture/off")).status_code == 302
    assert kept(town)[0].end_reason == "switched off"
    assert "1 request in 1 capture" in town.owner.get(path(town, "/capture/delete")).content.decode()
    assert town.owner.post(path(town, "/capture/delete")).status_code == 302
    assert kept(town)[0].seed is None
    assert "keyed block ids, never what is said" in page(town, town.owner)
    with tenant_scope(town.acorn.tenant_id):
        assert AuditEntry.objects.filter(action__startswith="capture.").count() == 3


@pytest.mark.parametrize(("days", "percent"), [("0", "10"), ("15", "10"), ("many", "10"), ("3", "0"), ("3", "101"), ("3", "some"), ("3", "nan")])
def test_a_wrong_form_comes_back_with_what_was_typed(town: Town, days: str, percent: str) -> None:
    answer = switch_on(town, days, percent)
    assert answer.status_code == 400
    assert f'value="{days}"' in answer.content.decode()
    assert 'class="wrong"' in answer.content.decode()
    assert kept(town) == []


def test_only_those_who_configure_may_switch(town: Town) -> None:
    """A viewer is refused, a stranger finds nothing; the owner's own is the control."""
    for rest in ("/capture", "/capture/off", "/capture/delete"):
        assert town.viewer.post(path(town, rest), {"days": "3", "percent": "10"}).status_code == 403
        assert town.stranger.post(path(town, rest), {"days": "3", "percent": "10"}).status_code == 404
    assert town.viewer.get(path(town, "/capture/export")).status_code == 403
    assert kept(town) == []
    assert switch_on(town).status_code == 302
    assert len(kept(town)) == 1


def test_the_file_is_the_api_s(town: Town) -> None:
    assert town.owner.get(path(town, "/capture/export")).status_code == 409
    switch_on(town)
    (one,) = kept(town)
    keep(record(town.acorn.tenant_id, one.id, timezone.now(), id=uuid.uuid4()))
    answer: Any = town.owner.get(path(town, "/capture/export"))
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    assert b'"hash_ids":[0,1,2]' in b"".join(answer.streaming_content)
