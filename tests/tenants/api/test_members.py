"""Members over the API: nobody rises above their own role, one owner who can sign in stays, and an invitation does not tell who has an account."""

from __future__ import annotations

import pytest

from tenants.core.roles import Role
from tenants.models import Membership, User
from tenants.services import accounts, members
from tests.tenants.houses import ABSENT, ROOT, House, signed_in


def _join(house: House, email: str, role: Role) -> Membership:
    with house.scope():
        return members.add(tenant_id=house.id, actor=ROOT, email=email, role=role.value, ceiling=Role.OWNER)


def _can_sign_in(membership: Membership) -> None:
    membership.user.set_password("a long pass phrase of the tests")
    membership.user.save()


def test_add_is_the_same_for_known_and_unknown_people(acorn: House) -> None:
    """Both become members with the same shape of answer; the unknown person's account opens nothing yet."""
    accounts.create(email="known@oak.example", password=None, name="Known Person")
    api = acorn.api(Role.ADMIN)
    answers = [api.post("members", {"email": email, "role": "viewer"}) for email in ("Known@Oak.example", "unknown@oak.example")]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert [sorted(answer.json()) for answer in answers] == [["config_version", "created_at", "email", "id", "role"]] * 2
    assert answers[0].json()["email"] == "known@oak.example"
    assert not User.objects.get(email="unknown@oak.example").has_usable_password()
    assert User.objects.count() == 2
    again = api.post("members", {"email": "known@oak.example", "role": "viewer"})
    assert (again.status_code, again.json()["error"]["field"]) == (409, "email")
    assert [entry.object_label for entry in acorn.log("member.add")] == ["known@oak.example", "unknown@oak.example"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"email": "nobody", "role": "viewer"}, "email"),
        ({"email": "a@b.example\0", "role": "viewer"}, None),
        ({"email": "ä@b.example", "role": "viewer"}, "email"),
        ({"email": "a" * 250 + "@b.example", "role": "viewer"}, "email"),
        ({"email": "a@b.example"}, "role"),
        ({"email": "a@b.example", "role": "root"}, "role"),
        ({"email": "a@b.example", "role": "viewer", "is_platform_operator": True}, "is_platform_operator"),
    ],
)
def test_a_malformed_member_is_refused_by_the_name_of_its_field(acorn: House, body: dict[str, object], field: str | None) -> None:
    """400 and the field; no account is made on the way."""
    answer = acorn.api().post("members", body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
    assert User.objects.count() == 0


def test_nobody_gives_or_takes_a_role_above_their_own(acorn: House) -> None:
    """An admin neither makes an owner nor touches one; an owner may."""
    owner, viewer = _join(acorn, "owner@oak.example", Role.OWNER), _join(acorn, "viewer@oak.example", Role.VIEWER)
    admin = acorn.api(Role.ADMIN)
    assert admin.post("members", {"email": "new@oak.example", "role": "owner"}).status_code == 403
    assert admin.patch(f"members/{viewer.id}", {"role": "owner"}).status_code == 403
    assert admin.patch(f"members/{owner.id}", {"role": "viewer"}).status_code == 403
    assert admin.delete(f"members/{owner.id}").status_code == 403
    assert admin.patch(f"members/{viewer.id}", {"role": "admin"}).status_code == 200
    assert acorn.api().patch(f"members/{viewer.id}", {"role": "owner"}).status_code == 200


def test_the_last_owner_stays(acorn: House) -> None:
    """Neither demoted nor removed until there is another."""
    first = _join(acorn, "first@oak.example", Role.OWNER)
    api = acorn.api()
    assert [api.delete(f"members/{first.id}").status_code, api.patch(f"members/{first.id}", {"role": "admin"}).status_code] == [409, 409]
    _can_sign_in(_join(acorn, "second@oak.example", Role.OWNER))
    assert api.delete(f"members/{first.id}").status_code == 200
    assert api.delete("members/second@oak.example").status_code == 409


def test_an_owner_who_cannot_sign_in_does_not_count_as_one(acorn: House) -> None:
    """Switched off, or without a password so far: a tenant would be left with nobody who can open it."""
    first, other = _join(acorn, "first@oak.example", Role.OWNER), _join(acorn, "other@oak.example", Role.OWNER)
    api = acorn.api()
    assert api.delete(f"members/{first.id}").status_code == 409  # the other has never chosen a password
    _can_sign_in(other)
    User.objects.filter(id=other.user_id).update(is_active=False)
    refused = api.patch(f"members/{first.id}", {"role": "admin"})
    assert (refused.status_code, "who can sign in" in refused.json()["error"]["message"]) == (409, True)
    User.objects.filter(id=other.user_id).update(is_active=True)
    assert api.patch(f"members/{first.id}", {"role": "admin"}).status_code == 200


def test_a_change_holds_from_the_next_request_and_repeats_do_nothing(acorn: House) -> None:
    """A signed-in person loses what they lose at once; a repeated change writes no second entry."""
    _join(acorn, "o@oak.example", Role.OWNER)
    membership = _join(acorn, "p@oak.example", Role.ADMIN)
    person = signed_in(membership.user)
    assert person.get("members").status_code == 200
    api = acorn.api()
    assert [api.patch("members/p@oak.example", {"role": "viewer"}).status_code for _ in range(2)] == [200, 200]
    assert len(acorn.log("member.change_role")) == 1
    assert person.get("members").status_code == 403
    assert person.get("keys").status_code == 200
    assert api.delete("members/p@oak.example").status_code == 200
    assert person.get("keys").status_code == 403
    assert User.objects.filter(email="p@oak.example").exists()


def test_every_operation_needs_the_members_permission(acorn: House) -> None:
    """Viewer and operator see no list of people."""
    membership = _join(acorn, "p@oak.example", Role.VIEWER)
    for role in (Role.VIEWER, Role.OPERATOR):
        api = acorn.api(role)
        answers = [
            api.get("members"),
            api.post("members", {"email": "x@oak.example", "role": "viewer"}),
            api.get(f"members/{membership.id}"),
            api.patch(f"members/{membership.id}", {"role": "viewer"}),
            api.delete(f"members/{membership.id}"),
        ]
        assert [answer.status_code for answer in answers] == [403] * 5
    assert acorn.api(Role.ADMIN).get(f"members/{membership.id}").json()["email"] == "p@oak.example"


def test_a_stranger_and_an_absent_id_get_the_same_bytes(acorn: House, birch: House) -> None:
    """404, byte for byte, also by e-mail; the other tenant's member stays."""
    foreign = _join(birch, "p@beech.example", Role.VIEWER)
    api, answers = acorn.api(), set()
    for reference in (foreign.id, ABSENT, "p@beech.example", "nobody@beech.example"):
        for method, body in (("GET", None), ("PATCH", {"role": "viewer"}), ("DELETE", None)):
            answer = api.call(method, f"members/{reference}", body)
            answers.add((answer.status_code, answer.content))
    assert len(answers) == 1
    assert answers.pop()[0] == 404
    with birch.scope():
        assert Membership.objects.filter(id=foreign.id).exists()


def test_the_limit_has_a_number_and_a_name(acorn: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit no account is made either."""
    monkeypatch.setattr(members, "MAX_MEMBERS_PER_TENANT", 1)
    _join(acorn, "p@oak.example", Role.VIEWER)
    refused = acorn.api().post("members", {"email": "q@oak.example", "role": "viewer"})
    assert (refused.status_code, "MAX_MEMBERS_PER_TENANT" in refused.json()["error"]["message"]) == (409, True)
    assert not User.objects.filter(email="q@oak.example").exists()
