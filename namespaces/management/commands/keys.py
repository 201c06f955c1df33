"""``manage.py keys ...``: new root keys, rotation of the root and of a tenant's key, and how far it is. See docs/keys.md."""

from __future__ import annotations

import os
import secrets
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from namespaces import roots
from namespaces.core import keyring
from namespaces.core.keyring import Roots
from namespaces.models import OPEN_STATES, KeyOperation, OperationState
from namespaces.root import RootError
from namespaces.roots import aws_kms
from namespaces.services import keys, operations
from tenants import queries
from tenants.actor import system
from tenants.core.errors import Refusal
from tenants.scoping import tenant_scope
from tenants.services import provisioning

POLL_S = 0.5
SLICE_S = 1.0


class Command(BaseCommand):
    """Prints ids and versions, never a key. Where this process holds the root key it does the work itself; elsewhere the ``keys`` worker does."""

    help = "Make root keys, rotate the root or a tenant's key, show how far it is."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Describe the command line."""
        verbs = parser.add_subparsers(dest="verb", required=True)
        new = verbs.add_parser("new-root", help="make a root key and its public half, in files that do not exist yet")
        new.add_argument("--out", required=True, type=Path, help="where to write it; with --kms as KMS encrypted it")
        new.add_argument("--public", required=True, type=Path, help="where to write its public half, to which the control plane seals")
        new.add_argument("--kms", metavar="key=ARN[&region=...]", help="have AWS KMS make it: only a holder of the KMS key can open the file")
        root = verbs.add_parser("rotate-root", help="move all keys and sealed values to the root that the control plane seals to; no salt changes")
        tenant = verbs.add_parser("rotate-tenant", help="put a new tenant key in force: every salt of the tenant changes at once")
        tenant.add_argument("--tenant", required=True, metavar="SLUG")
        for rotation in (root, tenant):
            rotation.add_argument("--reason", required=True, help="goes to the audit log")
            rotation.add_argument("--wait", action="store_true", help="return when it is over; 1 if it failed")
        status = verbs.add_parser("status", help="root keys by their ids, tenant key versions, operations")
        status.add_argument("--tenant", metavar="SLUG", help="whose key and operations to show; without it the platform's own")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - Django's signature
        """Run it."""
        try:
            getattr(self, options["verb"].replace("-", "_"))(options)
        except (Refusal, RootError) as error:
            raise CommandError(str(error)) from None

    def new_root(self, options: dict[str, Any]) -> None:
        """Make a root key."""
        for path in (options["out"], options["public"]):
            if path.exists():
                raise CommandError(f"{path} exists; no key is ever overwritten")
        if options["kms"]:
            reference = f"{options['out']}?{options['kms']}"
            key, kept = aws_kms.generate(reference)
            reference = f"awskms:{reference}"
        else:
            key = kept = secrets.token_bytes(keyring.KEY_BYTES)
            reference = f"file:{options['out']}"
        public = keyring.seal_public_key(key)
        _write(options["out"], kept)
        _write(options["public"], public)
        self.stdout.write(f"root {keyring.root_id(public)}: name it as {reference}, and {options['public']} in SALTROUTE_SEAL_PUBLIC_KEY_FILE")

    def rotate_root(self, options: dict[str, Any]) -> None:
        """Ask for a rotation of the root, and do it where the root is."""
        platform = provisioning.ensure_platform().id
        with tenant_scope(platform):
            row = operations.request_root_rotation(tenant_id=platform, actor=system("keys"), reason=options["reason"])
        self._follow(platform, row.id, wait=options["wait"])

    def rotate_tenant(self, options: dict[str, Any]) -> None:
        """Ask for a new tenant key, and make it where the root is."""
        tenant_id = self._tenant(options["tenant"])
        with tenant_scope(tenant_id):
            row = operations.request_tenant_rotation(tenant_id=tenant_id, actor=system("keys"), reason=options["reason"])
        self._follow(tenant_id, row.id, wait=options["wait"])

    def status(self, options: dict[str, Any]) -> None:
        """Show ids, versions and operations."""
        held = self._roots()
        self.stdout.write(f"root keys here: {', '.join(held.ids) if held else 'none (only routers and the keys worker hold any)'}")
        public = settings.SEAL_PUBLIC_KEY
        self.stdout.write(f"sealing to root: {keyring.root_id(public) if public else 'none'}")
        slug = options["tenant"] or provisioning.ensure_platform().slug
        tenant_id = self._tenant(slug)
        others = "" if options["tenant"] else " (--tenant SLUG shows another's)"
        with tenant_scope(tenant_id):
            material = keys.material(tenant_id)
            self.stdout.write(f"tenant key of {slug}: {f'version {material.version}' if material else 'none yet'}{others}")
            for row in operations.listed(tenant_id).order_by("-created_at")[:10]:
                self.stdout.write(_line(row))

    def _tenant(self, slug: str) -> UUID:
        tenant_id = queries.tenant_id_of(slug)
        if tenant_id is None:
            raise CommandError(f"there is no tenant {slug!r}")
        return tenant_id

    def _roots(self) -> Roots | None:
        return roots.held(tuple(settings.ROOT)) if settings.ROOT else None

    def _follow(self, tenant_id: UUID, operation_id: UUID, *, wait: bool) -> None:
        """Do or watch an operation, and print its line whenever it changes."""
        held, shown = self._roots(), ""
        while True:
            if held is not None:
                end_s = time.monotonic() + SLICE_S
                operations.perform(tenant_id=tenant_id, operation_id=operation_id, roots=held, go_on=lambda end_s=end_s: time.monotonic() < end_s)  # type: ignore[misc]  # mypy cannot type a lambda's default
            with tenant_scope(tenant_id):
                row = operations.find(tenant_id, str(operation_id))
            if _line(row) != shown:
                shown = _line(row)
                self.stdout.write(shown)
            if row.state == OperationState.FAILED.value:
                raise CommandError(row.problem)
            works_here = held is not None and row.state == OperationState.RUNNING.value
            if row.state not in OPEN_STATES or not (wait or works_here):
                return
            if not works_here:
                time.sleep(POLL_S)


def _line(row: KeyOperation) -> str:
    progress = f", {row.phase} {row.tenants_done} of {row.tenants_total} tenants" if row.phase and row.state == OperationState.RUNNING.value else ""
    target = f"root {row.root_id}" if row.root_id else f"from version {row.from_version}"
    counts = ", ".join(f"{name} {count}" for name, count in sorted(row.counts.items()) if name != "left")
    return " ".join(filter(None, (f"{row.id} {row.kind} ({target}): {row.state}{progress}", f"[{counts}]" if counts else "", row.problem)))


def _write(path: Path, value: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(value)
        stream.flush()
        os.fsync(stream.fileno())
