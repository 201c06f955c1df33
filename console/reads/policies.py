"""Policies: the list of both kinds, one with its versions, and what endpoints do with them."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q, QuerySet

from routing import queries
from routing.models import Endpoint, Policy, PolicyVersion
from routing.services.policies import Kind
from tenants.queries import parse_uuid

MAX_ROWS = 500
MAX_VERSIONS = 200  # shown, newest first
OFFERED = 200  # endpoints by name; of more one is typed
MAX_MOVES = 100  # endpoints that one activation moves: each is a change of its own in the audit log
KINDS: dict[Kind, str] = {"routing": "Routing policies", "slo": "Latency targets"}


@dataclass(frozen=True, slots=True)
class Use:
    """An endpoint and what it does with a version of a policy."""

    endpoint: Endpoint
    version: int
    how: str  # runs, tries, can go back to


@dataclass(frozen=True, slots=True)
class Row:
    """A policy at its newest version."""

    policy: Policy
    newest: PolicyVersion
    uses: tuple[Use, ...]


def listed(tenant_id: UUID, kind: Kind) -> list[Row]:
    """Policies of one kind by name, in three queries."""
    rows = list(queries.policies(tenant_id, kind).order_by("name")[:MAX_ROWS])
    newest = queries.latest_versions(tenant_id, [row.id for row in rows])
    uses = _uses(list(_users(tenant_id)[:MAX_ROWS]))
    return [Row(row, newest[row.id], tuple(uses.get(row.id, ()))) for row in rows]


def uses(tenant_id: UUID, policy: Policy) -> list[Use]:
    """What endpoints do with one policy."""
    wanted = Q()
    for column in _ROLES:
        wanted |= Q(**{f"{column}__policy": policy})
    return _uses(list(_users(tenant_id).filter(wanted)[:MAX_ROWS])).get(policy.id, [])


def moving(tenant_id: UUID, to: PolicyVersion) -> tuple[list[Use], bool]:
    """Endpoints that run another version of the same policy, by name, ``MAX_MOVES`` at most; and whether there are more."""
    role = "routing_policy" if to.policy.kind == "routing" else "slo_policy"
    found = _users(tenant_id).filter(**{f"{role}__policy": to.policy_id}).exclude(**{role: to.id})[: MAX_MOVES + 1]
    uses = [Use(endpoint, getattr(endpoint, role).version, "runs") for endpoint in found]
    return uses[:MAX_MOVES], len(uses) > MAX_MOVES


_ROLES = ("routing_policy", "slo_policy", "candidate_policy", "previous_policy")


def _users(tenant_id: UUID) -> QuerySet[Endpoint]:
    """Endpoints by name with the versions that they use, of which the documents stay where they are."""
    said = [f"{role}__{column}" for role in _ROLES for column in ("version", "policy")]
    return Endpoint.objects.filter(tenant_id=tenant_id).select_related(*_ROLES).only("name", "canary_share", *said).order_by("name")


def _uses(endpoints: list[Endpoint]) -> dict[UUID, list[Use]]:
    found: dict[UUID, list[Use]] = {}
    for endpoint in endpoints:
        for version, how in (
            (endpoint.routing_policy, "runs"),
            (endpoint.slo_policy, "runs"),
            (endpoint.candidate_policy, "tries"),
            (endpoint.previous_policy, "can go back to"),
        ):
            if version is not None:
                found.setdefault(version.policy_id, []).append(Use(endpoint, version.version, how))
    return found


def versions(tenant_id: UUID, policy: Policy) -> list[PolicyVersion]:
    """The newest versions, newest first."""
    return list(queries.policy_versions(tenant_id, policy.id).order_by("-version")[:MAX_VERSIONS])


def routing_versions(tenant_id: UUID) -> list[PolicyVersion]:
    """Every version that an endpoint could try, by policy and newest first."""
    found = PolicyVersion.objects.filter(tenant_id=tenant_id, policy__kind="routing").select_related("policy")
    return list(found.order_by("policy__name", "-version")[:MAX_ROWS])


def version(tenant_id: UUID, kind: Kind, version_id: str) -> PolicyVersion | None:
    """A stored version by its id, with its policy."""
    row_id = parse_uuid(version_id)
    if row_id is None:
        return None
    return PolicyVersion.objects.filter(tenant_id=tenant_id, policy__kind=kind, id=row_id).select_related("policy").first()


def routing_version(tenant_id: UUID, version_id: str) -> PolicyVersion | None:
    """One that an endpoint could try, by its id."""
    return version(tenant_id, "routing", version_id)


def endpoint_names(tenant_id: UUID) -> list[tuple[UUID, str]]:
    """Endpoints to choose from, by name; at most ``OFFERED``."""
    return list(Endpoint.objects.filter(tenant_id=tenant_id).order_by("name").values_list("id", "name")[:OFFERED])
