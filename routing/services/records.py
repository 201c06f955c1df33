"""Ingest: decision records from the routers' stream into PostgreSQL. At least once, and idempotent, so that each is stored and counted once.

An entry is acknowledged only after the commit that stores it; a repeat meets its own id and does nothing. The role that writes may only INSERT:
``ON CONFLICT DO NOTHING`` without a target is the one form that needs no right to read, which a target or COPY's staging table would.

Rollups, usage and the account of each router are written in the same transaction, from the rows that are new in it (:mod:`record_store`). States of
replicas come the same way, marked as such, and are stored apart: they count nothing that a record counts.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar

import redis
from django.db import InterfaceError, OperationalError, connection

from routing.core import replica_state
from routing.core.capture import CaptureRecord
from routing.core.record import DecisionRecord, RecordError, decode, verify
from routing.core.replica_state import ReplicaState
from routing.services.record_store import Stored, store_states
from routing.services.record_store import store as store  # noqa: PLC0414 - asked for here by those who store records

STREAM = "saltroute:records"
GROUP = "ingest"
BATCH = 1000
BLOCK_S = 1.0
CLAIM_EVERY_S = 10.0
CLAIM_IDLE_S = 30.0  # a consumer that has not acknowledged for so long is taken for dead; if it lives, repeats do nothing
BACKOFF_S = (0.2, 5.0)  # first and longest pause while PostgreSQL or Valkey is away
AHEAD_S = 86_400.0  # a record from further in the future is a broken clock's
_log = logging.getLogger(__name__)

KIND = b"k"  # the field of an entry that is no decision record
Entry = tuple[bytes, dict[bytes, bytes]]
Said = TypeVar("Said", DecisionRecord, ReplicaState, CaptureRecord)


class Ingest:
    """One consumer of the stream. ``client`` must wait longer for an answer than ``block_s``.

    ``counts`` holds what was done since the start: ``stored``, ``repeated`` (were there already), ``states`` of replicas, ``trimmed``, and each
    reason to drop. ``spent_s`` is the time since then by step: ``read``, ``check``, ``store``, ``acknowledge``; an idle wait counts as reading.
    """

    stream: ClassVar[str] = STREAM
    group: ClassVar[str] = GROUP

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
        self.spent_s: dict[str, float] = {}
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
            self._client.xgroup_create(self.stream, self.group, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def turn(self) -> int:
        """Claim or read one batch, store it, acknowledge it; returns how many entries it had. Blocks up to ``block_s`` when there is nothing."""
        began_s = time.perf_counter()
        entries = self._claimed() or self._read()
        if entries:
            self._spent("read", time.perf_counter() - began_s)
        if entries and self._store(entries):
            with self._step("acknowledge"), self._client.pipeline(transaction=False) as pipe:
                ids = [entry_id for entry_id, _ in entries]
                pipe.xack(self.stream, self.group, *ids)
                pipe.xdel(self.stream, *ids)  # so that the stream's bound is one on what waits, not on what is done
                pipe.execute()
        return len(entries)

    def _read(self) -> list[Entry]:
        answer = self._client.xreadgroup(self.group, self._consumer, {self.stream: ">"}, count=BATCH, block=max(1, int(self._block_s * 1000)))
        return _entries(answer)

    def _claimed(self) -> list[Entry]:
        """Entries that a dead consumer left behind, looked for every ``CLAIM_EVERY_S`` and again at once while there are any."""
        if self._clock() < self._claim_at:
            return []
        idle_ms = int(self._claim_idle_s * 1000)
        answer = self._client.xautoclaim(self.stream, self.group, self._consumer, min_idle_time=idle_ms, start_id="0-0", count=BATCH)
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
        states: list[ReplicaState] = []
        with self._step("check"):
            latest = time.time() + AHEAD_S
            for _, fields in entries:
                try:
                    one = self._state(fields) if KIND in fields else self._record(fields)
                except RecordError as error:
                    dropped[error.args[0]] += 1
                    continue
                if not one.started_at <= latest or not has_a_day(one.started_at):
                    dropped["of no time that could be"] += 1
                    if isinstance(one, DecisionRecord):
                        unusable.append(one)
                elif isinstance(one, DecisionRecord):
                    found.append(one)
                else:
                    states.append(one)
        with self._step("store"):
            done = self._patiently(lambda: store(found, unusable), len(found))
            told = self._patiently(lambda: store_states(states), len(states)) if done is not None else None
        if done is None or told is None:
            return False
        if done.refused or told.refused:
            dropped["refused by the database"] += done.refused + told.refused
        self.counts["stored"] += done.stored
        if told.stored:
            self.counts["states"] += told.stored
        if done.repeated:
            self.counts["repeated"] += done.repeated
        self._tell(dropped)
        return True

    def _tell(self, dropped: Counter[str]) -> None:
        """Count what was dropped, and log why."""
        self.counts.update(dropped)
        if dropped:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
            _log.warning("dropped %d stream entries: %s", dropped.total(), reasons)

    def _patiently(self, work: Callable[[], Stored], waiting: int) -> Stored | None:
        """Do it, again while PostgreSQL is away; None: stopped before it was done."""
        pause_s = self._backoff_s[0]
        while True:
            try:
                return work()
            except (OperationalError, InterfaceError) as error:
                _log.warning("PostgreSQL is away (%s); %d records wait, trying again in %.1f s", type(error).__name__, waiting, pause_s)
                if not connection.in_atomic_block:
                    connection.close()
                if self._stop.wait(pause_s):
                    return None
                pause_s = min(pause_s * 2, self._backoff_s[1])

    def _record(self, fields: dict[bytes, bytes]) -> DecisionRecord:
        """The record of an authentic entry; raises RecordError as :meth:`_opened`."""
        return self._opened(fields, verify, decode)

    def _state(self, fields: dict[bytes, bytes]) -> ReplicaState:
        """The state of an authentic entry; raises RecordError as :meth:`_opened`."""
        if fields[KIND] != replica_state.KIND:
            raise RecordError("of no kind that is known here")
        return self._opened(fields, replica_state.verify, replica_state.decode)

    def _opened(self, fields: dict[bytes, bytes], check: Callable[[bytes, str, bytes, bytes], None], read: Callable[[bytes], Said]) -> Said:
        """What an authentic entry says.

        Raises:
            RecordError: the reason, as one of a few fixed words: what an entry says is not repeated in a log.
        """
        router_id, data, mac = fields.get(b"r"), fields.get(b"d"), fields.get(b"m")
        if router_id is None or data is None or mac is None:
            raise RecordError("incomplete")
        try:
            router = router_id.decode()
            check(self._records_key, router, data, mac)
        except (UnicodeDecodeError, RecordError):
            raise RecordError("not authentic") from None
        try:
            said = read(data)
        except RecordError:
            raise RecordError("malformed") from None
        if said.router_id != router or str(said.tenant_id).encode() != fields.get(b"t"):
            raise RecordError("of another router or tenant than its entry says")
        return said

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self._spent(name, time.perf_counter() - began_s)

    def _spent(self, name: str, seconds: float) -> None:
        self.spent_s[name] = self.spent_s.get(name, 0.0) + seconds

    def _leave(self) -> None:
        """Take this consumer's name out of the group, unless entries are still pending under it."""
        try:
            pending = self._client.xpending_range(self.stream, self.group, min="-", max="+", count=1, consumername=self._consumer)
            if not pending:
                self._client.xgroup_delconsumer(self.stream, self.group, self._consumer)
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


def has_a_day(unix_s: float) -> bool:
    try:
        datetime.fromtimestamp(unix_s, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return False
    return True
