"""Routing and SLO policies: compiled with the router's own code before they are stored, kept as append-only versions."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields
from typing import Any, Literal, cast, get_args
from uuid import UUID

from django.db.models import F, Max, Q
from django.utils import timezone

from routing.core.policy import PolicyError, PolicyName, RoutingPolicy, SloPolicy, compile_routing, compile_slo
from routing.models import Endpoint, Policy, PolicyVersion
from routing.services import slo, support
from tenants import changes
from tenants.actor import Actor
from tenants.constraints import refuse_on
from tenants.core import names
from tenants.core.errors import Conflict, Invalid, NotFound
from tenants.services import locks

Kind = Literal["routing", "slo"]
NAME_MAX = 100  # characters
MAX_POLICIES = 500
MAX_VERSIONS = 1000
MAX_SPEC_BYTES = 64 * 1024


def compiled(kind: Kind, spec: object, *, field: str = "spec") -> RoutingPolicy | SloPolicy:
    """Compile a document as a router would.

    Raises:
        Invalid: it cannot run; the field is the path inside the document below ``field``. Where several are wrong, all are told.
    """

    def told(error: PolicyError) -> tuple[str, str]:
        inside = "" if error.field in ("routing_policy", "slo") else f".{error.field}"
        return f"{field}{inside}", f"{error.message[:1].upper()}{error.message[1:]}."

    try:
        result = compile_routing(spec) if kind == "routing" else compile_slo(spec)
    except PolicyError as error:
        at, message = told(error)
        raise Invalid(message, field=at, others=[told(other) for other in error.others]) from None
    if len(json.dumps(spec)) > MAX_SPEC_BYTES:
        raise Invalid(f"A policy document has at most {MAX_SPEC_BYTES} bytes.", field=field)
    return result


def create(*, tenant_id: UUID, actor: Actor, kind: Kind, name: str, spec: object) -> PolicyVersion:
    """Create a policy with its version 1.

    Raises:
        Invalid: a malformed name, or a document that cannot run.
        Conflict: the name is taken.
        LimitReached: ``MAX_POLICIES``.
    """
    locks.tenant(tenant_id)
    names.label(name, field="name", maximum=NAME_MAX)
    compiled(kind, spec)
    support.within(Policy.objects.filter(tenant_id=tenant_id, kind=kind).count(), MAX_POLICIES, f"{kind} policies per tenant")
    with refuse_on(policy_name_per_kind=Conflict("There is a policy of this name already.", field="name")):
        policy = Policy.objects.create(tenant_id=tenant_id, kind=kind, name=name)
    version = PolicyVersion.objects.create(tenant_id=tenant_id, policy=policy, version=1, spec=spec, created_by=actor.label)
    changes.record(
        tenant_id=tenant_id,
        actor=actor,
        action=f"{kind}_policy.create",
        object_id=policy.id,
        object_label=name,
        after={"version": 1, "spec": spec},
        publishes=False,  # no endpoint uses it yet
    )
    return version


def store(*, tenant_id: UUID, actor: Actor, kind: Kind, name: str, spec: object) -> PolicyVersion:
    """Store a document under a name: version 1 of a new policy, or the next version of the policy that has the name. No endpoint moves.

    The same document as the newest version gives that one and changes nothing.

    Raises:
        Invalid: a malformed name, or a document that cannot run.
        LimitReached: ``MAX_POLICIES`` or ``MAX_VERSIONS``.
    """
    locks.tenant(tenant_id)
    names.label(name, field="name", maximum=NAME_MAX)
    known = Policy.objects.filter(tenant_id=tenant_id, kind=kind, name=name).first()
    if known is None:
        return create(tenant_id=tenant_id, actor=actor, kind=kind, name=name, spec=spec)
    return add_version(tenant_id=tenant_id, actor=actor, policy_id=known.id, kind=kind, spec=spec, activate=False)


def add_version(*, tenant_id: UUID, actor: Actor, policy_id: UUID, kind: Kind, spec: object, activate: bool = True) -> PolicyVersion:
    """Append a version; the same document as the newest version gives that one and changes nothing but, with ``activate``, the endpoints.

    ``activate`` moves every endpoint of any version of this policy to the new one, in the same transaction.

    Raises:
        NotFound: no such policy of this kind in this tenant.
        Invalid: the document cannot run.
        LimitReached: ``MAX_VERSIONS``.
    """
    locks.tenant(tenant_id)
    policy = support.locked(Policy, tenant_id=tenant_id, row_id=policy_id)
    if policy.kind != kind:
        raise NotFound
    compiled(kind, spec)
    newest = latest(policy)
    version = newest
    if newest.spec != spec:
        support.within(newest.version, MAX_VERSIONS, "versions of a policy")
        version = PolicyVersion.objects.create(tenant_id=tenant_id, policy=policy, version=newest.version + 1, spec=spec, created_by=actor.label)
    moved = _activate(tenant_id, policy, version) if activate else 0
    if moved and kind == "slo":
        slo.check_users(tenant_id, version)
    if version is not newest or moved:
        changes.record(
            tenant_id=tenant_id,
            actor=actor,
            action=f"{kind}_policy.version",
            object_id=policy.id,
            object_label=policy.name,
            before={"version": newest.version, "spec": newest.spec},
            after={"version": version.version, "spec": spec, "endpoints_moved": moved},
            publishes=moved > 0,
        )
    return version


def _activate(tenant_id: UUID, policy: Policy, version: PolicyVersion) -> int:
    others = PolicyVersion.objects.filter(tenant_id=tenant_id, policy=policy).exclude(id=version.id).values("id")
    if policy.kind == "slo":
        return Endpoint.objects.filter(tenant_id=tenant_id, slo_policy__in=others).update(slo_policy=version)
    moving = Endpoint.objects.filter(tenant_id=tenant_id, routing_policy__in=others)
    # As `moved` says of one endpoint; those that an earlier statement moved are no others any more.
    tried = moving.filter(candidate_policy=version).update(**_PROMOTED, routing_policy=version, previous_policy=F("routing_policy"))
    plain = moving.filter(candidate_policy=None).update(routing_policy=version, previous_policy=F("routing_policy"))
    return tried + plain + moving.update(routing_policy=version, trial_since=timezone.now())


_PROMOTED: dict[str, Any] = {"candidate_policy": None, "canary_share": 0.0, "trial_since": None}


def moved(endpoint: Endpoint, version: PolicyVersion) -> dict[str, Any]:
    """The columns of an endpoint that goes over to another routing policy version; empty where it runs that one.

    What it ran before is kept for a roll-back. A candidate goes on being tried, from now on against the new version, unless it is that one.
    """
    if endpoint.routing_policy_id == version.id:
        return {}
    if endpoint.candidate_policy_id is not None and endpoint.candidate_policy_id != version.id:
        return {"routing_policy": version, "trial_since": timezone.now()}
    return {**_PROMOTED, "routing_policy": version, "previous_policy": endpoint.routing_policy}


def latest(policy: Policy) -> PolicyVersion:
    """The newest version; every policy has one from its creation."""
    return PolicyVersion.objects.filter(tenant_id=policy.tenant_id, policy=policy).order_by("-version")[:1].get()


def delete(*, tenant_id: UUID, actor: Actor, policy_id: UUID, kind: Kind) -> None:
    """Delete a policy that no endpoint uses, with all its versions.

    Raises:
        NotFound: no such policy of this kind in this tenant.
        Conflict: an endpoint uses one of its versions.
    """
    locks.tenant(tenant_id)
    policy = support.locked(Policy, tenant_id=tenant_id, row_id=policy_id)
    if policy.kind != kind:
        raise NotFound
    versions = PolicyVersion.objects.filter(tenant_id=tenant_id, policy=policy)
    uses = Q(routing_policy__in=versions) | Q(slo_policy__in=versions) | Q(candidate_policy__in=versions)
    used = Endpoint.objects.filter(tenant_id=tenant_id).filter(uses).first()
    if used is not None:
        raise Conflict(f"The endpoint {used.name} uses this policy.")
    Endpoint.objects.filter(tenant_id=tenant_id, previous_policy__in=versions).update(previous_policy=None)
    name = policy.name
    count = versions.aggregate(newest=Max("version"))["newest"]
    versions.delete()
    policy.delete()
    changes.record(
        tenant_id=tenant_id,
        actor=actor,
        action=f"{kind}_policy.delete",
        object_id=policy_id,
        object_label=name,
        before={"versions": count},
        publishes=False,
    )


def resolve(*, tenant_id: UUID, actor: Actor, kind: Kind, wanted: object, endpoint_name: str, field: str, trial: bool = False) -> PolicyVersion:
    """The policy version that an endpoint's field means.

    ``wanted`` is a policy's name (its newest version), ``{name, version}``, or an inline document. An inline document becomes a policy named after
    the endpoint, with a new version only when the document differs from the newest one; with ``trial``, one apart from that of the live document.

    Raises:
        Invalid: no such policy or version, or a document that cannot run; the field is ``field`` or a path below it.
    """
    if not isinstance(wanted, dict) or "name" in wanted:
        return referred(tenant_id=tenant_id, kind=kind, wanted=wanted, field=field)
    compiled(kind, wanted, field=field)
    name = inline_name(endpoint_name, trial=trial)
    policy = Policy.objects.select_for_update().filter(tenant_id=tenant_id, kind=kind, name=name).first()
    if policy is None:
        return create(tenant_id=tenant_id, actor=actor, kind=kind, name=name, spec=wanted)
    return add_version(tenant_id=tenant_id, actor=actor, policy_id=policy.id, kind=kind, spec=wanted, activate=False)


def referred(*, tenant_id: UUID, kind: Kind, wanted: object, field: str) -> PolicyVersion:
    """The stored version that a name (its newest version) or ``{name, version}`` means.

    Raises:
        Invalid: no such policy or version, or neither of both.
    """
    if isinstance(wanted, str):
        return _named(tenant_id, kind, wanted, None, field)
    if not isinstance(wanted, dict):
        raise Invalid("Give a policy's name, {name, version}, or a policy document.", field=field)
    unknown = set(wanted) - {"name", "version"}
    if unknown:
        raise Invalid("A reference has only name and version.", field=f"{field}.{sorted(map(str, unknown))[0]}")
    return _named(tenant_id, kind, wanted.get("name"), wanted.get("version"), field)


TRIAL_SUFFIX = "~candidate"


def inline_name(endpoint_name: str, *, trial: bool = False) -> str:
    """The name of the policy that an endpoint's inline document becomes: the endpoint's own, or cut and made distinct where that is too long.

    A candidate's document becomes another policy: the two run side by side, and each would take the other for its own older version.
    """
    suffix = TRIAL_SUFFIX if trial else ""
    longest = NAME_MAX - len(suffix)
    if len(endpoint_name) <= longest:
        return endpoint_name + suffix
    return f"{endpoint_name[: longest - 17].rstrip()}~{hashlib.sha256(endpoint_name.encode()).hexdigest()[:16]}{suffix}"


def absent(kind: Kind, name: object) -> str:
    """That there is no such policy; to whoever wrote a way of routing where a policy's name goes, the form that was meant."""
    said = f"There is no {kind} policy of this name."
    if kind == "routing" and name in get_args(PolicyName):
        return f"{said} To route by {name} write it as a document: {{policy: {name}}}; as a candidate {{policy: {{policy: {name}}}, share: 0}}."
    return said


def _named(tenant_id: UUID, kind: Kind, name: object, number: object, field: str) -> PolicyVersion:
    policy = Policy.objects.filter(tenant_id=tenant_id, kind=kind, name=name).first() if isinstance(name, str) else None
    if policy is None:
        raise Invalid(absent(kind, name), field=field)
    if number is None:
        return latest(policy)
    version = None
    if isinstance(number, int) and not isinstance(number, bool) and 0 < number <= MAX_VERSIONS:
        version = PolicyVersion.objects.filter(tenant_id=tenant_id, policy=policy, version=number).first()
    if version is None:
        raise Invalid("This policy has no such version.", field=f"{field}.version")
    return version


def diff(kind: Kind, old: object, new: object) -> list[dict[str, Any]]:
    """What changes for a router between two documents: compiled values, so a default that is now written out is no difference.

    Returns:
        ``[{"field", "old", "new"}]`` in the order of the policy's fields.
    """
    before, after = compiled(kind, old), compiled(kind, new)
    left, right = asdict(cast(Any, before)), asdict(cast(Any, after))
    return [
        {"field": item.name, "old": left[item.name], "new": right[item.name]}
        for item in fields(cast(Any, after))
        if left[item.name] != right[item.name]
    ]
