"""Stored cross-site scripting: names that are markup, stored through the services and sent in requests, and read on every page.

Values go in by the doors that people and engines have; a value that a service refuses is no danger, and which are refused is asserted, so that a rule
that is loosened later is noticed here.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern
from django.utils import timezone

from console import urls
from console.access import PersonPage, TenantPage
from tenants.actor import Actor, system
from tenants.core.errors import Invalid
from tenants.core.roles import Role
from tenants.models import User
from tenants.scoping import tenant_scope
from tenants.services import accounts, api_keys, invitations, provisioning
from tests.console import rows
from tests.console.rows import AsOwner, Town
from tests.console.test_walls import PATTERNS, _path

pytestmark = pytest.mark.django_db
SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(2)>'
QUOTE = "' onmouseover='alert(3)"
PAYLOADS = (SCRIPT, IMAGE, QUOTE)


class Markup(HTMLParser):
    """Collects what a browser would run: scripts without an address of ours, event attributes, addresses that are scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[str] = []
        self.tags = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags += 1
        named = dict(attrs)
        if tag == "script" and not (named.get("src") or "").startswith("/static/") and named.get("type") != "application/json":
            self.runs.append(f"<{tag}>")
        self.runs += [f"<{tag} {name}>" for name in named if name.startswith("on")]
        self.runs += [f"<{tag} {name}>" for name in ("href", "src", "action") if (named.get(name) or "").strip().lower().startswith("javascript:")]
        if tag == "img" and named.get("src") == "x":
            self.runs.append("<img x>")


def _runs(page: str) -> list[str]:
    parser = Markup()
    parser.feed(page)
    assert parser.tags > 10
    return parser.runs


def _furnish(town: Town, as_owner: AsOwner) -> Any:
    """Every kind of name is markup; returns the id of a stored decision. The tenant's rows are made straight where a service would ask an engine."""
    made, actor = town.acorn, Actor(kind="user", label=f"{SCRIPT}@example.com")
    owner, viewer = (User.objects.get(email=f"{name}@example.com") for name in ("owner", "viewer"))
    accounts.rename(user=owner, name=f"Ada {IMAGE}", actor=actor)
    accounts.rename(user=viewer, name=f"Vera {SCRIPT}", actor=actor)
    from routing.models import Endpoint, ModelSpec, Policy, Pool, Replica

    with tenant_scope(made.tenant_id):
        provisioning.rename(tenant_id=made.tenant_id, actor=actor, name=f"Acorn {SCRIPT}")
        now = timezone.now()
        for payload in PAYLOADS:
            api_keys.issue_inference(tenant_id=made.tenant_id, actor=actor, name=payload, now=now)
            api_keys.issue_control(tenant_id=made.tenant_id, actor=actor, name=payload, role="viewer", ceiling=Role.OWNER, now=now)
        for model in (Pool, Endpoint, ModelSpec):
            model._default_manager.update(name=f"x{IMAGE}")
        Policy.objects.filter(kind="slo").update(name=IMAGE)
        Replica.objects.filter(id=made.replica_ids[0]).update(name=f"a{SCRIPT}", isolation_reason=IMAGE)
        Endpoint.objects.update(served_model=SCRIPT, context={"org_policy": SCRIPT})
    record = rows.record(
        made, model=SCRIPT, endpoint=IMAGE, replica_name=f"a{SCRIPT}", router_id=IMAGE, namespace=SCRIPT, policy=QUOTE, route=SCRIPT, error_code=IMAGE
    )
    rows.store(as_owner, made, record)
    rows.audit_run(made, id=record.id, endpoint_name=IMAGE, pool_name=SCRIPT, replica_name=IMAGE, requested_by=SCRIPT)
    return record.id


def test_no_page_runs_what_was_stored(town: Town, as_owner: AsOwner) -> None:
    """Every page of the tenant, of the person and of the platform; the control is that the values are on the pages, as text."""
    stored = _furnish(town, as_owner)
    shown = set()
    for pattern in PATTERNS:
        path = _path(pattern, town.acorn, stored)
        for client in (town.owner, town.operator):
            response = client.get(path)
            if response.status_code == 405 or not response.headers["Content-Type"].startswith("text/html"):
                continue
            page = response.content.decode()
            if "<html" not in page:
                page = f"<html>{'<p></p>' * 12}{page}"
            assert _runs(page) == [], path
            shown |= {payload for payload in PAYLOADS if _as_text(payload) in page}
    own = ["/account", "/tenants", "/account/second-factor/off", "/account/recovery-codes"]
    for client, paths in (
        (town.owner, own),
        (town.operator, ["/platform/", "/platform/pools", "/platform/isolation", "/platform/routers", "/tenants"]),
    ):
        for path in paths:
            assert _runs(client.get(path).content.decode()) == [], path
    assert shown == set(PAYLOADS)


def _as_text(payload: str) -> str:
    from django.utils.html import escape

    return str(escape(payload))


def test_the_search_finds_what_it_looks_for() -> None:
    filler = "<p></p>" * 12
    for bad in (SCRIPT, '<img src=x onerror="alert(2)">', "<a onmouseover='x'>", '<a href=" JavaScript:alert(1)">', f'<input value="{IMAGE}">'):
        assert _runs(filler + bad) != []
    assert _runs(filler + '<script src="/static/console/console.js" defer></script>' + _as_text(SCRIPT)) == []


def test_pages_without_a_tenant_are_all_looked_at() -> None:
    """So that a new one is added above."""
    views = {
        str(one.name)
        for one in urls.urlpatterns
        if isinstance(one, URLPattern)
        and issubclass(getattr(one.callback, "view_class", object), PersonPage)
        and not issubclass(getattr(one.callback, "view_class", object), TenantPage)
        and "get" in dir(one.callback.view_class)  # type: ignore[attr-defined]  # set by View.as_view
    }
    looked_at = {"account", "second_factor_off", "recovery_codes", "platform", "platform_pools", "platform_isolation", "platform_routers"}
    assert views - looked_at == {"second_factor", "platform_suspend"}  # show a QR code and a slug alone


def test_an_invitation_shows_names_as_text(town: Town) -> None:
    with tenant_scope(town.acorn.tenant_id):
        provisioning.rename(tenant_id=town.acorn.tenant_id, actor=system("tests"), name=SCRIPT)
        made = invitations.invite(
            tenant_id=town.acorn.tenant_id,
            actor=Actor(kind="user", label=IMAGE),
            email="new@example.com",
            role="viewer",
            ceiling=Role.OWNER,
            now=timezone.now(),
            show_link=True,
        )
    client = Client()
    client.get("/" + (made.link or "").split("/", 3)[3])
    page = client.get("/invitation/accept").content.decode()
    assert _as_text(SCRIPT) in page
    assert _runs(page) == []


@pytest.mark.parametrize("value", [f"{SCRIPT}@example.com", f"a@{SCRIPT}", '"<img src=x>"@example.com'])
def test_an_address_is_no_markup(value: str) -> None:
    with pytest.raises(Invalid):
        accounts.normal_email(value)


@pytest.mark.parametrize("value", [*PAYLOADS, "a b", "A"])
def test_a_slug_is_no_markup(value: str) -> None:
    with pytest.raises(Invalid):
        provisioning.create(actor=system("tests"), slug=value, name="x")


def test_what_is_typed_comes_back_as_text(town: Town) -> None:
    """In forms that are refused, searches and filters."""
    posts = [("/t/acorn/members/invite", {"email": IMAGE, "role": SCRIPT}), ("/t/acorn/keys/new", {"name": IMAGE * 9, "scope": SCRIPT})]
    for path, fields in posts:
        assert _runs(town.owner.post(path, fields).content.decode()) == []
    assert _runs(town.operator.post("/platform/", {"slug": IMAGE, "name": SCRIPT, "owner": QUOTE}).content.decode()) == []
    assert _runs(Client().post("/login", {"email": IMAGE, "password": "x", "next": f"/{IMAGE}"}).content.decode()) == []
    assert _runs(Client().post("/reset/ask", {"email": IMAGE}).content.decode()) == []
    for path in ("/tenants", "/platform/", "/t/acorn/audit", "/t/acorn/decisions", "/t/acorn/usage", "/t/acorn"):
        query = dict.fromkeys(("q", "action", "before", "after", "range", "outcome", "endpoint", "model"), IMAGE)
        assert _runs(town.operator.get(path, query).content.decode()) == [], path
    assert re.search("lt;img", town.operator.get("/tenants", {"q": IMAGE}).content.decode())
