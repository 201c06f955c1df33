"""Typed readers for environment variables; the only place that touches ``os.environ``.

A missing or malformed value raises :class:`EnvError`, naming the variable, at start-up and not at first use.
Every secret is read from a file (``*_FILE``), so that it shows in no process list and in no crash report.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit


class EnvError(Exception):
    """A variable is missing or malformed. The text names the variable and what was expected, never the value."""


def text(name: str, default: str | None = None, *, env: Mapping[str, str] = os.environ) -> str:
    """Read a string. Without a default the variable must be set and not empty.

    Raises:
        EnvError: unset or empty, and there is no default.
    """
    value = env.get(name, "")
    if value:
        return value
    if default is None:
        raise EnvError(f"{name} is not set")
    return default


def integer(name: str, default: int, *, low: int = 0, high: int = 2**31, env: Mapping[str, str] = os.environ) -> int:
    """Read a whole number in ``[low, high]``.

    Raises:
        EnvError: not a number, or out of range.
    """
    raw = env.get(name, "")
    if not raw:
        return default
    try:
        value = int(raw)
    except ValueError:
        raise EnvError(f"{name} must be a whole number") from None
    if not low <= value <= high:
        raise EnvError(f"{name} must be between {low} and {high}")
    return value


def seconds(name: str, default: float, *, env: Mapping[str, str] = os.environ) -> float:
    """Read a duration in seconds, greater than zero; fractions are allowed, so tests use tenths.

    Raises:
        EnvError: not a number, or not greater than zero.
    """
    raw = env.get(name, "")
    if not raw:
        return default
    try:
        value = float(raw)
    except ValueError:
        raise EnvError(f"{name} must be a number of seconds") from None
    if not 0 < value < 1e9:
        raise EnvError(f"{name} must be greater than zero")
    return value


def flag(name: str, default: bool = False, *, env: Mapping[str, str] = os.environ) -> bool:
    """Read ``1``/``true`` or ``0``/``false``; anything else is an error, since a typo must not mean "off".

    Raises:
        EnvError: any other text.
    """
    raw = env.get(name, "").lower()
    if not raw:
        return default
    if raw in ("1", "true", "yes"):
        return True
    if raw in ("0", "false", "no"):
        return False
    raise EnvError(f"{name} must be true or false")


def words(name: str, default: tuple[str, ...] = (), *, env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Read a comma-separated list; blanks around items are dropped, empty items too."""
    raw = env.get(name, "")
    return tuple(item.strip() for item in raw.split(",") if item.strip()) if raw else default


def secret_file(name: str, *, env: Mapping[str, str] = os.environ) -> bytes:
    """Read the bytes of the file that ``name`` points to.

    Raises:
        EnvError: unset, or the file cannot be read, or it is empty.
    """
    path = Path(text(name, env=env))
    try:
        value = path.read_bytes()
    except OSError as error:
        raise EnvError(f"{name}: cannot read {path}: {error.strerror}") from None
    if not value:
        raise EnvError(f"{name}: {path} is empty")
    return value


def optional_secret_file(name: str, *, env: Mapping[str, str] = os.environ) -> bytes | None:
    """Like :func:`secret_file`, but None when the variable is not set at all."""
    return secret_file(name, env=env) if env.get(name) else None


def secret_files(name: str, *, env: Mapping[str, str] = os.environ) -> tuple[bytes, ...]:
    """Read the bytes of every file in the comma-separated list ``name``, in order; empty when it is not set.

    Raises:
        EnvError: a file cannot be read, or is empty.
    """
    return tuple(secret_file(name, env={name: path}) for path in words(name, env=env))


def root_references(*, env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Where this process is told to find root keys, the current one first; empty where it may hold none.

    ``SALTROUTE_ROOT`` (``file:PATH``, ``env:NAME``, ``awskms:PATH?key=ARN``, separated by commas), else the one file of ``SALTROUTE_ROOT_KEY_FILE``.
    Nothing is opened here.
    """
    path = env.get("SALTROUTE_ROOT_KEY_FILE", "")
    return words("SALTROUTE_ROOT", env=env) or ((f"file:{path}",) if path else ())


def password_in(url: str, name: str, *, env: Mapping[str, str] = os.environ) -> str:
    """Put the password from the file named by ``name`` into ``url`` at ``{password}``; a URL without it is returned as it is."""
    if "{password}" not in url:
        return url
    return url.replace("{password}", secret_file(name, env=env).decode().strip())


def broker_url(valkey_url: str) -> str:
    """The Celery spelling of a Valkey URL: kombu knows Unix sockets as ``redis+socket``, with ``virtual_host`` for the database.

    It is derived and no variable of its own, because Celery itself reads ``CELERY_BROKER_URL`` and would take ``{password}`` as it stands.
    """
    parts = urlsplit(valkey_url)
    if parts.scheme != "unix":
        return valkey_url.replace("valkeys://", "rediss://", 1).replace("valkey://", "redis://", 1)
    database = parse_qs(parts.query).get("db", ["0"])[0]
    return f"redis+socket://{parts.netloc}{parts.path}?virtual_host={database}"
