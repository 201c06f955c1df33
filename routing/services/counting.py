"""Questions that read many rows for one page, bounded by the database's own clock: a page is shown without the answer rather than late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import OperationalError, connection, transaction

_CANCELED = "57014"  # query_canceled


def rows_within(sql: str, values: Sequence[Any], *, timeout_ms: int) -> list[tuple[Any, ...]] | None:
    """The rows, or None where PostgreSQL needs longer than ``timeout_ms``; the transaction around goes on, without the limit.

    Raises:
        OperationalError: anything else that went wrong.
    """
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(timeout_ms)])
            cursor.execute(sql, values)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            cursor.execute("SET LOCAL statement_timeout TO DEFAULT")
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) != _CANCELED:
            raise
        return None
    return rows
