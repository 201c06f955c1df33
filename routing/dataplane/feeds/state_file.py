"""The router's last good configuration on its own disk, so that it can start while Valkey and PostgreSQL are away.

The documents are the sealed ones, as published; the file as a whole is locked under the root key, which also protects the high-water marks. It is
replaced
atomically, readable by its owner only.
"""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import msgspec

from routing.dataplane.keys import KeyringError, Keys

FILE_NAME = "state.bin"


class StateFile(msgspec.Struct):
    """``documents`` and ``marks`` by tenant; ``contact_at`` is unix seconds of the last word from Valkey."""

    contact_at: float | None = None
    documents: dict[UUID, bytes] = {}
    marks: dict[UUID, int] = {}


def load(directory: Path, keys: Keys) -> StateFile | None:
    """Read the state; None if there is none.

    Raises:
        KeyringError: it was written under another root key, or is damaged.
    """
    try:
        locked = (directory / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.msgpack.decode(keys.open_state(locked), type=StateFile)
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise KeyringError("router state does not decode") from None


def save(directory: Path, keys: Keys, state: StateFile) -> None:
    """Replace the state file. Blocks for the disk; run it in a thread.

    Raises:
        OSError: the disk is full, read-only or not ours; the file is the one from before.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = directory / f"{FILE_NAME}.{os.getpid()}.new"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(keys.lock_state(msgspec.msgpack.encode(state)))
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(directory / FILE_NAME)
    except OSError:
        beside.unlink(missing_ok=True)  # half a file on a full disk is in the way of the next
        raise
