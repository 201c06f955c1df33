"""``manage.py apply`` on a file that it may refuse."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from django.core.management import call_command


def complaints(file: Path) -> list[str]:
    """The lines on standard error, with the file's name in place of its path; none where the file was applied."""
    err = StringIO()
    try:
        call_command("apply", "-f", str(file), stdout=StringIO(), stderr=err)
    except SystemExit:
        return err.getvalue().replace(str(file), file.name).splitlines()
    return []
