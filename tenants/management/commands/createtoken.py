"""``manage.py createtoken NAME [--tenant SLUG --role ROLE] [--out FILE]``: a control token for scripts and pipelines, printed once."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from tenants import queries
from tenants.actor import system
from tenants.core.errors import Refusal
from tenants.core.roles import Role
from tenants.models import PLATFORM_SLUG
from tenants.scoping import tenant_scope
from tenants.services import api_keys, key_use, provisioning


class Command(BaseCommand):
    """Issues a control token and writes it, alone on a line, to standard output; nothing can show it again.

    Without ``--tenant`` it is a platform operator's token, which acts in every tenant. With ``--out`` the command may be repeated.
    """

    help = "Issue a control token and print it once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Describe the command line."""
        parser.add_argument("name", help="a name that is not in use among the tenant's tokens")
        parser.add_argument("--tenant", help="slug of the tenant; without it the token is a platform operator's")
        parser.add_argument("--role", choices=[role.value for role in Role], help="role in the tenant; needed with --tenant")
        parser.add_argument("--days", type=int, help="days until it expires; without it never")
        parser.add_argument("--out", type=Path, help="write it to this file (0600) in place of the terminal; a file that holds a good token is kept")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - Django's signature
        """Run it."""
        slug, role, days = options["tenant"], options["role"], options["days"]
        if (slug is None) != (role is None):
            raise CommandError("--tenant and --role go together: a platform operator's token has no role of its own")
        if days is not None and not 1 <= days <= 3650:
            raise CommandError("--days is a whole number from 1 to 3650")
        now = timezone.now()
        out: Path | None = options["out"]
        if out is not None and out.exists() and key_use.authenticate_control(out.read_text().strip(), now=now) is not None:
            return
        expires_at = None if days is None else now + timedelta(days=days)
        tenant_id = provisioning.ensure_platform().id if slug is None else queries.tenant_id_of(slug)
        if tenant_id is None:
            raise CommandError(f"there is no tenant {slug!r}")
        if slug == PLATFORM_SLUG:
            raise CommandError("for the platform leave --tenant and --role out")
        issue = api_keys.issue_platform_token if role is None else partial(api_keys.issue_control, role=role, ceiling=Role.OWNER)
        try:
            with tenant_scope(tenant_id):
                issued = issue(tenant_id=tenant_id, actor=system("createtoken"), name=options["name"], expires_at=expires_at, now=now)
        except Refusal as refusal:
            raise CommandError(refusal.message) from None
        if out is None:
            self.stdout.write(issued.secret or "")
            return
        out.unlink(missing_ok=True)  # an older file may be readable by others
        with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write((issued.secret or "") + "\n")
