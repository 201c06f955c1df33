"""Roles: each may do all that the one below may; what is the platform's comes with no role."""

from __future__ import annotations

import itertools

import pytest

from tenants.core.roles import Permission, Role, permissions


def test_every_role_may_do_strictly_more_than_the_one_below() -> None:
    for lower, higher in itertools.pairwise([Role.VIEWER, Role.OPERATOR, Role.ADMIN, Role.OWNER]):
        assert permissions(lower) < permissions(higher)


@pytest.mark.parametrize("role", list(Role))
def test_platform_rights_come_with_no_role_of_a_tenant(role: Role) -> None:
    assert Permission.PLATFORM not in permissions(role)
    assert Permission.READ in permissions(role)
    assert permissions(role, platform_operator=True) == frozenset(Permission)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_members_and_configuration_need_an_admin(role: Role) -> None:
    assert not permissions(role) & {Permission.MEMBERS, Permission.CONFIGURE, Permission.OWN}
