"""Artifacts on the router's own disk, so that it can start with exact tokens while Valkey is away. Locked under the root key like the state file.

Bounded in bytes. What no snapshot names goes first, then what was used longest ago; what is in use in memory stays.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from routing.dataplane.keys import KeyringError, Keys

FOLDER = "artifacts"


class ArtifactFiles:
    """One file for each artifact, named by its SHA-256. Every call blocks for the disk: run it in a thread."""

    def __init__(self, state_dir: Path, keys: Keys, limit_bytes: int) -> None:
        self._folder = state_dir / FOLDER
        self._keys = keys
        self._limit_bytes = limit_bytes

    def read(self, digest: bytes) -> bytes | None:
        """The packed artifact, or None: not there, or not readable under this root key; such a file is removed."""
        file = self._folder / digest.hex()
        try:
            packed = self._keys.open_state(file.read_bytes())
            os.utime(file)
        except FileNotFoundError:
            return None
        except (KeyringError, OSError):
            self.remove(digest)
            return None
        return packed

    def remove(self, digest: bytes) -> None:
        (self._folder / digest.hex()).unlink(missing_ok=True)

    def write(self, digest: bytes, packed: bytes, *, named: Collection[bytes], held: Collection[bytes]) -> int:
        """Keep a packed artifact, and drop others until all are within the bound; returns how many were dropped.

        Args:
            named: artifacts that some snapshot names.
            held: artifacts in use, which stay.

        Raises:
            OSError: the disk is full or not ours.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = self._folder / f"{digest.hex()}.{os.getpid()}.new"
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(self._keys.lock_state(packed))
            beside.replace(self._folder / digest.hex())
        finally:
            beside.unlink(missing_ok=True)
        return self._trim({one.hex() for one in named}, {one.hex() for one in held} | {digest.hex()})

    def _trim(self, named: Collection[str], held: Collection[str]) -> int:
        files = [(file.name in named, stat.st_mtime, stat.st_size, file) for file in self._folder.iterdir() if (stat := file.stat())]
        total, dropped = sum(size for _, _, size, _ in files), 0
        for _, _, size, file in sorted(files, key=lambda one: one[:2]):
            if total <= self._limit_bytes:
                break
            if file.name not in held:
                file.unlink(missing_ok=True)
                total, dropped = total - size, dropped + 1
        return dropped
