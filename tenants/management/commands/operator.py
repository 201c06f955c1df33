"""``manage.py operator --email ADDRESS --password-file FILE``: the first way into a new installation's console.

With ``--forget-second-factor`` in place of the file it takes off the second factor of anybody who has lost theirs and every recovery code.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from tenants.actor import system
from tenants.core.errors import Refusal
from tenants.models import User
from tenants.services import accounts, provisioning, second_factors


class Command(BaseCommand):
    """Makes a platform operator's account, or gives an existing operator the file's password. Safe to repeat: sessions last.

    An account that is no operator's is refused: whoever may run this could otherwise make an operator of any tenant's member
    unnoticed.
    """

    help = "Make a platform operator who can sign in to the console, or set that operator's password."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Describe the command line. The password comes from a file, since a command line shows in the process list."""
        parser.add_argument("--email", required=True)
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--password-file", type=Path, help="a file whose first line is the password")
        what.add_argument("--forget-second-factor", action="store_true", help="somebody lost it: they sign in with the password alone and enrol anew")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - Django's signature
        """Run it."""
        if options["forget_second_factor"]:
            self.stdout.write(self._forget(options["email"]))
            return
        try:
            password = options["password_file"].read_text().split("\n", 1)[0]
        except OSError as error:
            raise CommandError(f"--password-file: cannot read {options['password_file']}: {error.strerror}") from None
        try:
            with transaction.atomic():
                outcome = self._ensure(accounts.normal_email(options["email"]), password)
        except Refusal as error:
            raise CommandError(str(error)) from None
        self.stdout.write(outcome)

    def _forget(self, email: str) -> str:
        user = User.objects.filter(email=email.strip().lower()).first()
        if user is None:
            raise CommandError(f"{email} has no account")
        if user.second_factor_at is None:
            return f"{email} has no second factor"
        second_factors.forget(user=user, actor=system("operator"))
        return f"{email} has no second factor any more; all their sessions have ended"

    def _ensure(self, email: str, password: str) -> str:
        provisioning.ensure_platform()
        user = User.objects.select_for_update().filter(email=email).first()
        if user is None:
            accounts.create(email=email, password=password, platform_operator=True, actor=system("operator"))
            return f"{email} is a new platform operator"
        if not user.is_platform_operator:
            raise CommandError(f"{email} has an account that is no platform operator's; take another address")
        if user.check_password(password):
            return f"{email} is unchanged"
        accounts.set_password(user=user, password=password, actor=system("operator"))
        return f"{email} has a new password"
