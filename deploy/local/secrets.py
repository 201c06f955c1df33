"""Key and password files of a local installation: made once, 0600, in a 0700 directory.

Losing ``root.key`` loses every sealed credential and changes every salt, so nothing here ever overwrites a file.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy.local import roles, valkey
from deploy.local.places import private_dir
from deploy.local.process import LaunchError

KEY_BYTES = 32
POSTGRES_ADMIN = "pg_admin"


@dataclass(frozen=True)
class Secrets:
    """The directory of secret files; every path exists after :func:`ensure`."""

    directory: Path

    def file(self, name: str) -> Path:
        return self.directory / name

    def password_file(self, name: str) -> Path:
        return self.directory / f"{name}.password"

    def password(self, name: str) -> str:
        """Read a generated password."""
        return self.password_file(name).read_text().strip()

    def postgres_passwords(self) -> dict[str, str]:
        """Passwords of the roles that log in, by role."""
        return {role: self.password(f"pg_{role}") for role in roles.LOGIN_ROLES}

    def valkey_passwords(self) -> dict[str, str]:
        """Passwords of the ACL users, by user."""
        return {user: self.password(f"valkey_{user}") for user in valkey.USERS}


def ensure(directory: Path) -> Secrets:
    """Make whatever file is missing; existing files are left alone.

    Raises:
        LaunchError: a file exists but is empty, or a public key does not belong to its private one.
    """
    from namespaces.core import keyring

    private_dir(directory)
    held = Secrets(directory)
    root = _put(held.file("root.key"), lambda: secrets.token_bytes(KEY_BYTES))
    _put_derived(held.file("seal.pub"), keyring.seal_public_key(root))
    seed = _put(held.file("publish.key"), lambda: secrets.token_bytes(KEY_BYTES))
    _put_derived(held.file("publish.pub"), keyring.publish_public_key(seed))
    _put(held.file("records.key"), lambda: secrets.token_bytes(KEY_BYTES))
    evidence = _put(held.file("evidence.key"), lambda: secrets.token_bytes(KEY_BYTES))  # signs audit reports
    _put_derived(held.file("evidence.pub"), keyring.publish_public_key(evidence))
    _put(held.file("signin.key"), lambda: secrets.token_bytes(KEY_BYTES))  # seals second factors; the web's alone
    _put(held.file("django.key"), lambda: secrets.token_urlsafe(48).encode())
    names = [POSTGRES_ADMIN, *(f"pg_{role}" for role in roles.LOGIN_ROLES), *(f"valkey_{user}" for user in valkey.USERS)]
    for name in names:
        # URL-safe characters only: the password is put into connection URLs as it is
        _put(held.password_file(name), lambda: secrets.token_urlsafe(24).encode() + b"\n")
    return held


def _put_derived(path: Path, value: bytes) -> None:
    if _put(path, lambda: value) != value:
        raise LaunchError(f"{path} does not belong to the private key beside it: one of the two was replaced")


def _put(path: Path, make: Callable[[], bytes]) -> bytes:
    """Read ``path``, after making it when absent. A crash in between leaves no half-written file."""
    if not path.exists():
        value = make()
        spare = path.with_name(f".{path.name}.{os.getpid()}")
        spare.unlink(missing_ok=True)
        fd = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as stream:
            stream.write(value)
            stream.flush()
            os.fsync(stream.fileno())
        spare.rename(path)
    path.chmod(0o600)
    found = path.read_bytes()
    if not found.strip() and len(found) != KEY_BYTES:
        raise LaunchError(f"{path} is empty; restore it from a backup, or remove it to have a new one made")
    return found
