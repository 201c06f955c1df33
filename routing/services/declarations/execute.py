"""Carries out the steps of a plan through the services, in one transaction. Each step looks its rows up by name, so a plan holds no ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.db import transaction

from routing import queries
from routing.models import Quota
from routing.services import artifacts, catalogue, endpoints, policies, pools, quotas, replicas, trials
from routing.services.declarations import addresses
from routing.services.declarations import document as doc
from routing.services.declarations.plan import Step
from routing.services.declarations.problems import DeclarationError, Problem
from tenants import queries as tenant_queries
from tenants.actor import Actor
from tenants.core import api_key
from tenants.core.api_key import Kind
from tenants.core.errors import Invalid, NotFound, Refusal
from tenants.core.roles import Role
from tenants.models import ApiKey
from tenants.scoping import tenant_scope
from tenants.services import api_keys, members, provisioning, scopes


class _MissingError(Exception):
    """A step stands on something that an earlier step, itself refused, should have made. Not a problem of its own."""


@dataclass
class Executor:
    """One run. ``problems`` begins with what is known to be wrong and gathers what services refuse; the caller rolls everything back then."""

    document: doc.Document
    actor: Actor
    now: datetime
    problems: list[Problem] = field(default_factory=list)
    _tenants: dict[str, UUID] = field(default_factory=dict)
    _refused: set[tuple[str, str, str]] = field(default_factory=set)  # files, by tenant, kind and SHA-256

    def run(self, steps: list[Step]) -> None:
        """Carry out all steps, each in a savepoint, so that all refusals come at once.

        Raises:
            DeclarationError: at least one was refused, or was known to be wrong.
        """
        for step in steps:
            try:
                with transaction.atomic():
                    self._run(step)
            except _MissingError:
                if not self.problems:
                    self._note(step, "stands on something that is not there", None)
            except replicas.AddressRefused as refusal:
                self._note(step, addresses.why(refusal.reason, settings.ALLOWED_RANGES), refusal.field)
            except Refusal as refusal:
                self._note(step, refusal.message, refusal.field)
        if self.problems:
            raise DeclarationError(self.document.file, self.problems)

    def _note(self, step: Step, message: str, at: str | None) -> None:
        path = _written(step, at)
        if path and any(problem.path == path for problem in self.problems):
            return  # what was found before anything was done, said again by a service
        self.problems.append(Problem(self.document.line(path), path or f"{step.tenant}: {step.kind} {step.name}", message))

    def _run(self, step: Step) -> None:
        handler = _HANDLERS[(step.kind, step.op)]
        if step.kind == "tenant":
            handler(self, step, None)
            return
        tenant_id = self._tenant(step.tenant)
        with tenant_scope(tenant_id):
            handler(self, step, tenant_id)

    def _tenant(self, slug: str) -> UUID:
        if slug not in self._tenants:
            found = tenant_queries.tenant_id_of(slug)
            if found is None:
                raise _MissingError
            self._tenants[slug] = found
        return self._tenants[slug]

    # ---- tenants ---------------------------------------------------------------------------------------------------------

    def tenant(self, step: Step, _: None) -> None:
        """Create or change a tenant."""
        wanted: doc.Tenant = step.wanted
        if step.op == "+":
            made = provisioning.create(actor=self.actor, slug=wanted.slug, name=wanted.name or wanted.slug)
            self._tenants[wanted.slug] = made.id
        tenant_id = self._tenant(wanted.slug)
        with tenant_scope(tenant_id):
            if wanted.name is not None:
                provisioning.rename(tenant_id=tenant_id, actor=self.actor, name=wanted.name)
            if wanted.suspended is not None:
                provisioning.suspend(tenant_id=tenant_id, actor=self.actor, suspended=wanted.suspended, reason="declared")

    def delete_tenant(self, step: Step, _: None) -> None:
        """Delete a tenant that the file does not name."""
        tenant_id = self._tenant(step.tenant)
        with tenant_scope(tenant_id):
            provisioning.delete(tenant_id=tenant_id, actor=self.actor, reason="not declared any more", now=self.now)

    def scope(self, step: Step, tenant_id: UUID) -> None:
        """Create or delete an auth scope."""
        if step.op == "+":
            scopes.create(tenant_id=tenant_id, actor=self.actor, path=step.name)
        else:
            scopes.delete(tenant_id=tenant_id, actor=self.actor, scope_id=tenant_queries.scope(tenant_id, step.name).id)

    def member(self, step: Step, tenant_id: UUID) -> None:
        """Add, change or remove a member."""
        if step.op == "+":
            members.add(tenant_id=tenant_id, actor=self.actor, email=step.wanted.email, role=step.wanted.role, ceiling=Role.OWNER)
            return
        membership_id = tenant_queries.member(tenant_id, step.name).id
        if step.op == "~":
            members.change_role(tenant_id=tenant_id, actor=self.actor, membership_id=membership_id, role=step.wanted.role, ceiling=Role.OWNER)
        else:
            members.remove(tenant_id=tenant_id, actor=self.actor, membership_id=membership_id, ceiling=Role.OWNER)

    def key(self, step: Step, tenant_id: UUID) -> None:
        """Issue, change or revoke an inference key."""
        if step.op == "-":
            key_id = tenant_queries.key(tenant_id, Kind.INFERENCE, step.name).id
            api_keys.revoke(
                tenant_id=tenant_id,
                actor=self.actor,
                kind=Kind.INFERENCE,
                key_id=key_id,
                ceiling=Role.OWNER,
                reason="not declared any more",
                now=self.now,
            )
            return
        wanted: doc.Key = step.wanted
        secret = wanted.secret.value
        if secret is not None and ApiKey.objects.filter(tenant_id=tenant_id, digest=api_key.digest(secret), revoked_at__isnull=False).exists():
            raise Invalid("This secret was revoked and stays so: give the key another one.", field="secret")
        api_keys.declare_inference(
            tenant_id=tenant_id,
            actor=self.actor,
            name=wanted.name,
            own_secret=secret,
            scope_path=wanted.scope,
            endpoints=wanted.endpoints,
            expires_at=wanted.expires_at,
            now=self.now,
        )

    def quota(self, step: Step, tenant_id: UUID) -> None:
        """Set or remove a quota. Whoever runs ``apply`` operates the platform, and may set its own."""
        if step.op == "-":
            of, name = step.wanted
            row = Quota.objects.get(tenant_id=tenant_id, of=of, name=name)
            quotas.remove(tenant_id=tenant_id, actor=self.actor, quota_id=row.id, platform=True)
            return
        wanted: doc.Quota = step.wanted
        quotas.put(tenant_id=tenant_id, actor=self.actor, of=wanted.of, name=wanted.name, platform=True, **wanted.limits)

    # ---- catalogue -------------------------------------------------------------------------------------------------------

    def artifact(self, step: Step, tenant_id: UUID) -> None:
        """Keep a file."""
        file: doc.File = step.wanted
        try:
            artifacts.store(tenant_id=tenant_id, actor=self.actor, kind=file.kind, name=file.name, content=file.content or b"")
        except Refusal:
            self._refused.add((step.tenant, file.kind, file.sha256))
            raise

    def model(self, step: Step, tenant_id: UUID) -> None:
        """Create, change or delete a model."""
        if step.op == "-":
            catalogue.delete_model(tenant_id=tenant_id, actor=self.actor, model_id=queries.model(tenant_id, step.name).id)
        elif any((step.tenant, file.kind, file.sha256) in self._refused for file in step.wanted.files):
            raise _MissingError
        elif step.op == "+":
            catalogue.create_model(tenant_id=tenant_id, actor=self.actor, name=step.wanted.name, **step.wanted.fields)
        else:
            model_id = _found(queries.model, tenant_id, step.name).id
            catalogue.update_model(tenant_id=tenant_id, actor=self.actor, model_id=model_id, **step.wanted.fields)

    def adapter(self, step: Step, tenant_id: UUID) -> None:
        """Create, change or delete an adapter."""
        model_name, wanted = step.wanted
        model = _found(queries.model, tenant_id, model_name)
        if step.op == "+":
            catalogue.create_adapter(tenant_id=tenant_id, actor=self.actor, model_id=model.id, name=wanted.name, revision=wanted.revision)
            return
        name = wanted if step.op == "-" else wanted.name
        adapter = queries.adapters(tenant_id).get(model=model, name=name)
        if step.op == "-":
            catalogue.delete_adapter(tenant_id=tenant_id, actor=self.actor, adapter_id=adapter.id)
        else:
            catalogue.update_adapter(tenant_id=tenant_id, actor=self.actor, adapter_id=adapter.id, revision=wanted.revision)

    # ---- pools -----------------------------------------------------------------------------------------------------------

    def pool(self, step: Step, tenant_id: UUID) -> None:
        """Create, change or delete a pool. Whoever runs ``apply`` operates the platform, and may vouch for isolation."""
        if step.op == "+":
            isolation = step.wanted.isolation or "audited"
            pools.create(tenant_id=tenant_id, actor=self.actor, name=step.name, isolation=isolation, platform=True)
        elif step.op == "~":
            pool_id = _found(queries.own_pool, tenant_id, step.name).id
            pools.update(tenant_id=tenant_id, actor=self.actor, pool_id=pool_id, isolation=step.wanted.isolation, platform=True)
        else:
            pools.delete(tenant_id=tenant_id, actor=self.actor, pool_id=queries.own_pool(tenant_id, step.name).id)

    def replica(self, step: Step, tenant_id: UUID) -> None:
        """Register, change or remove a replica."""
        if step.op == "+":
            pool_name, wanted, _ = step.wanted
            pool_id = _found(queries.own_pool, tenant_id, pool_name).id
            fields: dict[str, Any] = {name: getattr(wanted, name) for name in ("name", "url", "engine", "role", "max_concurrency", "kv_events")}
            if wanted.credential is not None:
                if wanted.credential.value is None:
                    raise Invalid("There is no stored credential that could be kept here: give env:NAME or file:PATH.", field="credential")
                fields["credential"] = wanted.credential.value
            replicas.create(tenant_id=tenant_id, actor=self.actor, pool_id=pool_id, **cast(Any, fields))
            return
        pool_name, name = step.wanted if step.op == "-" else (step.wanted[0], step.wanted[1].name)
        replica = queries.replicas(tenant_id).get(pool__name=pool_name, name=name)
        if step.op == "-":
            replicas.delete(tenant_id=tenant_id, actor=self.actor, replica_id=replica.id)
        else:
            replicas.update(tenant_id=tenant_id, actor=self.actor, replica_id=replica.id, **cast(Any, step.wanted[2]))

    def grant(self, step: Step, tenant_id: UUID) -> None:
        """Grant a platform pool, change a grant's weight, or take the grant back."""
        pool_name, slug, weight = step.wanted
        grantee = tenant_queries.tenant_id_of(slug)
        if grantee is None:
            raise Invalid(f"There is no tenant {slug}.")
        pool_id = _found(queries.own_pool, tenant_id, pool_name).id
        if step.op == "-":
            pools.withdraw(tenant_id=tenant_id, actor=self.actor, pool_id=pool_id, grantee_id=grantee)
        else:
            pools.grant(tenant_id=tenant_id, actor=self.actor, pool_id=pool_id, grantee_id=grantee, weight=weight)

    # ---- policies and endpoints ------------------------------------------------------------------------------------------

    def policy(self, step: Step, tenant_id: UUID) -> None:
        """Create a policy, append a version or delete it."""
        kind = cast(policies.Kind, step.kind.split()[0])
        if step.op == "+":
            policies.create(tenant_id=tenant_id, actor=self.actor, kind=kind, name=step.name, spec=step.wanted.spec)
            return
        policy_id = queries.policy(tenant_id, kind, step.name).id
        if step.op == "~":
            policies.add_version(tenant_id=tenant_id, actor=self.actor, policy_id=policy_id, kind=kind, spec=step.wanted.spec, activate=False)
        else:
            policies.delete(tenant_id=tenant_id, actor=self.actor, policy_id=policy_id, kind=kind)

    def endpoint(self, step: Step, tenant_id: UUID) -> None:
        """Create, change or delete an endpoint."""
        if step.op == "-":
            endpoints.delete(tenant_id=tenant_id, actor=self.actor, endpoint_id=queries.endpoint(tenant_id, step.name).id)
            return
        wanted: doc.Endpoint = step.wanted
        fields: dict[str, Any] = {
            **wanted.fields,
            "grant_id": _usable(tenant_id, wanted.pool, self.problems),
            **_model_and_adapter(tenant_id, wanted, self.problems),
            "routing_policy": _choice(wanted.routing_policy),
            "slo": _choice(wanted.slo) if wanted.slo else None,
        }
        if step.op == "+":
            endpoint_id = endpoints.create(tenant_id=tenant_id, actor=self.actor, name=wanted.name, **cast(Any, fields)).id
        else:
            endpoint_id = queries.endpoint(tenant_id, step.name).id
            endpoints.update(tenant_id=tenant_id, actor=self.actor, endpoint_id=endpoint_id, **cast(Any, fields))
        self._candidate(tenant_id, endpoint_id, wanted.candidate)

    def _candidate(self, tenant_id: UUID, endpoint_id: UUID, wanted: doc.Candidate | None) -> None:
        """Begin, change or end the trial of an endpoint."""
        if wanted is None:
            trials.end(tenant_id=tenant_id, actor=self.actor, endpoint_id=endpoint_id, reason="not declared any more")
            return
        try:
            trials.start(tenant_id=tenant_id, actor=self.actor, endpoint_id=endpoint_id, policy=_choice(wanted.policy), share=wanted.share)
        except Invalid as refusal:
            raise Invalid(refusal.message, field=f"candidate.{refusal.field}") from None


def _written(step: Step, at: str | None) -> str:
    """Where the file has what a service calls ``at``: an artifact is one field of the file, and a model's are below ``tokenizer``."""
    if not at or not step.path or step.kind == "artifact":
        return step.path
    if step.kind == "model" and step.op != "-":
        for file in step.wanted.files:
            if at == f"{file.kind}_sha256":
                return str(file.path)
        at = {"tokenizer_revision": "tokenizer.revision", "chat_template_revision": "tokenizer.chat_template_revision"}.get(at, at)
    return f"{step.path}.{at}"


def _found(find: Callable[[UUID, str], Any], tenant_id: UUID, name: str) -> Any:
    """What an earlier step made; missing only where that step was refused."""
    try:
        return find(tenant_id, name)
    except NotFound:
        raise _MissingError from None


def _usable(tenant_id: UUID, pool: str, problems: list[Problem]) -> UUID:
    try:
        return queries.usable_pool(tenant_id, pool).grant_id
    except NotFound:
        if problems:  # it may be missing only because of them
            raise _MissingError from None
        raise Invalid("This tenant has no pool of this name, and none is granted to it.", field="pool") from None


def _model_and_adapter(tenant_id: UUID, wanted: doc.Endpoint, problems: list[Problem]) -> dict[str, UUID | None]:
    try:
        model = queries.model(tenant_id, wanted.model)
    except NotFound:
        if problems:
            raise _MissingError from None
        raise Invalid("This tenant has no model of this name.", field="model") from None
    if wanted.adapter is None:
        return {"model_id": model.id, "adapter_id": None}
    adapter = queries.adapters(tenant_id).filter(model=model, name=wanted.adapter).first()
    if adapter is None:
        raise Invalid(f"The model {model.name} has no adapter of this name.", field="adapter")
    return {"model_id": model.id, "adapter_id": adapter.id}


def _choice(choice: doc.PolicyChoice) -> object:
    if choice.spec is not None:
        return choice.spec
    return choice.name if choice.version is None else {"name": choice.name, "version": choice.version}


_BY_KIND: dict[str, Any] = {
    "scope": Executor.scope,
    "member": Executor.member,
    "key": Executor.key,
    "artifact": Executor.artifact,
    "model": Executor.model,
    "adapter": Executor.adapter,
    "pool": Executor.pool,
    "replica": Executor.replica,
    "grant": Executor.grant,
    "routing policy": Executor.policy,
    "slo policy": Executor.policy,
    "endpoint": Executor.endpoint,
    "quota": Executor.quota,
}
_HANDLERS: dict[tuple[str, str], Any] = {
    ("tenant", "+"): Executor.tenant,
    ("tenant", "~"): Executor.tenant,
    ("tenant", "-"): Executor.delete_tenant,
    **{(kind, op): handler for kind, handler in _BY_KIND.items() for op in ("+", "~", "-")},
}
