"""``manage.py quota``: how a tenant's quotas stand; set and remove them."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from routing.core.quota import MEASURES, OFS
from routing.models import Quota
from routing.services import quotas
from tenants.actor import system
from tenants.core.errors import Refusal
from tenants.management import tenant
from tenants.scoping import tenant_scope

ACTOR = system("manage.py quota")


class Command(BaseCommand):
    """Runs as the operator of the platform, whose own quotas for tenants it may set."""

    help = "Show, set or remove a tenant's quotas."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Describe the command line."""
        commands = parser.add_subparsers(dest="command", required=True)
        for name, text in (
            ("list", "what is used and left"),
            ("set", "set the limits of one quota; those not given are none"),
            ("remove", "remove one quota"),
        ):
            one = commands.add_parser(name, help=text)
            one.add_argument("--tenant", required=True, help="slug")
            if name != "list":
                one.add_argument("--of", required=True, choices=OFS)
                one.add_argument("--name", default="", help="a scope's path, a key's or an endpoint's name")
            if name == "set":
                for measure in MEASURES:
                    one.add_argument(f"--{measure.replace('_', '-')}", type=int)

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - Django's signature
        """Run it."""
        tenant_id = tenant.named(options["tenant"])
        try:
            with tenant_scope(tenant_id):
                if options["command"] == "set":
                    limits = {measure: options[measure] for measure in MEASURES}
                    quotas.put(tenant_id=tenant_id, actor=ACTOR, of=options["of"], name=options["name"], platform=True, **limits)
                elif options["command"] == "remove":
                    held = Quota.objects.filter(tenant_id=tenant_id, of=options["of"], name=options["name"]).first()
                    if held is None:
                        raise CommandError("there is no such quota")
                    quotas.remove(tenant_id=tenant_id, actor=ACTOR, quota_id=held.id, platform=True)
                rows = list(Quota.objects.filter(tenant_id=tenant_id).order_by("of", "name"))
                for one in quotas.standings(tenant_id, rows, timezone.now()):
                    self._show(one)
        except Refusal as refusal:
            where = f"--{refusal.field.replace('_', '-')}: " if refusal.field else ""
            raise CommandError(f"{where}{refusal.message}") from None

    def _show(self, held: quotas.Held) -> None:
        note = "" if held.found else "  (nothing has this name now)"
        self.stdout.write(f"{held.row}{note}")
        for one in held.standings:
            used = "unknown: Valkey does not answer" if one.used is None else f"{one.used} used, {one.left} left"
            self.stdout.write(f"  {one.measure:<20} {one.limit:>16}  {used}{'  NEAR ITS LIMIT' if one.near else ''}")
