"""Does everything that is kept of requests add up? For :mod:`tests.bench.chaos`: what clients were told against rows, accounts, usage and rollups.

Read past the product's own readers, by the database's administrator, in one snapshot, so that a fold in between changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

from routing.core.rollup import GRAINS, Grain, decode_histograms

FOLDED_S: dict[Grain, int] = {
    "detail": 60,
    "endpoint": 300,
    "scope": 60,
    "total": 60,
}  # widths that a run of less than an hour can meet (routing.core.rollup.WIDTHS_OF)
OBSERVED = ("e2e_s", "prompt_tokens")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client was told: the status, and the engine's own numbers, 0 where there were none."""

    status: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """Two figures that must be the same."""

    what: str
    found: int
    wanted: int

    @property
    def holds(self) -> bool:
        return self.found == self.wanted

    def __str__(self) -> str:
        return f"{'ok ' if self.holds else 'NOT'}  {self.what}: {self.found:,}" + ("" if self.holds else f", wanted {self.wanted:,}")


@dataclass(frozen=True, slots=True)
class Account:
    """Of all router processes together, as ingest noted it."""

    highest: int
    stored: int
    refused: int

    @property
    def missing(self) -> int:
        return self.highest - self.stored - self.refused


_ACCOUNT = """
    SELECT coalesce(sum(highest), 0)::int8, coalesce(sum(stored), 0)::int8, coalesce(sum(refused), 0)::int8
      FROM (SELECT max(highest) AS highest, sum(stored) AS stored, sum(refused) AS refused
              FROM routing_recordaccount GROUP BY router_id, boot_ms) each
"""
_ROWS = "SELECT id, status, coalesce(prompt_tokens, 0), coalesce(cached_tokens, 0), coalesce(completion_tokens, 0) FROM routing_decisionrow"
_NO_AUDIT = "coalesce(record->>'audit', 'false') <> 'true'"
_SAVED = """
    CASE WHEN coalesce(cached_tokens, 0) > 0 AND (record->>'prefill_tokens_per_s')::float8 >= 1
         THEN round(cached_tokens / (record->>'prefill_tokens_per_s')::float8 * 1e6)::int8 ELSE 0 END
"""
_PLACE: dict[Grain, tuple[str, str, str]] = {
    "detail": ("endpoint_id", "scope_id", "replica_id"),
    "endpoint": ("endpoint_id", "NULL::uuid", "''"),
    "scope": ("NULL::uuid", "scope_id", "''"),
    "total": ("NULL::uuid", "NULL::uuid", "''"),
}
_USAGE_SUMS = "sum(requests)::int8 AS requests, sum(input_tokens)::int8, sum(cached_tokens)::int8, sum(output_tokens)::int8, sum(saved_us)::int8"
_ROLLUP_SUMS = (
    "sum(requests)::int8 AS requests, sum(prompt_tokens)::int8, sum(cached_tokens)::int8, sum(completion_tokens)::int8,"
    " sum(reported_prompt_tokens)::int8, sum(matched_tokens)::int8, sum(saved_us)::int8"
)


def account(database: psycopg.Connection[Any]) -> Account:
    """What is known of the records that routers numbered."""
    row = database.execute(_ACCOUNT).fetchone() or (0, 0, 0)
    return Account(*row)


def lines(database: psycopg.Connection[Any], told: Mapping[UUID, Answer], *, sent: int, dropped: int) -> Iterator[Line]:
    """Hold everything against everything. ``sent`` and ``dropped`` are the router's own counters; nothing may be under way any more."""
    database.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    noted = account(database)
    rows = database.execute(_ROWS).fetchall()
    stored = {row[0]: Answer(*row[1:]) for row in rows}
    delivered = [decision for decision in told if decision in stored]
    yield Line("records delivered, and counted as lost: the requests", len(delivered) + noted.missing, len(told))
    yield Line("numbers that ingest saw: sent and dropped by the router", noted.highest, sent + dropped)
    yield Line("lost records of which the router dropped none too many", min(dropped, noted.missing), dropped)
    yield Line("records that the database refused", noted.refused, 0)
    yield Line("rows of decisions: records noted as stored", len(rows), noted.stored)
    yield Line("rows of decisions that are there twice", len(rows) - len(stored), 0)
    yield Line("rows that say something else than the client was told", sum(stored[one] != told[one] for one in delivered), 0)
    yield from _usage(database)
    for grain in GRAINS:
        yield from _rollups(database, grain)


def _usage(database: psycopg.Connection[Any]) -> Iterator[Line]:
    """By tenant, day, key, scope and endpoint."""
    key = "tenant_id, day, key_id, scope_id, endpoint_id"
    kept = f"SELECT {key}, {_USAGE_SUMS} FROM routing_usagerow GROUP BY {key}"
    made = f"""
        SELECT tenant_id, (started_at AT TIME ZONE 'UTC')::date AS day, key_id, scope_id, endpoint_id, count(*),
               coalesce(sum(prompt_tokens), 0)::int8,
               coalesce(sum(cached_tokens), 0)::int8, coalesce(sum(completion_tokens), 0)::int8, sum({_SAVED})::int8
          FROM routing_decisionrow WHERE {_NO_AUDIT} GROUP BY {key}
    """
    yield from _same(database, "usage", kept, made)


def _rollups(database: psycopg.Connection[Any], grain: Grain) -> Iterator[Line]:
    """By tenant, step, endpoint, scope, replica and outcome, as far as the grain tells them apart; and the distributions' counts."""
    wide_s, place = FOLDED_S[grain], ", ".join(_PLACE[grain])
    step = f"floor(extract(epoch FROM {{}}) / {wide_s})::int8"
    rows = f"FROM routing_rolluprow WHERE grain = {GRAINS.index(grain)}"
    kept = f"""
        SELECT tenant_id, {step.format("start_at")}, endpoint_id, scope_id, replica_id, outcome, {_ROLLUP_SUMS} {rows} GROUP BY 1, 2, 3, 4, 5, 6
    """
    made = f"""
        SELECT tenant_id, {step.format("started_at")}, {place}, outcome, count(*), coalesce(sum(prompt_tokens), 0)::int8,
               coalesce(sum(cached_tokens), 0)::int8, coalesce(sum(completion_tokens), 0)::int8,
               coalesce(sum(prompt_tokens) FILTER (WHERE cached_tokens IS NOT NULL), 0)::int8,
               coalesce(sum(least(matched_tokens, coalesce(prompt_tokens, 0))) FILTER (WHERE cached_tokens IS NOT NULL), 0)::int8, sum({_SAVED})::int8
          FROM routing_decisionrow WHERE {_NO_AUDIT} GROUP BY 1, 2, 3, 4, 5, 6
    """
    yield from _same(database, f"rollups, {grain}", kept, made)
    counted: Counter[str] = Counter()
    for (data,) in database.execute(f"SELECT histograms {rows}"):
        counted.update({name: one.total for name, one in decode_histograms(bytes(data), OBSERVED).items()})
    for name in OBSERVED if grain == "detail" else OBSERVED[:1]:
        found = database.execute(f"SELECT count({name}) FROM routing_decisionrow WHERE {_NO_AUDIT}").fetchone()
        yield Line(f"rollups, {grain}: values of {name} in distributions", counted[name], found[0] if found else 0)


def _same(database: psycopg.Connection[Any], what: str, kept: str, made: str) -> Iterator[Line]:
    """Whether sums that are kept are those that rows make, key by key; and the sum of their requests, so that two nothings do not pass."""
    both = f"WITH kept AS ({kept}), made AS ({made}) "
    differ = database.execute(
        both + "SELECT (SELECT count(*) FROM (SELECT * FROM kept EXCEPT ALL SELECT * FROM made) a),"
        " (SELECT count(*) FROM (SELECT * FROM made EXCEPT ALL SELECT * FROM kept) b)"
    ).fetchone() or (1, 1)
    yield Line(f"{what}: keys whose sums are no sums of rows", differ[0], 0)
    yield Line(f"{what}: sums of rows that are not kept", differ[1], 0)
    requests = database.execute(f"SELECT coalesce(sum(requests), 0)::int8 FROM ({kept}) kept").fetchone()
    rows = database.execute(f"SELECT count(*) FROM routing_decisionrow WHERE {_NO_AUDIT}").fetchone()
    yield Line(f"{what}: requests", requests[0] if requests else 0, rows[0] if rows else 0)
