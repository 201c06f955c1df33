"""Roles of people and control tokens in a tenant, and what each may do. One table, asked by services and views alike."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    OWNER = "owner"


class Permission(StrEnum):
    """What a caller may do; a view names one for each method."""

    READ = "read"  # everything but members and the audit log
    OPERATE = "operate"  # drain replicas, rotate epochs, change policies
    CONFIGURE = "configure"  # endpoints, pools, replicas, models, scopes, keys
    MEMBERS = "members"  # members, control tokens, audit log
    OWN = "own"  # delete the tenant, change owners
    PLATFORM = "platform"  # create tenants, platform pools, grants; held by platform operators alone


_GRANTS: dict[Role, frozenset[Permission]] = {
    Role.VIEWER: frozenset({Permission.READ}),
    Role.OPERATOR: frozenset({Permission.READ, Permission.OPERATE}),
    Role.ADMIN: frozenset({Permission.READ, Permission.OPERATE, Permission.CONFIGURE, Permission.MEMBERS}),
    Role.OWNER: frozenset({Permission.READ, Permission.OPERATE, Permission.CONFIGURE, Permission.MEMBERS, Permission.OWN}),
}


def permissions(role: Role, *, platform_operator: bool = False) -> frozenset[Permission]:
    """What ``role`` may do; a platform operator may do everything in every tenant."""
    return frozenset(Permission) if platform_operator else _GRANTS[role]
