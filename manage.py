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
    if os.environ.get("DATABASE_URL") or not file.is_file():
        return {}
    return dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)


def main() -> None:
    os.environ.update(local_environment())
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings.django")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
