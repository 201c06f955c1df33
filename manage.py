#!/usr/bin/env python
"""Django's command line for Saltroute: apply, export, migrate, ingest and the rest.

Without ``DATABASE_URL`` the commands speak to the product that ``make up`` started here: its environment is in ``$SALTROUTE_HOME/run/manage.env``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def local_environment() -> dict[str, str]:
    """The environment that ``make up`` left for commands, or nothing. The file names secrets' files, it holds no secret."""
    file = Path(os.environ.get("SALTROUTE_HOME", ".saltroute")) / "run" / "manage.env"
    if os.environ.get("DATABASE_URL"):
        return {}
    if not file.is_file():
        if "SALTROUTE_HOME" in os.environ:
            sys.stderr.write(f"SALTROUTE_HOME is set, but {file} is not there: no `make up` ran with it\n")
        return {}
    return dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)


def main() -> None:
    os.environ.update(local_environment())
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings.django")
    from django.core import management
    from django.db import OperationalError

    try:
        management.execute_from_command_line(sys.argv)
    except OperationalError as error:
        message = _unreachable(error)
        if message is None:
            raise
        sys.exit(message)


def _unreachable(error: Exception) -> str | None:
    """What to tell about a database that does not answer or lets nobody in; None for what it refuses once it is reached."""
    from django.conf import settings

    code = getattr(error.__cause__, "sqlstate", None)
    if code is not None and not code.startswith(("08", "57P")):  # connection exceptions, and a server that stops or starts
        return None
    database = settings.DATABASES["default"]
    host = str(database["HOST"]) or "the default socket"
    port = f":{database['PORT']}" if database["PORT"] and not host.startswith("/") else ""
    where = f"the database {database['NAME']} at {host}{port}"
    refusal = [line.partition("FATAL:")[2].strip() for line in str(error).splitlines() if "FATAL:" in line]
    if refusal:
        return f"{where} refuses: {refusal[-1]}"
    return f"cannot reach {where}: is the product running, with this SALTROUTE_HOME? `make up` starts it"


if __name__ == "__main__":
    main()
