"""Records as rows: decisions, what they add up to, and the account of each router, in one transaction. By the role of ingest, which may only INSERT.

``ON CONFLICT DO NOTHING`` without a target is the one form that needs no right to read. Which rows are new the role cannot read either, but
PostgreSQL says how many rows a statement inserted: where that is not all of them, the batch is taken back and goes in one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
from django.db import DataError, IntegrityError, connection, transaction

from routing.core import replica_state, rollup
from routing.core.record import DecisionRecord
from routing.core.replica_state import ReplicaState

Row = TypeVar("Row")


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

    def beside(new: Sequence[DecisionRecord]) -> None:
        _add_up(new)
        _account(new, unusable)

    return insert_together(records, _insert, beside)


def insert_together(rows: Sequence[Row], insert: Callable[[Sequence[Row]], int], beside: Callable[[Sequence[Row]], None]) -> Stored:
    """Insert rows, and what goes with those that are new in one transaction. ``insert`` says how many were: where not all, they go one by one."""
    with transaction.atomic():
        all_new = insert(rows) == len(rows)
        if all_new:
            beside(rows)
        else:
            transaction.set_rollback(True)
    if all_new:
        return Stored(stored=len(rows))
    with transaction.atomic():
        new = [one for one in rows if insert([one])]
        beside(new)
    return Stored(stored=len(new), repeated=len(rows) - len(new))


def store_states(states: Sequence[ReplicaState]) -> Stored:
    """Store states of replicas; those that were there already do nothing. One that the database refuses (its tenant is gone) costs only itself.

    Raises:
        OperationalError, InterfaceError: PostgreSQL is away; a repeat counts nothing twice.
    """
    if not states:
        return Stored()
    try:
        with transaction.atomic():
            new = insert_rows("routing_replicastaterow", STATE, [_state_row(one) for one in states])
        return Stored(stored=new, repeated=len(states) - new)
    except (IntegrityError, DataError):
        if len(states) == 1:
            return Stored(refused=1)
    done = [store_states((one,)) for one in states]
    return Stored(*(sum(getattr(one, name) for one in done) for name in ("stored", "repeated", "refused")))


def _state_row(state: ReplicaState) -> tuple[Any, ...]:
    start_s = int(state.started_at // rollup.MINUTE_S) * rollup.MINUTE_S
    head = (state.id, datetime.now(UTC), state.tenant_id, _at(start_s), rollup.MINUTE_S, state.replica_id, _text(state.router_id)[:200])
    return (*head, *replica_state.sums(state))


def _insert(records: Sequence[DecisionRecord]) -> int:
    return insert_rows("routing_decisionrow", _DECISION, [_row(one) for one in records])


def _add_up(records: Sequence[DecisionRecord]) -> None:
    now = datetime.now(UTC)
    new = [one for one in records if not one.audit]  # audits tell of their cost in their own reports
    insert_rows("routing_rolluprow", ROLLUP, [rollup_row(key, one, now) for key, one in rollup.every_grain(new).items()])
    insert_rows("routing_usagerow", USAGE, [(uuid4(), now, *key, *used) for key, used in rollup.usages(new).items()])


def rollup_row(key: rollup.Key, one: rollup.Rollup, now: datetime) -> tuple[Any, ...]:
    """One rollup as the columns of ``ROLLUP``."""
    head = (uuid4(), now, key.tenant_id, _at(key.start_s), key.width_s, key.endpoint_id, key.scope_id, _text(key.replica_id), key.outcome)
    sums = (getattr(one, name) for name in rollup.SUMS)
    return (*head, rollup.GRAINS.index(key.grain), *sums, _json(dict(one.codes)), _json(one.causes.document()), one.encoded_histograms())


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
    "grain": "int2",
    **dict.fromkeys(rollup.SUMS, "int8"),
    "codes": "jsonb",
    "causes": "jsonb",
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
STATE = {
    "id": "uuid",
    "created_at": "timestamptz",
    "tenant_id": "uuid",
    "start_at": "timestamptz",
    "width_s": "int",
    "replica_id": "uuid",
    "router_id": "text",
    **dict.fromkeys(replica_state.Sums._fields, "int8"),
}
ACCOUNT = {"at": "timestamptz", "router_id": "text", "boot_ms": "int8", "highest": "int8", "stored": "int8", "refused": "int8"}


_SEPARATOR, _NULL = "\x1e", "\x1d"  # between the items of a column, and for what is not there; no text of ours holds either


def insert_rows(table: str, columns: dict[str, str], rows: Sequence[tuple[Any, ...]]) -> int:
    """One INSERT of many rows, each column as one text with separators; returns how many were new.

    Not as arrays: the driver would look at each item for what must be escaped there, which costs more than everything else here.
    """
    if not rows:
        return 0
    arrays = ", ".join(f"(string_to_array(%s, chr(30), chr(29)))[2:]::{kind}[]" for kind in columns.values())
    names = ", ".join(columns)
    statement = f"INSERT INTO {table} ({names}) SELECT {names} FROM unnest({arrays}) AS given ({names}) ON CONFLICT DO NOTHING"  # noqa: S608 - names of ours
    texts = [_column(kind, values) for kind, values in zip(columns.values(), zip(*rows, strict=True), strict=True)]
    with connection.cursor() as cursor:
        cursor.execute(statement, texts)
        return int(cursor.rowcount)


def _column(kind: str, values: Iterable[Any]) -> str:
    """Begins with an item of nothing, which the statement leaves out: one empty text alone would be no item."""
    if kind == "bytea":
        return "".join([f"{_SEPARATOR}\\x{value.hex()}" for value in values])
    return _SEPARATOR.join(["", *(_NULL if value is None else value if value.__class__ is str else str(value) for value in values)])


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


def _field(one: msgspec.structs.FieldInfo) -> tuple[str, Any] | tuple[str, Any, Any]:
    """A field as ``defstruct`` takes it."""
    if one.required:
        return one.name, one.type
    made = one.default is msgspec.NODEFAULT
    return one.name, one.type, msgspec.field(default_factory=one.default_factory) if made else msgspec.field(default=one.default)


# The rest of a record as a type of its own, so that it is picked out and written without a step in Python.
_FIELDS = [_field(one) for one in msgspec.structs.fields(DecisionRecord) if one.name not in _LEFT_OUT]
_Document = msgspec.defstruct("_Document", _FIELDS, omit_defaults=True, frozen=True, kw_only=True)


def document(record: DecisionRecord) -> str:
    """What the columns do not hold of a record, as JSON that PostgreSQL takes; :func:`routing.queries.record_of` is the way back."""
    return _json(msgspec.convert(record, _Document, from_attributes=True))


def _json(value: Any) -> str:
    """JSON without what PostgreSQL's cannot hold: no NUL characters; NaN and infinity become null here."""
    data = msgspec.json.encode(value)
    if b"\\u0000" in data:
        data = msgspec.json.encode(_clean(msgspec.to_builtins(value)))
    return data.decode()


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {_clean(key): _clean(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(inner) for inner in value]
    return value


_UNWANTED = {0: "\ufffd", ord(_SEPARATOR): "\ufffd", ord(_NULL): "\ufffd"}


def _text(value: str) -> str:
    """As a column can hold it: no NUL, and neither of the characters that stand between items."""
    return value.translate(_UNWANTED)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _at(unix_s: float) -> datetime:
    return datetime.fromtimestamp(unix_s, tz=UTC)
