"""``manage.py apply -f FILE.yaml``: make the installation be as the file says."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from routing.services.declarations.apply import apply
from routing.services.declarations.parse import parse
from routing.services.declarations.plan import Options
from routing.services.declarations.problems import DeclarationError
from tenants.actor import system


class Command(BaseCommand):
    """Applies a declaration in one transaction and prints what changed; see docs/declarations.md."""

    help = "Make tenants, pools, endpoints and the rest be as a YAML file says. The same file again changes nothing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Describe the command line."""
        parser.add_argument("-f", "--file", required=True, type=Path, help="the declaration")
        parser.add_argument("--prune", action="store_true", help="remove what the named tenants have beyond the file, except keys")
        parser.add_argument("--prune-tenants", action="store_true", help="with --prune: also delete tenants and revoke keys beyond the file")
        parser.add_argument("--dry-run", action="store_true", help="do everything, print it, and roll it back")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - Django's signature
        """Run it."""
        if options["prune_tenants"] and not options["prune"]:
            raise CommandError("--prune-tenants goes with --prune")
        try:
            outcome = apply(
                document=parse(options["file"]),
                actor=system("apply"),
                options=Options(prune=options["prune"], prune_tenants=options["prune_tenants"]),
                dry_run=options["dry_run"],
                now=timezone.now(),
            )
        except DeclarationError as error:
            # Not a CommandError, which would put its name before the first place: editors read FILE:LINE at the beginning of a line.
            self.stderr.write(f"{error}\nnothing was changed")
            raise SystemExit(1) from None
        self.stdout.write(outcome.render())
        if options["dry_run"]:
            self.stdout.write("dry run: nothing was changed")
