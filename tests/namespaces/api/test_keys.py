"""The API of keys: asked for, shown, never opened here."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from namespaces.core import keyring
from namespaces.core.keyring import Roots
from namespaces.models import KeyOperation, TenantKeyVersion
from namespaces.services import keys, operations
from tenants.core.roles import Role
from tenants.models import PLATFORM_SLUG
from tenants.queries import tenant_id_of
from tenants.scoping import tenant_scope
from tests.tenants.houses import ABSENT, ROOT, Api, House, house, platform_api

OLD, NEW = b"o" * 32, b"n" * 32
BOTH = Roots((NEW, OLD))

pytestmark = pytest.mark.django_db


@pytest.fixture
def acorn(settings: Any) -> House:
    """A tenant with a key; this process holds no root key, as the web does not."""
    settings.ROOT = ()
    made = house("acorn")
    with made.scope():
        keys.provision(tenant_id=made.id, actor=ROOT, root=OLD)
    return made


@pytest.fixture
def birch() -> House:
    return house("birch")


@pytest.fixture
def platform() -> Api:
    return platform_api()


def _do(tenant_id: Any, operation_id: str) -> None:
    operations.perform(tenant_id=tenant_id, operation_id=UUID(operation_id), roots=BOTH, go_on=lambda: True)


def test_a_rotation_is_accepted_done_elsewhere_and_shown(acorn: House) -> None:
    """202 with the row; the second request is answered with the same; the new version when the worker has done it; who asked and why."""
    api = acorn.api()
    asked = api.post("tenant-key/rotate", {"reason": "a laptop was lost"})
    assert asked.status_code == 202, asked.content
    body = asked.json()
    assert (body["kind"], body["state"], body["requested_by"], body["from_version"]) == ("rotate_tenant", "requested", "owner-token", 1)
    assert "config_version" in body
    assert api.post("tenant-key/rotate", {"reason": "again"}).json()["id"] == body["id"]
    assert api.get("tenant-key").json()["version"] == 1
    _do(acorn.id, body["id"])
    shown = api.get(f"key-operations/{body['id']}").json()
    assert (shown["state"], shown["to_version"], shown["reason"]) == ("done", 2, "a laptop was lost")
    held = api.get("tenant-key/").json()
    assert held["version"] == 2
    assert [(one["version"], one["retired_at"] is None) for one in held["versions"]] == [(2, True), (1, False)]
    assert [row["id"] for row in api.get("key-operations").json()["results"]] == [body["id"]]
    (entry,) = acorn.log("tenant_key.rotate")
    assert (entry.actor_kind, entry.actor_label, entry.reason) == ("token", "owner-token", "a laptop was lost")


@pytest.mark.parametrize("body", [{}, {"reason": ""}, {"reason": 7}, {"reason": "x" * 501}, {"reason": "ok", "extra": 1}, [], None])
def test_a_malformed_request_changes_nothing(acorn: House, body: Any) -> None:
    answer = acorn.api().post("tenant-key/rotate", body)
    assert answer.status_code == 400
    with acorn.scope():
        assert KeyOperation.objects.count() == 0


def test_roles(acorn: House) -> None:
    """A viewer reads; who may not configure does not rotate; nobody without a token does anything."""
    for role, expected in ((Role.VIEWER, 403), (Role.OPERATOR, 403), (Role.ADMIN, 202)):
        assert acorn.api(role).post("tenant-key/rotate", {"reason": "why"}).status_code == expected
    for path in ("tenant-key", "key-operations"):
        assert acorn.api(Role.VIEWER).get(path).status_code == 200
        assert Api().get(path).status_code == 401
    assert Api().post("tenant-key/rotate", {"reason": "why"}).status_code == 401
    assert acorn.api().delete("tenant-key").status_code == 405


def test_absent_and_anothers_operation_are_one_answer(acorn: House, birch: House) -> None:
    row = acorn.api().post("tenant-key/rotate", {"reason": "why"}).json()["id"]
    answers = [birch.api().get(f"key-operations/{reference}") for reference in (row, ABSENT, "not-an-id")]
    assert {(answer.status_code, answer.content) for answer in answers} == {(404, answers[0].content)}
    assert birch.api().get("key-operations").json()["results"] == []
    assert birch.api().get("tenant-key").json() == {"version": None, "versions": []}
    assert birch.api().post("tenant-key/rotate", {"reason": "none yet"}).status_code == 409


def test_the_root_is_the_platforms(acorn: House, platform: Api, settings: Any, valkey_url: str) -> None:
    """Its id and its rotation are for platform operators; the row lives in the platform's tenant and shows progress there."""
    settings.SEAL_PUBLIC_KEY = keyring.seal_public_key(NEW)
    for call in (acorn.api().get("root-key"), acorn.api().post("root-key/rotate", {"reason": "why"})):
        assert call.status_code == 403
    root = keyring.root_id(settings.SEAL_PUBLIC_KEY)
    assert platform.get("root-key").json() == {"root": root}
    asked = platform.post("root-key/rotate", {"reason": "yearly"})
    assert asked.status_code == 202
    body = asked.json()
    assert (body["kind"], body["root"], body["state"]) == ("rotate_root", root, "requested")
    with tenant_scope(acorn.id):
        assert KeyOperation.objects.count() == 0
    home = tenant_id_of(PLATFORM_SLUG)
    assert home is not None
    with tenant_scope(home):
        assert KeyOperation.objects.get().actor_label == "operator"
    _do(home, body["id"])
    shown = platform.get(f"key-operations/{body['id']}").json()
    assert (shown["state"], shown["counts"]["keys"], shown["tenants_done"]) == ("done", 1, shown["tenants_total"])
    assert acorn.api().get("tenant-key").json()["version"] == 1  # re-wrapped, not rotated
    with acorn.scope():
        Roots((NEW,)).unwrap(acorn.id, 1, bytes(TenantKeyVersion.objects.get().wrapped))


def test_without_a_public_half_the_root_cannot_be_named(platform: Api, settings: Any) -> None:
    settings.SEAL_PUBLIC_KEY = None
    assert platform.get("root-key").json() == {"root": None}
    assert platform.post("root-key/rotate", {"reason": "why"}).status_code == 503


def test_no_answer_holds_key_material(acorn: House, platform: Api) -> None:
    """Neither the wrapped nor the opened key, in any spelling."""
    _do(acorn.id, acorn.api().post("tenant-key/rotate", {"reason": "why"}).json()["id"])
    with acorn.scope():
        rows = list(TenantKeyVersion.objects.all())
    kept = [bytes(row.wrapped) for row in rows] + [BOTH.unwrap(acorn.id, row.version, bytes(row.wrapped)).secret for row in rows]
    told = b"".join(acorn.api().get(path).content for path in ("tenant-key", "key-operations", "audit-log")) + platform.get("root-key").content
    assert not [value for value in (*kept, OLD, NEW) if value in told or value.hex().encode() in told]
