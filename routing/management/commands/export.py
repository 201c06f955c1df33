"""``manage.py export``: what is there, as a declaration for ``apply``."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from routing.services.declarations.export import export
from tenants.core.errors import NotFound


class Command(BaseCommand):
    """Writes a declaration to standard output; see docs/declarations.md."""

    help = "Write tenants, pools, endpoints and the rest as a YAML file that apply accepts and finds nothing to do with."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Describe the command line."""
        parser.add_argument("--tenant", help="slug of the one tenant to write; without it everything")
        held = "folder for tokenizers and templates, to apply the file elsewhere; named in it as here, so name it as where the file will lie sees it"
        parser.add_argument("--artifacts", type=Path, help=held)

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - Django's signature
        """Run it."""
        try:
            with transaction.atomic():
                written = export(slug=options["tenant"], artifacts_folder=options["artifacts"])
        except NotFound:
            raise CommandError(f"there is no tenant {options['tenant']}") from None
        self.stdout.write(written, ending="")
