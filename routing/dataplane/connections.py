"""The open connections of clients: bounded, so that the files of this process are never used up, whoever opens them.

Opening one takes no key. So the bound is not first come, first served: for a connection too many, the one goes that has said nothing for longest.
"""

from __future__ import annotations

import resource
from typing import Protocol

RESERVED_FILES = 256  # for Valkey, event sockets, health checks, workers, and whatever the interpreter opens
FEWEST = 16


class Connection(Protocol):
    """What is asked of a connection."""

    @property
    def silent(self) -> bool:
        """It never sent a whole request."""

    @property
    def idle(self) -> bool:
        """No request of it is being answered."""

    def force_close(self) -> None:
        """Close it now."""


class Connections:
    """All that are open. ``closed`` counts those that went to make room."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.closed = 0
        self._open: dict[Connection, None] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._open)

    def came(self, connection: Connection) -> None:
        """One was opened. Beyond the bound the oldest silent one is closed, else the oldest idle one, and where all are busy the newcomer."""
        self._open[connection] = None
        if len(self._open) <= self.bound:
            return
        others = [one for one in self._open if one is not connection]
        leaver = next((one for one in others if one.silent), None) or next((one for one in others if one.idle), connection)
        del self._open[leaver]
        self.closed += 1
        leaver.force_close()

    def left(self, connection: Connection) -> None:
        """One was closed. Safe to repeat."""
        self._open.pop(connection, None)


def bound(wanted: int) -> int:
    """How many connections there may be: each may need a second one to an engine, and files are what a process has least of."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(FEWEST, (files - RESERVED_FILES) // 2))


def allow_many_files() -> None:
    """Raise the soft limit of open files to the hard one; most shells give a process 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
