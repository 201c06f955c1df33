"""Who may call at all: every bad credential gets one and the same 401."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenants.core.api_key import Kind
from tenants.core.roles import Role
from tenants.models import ApiKey, Tenant
from tenants.scoping import current
from tenants.services import accounts, api_keys, key_use, members
from tests.tenants.houses import ROOT, Api, House, signed_in


def test_both_schemes_and_both_spellings_of_a_route_work(acorn: House) -> None:
    """Bearer and Token, in any case, with and without the trailing slash."""
    token = acorn.tokens[Role.VIEWER]
    for scheme in ("Bearer", "Token", "bearer", "TOKEN"):
        assert Api().get("keys", Authorization=f"{scheme} {token}").status_code == 200
    assert Api(token=token).get("keys/").content == Api(token=token).get("keys").content


def test_every_bad_credential_gets_the_same_401(acorn: House, birch: House) -> None:
    """None, unknown, malformed, not ASCII, revoked, expired, an inference key, of a deleted tenant: same bytes, same headers."""
    revoked, expired = acorn.token_ids[Role.VIEWER], acorn.token_ids[Role.OPERATOR]
    with acorn.scope():
        ApiKey.objects.filter(id=revoked).update(revoked_at=timezone.now())
        ApiKey.objects.filter(id=expired).update(expires_at=timezone.now() - timedelta(seconds=1))
    with birch.scope():
        Tenant.objects.filter(id=birch.id).update(deleted_at=timezone.now())
    inference = acorn.key().secret
    presented = [
        None,
        "Bearer",
        "Bearer ",
        "Bearer srct-" + "x" * 43,
        "Basic " + acorn.tokens[Role.OWNER],
        acorn.tokens[Role.OWNER],
        "Bearer ключ-ключ-ключ-ключ-ключ",
        "Bearer " + "é" * 40,
        "Bearer " + "a" * 100_000,
        f"Bearer {acorn.tokens[Role.OWNER]}x",
        f"Bearer {acorn.tokens[Role.VIEWER]}",
        f"Bearer {acorn.tokens[Role.OPERATOR]}",
        f"Bearer {birch.tokens[Role.OWNER]}",
        f"Bearer {inference}",
    ]
    answers = [Api().get("keys", **({} if header is None else {"Authorization": header})) for header in presented]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.content for answer in answers}) == 1
    assert len({tuple(sorted(answer.headers.items())) for answer in answers}) == 1
    assert answers[0].headers["WWW-Authenticate"] == 'Bearer realm="saltroute"'
    assert answers[0].json()["error"]["code"] == "unauthenticated"
    assert acorn.api().get("keys").status_code == 200


def test_a_bad_token_is_not_saved_by_a_session(acorn: House) -> None:
    """A request that presents a token is judged by it alone."""
    api = signed_in(accounts.create(email="op@salt.example", password=None, platform_operator=True))
    assert api.get("me").status_code == 200
    assert api.get("me", Authorization="Bearer srct-" + "x" * 43).status_code == 401


def test_last_use_is_written_at_most_once_a_minute(acorn: House) -> None:
    """The first use writes, the next does not, one a minute later does again."""
    secret, token_id, now = acorn.tokens[Role.VIEWER], acorn.token_ids[Role.VIEWER], timezone.now()
    stamps = []
    for after_s in (0, 30, 59, 61):
        assert key_use.authenticate_control(secret, now=now + timedelta(seconds=after_s)) is not None
        with acorn.scope():
            stamps.append(ApiKey.objects.get(id=token_id).last_used_at)
    assert stamps == [now, now, now, now + timedelta(seconds=61)]
    with CaptureQueriesContext(connection) as queries:
        key_use.authenticate_control(secret, now=now + timedelta(seconds=62))
    assert not [query for query in queries if query["sql"].startswith("UPDATE")]
    assert current() is None


def test_a_platform_mark_outside_the_platforms_tenant_opens_nothing(acorn: House) -> None:
    """Were such a row ever written, it would not make a tenant's token an operator's."""
    with acorn.scope():
        ApiKey.objects.filter(id=acorn.token_ids[Role.OWNER]).update(platform=True)
    assert acorn.api().get("me").status_code == 401


@pytest.mark.parametrize("kind", list(Kind))
def test_the_prefix_of_a_key_decides_nothing(acorn: House, kind: Kind) -> None:
    """A key that the operator brought may look like nothing at all; only the row's kind counts."""
    own = "operators-own-secret-of-some-length"
    with acorn.scope():
        if kind is Kind.CONTROL:
            api_keys.issue_control(tenant_id=acorn.id, actor=ROOT, name="own", role="viewer", ceiling=Role.OWNER, own_secret=own, now=timezone.now())
        else:
            api_keys.issue_inference(tenant_id=acorn.id, actor=ROOT, name="own", own_secret=own, now=timezone.now())
    assert Api(token=own).get("keys").status_code == (200 if kind is Kind.CONTROL else 401)


def test_a_session_needs_the_csrf_token_to_change_anything(acorn: House) -> None:
    """Reading does not; a change without or with a wrong token is 403 and changes nothing."""
    person = accounts.create(email="p@oak.example", password=None)
    with acorn.scope():
        members.add(tenant_id=acorn.id, actor=ROOT, email=person.email, role="admin", ceiling=Role.OWNER)
    api = signed_in(person)
    bare = Api(client=api.client)
    assert bare.get("keys").status_code == 200
    assert bare.post("keys", {"name": "x"}).status_code == 403
    assert bare.post("keys", {"name": "x"}, X_CSRFToken="d" * 32).status_code == 403
    assert api.get("keys").json()["results"] == []
    made = api.post("keys", {"name": "x"})
    assert (made.status_code, made.json()["created_by"]) == (201, "p@oak.example")


def test_an_inactive_person_is_nobody(acorn: House) -> None:
    """Their open session ends with the account."""
    person = accounts.create(email="op@salt.example", password=None, platform_operator=True)
    api = signed_in(person)
    person.is_active = False
    person.save()
    assert api.get("me").status_code == 401


def test_the_peer_address_is_the_sockets(acorn: House) -> None:
    """A forwarding header is a claim; the log has the socket's peer."""
    api = acorn.api()
    api.client = Client(REMOTE_ADDR="192.0.2.7")
    api.post("scopes", {"path": "support"}, X_Forwarded_For="203.0.113.9")
    assert acorn.log("scope.create")[0].peer_address == "192.0.2.7"
