"""Invitations and the rules of signing in over the API."""

from __future__ import annotations

from typing import Any

import pytest

from tenants.core.roles import Role
from tenants.services import accounts
from tests.tenants.houses import ABSENT, Api, House, signed_in
from tests.tenants.people import link, mailed, with_second_factor


def test_an_invitation_is_made_listed_read_and_revoked(acorn: House) -> None:
    """By id, or by address while it is open; the link is mailed and in no answer; the log has both ends."""
    api = acorn.api(Role.ADMIN)
    made = api.post("invitations", {"email": "New@Oak.example", "role": "operator"})
    assert made.status_code == 201
    row = made.json()
    assert (row["email"], row["role"], row["state"], row["mail"], row["link"]) == ("new@oak.example", "operator", "open", "queued", None)
    token = link(mailed("new@oak.example")[0]).partition("t=")[2]
    listed = api.get("invitations")
    assert [(one["id"], one["mail"]) for one in listed.json()["results"]] == [(row["id"], "sent")]
    assert token.encode() not in listed.content
    assert api.get("invitations/new@oak.example").json() == api.get(f"invitations/{row['id']}").json()
    assert api.delete(f"invitations/{row['id']}").json()["state"] == "revoked"
    assert api.delete(f"invitations/{row['id']}").status_code == 200
    assert api.get("invitations/new@oak.example").status_code == 404
    assert [entry.object_label for name in ("create", "revoke") for entry in acorn.log(f"invitation.{name}")] == ["new@oak.example"] * 2


def test_roles_and_strangers(acorn: House, birch: House) -> None:
    """Only admins and owners, an owner only by an owner; another tenant's is absent."""
    for role in (Role.VIEWER, Role.OPERATOR):
        assert acorn.api(role).post("invitations", {"email": "a@oak.example", "role": "viewer"}).status_code == 403
        assert acorn.api(role).get("invitations").status_code == 403
    assert acorn.api(Role.ADMIN).post("invitations", {"email": "a@oak.example", "role": "owner"}).status_code == 403
    row = acorn.api(Role.OWNER).post("invitations", {"email": "a@oak.example", "role": "owner"}).json()
    assert acorn.api(Role.ADMIN).delete(f"invitations/{row['id']}").status_code == 403
    answers = {(one.status_code, one.content) for one in (birch.api().get(f"invitations/{row['id']}"), birch.api().delete(f"invitations/{ABSENT}"))}
    assert len(answers) == 1
    assert answers.pop()[0] == 404


def test_a_platform_operator_is_shown_the_link_this_once(acorn: House, platform: Api) -> None:
    made = platform.post("invitations", {"email": "a@oak.example", "role": "owner"}, X_Saltroute_Tenant="acorn").json()
    assert "/invitation?t=" in made["link"]
    assert "link" not in platform.get(f"invitations/{made['id']}", X_Saltroute_Tenant="acorn").json()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"email": "nobody", "role": "viewer"}, "email"),
        ({"email": "a@b.example", "role": "root"}, "role"),
        ({"email": "a@b.example"}, "role"),
        ({"email": "a@b.example", "role": "viewer", "expires_at": "2030-01-01T00:00:00Z"}, "expires_at"),
    ],
)
def test_a_malformed_invitation_is_refused_by_its_field(acorn: House, body: dict[str, Any], field: str) -> None:
    answer = acorn.api().post("invitations", body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


def test_a_second_factor_is_required_by_owners_and_asked_of_people_alone(acorn: House) -> None:
    """Tokens go on; a person's session in the API is refused until they have one."""
    assert acorn.api(Role.VIEWER).get("sign-in-rules").json() == {"require_second_factor": False}
    assert acorn.api(Role.ADMIN).call("PUT", "sign-in-rules", {"require_second_factor": True}).status_code == 403
    user = accounts.create(email="ada@oak.example", password="correct horse battery")
    acorn.api().post("members", {"email": user.email, "role": "owner"})
    person = signed_in(user)
    refused = person.call("PUT", "sign-in-rules", {"require_second_factor": True})
    assert (refused.status_code, refused.json()["error"]["field"]) == (409, "require_second_factor")
    assert acorn.api().call("PUT", "sign-in-rules", {"require_second_factor": True}).status_code == 200
    assert person.get("keys").status_code == 403
    assert acorn.api(Role.VIEWER).get("keys").status_code == 200
    with_second_factor(user)
    assert signed_in(user).get("keys").status_code == 200
    (entry,) = acorn.log("tenant.require_second_factor")
    assert (entry.before, entry.after) == ({"require_second_factor": False}, {"require_second_factor": True})
