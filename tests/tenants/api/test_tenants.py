"""Tenants over the API: everybody sees their own; platform operators create, change and delete."""

from __future__ import annotations

import pytest

from tenants.core.roles import Role
from tenants.models import Membership, Scope, Tenant
from tenants.services import accounts, members
from tests.tenants.houses import ABSENT, ROOT, Api, House, signed_in


def test_create_makes_root_scope_and_owner(platform: Api) -> None:
    """The tenant stands with everything it needs; its creation is in its own log."""
    made = platform.post("tenants", {"slug": "elm", "name": "Elm & Co", "owner_email": "boss@elm.example"})
    assert made.status_code == 201
    house = House(id=made.json()["id"], slug="elm", tokens={}, token_ids={})
    with house.scope():
        assert Scope.objects.get().path == ""
        assert [(row.user.email, row.role) for row in Membership.objects.select_related("user")] == [("boss@elm.example", "owner")]
    assert [entry.actor_label for entry in house.log("tenant.create")] == ["operator"]
    again = platform.post("tenants", {"slug": "elm", "name": "Elm"})
    assert (again.status_code, again.json()["error"]["field"]) == (409, "slug")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x"}, "slug"),
        ({"slug": "elm"}, "name"),
        ({"slug": "Elm", "name": "x"}, "slug"),
        ({"slug": "platform", "name": "x"}, "slug"),
        ({"slug": "deleted-elm", "name": "x"}, "slug"),
        ({"slug": "a" * 64, "name": "x"}, "slug"),
        ({"slug": "elm", "name": "x", "owner_email": "nobody"}, "email"),
        ({"slug": "elm", "name": "x", "plan": "gold"}, "plan"),
    ],
)
def test_a_malformed_tenant_is_refused_and_leaves_nothing(platform: Api, body: dict[str, object], field: str) -> None:
    """400 and the field; also where the owner was at fault, no tenant stays behind."""
    answer = platform.post("tenants", body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
    assert [row["slug"] for row in platform.get("tenants").json()["results"]] == ["platform"]


def test_a_tenants_own_admin_is_no_platform_operator(acorn: House, birch: House) -> None:
    """Sees its own tenant; creates, changes and deletes none, its own included; whether another exists is not said."""
    api = acorn.api()
    assert [row["slug"] for row in api.get("tenants").json()["results"]] == ["acorn"]
    refused = [
        api.post("tenants", {"slug": "elm", "name": "Elm"}),
        api.patch(f"tenants/{acorn.id}", {"suspended": False, "is_platform_admin": True}),
        api.delete("tenants/acorn"),
        api.patch("tenants/birch", {"name": "mine"}),
        api.delete("tenants/birch"),
        api.delete(f"tenants/{ABSENT}"),
    ]
    assert len({(answer.status_code, answer.content) for answer in refused}) == 1
    assert refused[0].status_code == 403
    absent = [api.get(f"tenants/{reference}") for reference in (birch.id, "birch", ABSENT, "nowhere")]
    assert len({(answer.status_code, answer.content) for answer in absent}) == 1
    assert absent[0].status_code == 404
    assert api.get("tenants/acorn").json() == api.get(f"tenants/{acorn.id}").json()


def test_a_suspended_tenant_can_be_read_not_changed(platform: Api, acorn: House) -> None:
    """Until it is resumed; the platform may still repair it."""
    assert platform.patch("tenants/acorn", {"suspended": True, "reason": "unpaid"}).json()["suspended"] is True
    assert acorn.log("tenant.suspend")[0].reason == "unpaid"
    api = acorn.api()
    assert [api.get("keys").status_code, api.post("keys", {"name": "x"}).status_code] == [200, 403]
    assert platform.post("keys", {"name": "x"}, X_Saltroute_Tenant="acorn").status_code == 201
    version = platform.get("tenants/acorn").json()["config_version"]
    assert platform.patch("tenants/acorn", {"suspended": True}).json()["config_version"] == version
    assert platform.patch("tenants/acorn", {"suspended": False, "name": "Acorn"}).json()["name"] == "Acorn"
    assert api.post("keys", {"name": "y"}).status_code == 201
    assert platform.patch("tenants/platform", {"suspended": True}).status_code == 409


def test_delete_leaves_a_tombstone(platform: Api, acorn: House) -> None:
    """Its tokens open nothing, its people lose it, its slug is free; the row stays, marked, with a new version for routers."""
    person = accounts.create(email="p@oak.example", password=None)
    with acorn.scope():
        members.add(tenant_id=acorn.id, actor=ROOT, email=person.email, role="owner", ceiling=Role.OWNER)
        before = Tenant.objects.get(id=acorn.id).config_version
    assert signed_in(person).get("keys").status_code == 200
    assert platform.delete("tenants/acorn", {"reason": "contract ended"}).status_code == 200
    assert acorn.api().get("me").status_code == 401
    assert signed_in(person).get("me").json()["tenants"] == []
    assert platform.delete("tenants/acorn").status_code == 404
    assert platform.get("keys", X_Saltroute_Tenant="acorn").status_code == 404
    assert platform.post("tenants", {"slug": "acorn", "name": "New"}).status_code == 201
    with acorn.scope():
        row = Tenant.objects.get(id=acorn.id)
        assert row.deleted_at is not None
        assert row.config_version > before
    assert acorn.log("tenant.delete")[0].before == {"slug": "acorn"}
    assert platform.delete("tenants/platform").status_code == 409


def test_list_is_by_slug_in_pages(platform: Api, acorn: House, birch: House) -> None:
    """The operator sees all, a page at a time."""
    first = platform.get("tenants?limit=2").json()
    rest = platform.get(f"tenants?limit=2&cursor={first['next']}").json()
    assert [row["slug"] for row in [*first["results"], *rest["results"]]] == ["acorn", "birch", "platform"]
    assert rest["next"] is None


def test_me_names_the_caller_and_its_places(acorn: House, birch: House, platform: Api) -> None:
    """For a token, a person with two memberships, and a platform operator."""
    token = acorn.api(Role.OPERATOR).get("me").json()
    assert (token["kind"], token["label"], token["platform"]) == ("token", "operator-token", False)
    assert [(seat["slug"], seat["role"], seat["permissions"]) for seat in token["tenants"]] == [("acorn", "operator", ["operate", "read"])]
    person = accounts.create(email="p@oak.example", password=None)
    for house, role in ((acorn, "viewer"), (birch, "owner")):
        with house.scope():
            members.add(tenant_id=house.id, actor=ROOT, email=person.email, role=role, ceiling=Role.OWNER)
    seats = signed_in(person).get("me").json()["tenants"]
    assert [(seat["slug"], seat["role"]) for seat in seats] == [("acorn", "viewer"), ("birch", "owner")]
    assert platform.get("me").json()["platform"] is True


def test_a_person_with_several_tenants_names_one(acorn: House, birch: House) -> None:
    """Without the header 400 that names it; with a stranger's slug the same 404 as with none that exists."""
    person = accounts.create(email="p@oak.example", password=None)
    api = signed_in(person)
    assert api.get("keys").status_code == 403
    for house in (acorn, birch):
        with house.scope():
            members.add(tenant_id=house.id, actor=ROOT, email=person.email, role="viewer", ceiling=Role.OWNER)
    assert api.get("keys").json()["error"]["field"] == "X-Saltroute-Tenant"
    birch.key("birch-key")
    assert [row["name"] for row in api.get("keys", X_Saltroute_Tenant="birch").json()["results"]] == ["birch-key"]
    assert api.get("keys", X_Saltroute_Tenant="acorn").json()["results"] == []
    wrong = [api.get("keys", X_Saltroute_Tenant=slug) for slug in ("platform", "nowhere", "é")]
    assert {(answer.status_code, answer.content) for answer in wrong} == {(404, wrong[0].content)}


def test_a_token_acts_in_its_own_tenant_only(acorn: House, birch: House) -> None:
    """Naming its own is fine; naming another's or none that exists is the same 404."""
    api = acorn.api()
    assert api.get("keys", X_Saltroute_Tenant="acorn").status_code == 200
    wrong = [api.get("keys", X_Saltroute_Tenant=slug) for slug in ("birch", "nowhere", "platform")]
    assert {(answer.status_code, answer.content) for answer in wrong} == {(404, api.get(f"keys/{ABSENT}").content)}


def test_an_operator_who_is_also_a_member_keeps_the_operators_rights(acorn: House, platform: Api) -> None:
    """Two rows for one tenant: the higher counts."""
    operator = accounts.create(email="op@salt.example", password=None, platform_operator=True)
    with acorn.scope():
        members.add(tenant_id=acorn.id, actor=ROOT, email=operator.email, role="viewer", ceiling=Role.OWNER)
    api = signed_in(operator)
    assert api.post("keys", {"name": "x"}, X_Saltroute_Tenant="acorn").status_code == 201
    assert [(seat["slug"], seat["role"]) for seat in api.get("me").json()["tenants"]] == [("acorn", "owner"), ("platform", "owner")]
    assert api.get("tokens").status_code == 200
