"""``manage.py reconcile``: compare what routers, engines and the database say, here and now, repair what is safe, and print the rest."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import msgspec
from django.core.management.base import BaseCommand, CommandError

from routing.models import ReconciliationFinding, ReconciliationRun
from routing.services.reconciliation import reading, running
from tenants.queries import TenantRef, all_tenants
from tenants.scoping import tenant_scope

Findings = tuple[ReconciliationFinding, ...]
UNHEARD = 2  # exit code


class Command(BaseCommand):
    """As the worker of the queue ``bulk`` does every minute. Exits 1 while something critical is open, else 2 where Valkey did not answer: what rests
    on routers' words was not compared then. What is only watched fails nothing."""

    help = "Reconcile routers, engines and the database: run now, or show the last run."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Describe the command line."""
        parser.add_argument("--tenant", help="slug; without it all tenants")
        parser.add_argument("--last", action="store_true", help="show the last run, what is open and what is watched; runs nothing")
        parser.add_argument("--json", action="store_true", help="one JSON document")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - Django's signature
        """Run it."""
        refs = [ref for ref in all_tenants() if options["tenant"] in (None, ref.slug)]
        if not refs and options["tenant"] is not None:
            raise CommandError(f"there is no tenant {options['tenant']}")
        told: list[dict[str, Any]] = []
        critical = unheard = False
        for ref in refs:
            if not options["last"] and running.run(ref.tenant_id, trigger="command", by="manage.py reconcile") is None:
                self.stderr.write(f"{ref.slug}: another run has this tenant; what follows is from the last one")
            with tenant_scope(ref.tenant_id):
                last, findings = reading.last(ref.tenant_id), running.open_findings(ref.tenant_id)
                watched = reading.watched(ref.tenant_id)
            critical |= any(one.severity == "critical" for one in findings)
            unheard |= last is not None and last.routers is None
            if options["json"]:
                told.append(_told(ref, last, findings, watched))
            else:
                self._show(ref, last, findings, watched)
        if options["json"]:
            self.stdout.write(msgspec.json.format(msgspec.json.encode(told)).decode())
        if critical:
            raise CommandError("something critical is open")
        if unheard:
            raise CommandError("Valkey did not answer: what routers say was not compared", returncode=UNHEARD)

    def _show(self, ref: TenantRef, last: ReconciliationRun | None, findings: Findings, watched: Findings) -> None:
        if last is None or last.finished_at is None:
            self.stdout.write(f"{ref.slug}: no run yet")
            return
        heard = "Valkey did not answer" if last.routers is None else f"{last.routers} router{'' if last.routers == 1 else 's'} heard"
        done = f"{last.opened} opened, {last.resolved} resolved, {last.repairs} repaired"
        self.stdout.write(f"{ref.slug}: {len(findings)} open, {last.watching} watched, {done}; {heard}, {last.finished_at:%Y-%m-%d %H:%M:%S} UTC")
        for state, one in [*((one.severity, one) for one in findings), *(("watched", one) for one in watched)]:
            self.stdout.write(f"  {state:<9} {one.kind:<22} {one.subject}")
            self.stdout.write(f"            {one.explanation}")
            if one.done:
                self.stdout.write(f"            done: {one.done}")


def _told(ref: TenantRef, last: ReconciliationRun | None, findings: Findings, watched: Findings) -> dict[str, Any]:
    return {
        "tenant": ref.slug,
        "last_run": None if last is None else reading.run_shown(last),
        "findings": [reading.finding_shown(one) for one in findings],
        "watched": [reading.finding_shown(one) for one in watched],
    }
