"""A text that a key had before opens nothing again: whichever key, tenant or kind it is brought for, and while it is being replaced too."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from tenants.actor import system
from tenants.core import api_key
from tenants.core.api_key import Kind
from tenants.core.errors import Conflict, LimitReached, Refusal
from tenants.core.roles import Role
from tenants.models import ApiKey, FormerText, Tenant
from tenants.queries import snapshot_keys
from tenants.scoping import tenant_scope
from tenants.services import api_keys, former_texts, locks, provisioning

ACTOR = system("tests")
OWN, OTHER = "an-operators-own-secret-key-0001", "another-secret-of-the-operator"


def _tenant(slug: str = "acorn") -> Tenant:
    return provisioning.create(actor=ACTOR, slug=slug, name=slug)


def _declare(tenant: Tenant, own_secret: str | None = OWN, name: str = "app", **options: Any) -> list[str]:
    with tenant_scope(tenant.id):
        return api_keys.declare_inference(tenant_id=tenant.id, actor=ACTOR, name=name, own_secret=own_secret, now=timezone.now(), **options)[1]


def _rotate(tenant: Tenant, name: str = "app", kind: Kind = Kind.INFERENCE, own_secret: str | None = None) -> str:
    with tenant_scope(tenant.id):
        key = ApiKey.objects.get(name=name, kind=kind.value, revoked_at=None)
        issued = api_keys.rotate(
            tenant_id=tenant.id, actor=ACTOR, kind=kind, key_id=key.id, ceiling=Role.OWNER, own_secret=own_secret, now=timezone.now()
        )
    return issued.secret or ""


def _opening(tenant: Tenant) -> set[bytes]:
    """Digests of what opens the data plane, as routers learn it."""
    with tenant_scope(tenant.id):
        return {entry.digest for entry in snapshot_keys(tenant.id, timezone.now())}


@pytest.mark.django_db
def test_a_replaced_text_is_refused_and_the_one_in_force_is_no_change() -> None:
    """The refusal says of which key, since when and what to do; what is in force stays, and other texts go on being taken."""
    tenant = _tenant()
    _declare(tenant)
    text = _rotate(tenant)
    with pytest.raises(Conflict) as refused:
        _declare(tenant)
    assert refused.value.field == "secret"
    assert refused.value.message.startswith("This secret was replaced: this key got another text on ")
    assert refused.value.message.endswith("Name another one, or `stored` to keep the one in force.")
    assert _opening(tenant) == {api_key.digest(text)}
    assert _declare(tenant, text) == []
    assert _declare(tenant, OTHER) == ["secret"]
    for former in (OWN, text):
        with pytest.raises(Conflict):
            _declare(tenant, former)
    assert _opening(tenant) == {api_key.digest(OTHER)}


@pytest.mark.django_db
def test_no_other_key_gets_it_either() -> None:
    """Under another name, through another key's rotation, after the key was revoked; a text that nobody had is taken."""
    tenant = _tenant()
    _declare(tenant)
    _rotate(tenant)
    _declare(tenant, OTHER, name="second")
    with pytest.raises(Conflict, match="the key app got another text") as refused:
        _declare(tenant, name="third")
    assert "stored" not in refused.value.message  # there is none yet
    with pytest.raises(Conflict):
        _rotate(tenant, "second", own_secret=OWN)
    with tenant_scope(tenant.id):
        key = ApiKey.objects.get(name="app")
        api_keys.revoke(tenant_id=tenant.id, actor=ACTOR, kind=Kind.INFERENCE, key_id=key.id, ceiling=Role.OWNER, now=timezone.now())
    with pytest.raises(Conflict):
        _declare(tenant)
    assert _declare(tenant, "a-third-secret-of-the-operator", name="third") == ["issued"]
    assert api_key.digest(OWN) not in _opening(tenant)


@pytest.mark.django_db
def test_no_other_tenant_gets_it_and_none_is_told_whose_it_was() -> None:
    """The answer is that of a text that another tenant's key has now."""
    tenant, other = _tenant(), _tenant("birch")
    _declare(tenant)
    with pytest.raises(Conflict) as held:
        _declare(other)
    _rotate(tenant)
    with pytest.raises(Conflict) as replaced:
        _declare(other)
    assert (replaced.value.message, replaced.value.field) == (held.value.message, held.value.field)
    assert _opening(other) == set()
    with tenant_scope(other.id):
        assert FormerText.objects.count() == 0
    with tenant_scope(tenant.id):
        assert FormerText.objects.count() == 1  # it is there, so the zero above means isolation


@pytest.mark.django_db
def test_a_tokens_former_text_is_kept_too() -> None:
    tenant = _tenant()
    with tenant_scope(tenant.id):
        first = api_keys.issue_control(tenant_id=tenant.id, actor=ACTOR, name="ci", role="viewer", ceiling=Role.OWNER, now=timezone.now()).secret
    _rotate(tenant, "ci", Kind.CONTROL)
    with pytest.raises(Conflict), tenant_scope(tenant.id):
        api_keys.issue_control(tenant_id=tenant.id, actor=ACTOR, name="ci2", role="viewer", ceiling=Role.OWNER, own_secret=first, now=timezone.now())


@pytest.mark.django_db
def test_a_declaration_that_keeps_the_secret_changes_the_rest() -> None:
    """``None`` stands for `stored`: scope, endpoints and expiry follow, the text stays; where no text is, it is refused."""
    tenant = _tenant()
    _declare(tenant)
    text = _rotate(tenant)
    assert _declare(tenant, None, expires_at=timezone.now() + timedelta(days=1)) == ["expires_at"]
    assert _opening(tenant) == {api_key.digest(text)}
    with pytest.raises(Refusal, match="no stored secret"):
        _declare(tenant, None, name="second")


@pytest.mark.django_db
def test_nothing_is_forgotten_at_the_bound_and_the_key_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next rotation is refused with the limit's name; the key goes on with the text it has, and a new one of its name is issued."""
    monkeypatch.setattr(former_texts, "MAX_FORMER_TEXTS_PER_KEY", 2)
    tenant = _tenant()
    _declare(tenant)
    texts = [OWN, *(_rotate(tenant) for _ in range(2))]
    with pytest.raises(LimitReached, match="MAX_FORMER_TEXTS_PER_KEY"):
        _rotate(tenant)
    assert _opening(tenant) == {api_key.digest(texts[-1])}
    with pytest.raises(Conflict):
        _declare(tenant, OWN)
    with tenant_scope(tenant.id):
        key = ApiKey.objects.get(name="app")
        api_keys.revoke(tenant_id=tenant.id, actor=ACTOR, kind=Kind.INFERENCE, key_id=key.id, ceiling=Role.OWNER, now=timezone.now())
    assert _declare(tenant, OTHER) == ["issued"]
    assert _rotate(tenant)


@pytest.mark.django_db
def test_the_control_plane_cannot_forget_one() -> None:
    """It may write these rows and read its tenant's, neither change nor delete them."""
    tenant = _tenant()
    _declare(tenant)
    _rotate(tenant)
    with tenant_scope(tenant.id):
        (row,) = FormerText.objects.all()
        assert bytes(row.digest) == api_key.digest(OWN)
        for statement in ("DELETE FROM tenants_formertext", "UPDATE tenants_formertext SET digest = ''"):
            with pytest.raises(DatabaseError, match="permission denied"), transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(statement)


@pytest.mark.django_db(transaction=True)
def test_a_text_that_is_being_replaced_goes_to_nobody() -> None:
    """Another tenant that brings it meanwhile waits for the rotation, and is then refused as if it had come a day later."""
    tenant, other = _tenant(), _tenant("birch")
    _declare(tenant)
    outcome: list[str] = []

    def second() -> None:
        try:
            _declare(other)
            outcome.append("issued")
        except Refusal as refusal:
            outcome.append(refusal.message)
        finally:
            connection.close()

    thread = threading.Thread(target=second)
    with transaction.atomic():
        _rotate(tenant)
        thread.start()
        _until_somebody_waits()
        assert outcome == []
    thread.join(timeout=30)
    assert outcome == ["This key cannot be used: choose another."]
    assert _opening(other) == set()


@pytest.mark.django_db(transaction=True)
def test_a_rotation_and_a_declaration_of_one_key_wait_in_turn() -> None:
    """The rotation that comes second holds nothing that the declaration needs; each finds what the one before left, and keeps it."""
    tenant = _tenant()
    _declare(tenant)
    outcome: list[str] = []

    def second() -> None:
        try:
            outcome.append(_rotate(tenant))
        finally:
            connection.close()

    thread = threading.Thread(target=second)
    with tenant_scope(tenant.id):
        locks.tenant(tenant.id)
        thread.start()
        _until_somebody_waits()
        assert _declare(tenant, OTHER) == ["secret"]
    thread.join(timeout=30)
    assert _opening(tenant) == {api_key.digest(text) for text in outcome}
    with tenant_scope(tenant.id):
        assert {bytes(row.digest) for row in FormerText.objects.all()} == {api_key.digest(text) for text in (OWN, OTHER)}


def _until_somebody_waits() -> None:
    for _ in range(100_000):
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted")
            if cursor.fetchone()[0]:
                return
    pytest.fail("nobody waited for the text")
