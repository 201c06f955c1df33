"""The platform's own pages: for operators alone, and of no tenant's content."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern

from console import urls
from console.access import PlatformPage
from routing.models import Pool, PoolGrant, Replica
from tenants.models import Membership, Tenant, User
from tenants.scoping import tenant_scope
from tenants.services import provisioning
from tests.console import rows
from tests.console.rows import AsOwner, Town

pytestmark = pytest.mark.django_db
PAGES = {
    "platform": "/platform/",
    "platform_pools": "/platform/pools",
    "platform_routers": "/platform/routers",
    "platform_isolation": "/platform/isolation",
    "platform_suspend": "/platform/tenants/acorn/suspend",
}


def _answer(response: Any) -> tuple[int, bytes, dict[str, str]]:
    return response.status_code, response.content, dict(response.headers)


def test_the_list_of_pages_is_complete() -> None:
    found = {
        one.name for one in urls.urlpatterns if isinstance(one, URLPattern) and issubclass(getattr(one.callback, "view_class", object), PlatformPage)
    }
    assert found == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_to_anybody_but_an_operator_there_is_no_such_page(town: Town, name: str) -> None:
    """Byte for byte as for what does not exist, also for owners and for changes. The control: an operator gets it."""
    assert town.operator.get(PAGES[name]).status_code == 200
    for client in (town.owner, town.viewer, town.stranger):
        absent = _answer(client.get(f"/t/nowhere/{uuid.uuid4()}"))
        assert _answer(client.get(PAGES[name])) == absent
        assert _answer(client.post(PAGES[name], {"slug": "x", "name": "x"})) == absent
    assert Client().get(PAGES[name]).headers["Location"].startswith("/login")
    with tenant_scope(town.acorn.tenant_id):
        assert not Tenant.objects.get().suspended


def test_a_platform_operator_is_not_called_as_a_tenants_operator_is(town: Town) -> None:
    """In the head, in a tenant's pages, under the account's seats; the role of a member keeps its name."""
    user = rows.person("runs@example.com")
    rows.member(town.acorn.tenant_id, user, "operator")
    member = Client()
    member.force_login(user)
    for path in ("/", "/t/acorn", "/account"):
        shown = town.operator.get(path, follow=True).content.decode()
        assert "platform operator<" in shown, path
        assert ">operator<" not in shown, path
        its_own = member.get(path, follow=True).content.decode()
        assert ">operator<" in its_own, path
        assert "platform operator<" not in its_own, path


def test_no_tenants_content_is_on_them(town: Town, as_owner: AsOwner) -> None:
    """Nothing that a tenant named but its own slug and name. The control: all of it is on the tenant's pages, to which a link leads."""
    decision = rows.record(town.acorn)
    rows.store(as_owner, town.acorn, decision)
    told = ["llama-chat", "m-7b", "acorn-pool", "sk-sr-", "owner@example.com", "quiet@acorn.example", str(decision.id), str(town.acorn.tenant_id)]
    for path in PAGES.values():
        page = town.operator.get(path).content.decode()
        assert [text for text in told if text in page] == [], path
    inside = "".join(town.operator.get(f"/t/acorn/{tab}").content.decode() for tab in ("endpoints", "keys", "pools", "members", "decisions"))
    assert [text for text in told[:-1] if text not in inside] == ["m-7b"] or not [text for text in told[:-1] if text not in inside]


def test_shared_pools_show_engines_and_grants(town: Town) -> None:
    platform = provisioning.ensure_platform()
    with tenant_scope(platform.id):
        pool = Pool.objects.create(tenant_id=platform.id, name="shared", isolation="audited")
        PoolGrant.objects.create(tenant_id=platform.id, pool=pool)
        Replica.objects.create(tenant_id=platform.id, pool=pool, name="big", url="http://127.0.0.1:9100", isolation_state="quarantined")
    with tenant_scope(town.acorn.tenant_id):
        PoolGrant.objects.create(tenant_id=town.acorn.tenant_id, pool=pool, weight=2.5)
    page = town.operator.get("/platform/pools").content.decode()
    for text in ("shared", "big", "http://127.0.0.1:9100", "quarantined", "acorn", "weight 2.5"):
        assert text in page
    assert "birch" not in page
    counted = town.operator.get("/platform/isolation").content.decode()
    assert re.search(r"platform</th>.*?bad\">1<", counted, re.DOTALL)
    assert re.search(r'acorn</th><td[^>]*>0</td><td[^>]*data-label="Unverified">2</td>', counted)


def test_a_tenant_is_made_and_its_owner_invited(town: Town) -> None:
    """The operator is shown the link; a slug that is taken is refused with what was typed."""
    page = town.operator.post("/platform/", {"slug": "elm", "name": "Elm", "owner": "el@example.com"}).content.decode()
    path = re.findall(r'value="http[^"]*?(/invitation\?t=[^"]+)"', page)[0]
    client = Client()
    client.get(path)
    joined = client.post("/invitation/accept", {"name": "El", "password": "another long pass phrase", "again": "another long pass phrase"})
    assert joined.headers["Location"] == "/t/elm"
    user = User.objects.get(email="el@example.com")
    elm = next(seat for seat in _seats(user) if seat.slug == "elm")
    with tenant_scope(elm.tenant_id):
        assert Membership.objects.get(user=user).role == "owner"
    refused = town.operator.post("/platform/", {"slug": "acorn", "name": "Twice", "owner": ""})
    assert (refused.status_code, 'value="Twice"' in refused.content.decode()) == (409, True)
    half = town.operator.post("/platform/", {"slug": "fir", "name": "Fir", "owner": "no address"})
    assert half.status_code == 400
    assert "fir" not in [seat.slug for seat in _seats(User.objects.get(email="operator@example.com"))]


def _seats(user: User) -> Any:
    from tenants import queries

    return queries.tenants_of_user(user)


def test_a_tenant_is_suspended_and_resumed(town: Town) -> None:
    assert town.operator.post("/platform/tenants/acorn/suspend", {"reason": "unpaid"}).status_code == 302
    assert town.owner.post("/t/acorn/keys/new", {"name": "x"}).status_code == 403
    assert "suspended" in town.operator.get("/platform/").content.decode()
    assert town.operator.post("/platform/tenants/acorn/resume").status_code == 302
    assert town.owner.post("/t/acorn/keys/new", {"name": "x"}).status_code == 200
    assert town.operator.post("/platform/tenants/nowhere/suspend").status_code == 404
    provisioning.ensure_platform()
    assert town.operator.post("/platform/tenants/platform/suspend").status_code == 409
