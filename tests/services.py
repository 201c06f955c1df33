"""Real PostgreSQL and Valkey for the test run: one of each for every pytest process, started when a test first needs it.

The environment that Django's settings read is complete before they load; the servers behind the socket paths in it start
later. Set ``DATABASE_URL`` (an administrator's) and ``VALKEY_URL`` to test against servers of your own; the Valkey
database is flushed between tests.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from deploy.local import roles, secrets
from deploy.local.places import Home, short_temporary_home
from deploy.local.postgres import Postgres
from deploy.local.valkey import USERS, Valkey

# What the person set, remembered for the xdist workers, which inherit an environment that is already changed.
_GIVEN_DATABASE = "SALTROUTE_TEST_DATABASE_URL"
_GIVEN_VALKEY = "SALTROUTE_TEST_VALKEY_URL"


@dataclass
class Services:
    """The servers of this pytest process. :func:`prepare` makes one; ``*_started`` tells what must be stopped."""

    root: Path
    held: secrets.Secrets
    postgres: Postgres | None  # None: an external one
    valkey: Valkey | None
    admin_database_url: str
    external_valkey_url: str
    postgres_started: bool = False
    valkey_started: bool = False

    def start_postgres(self) -> None:
        """Start the server once, with the product's roles in it."""
        if self.postgres_started:
            return
        if self.postgres is not None:
            self.postgres.start()
        self.postgres_started = True
        roles.bootstrap(roles.Server.at(self.admin_database_url), self._passwords())

    def start_valkey(self) -> None:
        """Start the server once."""
        if self.valkey is not None and not self.valkey_started:
            self.valkey.start()
        self.valkey_started = True

    def valkey_url(self, user: str = "admin") -> str:
        """Complete URL of an ACL user; of an external server, its one URL."""
        if self.valkey is None:
            return self.external_valkey_url
        return self.valkey.url(user).replace("{password}", self.held.password(f"valkey_{user}"))

    def role_url(self, role: str) -> str:
        """Complete URL of a PostgreSQL role (of the product's database, not the test database)."""
        return roles.Server.at(self.admin_database_url).url(role).replace("{password}", self._passwords()[role])

    def stop(self) -> None:
        """Stop both servers and remove their directories."""
        if self.valkey is not None:
            self.valkey.stop()
        if self.postgres is not None:
            self.postgres.stop()
            if self.postgres.data.parent != self.root:
                shutil.rmtree(self.postgres.data.parent, ignore_errors=True)
        shutil.rmtree(self.root, ignore_errors=True)

    def _passwords(self) -> dict[str, str]:
        if self.postgres is not None:
            return self.held.postgres_passwords()
        # roles belong to the whole server: every worker must come to the same passwords
        return {role: hashlib.sha256(f"saltroute tests\0{self.admin_database_url}\0{role}".encode()).hexdigest() for role in roles.LOGIN_ROLES}


def prepare() -> Services:
    """Make keys and passwords in a temporary directory and put the whole environment of a control process in place."""
    given_database = os.environ.setdefault(_GIVEN_DATABASE, os.environ.get("DATABASE_URL", ""))
    given_valkey = os.environ.setdefault(_GIVEN_VALKEY, os.environ.get("VALKEY_URL", ""))
    root = short_temporary_home("srt-")
    home = Home(root)
    home.make()
    held = secrets.ensure(home.secrets)
    postgres = None if given_database else Postgres(home, admin_password=held.password(secrets.POSTGRES_ADMIN), fsync=False)
    valkey = None if given_valkey else Valkey(home, {user: held.password(f"valkey_{user}") for user in USERS}, persistent=False)
    services = Services(
        root=root,
        held=held,
        postgres=postgres,
        valkey=valkey,
        admin_database_url=given_database or (postgres.admin_url if postgres else ""),
        external_valkey_url=given_valkey,
    )
    os.environ.pop("CELERY_BROKER_URL", None)  # Celery would prefer it to the settings
    os.environ.update(
        DATABASE_URL=services.role_url(roles.OWNER),
        VALKEY_URL=services.valkey_url("control"),
        SALTROUTE_SECRET_KEY_FILE=str(held.file("django.key")),
        SALTROUTE_SIGN_IN_KEY_FILES=str(held.file("signin.key")),
        SALTROUTE_MAIL_DIR=str(home.mail),
        SALTROUTE_ROOT_KEY_FILE=str(held.file("root.key")),
        SALTROUTE_SEAL_PUBLIC_KEY_FILE=str(held.file("seal.pub")),
        SALTROUTE_PUBLISH_KEY_FILE=str(held.file("publish.key")),
        SALTROUTE_PUBLISH_PUBLIC_KEY_FILE=str(held.file("publish.pub")),
        SALTROUTE_RECORDS_KEY_FILE=str(held.file("records.key")),
        SALTROUTE_EVIDENCE_KEY_FILE=str(held.file("evidence.key")),
        SALTROUTE_EVIDENCE_PUBLIC_KEY_FILE=str(held.file("evidence.pub")),
        SALTROUTE_ALLOWED_RANGES="127.0.0.0/8",
        SALTROUTE_STATE_DIR=str(home.state),
        CELERY_BEAT_SCHEDULE_FILE=str(home.run / "beat"),
    )
    return services
