"""Ingest: decision records from the routers' stream into PostgreSQL. At least once, and idempotent, so that each is stored once.

An entry is acknowledged only after the commit that stores it; a repeat meets its own id and does nothing. The role that writes may only INSERT:
``ON CONFLICT DO NOTHING`` without a target is the one form that needs no right to read, which a target or COPY's staging table would.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import redis
from django.db import DataError, IntegrityError, InterfaceError, OperationalError, connection, transaction

from routing.core.record import DecisionRecord, RecordError, decode, verify
from routing.models import DecisionRow

STREAM = "saltroute:records"
GROUP = "ingest"
BATCH = 500
BLOCK_S = 1.0
CLAIM_EVERY_S = 10.0
CLAIM_IDLE_S = 30.0  # a consumer that has not acknowledged for so long is taken for dead; if it lives, repeats do nothing
BACKOFF_S = (0.2, 5.0)  # first and longest pause while PostgreSQL or Valkey is away
_log = logging.getLogger(__name__)

Entry = tuple[bytes, dict[bytes, bytes]]


class Ingest:
    """One consumer of the stream. ``client`` must wait longer for an answer than ``block_s``.

    ``counts`` holds what was done since the start: ``stored`` (handed to PostgreSQL, repeats included), ``trimmed``, and each reason to drop.
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
            self._claim_at = self._clock() + CLAIM_EVERY_S
        return entries

    # ---- storing ---------------------------------------------------------------------------------------------------------

    def _store(self, entries: list[Entry]) -> bool:
        """Store what is authentic of ``entries``; False: stopped before PostgreSQL took them, so they must not be acknowledged."""
        dropped: Counter[str] = Counter()
        rows: list[DecisionRow] = []
        for _, fields in entries:
            try:
                rows.append(self._row(fields))
            except RecordError as error:
                dropped[error.args[0]] += 1
        pause_s = self._backoff_s[0]
        while True:
            try:
                refused = _insert(rows)
                break
            except (OperationalError, InterfaceError) as error:
                _log.warning("PostgreSQL is away (%s); %d records wait, trying again in %.1f s", type(error).__name__, len(rows), pause_s)
                if not connection.in_atomic_block:
                    connection.close()
                if self._stop.wait(pause_s):
                    return False
                pause_s = min(pause_s * 2, self._backoff_s[1])
        if refused:
            dropped["refused by the database"] += refused
        self.counts["stored"] += len(rows) - refused
        self.counts.update(dropped)
        if dropped:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
            _log.warning("dropped %d stream entries: %s", dropped.total(), reasons)
        return True

    def _row(self, fields: dict[bytes, bytes]) -> DecisionRow:
        """One authentic entry as a row.

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
            started_at = datetime.fromtimestamp(record.started_at, tz=UTC)
        except (RecordError, ValueError, OverflowError, OSError):
            raise RecordError("malformed") from None
        if record.router_id != router or str(record.tenant_id).encode() != fields.get(b"t"):
            raise RecordError("of another router or tenant than its entry says")
        return _row(record, started_at)

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


def _row(record: DecisionRecord, started_at: datetime) -> DecisionRow:
    return DecisionRow(
        id=record.id,
        tenant_id=record.tenant_id,
        started_at=started_at,
        endpoint_id=record.endpoint_id,
        key_id=record.key_id,
        scope_id=record.scope_id,
        replica_id=_clean(record.replica_id or "")[:64],
        outcome=record.outcome,
        status=record.status,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        completion_tokens=record.completion_tokens,
        matched_tokens=record.matched_tokens,
        expected_ttft_s=_clean(record.expected_ttft_s),
        ttft_s=_clean(record.ttft_s),
        e2e_s=_clean(record.e2e_s),
        record=_clean(msgspec.to_builtins(record)),
    )


def _clean(value: Any) -> Any:
    """``value`` as PostgreSQL's JSON can hold it: no NUL characters, no NaN or infinity."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {_clean(key): _clean(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(inner) for inner in value]
    return value


def _insert(rows: list[DecisionRow]) -> int:
    """Insert ``rows`` in one statement; where that is refused, one by one, so that one bad row costs only itself. Returns how many were refused.

    Each transaction ends here: a tenant that is gone shows at the commit, where the deferred foreign key is checked.
    """
    if not rows:
        return 0
    try:
        with transaction.atomic():
            DecisionRow.objects.bulk_create(rows, ignore_conflicts=True)
    except (IntegrityError, DataError):
        refused = 0
        for row in rows:
            try:
                with transaction.atomic():
                    DecisionRow.objects.bulk_create([row], ignore_conflicts=True)
            except (IntegrityError, DataError):
                refused += 1
        return refused
    return 0
