"""Whether everything that a tenant's endpoints and keys name will be there: declared in the file, or held already.

Asked before anything is done, so that all of it comes at once; a service stops at the first thing that it does not find.
"""

from __future__ import annotations

from collections.abc import Iterator

from routing.services.declarations import document as doc
from routing.services.declarations.plan import Options
from routing.services.declarations.problems import Problem
from routing.services.declarations.state import State
from routing.services.policies import Kind, absent, inline_name


def references(document: doc.Document, wanted: doc.Tenant, state: State | None, options: Options) -> list[Problem]:
    """What ``wanted`` names and nobody has; ``state`` None: the tenant does not exist yet."""
    found = [*_endpoints(document, wanted, state), *_keys(wanted, state, options)]
    return [Problem(document.line(path), path, message) for path, message in found]


def _endpoints(document: doc.Document, wanted: doc.Tenant, state: State | None) -> Iterator[tuple[str, str]]:
    models = {model.name for model in wanted.models} | (set(state.models) if state else set())
    adapters = {(model.name, adapter.name) for model in wanted.models for adapter in model.adapters} | (set(state.adapters) if state else set())
    pools = {pool.name for pool in wanted.pools or []} | (state.usable_pools if state else set())
    pools |= {pool.name for pool in document.pools or [] if any(grant.slug == wanted.slug for grant in pool.grants)}
    policies = {(policy.kind, policy.name) for policy in wanted.policies} | (set(state.policies) if state else set())
    for endpoint in wanted.endpoints or []:
        for kind, choice in (("routing", endpoint.routing_policy), ("slo", endpoint.slo)):
            if choice is not None and choice.spec is not None:
                policies.add((kind, inline_name(endpoint.name)))
        if endpoint.candidate is not None and endpoint.candidate.policy.spec is not None:
            policies.add(("routing", inline_name(endpoint.name, trial=True)))
    for endpoint in wanted.endpoints or []:
        if endpoint.pool not in pools:
            yield f"{endpoint.path}.pool", "This tenant has no pool of this name, and none is granted to it."
        if endpoint.model not in models:
            yield f"{endpoint.path}.model", "This tenant has no model of this name."
            if endpoint.adapter is not None and not any(name == endpoint.adapter for _, name in adapters):
                yield f"{endpoint.path}.adapter", "No model of this tenant has an adapter of this name."
        elif endpoint.adapter is not None and (endpoint.model, endpoint.adapter) not in adapters:
            yield f"{endpoint.path}.adapter", f"The model {endpoint.model} has no adapter of this name."
        choices: list[tuple[Kind, str, doc.PolicyChoice | None]] = [
            ("routing", "routing_policy", endpoint.routing_policy),
            ("slo", "slo", endpoint.slo),
        ]
        if endpoint.candidate is not None:
            choices.append(("routing", "candidate.policy", endpoint.candidate.policy))
        for kind, field, choice in choices:
            if choice is not None and choice.name is not None and (kind, choice.name) not in policies:
                yield f"{endpoint.path}.{field}", absent(kind, choice.name)


def _keys(wanted: doc.Tenant, state: State | None, options: Options) -> Iterator[tuple[str, str]]:
    declared = {endpoint.name for endpoint in wanted.endpoints or []}
    held = set(state.endpoints) if state else set()
    there = declared if options.prune and wanted.endpoints is not None else declared | held
    for key in wanted.keys or []:
        before = state.keys.get(key.name) if state else None
        # An endpoint that went before this run stays in the lists of its keys: an export must be accepted as it is.
        known = there | (set(before.endpoints or []) - held if before else set())
        for name in key.endpoints or []:
            if name not in known:
                yield f"{key.path}.endpoints", f"This tenant has no endpoint {name}, and the file declares none."
