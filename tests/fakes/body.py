"""A request's body that notes, whenever a part of it is asked for, how deep in transactions the database session was then."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import connection


def depth() -> int:
    """How many transactions are open within one another, those of the test itself included."""
    return len(connection.savepoint_ids) + int(connection.in_atomic_block)


class Body(io.BytesIO):
    """Stands for what arrives from a client: ``depths`` holds one figure for each time that somebody waits for it."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.depths: list[int] = []

    def read(self, size: int | None = -1, /) -> bytes:
        self.depths.append(depth())
        return super().read(size)

    def readline(self, size: int | None = -1, /) -> bytes:
        self.depths.append(depth())
        return super().readline(size)


@dataclass
class Writes:
    """How deep the session was at each INSERT."""

    depths: list[int] = field(default_factory=list)


@contextmanager
def watched_writes() -> Iterator[Writes]:
    """Note every INSERT inside."""
    seen = Writes()

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("INSERT"):
            seen.depths.append(depth())
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        yield seen
