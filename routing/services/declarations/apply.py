"""``apply``: make the installation be as a file says, in one transaction. The same file again changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import transaction

from routing.services.declarations import checks, plan
from routing.services.declarations import document as doc
from routing.services.declarations.execute import Executor
from routing.services.declarations.plan import Options, Step
from routing.services.declarations.problems import Problem
from routing.services.declarations.state import State, read
from tenants.actor import Actor
from tenants.models import PLATFORM_SLUG
from tenants.queries import all_tenants, tenant_id_of
from tenants.scoping import tenant_scope
from tenants.services import locks, provisioning


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done, or with ``dry_run`` what would be."""

    steps: tuple[Step, ...]

    def render(self) -> str:
        """The diff for people; secrets are never in it."""
        if not self.steps:
            return "no changes"
        lines = [line for step in self.steps for line in step.render()]
        counts = {op: sum(1 for step in self.steps if step.op == op) for op in "+~-"}
        return "\n".join([*lines, f"{counts['+']} added, {counts['~']} changed, {counts['-']} removed"])


def apply(*, document: doc.Document, actor: Actor, options: Options, dry_run: bool = False, now: datetime) -> Outcome:
    """Apply ``document``; with ``dry_run`` do it all and roll it back, so that what would be refused is refused now.

    Raises:
        DeclarationError: something was refused; nothing was changed.
    """
    with transaction.atomic():
        steps, problems = _planned(document, options)
        Executor(document, actor, now, problems).run(steps)
        if dry_run:
            transaction.set_rollback(True)
    return Outcome(tuple(steps))


def _planned(document: doc.Document, options: Options) -> tuple[list[Step], list[Problem]]:
    steps: list[Step] = []
    problems: list[Problem] = []
    for wanted, tenant_id in _locked(document):
        state = None if tenant_id is None else _state(tenant_id)
        steps += plan.tenant(wanted, state, options)
        problems += checks.references(document, wanted, state, options)
    if document.pools is not None:
        steps += plan.pools(PLATFORM_SLUG, document.pools, _state(provisioning.ensure_platform().id), options)
    if options.prune and options.prune_tenants:
        named = {tenant.slug for tenant in document.tenants} | {PLATFORM_SLUG}
        gone = [ref.slug for ref in all_tenants() if ref.slug not in named]
        if gone and not document.tenants:
            message = f"names no tenant, so --prune-tenants would delete all of them ({', '.join(gone)}); name at least one that stays"
            problems.append(Problem(document.line("tenants"), "tenants", message))
        steps += [Step("-", "tenant", slug, slug) for slug in gone]
    return plan.ordered(steps), problems


def _locked(document: doc.Document) -> list[tuple[doc.Tenant, UUID | None]]:
    """The file's tenants with their ids, all locked in the order of ids: nobody else changes them meanwhile, and two applies wait in turn."""
    found = [(tenant, tenant_id_of(tenant.slug)) for tenant in document.tenants]
    platform = tenant_id_of(PLATFORM_SLUG) if document.pools is not None else None
    for tenant_id in [*([platform] if platform else []), *sorted(tenant_id for _, tenant_id in found if tenant_id)]:
        with tenant_scope(tenant_id):
            locks.tenant(tenant_id)
    return found


def _state(tenant_id: UUID) -> State:
    with tenant_scope(tenant_id):
        return read(tenant_id)
