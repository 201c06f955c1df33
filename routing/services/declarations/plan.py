"""From what is declared and what is there to the steps between them, in an order in which each finds what it stands on. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from routing.outbound.addresses import UrlRefused, normalise_url
from routing.services import replicas
from routing.services.declarations import document as doc
from routing.services.declarations.state import State
from routing.services.policies import inline_name
from tenants.core import api_key
from tenants.core.scopes import ROOT, ancestors

Op = Literal["+", "~", "-"]
_NOBODY = UUID(int=0)  # stands for a tenant that is yet to be made

# The order of creating and changing; removing goes the other way, and before it, since a name or an address may be free only then.
ORDER = (
    "tenant",
    "scope",
    "member",
    "artifact",
    "model",
    "adapter",
    "pool",
    "replica",
    "routing policy",
    "slo policy",
    "grant",
    "endpoint",
    "key",
    "quota",
)


@dataclass(frozen=True, slots=True)
class Step:
    """One change. ``details`` are lines for people; ``wanted`` is what the execution needs."""

    op: Op
    kind: str
    tenant: str  # slug
    name: str
    path: str = ""  # in the document, for errors
    details: tuple[str, ...] = ()
    wanted: Any = field(default=None, repr=False)

    def render(self) -> list[str]:
        """The lines of the diff."""
        where = f"tenant {self.tenant}" if self.kind == "tenant" else f"{self.tenant}: {self.kind} {self.name}"
        return [f"{self.op} {where}", *(f"    {line}" for line in self.details)]


@dataclass(frozen=True, slots=True)
class Options:
    """How far an apply may go."""

    prune: bool = False
    prune_tenants: bool = False  # with prune: also delete tenants that the file does not name, and revoke keys


def ordered(steps: list[Step]) -> list[Step]:
    """Steps in the order of execution: replicas that go, then all that is made or changed, then the rest that goes, dependents first."""

    def rank(step: Step) -> tuple[int, int]:
        position = ORDER.index(step.kind)
        if step.op == "-":
            # A replica's address, and an endpoint's hold on its model and policies, must be free before others take their places.
            return (0, 0) if step.kind == "replica" else (2, -position)
        return 1, position

    return sorted(steps, key=rank)


# ---- one tenant --------------------------------------------------------------------------------------------------------


def tenant(wanted: doc.Tenant, state: State | None, options: Options) -> list[Step]:
    """The steps of one tenant; ``state`` None: it does not exist yet."""
    steps = list(_head(wanted, state))
    there = state if state is not None else State(tenant_id=_NOBODY, slug=wanted.slug, name="", suspended=False, scopes={ROOT})
    steps += _scopes(wanted, there, options)
    steps += _members(wanted, there, options)
    steps += _models(wanted, there, options)
    steps += pools(wanted.slug, wanted.pools, there, options)
    steps += _policies_and_endpoints(wanted, there, options)
    steps += _keys(wanted, there, options)
    steps += _quotas(wanted, there, options)
    return steps


def _head(wanted: doc.Tenant, state: State | None) -> Iterator[Step]:
    if state is None:
        yield Step("+", "tenant", wanted.slug, wanted.slug, wanted.path, wanted=wanted)
        return
    details = []
    if wanted.name is not None and wanted.name != state.name:
        details.append(f"name: {state.name} -> {wanted.name}")
    if wanted.suspended is not None and wanted.suspended != state.suspended:
        details.append(f"suspended: {_word(state.suspended)} -> {_word(wanted.suspended)}")
    if details:
        yield Step("~", "tenant", wanted.slug, wanted.slug, wanted.path, tuple(details), wanted)


def _scopes(wanted: doc.Tenant, state: State, options: Options) -> Iterator[Step]:
    if wanted.scopes is None:
        return
    for scope in sorted(wanted.scopes, key=lambda item: len(ancestors(item.scope))):
        if scope.scope not in state.scopes:
            yield Step("+", "scope", wanted.slug, scope.scope, scope.path)
    if options.prune:
        # Keys hold their scopes: without a word on keys they stay, and so does what they are bound to.
        bound = {key.scope for key in wanted.keys or []} | (set() if _prunes_keys(wanted, options) else {key.scope for key in state.keys.values()})
        kept = {level for path in {scope.scope for scope in wanted.scopes} | bound for level in ancestors(path)} | {ROOT}
        for path in sorted(state.scopes - kept, key=lambda item: (-len(ancestors(item)), item)):
            yield Step("-", "scope", wanted.slug, path, wanted.path)


def _members(wanted: doc.Tenant, state: State, options: Options) -> Iterator[Step]:
    if wanted.members is None:
        return
    # Owners first, so that another may step down in the same run.
    for member in sorted(wanted.members, key=lambda item: item.role != "owner"):
        held = state.members.get(member.email)
        if held is None:
            yield Step("+", "member", wanted.slug, member.email, member.path, (f"role: {member.role}",), member)
        elif held != member.role:
            yield Step("~", "member", wanted.slug, member.email, member.path, (f"role: {held} -> {member.role}",), member)
    if options.prune:
        for email in sorted(set(state.members) - {member.email for member in wanted.members}):
            yield Step("-", "member", wanted.slug, email, wanted.path)


def _models(wanted: doc.Tenant, state: State, options: Options) -> Iterator[Step]:
    files: set[tuple[str, str]] = set()
    for model in wanted.models:
        for file in model.files:
            key = (file.kind, file.sha256)
            if file.content is not None and key not in state.artifacts and key not in files:
                yield Step("+", "artifact", wanted.slug, f"{file.name} sha256:{file.sha256[:12]}", file.path, wanted=file)
            files.add(key)
        held = state.models.get(model.name)
        if held is None:
            yield Step("+", "model", wanted.slug, model.name, model.path, wanted=model)
        elif details := _differences(held, model.fields):
            yield Step("~", "model", wanted.slug, model.name, model.path, details, model)
        for adapter in model.adapters:
            revision = state.adapters.get((model.name, adapter.name))
            label = f"{model.name}/{adapter.name}"
            if revision is None:
                yield Step("+", "adapter", wanted.slug, label, adapter.path, wanted=(model.name, adapter))
            elif revision != adapter.revision:
                yield Step("~", "adapter", wanted.slug, label, adapter.path, (f"revision: {revision} -> {adapter.revision}",), (model.name, adapter))
    if options.prune and wanted.models_given:
        declared = {model.name: {adapter.name for adapter in model.adapters} for model in wanted.models}
        for model_name, adapter_name in sorted(state.adapters):
            if adapter_name not in declared.get(model_name, set()):
                yield Step("-", "adapter", wanted.slug, f"{model_name}/{adapter_name}", wanted.path, wanted=(model_name, adapter_name))
        for name in sorted(set(state.models) - set(declared)):
            yield Step("-", "model", wanted.slug, name, wanted.path)


# ---- pools -------------------------------------------------------------------------------------------------------------


def pools(slug: str, wanted: list[doc.Pool] | None, state: State, options: Options) -> Iterator[Step]:
    """The steps for pools, their replicas and grants: of a tenant, or of the platform."""
    if wanted is None:
        return
    for pool in wanted:
        held = state.pools.get(pool.name)
        if held is None:
            details = (f"isolation: {pool.isolation}",) if pool.isolation else ()
            yield Step("+", "pool", slug, pool.name, pool.path, details, pool)
        elif pool.isolation is not None and held != pool.isolation:
            yield Step("~", "pool", slug, pool.name, pool.path, (f"isolation: {held} -> {pool.isolation}",), pool)
        for replica in pool.replicas:
            yield from _replica(slug, pool, replica, state)
        for grant in pool.grants:
            yield from _grant(slug, pool.name, grant, state)
        if options.prune:
            kept = {replica.name for replica in pool.replicas}
            yield from _emptied(slug, pool.name, pool.path, state, keep_replicas=kept, keep_grants={one.slug for one in pool.grants})
    if options.prune:
        for name in sorted(set(state.pools) - {pool.name for pool in wanted}):
            yield from _emptied(slug, name, "", state, keep_replicas=set(), keep_grants=set())
            yield Step("-", "pool", slug, name)


def _grant(slug: str, pool: str, wanted: doc.Grant, state: State) -> Iterator[Step]:
    held = state.grants.get(pool, {}).get(wanted.slug)
    step = (pool, wanted.slug, wanted.weight)
    if held is None:
        details = () if wanted.weight is None else (f"weight: {wanted.weight:g}",)
        yield Step("+", "grant", slug, f"{pool} to {wanted.slug}", wanted.path, details, step)
    elif wanted.weight not in (None, held):
        yield Step("~", "grant", slug, f"{pool} to {wanted.slug}", wanted.path, (f"weight: {held:g} -> {wanted.weight:g}",), step)


def _emptied(slug: str, pool: str, path: str, state: State, *, keep_replicas: set[str], keep_grants: set[str]) -> Iterator[Step]:
    """Take grants and replicas that are not to be kept out of a pool."""
    for grantee in sorted(set(state.grants.get(pool, {})) - keep_grants):
        yield Step("-", "grant", slug, f"{pool} to {grantee}", path, wanted=(pool, grantee, None))
    for pool_name, replica in sorted(state.replicas):
        if pool_name == pool and replica not in keep_replicas:
            yield Step("-", "replica", slug, f"{pool}/{replica}", path, wanted=(pool, replica))


def _replica(slug: str, pool: doc.Pool, wanted: doc.Replica, state: State) -> Iterator[Step]:
    held = state.replicas.get((pool.name, wanted.name))
    label = f"{pool.name}/{wanted.name}"
    if held is None:
        events = () if wanted.kv_events is None else (f"kv_events: {_word(wanted.kv_events)}",)
        role = () if wanted.role == "both" else (f"role: {wanted.role}",)
        limit = () if wanted.max_concurrency is None else (f"max_concurrency: {wanted.max_concurrency}",)
        yield Step("+", "replica", slug, label, wanted.path, (f"url: {wanted.url}", *role, *limit, *events), (pool.name, wanted, None))
        return
    fields: dict[str, Any] = {}
    if _normal(wanted.url) != held["url"]:
        fields["url"] = wanted.url
    if wanted.engine != held["engine"]:
        fields["engine"] = wanted.engine
    if wanted.role != held["role"]:
        fields["role"] = wanted.role
    if wanted.max_concurrency != held["max_concurrency"]:
        fields["max_concurrency"] = wanted.max_concurrency
    if replicas.spelled(wanted.kv_events) != held["kv_events"]:
        fields["kv_events"] = wanted.kv_events
    details = [f"{name}: {_word(held[name])} -> {_word(value)}" for name, value in fields.items()]
    credential = wanted.credential
    if credential is None and held["has_credential"]:
        fields["credential"] = None
        details.append("credential: taken away")
    elif credential is not None and credential.value is not None and replicas.tag(held["id"], credential.value) != held["credential_tag"]:
        fields["credential"] = credential.value
        details.append("credential: changed")
    if credential is not None and credential.value is not None and "url" in fields:
        fields["credential"] = credential.value  # another address needs to be told that the credential goes with it
    if fields:
        yield Step("~", "replica", slug, label, wanted.path, tuple(details), (pool.name, wanted, fields))


def _normal(url: str) -> str:
    try:
        return normalise_url(url)
    except UrlRefused:
        return url  # the service refuses it, with its own words


# ---- policies and endpoints --------------------------------------------------------------------------------------------


def _policies_and_endpoints(wanted: doc.Tenant, state: State, options: Options) -> Iterator[Step]:
    newest = {key: policy.version for key, policy in state.policies.items()}
    specs = {key: policy.spec for key, policy in state.policies.items()}
    for policy in wanted.policies:
        key = (policy.kind, policy.name)
        label = f"{policy.kind} policy"
        if key not in newest:
            newest[key] = 1
            yield Step("+", label, wanted.slug, policy.name, policy.path, (f"v1: {_word(policy.spec)}",), policy)
        elif specs[key] != policy.spec:
            newest[key] += 1
            change = f"v{newest[key] - 1} -> v{newest[key]}: {_word(specs[key])} -> {_word(policy.spec)}"
            yield Step("~", label, wanted.slug, policy.name, policy.path, (change,), policy)
        specs[key] = policy.spec
    used: set[tuple[str, str]] = {(policy.kind, policy.name) for policy in wanted.policies}
    for endpoint in wanted.endpoints or []:
        fields = dict(endpoint.fields, pool=endpoint.pool, model=endpoint.model, adapter=endpoint.adapter)
        if fields["served_model"] == (endpoint.adapter or endpoint.model):
            fields["served_model"] = None  # the default written out; the state says it in the same way
        fields["routing_policy"] = _chosen("routing", endpoint.routing_policy, endpoint.name, newest, specs)
        fields["slo"] = _chosen("slo", endpoint.slo, endpoint.name, newest, specs) if endpoint.slo else None
        tried = endpoint.candidate
        fields["candidate"] = _chosen("routing", tried.policy, endpoint.name, newest, specs, trial=True) if tried else None
        fields["canary_share"] = tried.share if tried else 0.0
        columns = (("routing", "routing_policy"), ("slo", "slo"), ("routing", "candidate"))
        used |= {(kind, fields[column][0]) for kind, column in columns if fields[column]}
        held = state.endpoints.get(endpoint.name)
        if held is None:
            given = tuple(f"{name}: {_word(value)}" for name, value in fields.items() if value not in (None, [], {}, False))
            yield Step("+", "endpoint", wanted.slug, endpoint.name, endpoint.path, given, endpoint)
        elif differing := _differences(held, fields):
            yield Step("~", "endpoint", wanted.slug, endpoint.name, endpoint.path, differing, endpoint)
    if not options.prune:
        return
    if wanted.endpoints is not None:
        for name in sorted(set(state.endpoints) - {endpoint.name for endpoint in wanted.endpoints}):
            yield Step("-", "endpoint", wanted.slug, name, wanted.path)
        # Without their section, the policies that may go are those that inline documents left behind.
        for kind, name in sorted(set(state.policies) - used):
            left_behind = any(name in (inline_name(endpoint), inline_name(endpoint, trial=True)) for endpoint in state.endpoints)
            if kind in wanted.policy_kinds or left_behind:
                yield Step("-", f"{kind} policy", wanted.slug, name, wanted.path)


def _chosen(
    kind: str,
    choice: doc.PolicyChoice,
    endpoint: str,
    newest: dict[tuple[str, str], int],
    specs: dict[tuple[str, str], dict[str, Any]],
    *,
    trial: bool = False,
) -> tuple[str, int]:
    """The (name, version) that a choice will mean once the policies of the file are in place."""
    if choice.spec is None:
        name = choice.name or ""
        return name, choice.version if choice.version is not None else newest.get((kind, name), 0)
    key = (kind, inline_name(endpoint, trial=trial))
    if key not in newest:
        newest[key] = 1
    elif specs[key] != choice.spec:
        newest[key] += 1
    specs[key] = choice.spec
    return key[1], newest[key]


# ---- keys --------------------------------------------------------------------------------------------------------------


def _keys(wanted: doc.Tenant, state: State, options: Options) -> Iterator[Step]:
    if wanted.keys is None:
        return
    for key in wanted.keys:
        held = state.keys.get(key.name)
        if held is None:
            limits = {name: value for name, value in (("endpoints", key.endpoints), ("expires_at", key.expires_at)) if value is not None}
            details = (f"scope: {key.scope or '(root)'}", *(f"{name}: {_word(value)}" for name, value in limits.items()))
            details = (*details, f"secret: {key.secret.reference}")
            yield Step("+", "key", wanted.slug, key.name, key.path, details, key)
            continue
        changed = _differences(
            {"scope": held.scope, "endpoints": _all_or(held.endpoints), "expires_at": held.expires_at},
            {"scope": key.scope, "endpoints": _all_or(key.endpoints), "expires_at": key.expires_at},
        )
        if key.secret.value is not None and api_key.digest(key.secret.value) != held.digest:
            changed = (*changed, "secret: changed")
        if changed:
            yield Step("~", "key", wanted.slug, key.name, key.path, changed, key)
    if _prunes_keys(wanted, options):
        for name in sorted(set(state.keys) - {key.name for key in wanted.keys}):
            yield Step("-", "key", wanted.slug, name, wanted.path)


def _quotas(wanted: doc.Tenant, state: State, options: Options) -> Iterator[Step]:
    if wanted.quotas is None:
        return
    for quota in wanted.quotas:
        held = state.quotas.get((quota.of, quota.name))
        label = f"{quota.of} {quota.name}".strip()
        if held is None:
            given = tuple(f"{measure}: {limit}" for measure, limit in quota.limits.items() if limit is not None)
            yield Step("+", "quota", wanted.slug, label, quota.path, given, quota)
        elif changed := _differences(held, quota.limits):
            yield Step("~", "quota", wanted.slug, label, quota.path, changed, quota)
    if options.prune:
        kept = {(quota.of, quota.name) for quota in wanted.quotas}
        for of, name in sorted(set(state.quotas) - kept):
            yield Step("-", "quota", wanted.slug, f"{of} {name}".strip(), wanted.path, wanted=(of, name))


def _prunes_keys(wanted: doc.Tenant, options: Options) -> bool:
    return options.prune and options.prune_tenants and wanted.keys is not None


def _all_or(names: list[str] | None) -> list[str] | str:
    return "all" if names is None else names


def _differences(held: dict[str, Any], wanted: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{name}: {_word(held[name])} -> {_word(value)}" for name, value in wanted.items() if held[name] != value)


def _word(value: object) -> str:
    if isinstance(value, tuple):
        return f"{value[0]} v{value[1]}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "none"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_word(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_word(inner) for inner in value) + "]"
    return str(value)
