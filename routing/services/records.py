"""Ingest: decision records from the routers' stream into PostgreSQL. At least once, and idempotent, so that each is stored and counted once.

An entry is acknowledged only after the commit that stores it; a repeat meets its own id and does nothing. The role that writes may only INSERT:
``ON CONFLICT DO NOTHING`` without a target is the one form that needs no right to read, which a target or COPY's staging table would.

Rollups, usage and the account of each router are written in the same transaction, from the rows that are new in it. Which those are the role cannot
read either, but PostgreSQL says how many rows a statement inserted: where that is not all of them, the batch is taken back and goes in one by one.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import msgspec
import redis
from django.db import DataError, IntegrityError, InterfaceError, OperationalError, connection, transaction

from routing.core import rollup
from routing.core.record import DecisionRecord, RecordError, decode, verify

STREAM = "saltroute:records"
GROUP = "ingest"
BATCH = 1000
BLOCK_S = 1.0
CLAIM_EVERY_S = 10.0
CLAIM_IDLE_S = 30.0  # a consumer that has not acknowledged for so long is taken for dead; if it lives, repeats do nothing
BACKOFF_S = (0.2, 5.0)  # first and longest pause while PostgreSQL or Valkey is away
AHEAD_S = 86_400.0  # a record from further in the future is a broken clock's
_log = logging.getLogger(__name__)

Entry = tuple[bytes, dict[bytes, bytes]]


class Ingest:
    """One consumer of the stream. ``client`` must wait longer for an answer than ``block_s``.

    ``counts`` holds what was done since the start: ``stored``, ``repeated`` (were there already), ``trimmed``, and each reason to drop.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        records_key: bytes,
        consumer: str,
        block_s: float = BLOCK_S,
        claim_idle_s: float = CLAIM_IDLE_S,
        backoff_s: tuple[float, float] = BACKOFF_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._client = client
        self._records_key = records_key
        self._consumer = consumer
        self._block_s = block_s
        self._claim_idle_s = claim_idle_s
        self._backoff_s = backoff_s
        self._clock = clock
        self._claim_at = -math.inf
        self._stop = threading.Event()

    def stop(self) -> None:
        """Ask :meth:`run` to end after the batch in hand. Safe in a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Consume until :meth:`stop`. Whatever is away is waited for; the stream keeps the records meanwhile, up to its bound."""
        pause_s = self._backoff_s[0]
        while not self._stop.is_set():
            try:
                self.ensure_group()
                while not self._stop.is_set():
                    self.turn()
                    pause_s = self._backoff_s[0]
            except redis.RedisError as error:
                _log.warning("Valkey is away or refuses (%s); trying again in %.1f s", type(error).__name__, pause_s)
                self._stop.wait(pause_s)
                pause_s = min(pause_s * 2, self._backoff_s[1])
        self._leave()

    def ensure_group(self) -> None:
        """Make the consumer group (from the oldest entry on) and the stream, where they do not exist."""
        try:
            self._client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def turn(self) -> int:
        """Claim or read one batch, store it, acknowledge it; returns how many entries it had. Blocks up to ``block_s`` when there is nothing."""
        entries = self._claimed() or self._read()
        if entries and self._store(entries):
            with self._client.pipeline(transaction=False) as pipe:
                ids = [entry_id for entry_id, _ in entries]
                pipe.xack(STREAM, GROUP, *ids)
                pipe.xdel(STREAM, *ids)  # so that the stream's bound is one on what waits, not on what is done
                pipe.execute()
        return len(entries)

    def _read(self) -> list[Entry]:
        answer = self._client.xreadgroup(GROUP, self._consumer, {STREAM: ">"}, count=BATCH, block=max(1, int(self._block_s * 1000)))
        return _entries(answer)

    def _claimed(self) -> list[Entry]:
        """Entries that a dead consumer left behind, looked for every ``CLAIM_EVERY_S`` and again at once while there are any."""
        if self._clock() < self._claim_at:
            return []
        answer = self._client.xautoclaim(STREAM, GROUP, self._consumer, min_idle_time=int(self._claim_idle_s * 1000), start_id="0-0", count=BATCH)
        entries = [(entry_id, fields) for entry_id, fields in answer[1] if fields is not None]
        trimmed = len(answer[2]) if len(answer) > 2 else 0
        if trimmed:
            self.counts["trimmed"] += trimmed
            _log.warning("%d records were trimmed from the stream before they could be stored", trimmed)
        if not entries:
            self._claim_at = self._clock() + min(CLAIM_EVERY_S, self._claim_idle_s)
        return entries

    # ---- storing ---------------------------------------------------------------------------------------------------------

    def _store(self, entries: list[Entry]) -> bool:
        """Store what is authentic of ``entries``; False: stopped before PostgreSQL took them, so they must not be acknowledged."""
        dropped: Counter[str] = Counter()
        found: list[DecisionRecord] = []
        unusable: list[DecisionRecord] = []
        for _, fields in entries:
            try:
                one = self._record(fields)
            except RecordError as error:
                dropped[error.args[0]] += 1
                continue
            ahead = not one.started_at <= time.time() + AHEAD_S
            (unusable if ahead or not _has_a_day(one) else found).append(one)
        if unusable:
            dropped["of no time that could be"] += len(unusable)
        pause_s = self._backoff_s[0]
        while True:
            try:
                done = store(found, unusable)
                break
            except (OperationalError, InterfaceError) as error:
                _log.warning("PostgreSQL is away (%s); %d records wait, trying again in %.1f s", type(error).__name__, len(found), pause_s)
                if not connection.in_atomic_block:
                    connection.close()
                if self._stop.wait(pause_s):
                    return False
                pause_s = min(pause_s * 2, self._backoff_s[1])
        if done.refused:
            dropped["refused by the database"] += done.refused
        self.counts["stored"] += done.stored
        if done.repeated:
            self.counts["repeated"] += done.repeated
        self.counts.update(dropped)
        if dropped:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
            _log.warning("dropped %d stream entries: %s", dropped.total(), reasons)
        return True

    def _record(self, fields: dict[bytes, bytes]) -> DecisionRecord:
        """What an authentic entry says.

        Raises:
            RecordError: the reason, as one of a few fixed words: what an entry says is not repeated in a log.
        """
        router_id, data, mac = fields.get(b"r"), fields.get(b"d"), fields.get(b"m")
        if router_id is None or data is None or mac is None:
            raise RecordError("incomplete")
        try:
            router = router_id.decode()
            verify(self._records_key, router, data, mac)
        except (UnicodeDecodeError, RecordError):
            raise RecordError("not authentic") from None
        try:
            record = decode(data)
        except RecordError:
            raise RecordError("malformed") from None
        if record.router_id != router or str(record.tenant_id).encode() != fields.get(b"t"):
            raise RecordError("of another router or tenant than its entry says")
        return record

    def _leave(self) -> None:
        """Take this consumer's name out of the group, unless entries are still pending under it."""
        try:
            pending = self._client.xpending_range(STREAM, GROUP, min="-", max="+", count=1, consumername=self._consumer)
            if not pending:
                self._client.xgroup_delconsumer(STREAM, GROUP, self._consumer)
        except redis.RedisError:
            return  # a name more in a list; whatever is pending under it is claimed by the next consumer


def _entries(answer: Any) -> list[Entry]:
    """The entries of an XREADGROUP answer in either protocol version."""
    if not answer:
        return []
    streams = answer.values() if isinstance(answer, dict) else [entries for _, entries in answer]
    found: list[Entry] = []
    for entries in streams:
        # RESP3 nests once more
        flat = entries[0] if entries and isinstance(entries[0], list) else entries
        found += [(entry_id, fields) for entry_id, fields in flat if fields is not None]
    return found


# ---- rows --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of records: new rows, rows that were there already, and what the database refuses."""

    stored: int = 0
    repeated: int = 0
    refused: int = 0


def store(records: Sequence[DecisionRecord], unusable: Sequence[DecisionRecord] = ()) -> Stored:
    """Store records and what they add up to. One bad record costs only itself. ``unusable`` ones are accounted for and no more.

    Each transaction ends here: a tenant that is gone shows at the commit, where the deferred foreign key is checked.

    Raises:
        OperationalError, InterfaceError: PostgreSQL is away; of what was committed by then a repeat counts nothing twice.
    """
    try:
        return _store_together(records, unusable)
    except (IntegrityError, DataError):
        done = _store_together((), unusable) if unusable else Stored()
        for record in records:
            try:
                one = _store_together((record,), ())
            except (IntegrityError, DataError):
                with transaction.atomic():
                    _account([], [record])
                one = Stored(refused=1)
            done = Stored(done.stored + one.stored, done.repeated + one.repeated, done.refused + one.refused)
        return done


def _store_together(records: Sequence[DecisionRecord], unusable: Sequence[DecisionRecord]) -> Stored:
    if not records and not unusable:
        return Stored()
    with transaction.atomic():
        all_new = _insert(records) == len(records)
        if all_new:
            _add_up(records)
            _account(records, unusable)
        else:
            transaction.set_rollback(True)
    if all_new:
        return Stored(stored=len(records))
    with transaction.atomic():
        new = [one for one in records if _insert([one])]
        _add_up(new)
        _account(new, unusable)
    return Stored(stored=len(new), repeated=len(records) - len(new))


def _insert(records: Sequence[DecisionRecord]) -> int:
    return insert_rows("routing_decisionrow", _DECISION, [_row(one) for one in records])


def _add_up(new: Sequence[DecisionRecord]) -> None:
    now = datetime.now(UTC)
    insert_rows("routing_rolluprow", ROLLUP, [rollup_row(key, one, now) for key, one in rollup.rollups(new).items()])
    insert_rows("routing_usagerow", USAGE, [(uuid4(), now, *key, *used) for key, used in rollup.usages(new).items()])


def rollup_row(key: rollup.Key, one: rollup.Rollup, now: datetime) -> tuple[Any, ...]:
    """One rollup as the columns of ``ROLLUP``."""
    head = (uuid4(), now, key.tenant_id, _at(key.start_s), key.width_s, key.endpoint_id, key.scope_id, _text(key.replica_id), key.outcome)
    return (*head, *(getattr(one, name) for name in rollup.SUMS), _json(dict(one.codes)), one.encoded_histograms())


def _account(new: Iterable[DecisionRecord], refused: Iterable[DecisionRecord]) -> None:
    """Note what came of each router's numbered records."""
    found: dict[tuple[str, int], list[int]] = {}
    for place, records in ((1, new), (2, refused)):
        for one in records:
            if one.serial > 0:
                account = found.setdefault((_text(one.router_id)[:200], one.boot_ms), [0, 0, 0])
                account[0] = max(account[0], one.serial)
                account[place] += 1
    now = datetime.now(UTC)
    insert_rows("routing_recordaccount", ACCOUNT, [(now, router_id, boot_ms, *account) for (router_id, boot_ms), account in found.items()])


_DECISION = {
    "id": "uuid",
    "created_at": "timestamptz",
    "tenant_id": "uuid",
    "started_at": "timestamptz",
    "endpoint_id": "uuid",
    "key_id": "uuid",
    "scope_id": "uuid",
    "replica_id": "text",
    "outcome": "text",
    "status": "int",
    "prompt_tokens": "int",
    "cached_tokens": "int",
    "completion_tokens": "int",
    "matched_tokens": "int",
    "expected_ttft_s": "float8",
    "ttft_s": "float8",
    "e2e_s": "float8",
    "record": "jsonb",
}
ROLLUP = {
    "id": "uuid",
    "created_at": "timestamptz",
    "tenant_id": "uuid",
    "start_at": "timestamptz",
    "width_s": "int",
    "endpoint_id": "uuid",
    "scope_id": "uuid",
    "replica_id": "text",
    "outcome": "text",
    **dict.fromkeys(rollup.SUMS, "int8"),
    "codes": "jsonb",
    "histograms": "bytea",
}
USAGE = {
    "id": "uuid",
    "created_at": "timestamptz",
    "tenant_id": "uuid",
    "day": "date",
    "key_id": "uuid",
    "scope_id": "uuid",
    "endpoint_id": "uuid",
    **dict.fromkeys(rollup.Usage._fields, "int8"),
}
ACCOUNT = {"at": "timestamptz", "router_id": "text", "boot_ms": "int8", "highest": "int8", "stored": "int8", "refused": "int8"}


_SEPARATOR = "\x1e"  # JSON holds no control characters


def insert_rows(table: str, columns: dict[str, str], rows: Sequence[tuple[Any, ...]]) -> int:
    """One INSERT of many rows, each column as one array; returns how many were new.

    Documents come as one text with separators: as items of an array, every quotation mark in them would be escaped in Python.
    """
    if not rows:
        return 0
    arrays = ", ".join("string_to_array(%s, chr(30))::jsonb[]" if kind == "jsonb" else f"%s::{kind}[]" for kind in columns.values())
    names = ", ".join(columns)
    statement = f"INSERT INTO {table} ({names}) SELECT {names} FROM unnest({arrays}) AS given ({names}) ON CONFLICT DO NOTHING"  # noqa: S608 - names of ours
    values = zip(columns.values(), zip(*rows, strict=True), strict=True)
    with connection.cursor() as cursor:
        cursor.execute(statement, [_SEPARATOR.join(column) if kind == "jsonb" else list(column) for kind, column in values])
        return int(cursor.rowcount)


def _row(record: DecisionRecord) -> tuple[Any, ...]:
    return (
        record.id,
        datetime.now(UTC),
        record.tenant_id,
        _at(record.started_at),
        record.endpoint_id,
        record.key_id,
        record.scope_id,
        _text(record.replica_id or "")[:64],
        record.outcome,
        record.status,
        record.prompt_tokens,
        record.cached_tokens,
        record.completion_tokens,
        record.matched_tokens,
        _finite(record.expected_ttft_s),
        _finite(record.ttft_s),
        _finite(record.e2e_s),
        document(record),
    )


_LEFT_OUT = frozenset(_DECISION) | {"boot_ms", "serial"}


def document(record: DecisionRecord) -> str:
    """What the columns do not hold of a record, as JSON that PostgreSQL takes; :func:`routing.queries.record_of` is the way back."""
    return _json({name: value for name, value in msgspec.to_builtins(record).items() if name not in _LEFT_OUT})


def _json(value: Any) -> str:
    """JSON without what PostgreSQL's cannot hold: no NUL characters; NaN and infinity become null here."""
    data = msgspec.json.encode(value)
    if b"\\u0000" in data:
        data = msgspec.json.encode(_clean(value))
    return data.decode()


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {_clean(key): _clean(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(inner) for inner in value]
    return value


def _text(value: str) -> str:
    return value.replace("\0", "\ufffd")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _at(unix_s: float) -> datetime:
    return datetime.fromtimestamp(unix_s, tz=UTC)


def _has_a_day(record: DecisionRecord) -> bool:
    try:
        _at(record.started_at)
    except (ValueError, OverflowError, OSError):
        return False
    return True
