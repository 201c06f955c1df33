"""Walls between tenants in the console: every URL of the resolver, opened by those it is not for.

The URLs come from the resolver and their ids from one tenant's rows, so a page added later is walked without a word here; one that takes a new kind
of id names it in ``IDS``.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern

from console import urls
from console.access import TenantPage
from tenants.models import AuditEntry
from tenants.scoping import tenant_scope
from tests.console import rows
from tests.console.rows import AsOwner, Made, Town

pytestmark = pytest.mark.django_db
NAMESPACE = "ns-1f2e3d"  # of the stored decision
# What a group of a URL stands for, in a tenant that has one of everything. A URL whose object is made elsewhere may be absent for its owner too.
IDS: dict[str, Callable[[Made, uuid.UUID], object]] = {
    "slug": lambda made, _: made.slug,
    "namespace": lambda *_: NAMESPACE,
    "endpoint_id": lambda made, _: made.endpoint_id,
    "policy_id": lambda made, _: made.policy_id,
    "key_id": lambda made, _: made.key_id,
    "replica_id": lambda made, _: made.replica_ids[0],
    "member_id": lambda made, _: made.member_id,
    "invitation_id": lambda made, _: made.invitation_id,
    "quota_id": lambda made, _: made.quota_id,
    "decision_id": lambda _, stored: stored,
    "run_id": lambda _, stored: stored,
    "check_id": lambda _, stored: stored,
    "job_id": lambda _, stored: stored,
    "version": lambda *_: 1,
}
PATTERNS = [one for one in urls.urlpatterns if isinstance(one, URLPattern) and issubclass(getattr(one.callback, "view_class", object), TenantPage)]
NAMES = [str(one.name) for one in PATTERNS]


def _path(pattern: URLPattern, made: Made, stored: uuid.UUID) -> str:
    """A path that the pattern matches, with the tenant's own ids in it."""
    text = str(pattern.pattern).removeprefix("^").removesuffix("/?$")

    def value(group: re.Match[str]) -> str:
        name, inside = group["name"], group["inside"]
        if name in IDS:
            return str(IDS[name](made, stored))
        if re.fullmatch(r"[a-z|_-]+", inside):
            return inside.split("|")[0]  # a closed choice of words
        return str(uuid.uuid4()) if name.endswith("_id") else "word"  # of something that this tenant has none of

    path = "/" + re.sub(r"\(\?P<(?P<name>\w+)>(?P<inside>(?:[^()]|\([^()]*\))*)\)", value, text)
    path = re.sub(r"\\(.)", r"\1", path)  # a dot that the pattern escapes
    assert pattern.pattern.match(path.removeprefix("/")), path
    return path


def _said(response: Any) -> tuple[int, bytes, dict[str, str]]:
    """An answer, but for the token of a form."""
    content = re.sub(rb'name="csrfmiddlewaretoken" value="[^"]+"', b"", response.content)
    return response.status_code, content, dict(response.headers)


def _without_ids(said: tuple[int, bytes, dict[str, str]]) -> tuple[int, bytes, dict[str, str]]:
    """An answer without the ids in it: some pages repeat the one that was asked for."""
    return said[0], re.sub(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", b"<id>", said[1]), said[2]


@pytest.fixture
def stored(town: Town, as_owner: AsOwner) -> uuid.UUID:
    """A decision and an audit of acorn's, under one id."""
    decision = rows.record(town.acorn)
    rows.store(as_owner, town.acorn, decision)
    rows.audit_run(town.acorn, id=decision.id)
    return decision.id


def test_the_walk_goes_over_the_resolver() -> None:
    """Every URL that names a tenant is a tenant's page, and so is walked; the two outside are the platform's and a person's own, tested apart."""
    naming = {str(one.name) for one in urls.urlpatterns if isinstance(one, URLPattern) and "<slug>" in str(one.pattern)}
    assert naming - set(NAMES) == {"platform_suspend", "own_token_revoke"}
    assert len(NAMES) > 35


def test_a_stranger_sees_nothing_of_any_page(town: Town, stored: uuid.UUID) -> None:
    """Another tenant's owner, and somebody who is a member of none, get for each URL what they get for a tenant that is not there; for changes too.
    The control: the owner of most of them gets a page."""
    loner = Client()
    loner.force_login(rows.person("loner@example.com"))
    opened = 0
    for pattern in PATTERNS:
        path = _path(pattern, town.acorn, stored)
        opened += town.owner.get(path).status_code == 200
        for client in (town.stranger, loner):
            absent = _said(client.get(path.replace("/t/acorn", "/t/nowhere", 1)))
            assert absent[0] == 404
            assert _said(client.get(path)) == absent, path
            assert _said(client.post(path)) == _said(client.post(path.replace("/t/acorn", "/t/nowhere", 1))), path
            assert _said(client.get(path, headers={"HX-Request": "true"})) == absent, path
    assert opened >= 30, opened


def test_ones_own_tenant_does_not_lead_to_anothers_objects(town: Town, stored: uuid.UUID) -> None:
    """Another tenant's id under one's own slug is answered like an id that nobody has."""
    walked = 0
    for pattern in PATTERNS:
        path = _path(pattern, town.acorn, stored).replace("/t/acorn", "/t/birch", 1)
        ids = re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", path)
        if not ids and NAMESPACE not in path:
            continue
        nobodys = path.replace(NAMESPACE, "ns-000000")
        for one in ids:
            nobodys = nobodys.replace(one, str(uuid.uuid4()))
        for method in ("get", "post"):
            foreign, absent = (_without_ids(_said(getattr(town.stranger, method)(where))) for where in (path, nobodys))
            assert foreign == absent, (method, path)
            assert method == "get" or foreign[0] >= 400, (path, foreign[0])  # a page may wait for what nobody has yet; no change is made of it
        walked += 1
    assert walked >= 15


def test_a_viewer_changes_nothing_through_any_page(town: Town, stored: uuid.UUID) -> None:
    """Every POST is refused, or the page has none; nothing but the notes of refused attempts is written."""
    fields = {"name": "sneaky", "reason": "sneaky", "role": "owner", "email": "sneaky@example.com", "required": "yes", "scope": ""}
    fields["endpoint"] = str(town.acorn.endpoint_id)
    refused = 0
    for pattern in PATTERNS:
        path = _path(pattern, town.acorn, stored)
        status = town.viewer.post(path, fields).status_code
        readable = str(pattern.name) in READS_BY_POST
        assert status in (403, 405) or (readable and status in (200, 400, 404)), (path, status)
        refused += status == 403
    assert refused >= 15
    with tenant_scope(town.acorn.tenant_id):
        assert set(AuditEntry.objects.values_list("action", flat=True)) == {"request.denied"}


# Pages whose POST computes something and stores nothing: a viewer may ask.
READS_BY_POST = {"endpoint_dry_run", "policy_check", "playground_send"}


def test_every_tenants_page_asks_a_permission_for_each_method() -> None:
    """A method without one would be open to viewers."""
    for pattern in PATTERNS:
        view: type[TenantPage] = pattern.callback.view_class  # type: ignore[attr-defined]  # set by View.as_view
        offered = {name.upper() for name in ("get", "post", "put", "patch", "delete") if name in dir(view)}
        assert offered <= set(view.needs), pattern.name
