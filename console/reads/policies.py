"""Policies: the list of both kinds, one with its versions, and what endpoints do with them."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q

from routing import queries
from routing.models import Endpoint, Policy, PolicyVersion
from routing.services.policies import Kind
from tenants.queries import parse_uuid

MAX_ROWS = 500
MAX_VERSIONS = 200  # shown, newest first
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
    uses = _uses(list(queries.endpoints(tenant_id).order_by("name")[:MAX_ROWS]))
    return [Row(row, newest[row.id], tuple(uses.get(row.id, ()))) for row in rows]


def uses(tenant_id: UUID, policy: Policy) -> list[Use]:
    """What endpoints do with one policy."""
    columns = ("routing_policy", "slo_policy", "candidate_policy", "previous_policy")
    wanted = Q()
    for column in columns:
        wanted |= Q(**{f"{column}__policy": policy})
    return _uses(list(queries.endpoints(tenant_id).filter(wanted).order_by("name")[:MAX_ROWS])).get(policy.id, [])


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


def routing_version(tenant_id: UUID, version_id: str) -> PolicyVersion | None:
    """One of them by its id."""
    row_id = parse_uuid(version_id)
    found = PolicyVersion.objects.filter(tenant_id=tenant_id, policy__kind="routing", id=row_id) if row_id else PolicyVersion.objects.none()
    return found.select_related("policy").first()
