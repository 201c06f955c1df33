"""The one table of who may do what."""

from __future__ import annotations

from itertools import pairwise

from tenants.core.roles import Permission, Role, permissions


def test_each_role_may_what_the_one_before_may() -> None:
    """Viewer, operator, admin, owner: a strict chain, written out so that a change is a decision."""
    matrix = {role.value: sorted(permission.value for permission in permissions(role)) for role in Role}
    assert matrix == {
        "viewer": ["read"],
        "operator": ["operate", "read"],
        "admin": ["configure", "members", "operate", "read"],
        "owner": ["configure", "members", "operate", "own", "read"],
    }
    chain = [permissions(role) for role in Role]
    assert all(lower < higher for lower, higher in pairwise(chain))


def test_the_platforms_permission_is_its_operators_alone() -> None:
    """No role of a tenant has it; an operator has everything in every role."""
    assert not any(Permission.PLATFORM in permissions(role) for role in Role)
    assert all(permissions(role, platform_operator=True) == frozenset(Permission) for role in Role)
