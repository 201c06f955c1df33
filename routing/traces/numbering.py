"""Ids of a trace numbered anew, densely and in the order in which they are first seen, in bounded memory.

What an id was is nowhere in the result, so two exports of one capture, or a capture and anything else, cannot be joined by their ids.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from routing.traces.request import Trace, TraceRequest

BATCH = 1000  # requests whose ids are looked up together
MEMORY_BYTES = 64 << 20  # of the table; what is beyond lies in a file without a name that ends with it
_ASKED = 500  # ids to a question


class Numbers:
    """A table from ids (0 to 2**63 - 1) to numbers from 0 on."""

    def __init__(self) -> None:
        self._table = sqlite3.connect("", isolation_level=None, check_same_thread=False)  # a reader may be handed from thread to thread
        self._table.execute(f"PRAGMA cache_size = -{MEMORY_BYTES >> 10}")
        self._table.execute("PRAGMA journal_mode = OFF")
        self._table.execute("CREATE TABLE numbers (id INTEGER PRIMARY KEY, number INTEGER NOT NULL)")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def of(self, ids: Sequence[int]) -> dict[int, int]:
        """The numbers of ``ids``; those that are new get the next ones, in their order."""
        wanted = list(dict.fromkeys(ids))
        known: dict[int, int] = {}
        for start in range(0, len(wanted), _ASKED):
            part = wanted[start : start + _ASKED]
            marks = ",".join("?" * len(part))
            known.update(self._table.execute(f"SELECT id, number FROM numbers WHERE id IN ({marks})", part))  # noqa: S608 - question marks
        new = [one for one in wanted if one not in known]
        added = list(zip(new, range(self._count, self._count + len(new)), strict=True))
        self._table.execute("BEGIN")
        self._table.executemany("INSERT INTO numbers VALUES (?, ?)", added)
        self._table.execute("COMMIT")
        self._count += len(new)
        known.update(added)
        return known

    def close(self) -> None:
        self._table.close()


def numbered(trace: Trace) -> Trace:
    """The same requests with block ids from 0 on; sessions and scopes are ``s1``, ``s2`` ... and ``n1``, ``n2`` ... in the order they appear.

    Sessions and scopes must be hexadecimal numbers below 2**63, as captures write them, or empty.
    """
    return replace(trace, requests=_numbered(trace.requests))


def _numbered(requests: Iterator[TraceRequest]) -> Iterator[TraceRequest]:
    blocks, sessions, scopes = Numbers(), Numbers(), Numbers()
    try:
        while batch := list(islice(requests, BATCH)):
            block = blocks.of([one for request in batch for one in request.blocks])
            session = sessions.of([int(request.session, 16) for request in batch if request.session])
            scope = scopes.of([int(request.scope, 16) for request in batch if request.scope])
            for request in batch:
                yield replace(
                    request,
                    blocks=tuple([block[one] for one in request.blocks]),
                    session=f"s{session[int(request.session, 16)] + 1}" if request.session else "",
                    scope=f"n{scope[int(request.scope, 16)] + 1}" if request.scope else "",
                )
    finally:
        for table in (blocks, sessions, scopes):
            table.close()
