"""Keys in the console: issued once, shown once, revoked after a question."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenants.actor import system
from tenants.core import api_key
from tenants.core.errors import Conflict
from tenants.models import ApiKey, AuditEntry, Scope
from tenants.scoping import tenant_scope
from tenants.services import api_keys
from tests.console.rows import Town

pytestmark = pytest.mark.django_db


def _secret(page: str) -> str:
    found = re.search(r'id="secret" value="(sk-sr-[^"]+)"', page)
    assert found
    return found[1]


def test_a_key_is_issued_and_its_text_is_shown_this_once(town: Town) -> None:
    response = town.owner.post("/t/acorn/keys/new", {"name": "bot", "scope": "support", "expires": "30"})
    assert response.status_code == 200
    assert response.headers["Cache-Control"] == "private, no-store"
    secret = _secret(response.content.decode())
    with tenant_scope(town.acorn.tenant_id):
        key = ApiKey.objects.select_related("scope").get(name="bot")
        assert bytes(key.digest) == api_key.digest(secret)
        assert key.scope is not None
        assert key.scope.path == "support"
        assert key.expires_at is not None
        assert timedelta(days=29) < key.expires_at - timezone.now() <= timedelta(days=30)
        entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor_label, entry.peer_address) == ("api_key.issue", "owner@example.com", "127.0.0.1")
    later = town.owner.get("/t/acorn/keys").content.decode()
    assert secret not in later
    assert key.shown in later


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"name": ""}, 400, "This field is required."),
        ({"name": "x" * 101}, 400, "at most 100 characters"),
        ({"name": "app"}, 409, "This name is in use."),
        ({"name": "bad\u200bname"}, 400, "not allowed"),
        ({"name": "bot", "scope": "nowhere"}, 400, "There is no such scope."),
        ({"name": "bot", "expires": "7000"}, 400, "not one of the available choices"),
    ],
)
def test_a_mistake_is_said_at_its_field_and_nothing_is_issued(town: Town, fields: dict[str, str], status: int, said: str) -> None:
    response = town.owner.post("/t/acorn/keys/new", {"scope": "", "expires": "", **fields})
    assert response.status_code == status
    page = response.content.decode()
    assert said in page
    assert "sk-sr-" not in page
    with tenant_scope(town.acorn.tenant_id):
        assert ApiKey.objects.count() == 1


def test_revoking_asks_first_and_is_safe_to_repeat(town: Town) -> None:
    url = f"/t/acorn/keys/{town.acorn.key_id}/revoke"
    question = town.owner.get(url).content.decode()
    assert "Revoke key app?" in question
    assert "cannot be undone" in question
    fragment = town.owner.get(url, headers={"HX-Request": "true"}).content.decode()
    assert "Revoke key app?" in fragment
    assert "<html" not in fragment
    response = town.owner.post(url, {"reason": "leaked"}, follow=True)
    assert "Key app is revoked." in response.content.decode()
    with tenant_scope(town.acorn.tenant_id):
        first = ApiKey.objects.get(id=town.acorn.key_id).revoked_at
    assert town.owner.post(url).status_code == 302
    with tenant_scope(town.acorn.tenant_id):
        assert ApiKey.objects.get(id=town.acorn.key_id).revoked_at == first
        assert [entry.reason for entry in AuditEntry.objects.all()] == ["leaked"]


def test_a_viewer_is_offered_nothing_to_change(town: Town) -> None:
    page = town.viewer.get("/t/acorn/keys").content.decode()
    assert "app" in page
    assert "/keys/new" not in page
    assert "/revoke" not in page
    assert "Audit log" not in page


def _states(page: str) -> dict[str, str]:
    return dict(re.findall(r'<th scope="row" class="break">(\w+)</th>.*?<span class="pill \w*">(\w+)</span>', page, re.S))


def test_states_of_keys_are_told_apart(town: Town) -> None:
    now = timezone.now()
    quarter = now + timedelta(minutes=15)  # it ends as planned, which is nothing to be told of
    with tenant_scope(town.acorn.tenant_id):
        root = Scope.objects.get(path="")
        for name, expires_at, revoked_at in [
            ("soon", now + timedelta(days=3), None),
            ("quarter", quarter, None),
            ("gone", now - timedelta(days=1), None),
            ("dead", None, now),
        ]:
            ApiKey.objects.create(
                tenant_id=town.acorn.tenant_id,
                kind="inference",
                name=name,
                shown="sk-sr-x",
                digest=name.encode().ljust(32),
                scope=root,
                expires_at=expires_at,
                revoked_at=revoked_at,
            )
    page = town.owner.get("/t/acorn/keys?ended=1").content.decode()
    assert _states(page) == {"app": "active", "soon": "expiring", "quarter": "active", "gone": "expired", "dead": "revoked"}
    assert "2 of them have ended" in page
    shorter = town.owner.get("/t/acorn/keys").content.decode()
    assert _states(shorter) == {"app": "active", "soon": "expiring", "quarter": "active"}
    assert "Show 2 ended keys" in shorter
    with tenant_scope(town.acorn.tenant_id):
        ApiKey.objects.filter(name="gone").delete()
        ApiKey.objects.update(revoked_at=now)
    none = town.owner.get("/t/acorn/keys").content.decode()
    assert _states(none) == {}
    assert "No key in force" in none
    assert "Show 4 ended keys" in none
    assert "ended" not in town.stranger.get("/t/birch/keys").content.decode().split("<main")[1]


def test_a_long_list_costs_no_more_queries(town: Town) -> None:
    town.owner.get("/t/acorn/keys")  # the session is noted once
    with CaptureQueriesContext(connection) as few:
        town.owner.get("/t/acorn/keys")
    with tenant_scope(town.acorn.tenant_id):
        root = Scope.objects.get(path="")
        ApiKey.objects.bulk_create(
            ApiKey(tenant_id=town.acorn.tenant_id, kind="inference", name=f"k{n}", shown="x", digest=n.to_bytes(32, "big"), scope=root)
            for n in range(40)
        )
    with CaptureQueriesContext(connection) as many:
        assert "k39" in town.owner.get("/t/acorn/keys").content.decode()
    assert len(many) == len(few)


def test_the_first_key_of_a_tenant_is_taught(town: Town) -> None:
    with tenant_scope(town.acorn.tenant_id):
        ApiKey.objects.all().delete()
    page = town.owner.get("/t/acorn/keys").content.decode()
    assert "No key yet" in page
    assert "curl -X POST http://testserver/api/v1/keys" in page
    assert "curl" not in town.viewer.get("/t/acorn/keys").content.decode()


def test_a_key_is_rotated_and_its_new_text_is_shown_this_once(town: Town) -> None:
    """Id, name and scope stay, the digest is another's; a new end where one is chosen; a viewer does not, and a revoked key has no way back."""
    url = f"/t/acorn/keys/{town.acorn.key_id}/rotate"
    assert "Rotate key app?" in town.owner.get(url).content.decode()
    assert (town.viewer.get(url).status_code, town.viewer.post(url).status_code) == (403, 403)
    assert town.owner.post(url, {"expires": "7000"}).status_code == 400
    page = town.owner.post(url, {"expires": "90"}).content.decode()
    with tenant_scope(town.acorn.tenant_id):
        key = ApiKey.objects.get(id=town.acorn.key_id)
        assert (bytes(key.digest), key.name) == (api_key.digest(_secret(page)), "app")
        assert key.expires_at is not None
        assert timedelta(days=89) < key.expires_at - timezone.now() <= timedelta(days=90)
        first = key.expires_at
    assert _secret(page) not in town.owner.get("/t/acorn/keys").content.decode()
    assert _secret(town.owner.post(url, {"expires": "keep"}).content.decode()) != _secret(page)
    with tenant_scope(town.acorn.tenant_id):
        assert ApiKey.objects.get(id=town.acorn.key_id).expires_at == first
    town.owner.post(f"/t/acorn/keys/{town.acorn.key_id}/revoke")
    assert town.owner.post(url, {"expires": "keep"}).status_code == 409


def test_keys_that_end_soon_are_named_and_a_change_is_followed(town: Town) -> None:
    """The warning names the key while it still opens; after a change the page says who has applied it."""
    assert "within 14 days" not in town.owner.get("/t/acorn/keys").content.decode()
    with tenant_scope(town.acorn.tenant_id):
        ApiKey.objects.filter(id=town.acorn.key_id).update(expires_at=timezone.now() + timedelta(days=3))
    page = town.owner.get("/t/acorn/keys").content.decode()
    assert "1 key ends within 14 days: <strong>app</strong>" in page
    assert "The change is" not in page
    assert "The change is" in town.owner.get("/t/acorn/keys?changed=1").content.decode()


def test_what_is_shown_of_a_key_is_said_and_a_dialog_means_one_key(town: Town) -> None:
    """A short secret of one's own shows the prefix that all have: the list sends to the name, and the dialogs speak of the one key."""
    with tenant_scope(town.acorn.tenant_id):
        key = api_keys.declare_inference(
            tenant_id=town.acorn.tenant_id, actor=system("tests"), name="brought", own_secret="sk-sr-mine-mine-mine-mine", now=timezone.now()
        )[0]
    assert key.shown == "sk-sr-"
    listed = town.owner.get("/t/acorn/keys").content.decode()
    assert "a quarter of a secret of your own at most" in listed
    assert "the name tells keys apart" in listed
    for verb in ("rotate", "revoke"):
        asked = town.owner.get(f"/t/acorn/keys/{key.id}/{verb}").content.decode()
        assert "begins with <code>sk-sr-</code>" in asked
        assert "sk-sr-…" not in asked


def test_a_rotation_in_the_console_is_not_undone_by_a_declaration(town: Town) -> None:
    """The dialog says so, and the former text is refused for this key; the one that was shown is no change."""
    declare: dict[str, Any] = {"tenant_id": town.acorn.tenant_id, "actor": system("tests"), "name": "brought", "now": timezone.now()}
    own = "a-secret-of-my-own-0123456789"
    with tenant_scope(town.acorn.tenant_id):
        key = api_keys.declare_inference(**declare, own_secret=own)[0]
    url = f"/t/acorn/keys/{key.id}/rotate"
    assert "a declaration that still names it" in town.owner.get(url).content.decode()
    secret = _secret(town.owner.post(url, {"expires": "keep"}).content.decode())
    with tenant_scope(town.acorn.tenant_id):
        with pytest.raises(Conflict, match="This secret was replaced"):
            api_keys.declare_inference(**declare, own_secret=own)
        assert api_keys.declare_inference(**declare, own_secret=secret)[1] == []
