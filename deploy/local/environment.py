"""The environment of each process, exactly as the process table allows: no process gets a secret that it does not need."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from deploy.local.places import write_private

_PASSED_ON = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "VIRTUAL_ENV")
_PASSED_ON_PREFIXES = ("SALTROUTE_", "ROUTER_", "INGEST_", "CELERY_", "OTEL_", "LC_")
# Celery reads the first two itself, past our settings; keys are named to the processes that may hold them, see plan.py.
_NEVER_INHERITED = ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND", "SALTROUTE_ROOT", "SALTROUTE_SIGN_IN_KEY_FILES")


def inherited(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What every child gets of the person's environment: settings, never secrets (``*_FILE``, URLs of services)."""
    kept = {
        name: value
        for name, value in environ.items()
        if (name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)) and not name.endswith("_FILE") and name not in _NEVER_INHERITED
    }
    return {**kept, "PYTHONUNBUFFERED": "1"}


def password_apart(url: str, file: Path) -> tuple[str, Path | None]:
    """Move the password of ``url`` into a 0600 file, so that no process shows it in its environment.

    Returns:
        The URL with ``{password}`` in its place and the file, or the URL as it was and None when it holds no password.
    """
    parts = urlsplit(url)
    credentials, at, host = parts.netloc.rpartition("@")
    user, colon, password = credentials.partition(":")
    if not at or not colon or not password:
        return url, None
    write_private(file, password)
    return urlunsplit(parts._replace(netloc=f"{user}:{{password}}@{host}")), file
