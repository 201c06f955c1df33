"""The decision record: why one request went where it went, and what came of it. No content, no token ids, no hashes of either.

Routers append it as msgpack to a bounded stream; ingest stores it. Times are seconds unless the name says otherwise; None is "not known".

Every request has a record; the candidates, which are most of its bytes, are kept only where somebody will look: :func:`wants_candidates`.
"""

from __future__ import annotations

import hmac
from functools import lru_cache
from typing import Literal
from uuid import UUID

import msgspec

from routing.core.overload import Spilled

Outcome = Literal["ok", "client_error", "client_cancelled", "upstream_error", "timeout", "refused", "incomplete"]


class CandidateRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One replica as weighed; see routing.core.types.Candidate."""

    replica_id: str
    replica_name: str
    refusal: str | None = None
    matched_tokens: int = 0
    expected_cached_tokens: float = 0.0
    uncached_tokens: float = 0.0
    expected_ttft_s: float = 0.0
    score_s: float = 0.0
    queued_tokens: float = 0.0
    in_flight: int = 0
    evidence: str = "none"
    evidence_age_s: float = 0.0
    residency: str = "history"  # how far its events could be trusted
    terms: dict[str, float] = {}
    dp_rank: int | None = None  # the data-parallel rank that this is of, where requests name one


class AttemptRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One dispatch to a replica. ``error`` is a code of ours, never an engine's text."""

    replica_id: str
    status: int | None = None
    error: str | None = None
    duration_s: float = 0.0
    part: Literal["answer", "prefill"] = "answer"  # prefill: it computed the prompt for another replica
    dp_rank: int | None = None  # the data-parallel rank that it named


TransferResult = Literal["ok", "prefill_failed", "prefill_refused", "not_believed", "decode_refused", "decode_failed", "abandoned"]


class TransferRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt computed on one replica (named here) for another, which answers. ``expected_*`` are the estimates by which the pair was chosen.

    ``result`` ok: the answer was made from the KV cache that was handed over; anything else but ``decode_refused`` and ``abandoned``: the request was
    then sent plainly. ``orphaned``: blocks may have waited at the prefill replica for the end of their lease. ``cached_tokens`` is what the prefill
    replica reported of itself.
    """

    replica_id: str
    replica_name: str
    result: TransferResult
    expected_prefill_s: float
    expected_transfer_s: float
    expected_local_ttft_s: float
    moved_tokens: float  # expected, beyond what the other replica held
    prefill_s: float | None = None  # the first call, from dispatch to its whole answer
    first_byte_s: float | None = None  # from the second call to the first byte of its answer; None: it does not stream
    cached_tokens: int | None = None
    orphaned: bool = False


class TrialRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A candidate policy beside the live one. ``placed``: the candidate placed the request, and the choice here is the live policy's."""

    policy: str  # of the choice here
    policy_version: int
    placed: bool
    replica_id: str
    replica_name: str
    expected_ttft_s: float
    expected_cached_tokens: float


class CauseRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the request's time went into; see :mod:`routing.core.cause`. ``parts_us`` are microseconds by part and add up to the request's time.

    ``missed_tokens`` were computed although a warm replica would have held them, by why. ``diverged_tokens`` is where the prompt first differs from
    the conversation's last turn (at the end of a block of :mod:`routing.core.prefix`, in tokens); None: no such turn is known, or the prompt
    extends it. ``blind_*`` is what a choice blind to caches would have taken: the replica with the fewest requests in flight.
    """

    parts_us: dict[str, int]
    main: str | None = None
    missed_tokens: dict[str, int] = {}
    warm_tokens: int = 0
    diverged_tokens: int | None = None
    diverged_bytes: int | None = None
    last_turn_tokens: int = 0
    blind_replica_id: str | None = None
    own_pool: bool = False  # every replica that it could have gone to is its tenant's own, so that the tenant may read all parts apart
    blind_replica_name: str | None = None  # for short records, which hold no candidates
    blind_ttft_s: float | None = None


class DecisionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request. ``namespace`` is the public id; ``matched_tokens`` and ``expected_cached_tokens`` are of the chosen replica.

    ``inexact``: why the prompt's tokens are an estimate, and what events say of them unknown (:data:`routing.dataplane.tokens.Inexact`); None: they
    are exact, or nobody counted.
    """

    id: UUID
    tenant_id: UUID
    started_at: float  # unix s
    route: str
    outcome: Outcome
    status: int
    router_id: str
    config_version: int
    request_id: str | None = None
    endpoint_id: UUID | None = None
    endpoint: str | None = None
    key_id: UUID | None = None
    scope_id: UUID | None = None
    namespace: str | None = None
    model: str | None = None
    policy: str | None = None
    policy_version: int | None = None
    stream: bool = False
    error_code: str | None = None
    replica_id: str | None = None
    replica_name: str | None = None
    matched_tokens: int = 0
    expected_cached_tokens: float = 0.0
    estimated_prompt_tokens: int = 0
    inexact: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    partial_usage: bool = False
    expected_ttft_s: float | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    decide_s: float | None = None
    queue_s: float | None = None  # waited in the router before the first dispatch
    slo_ttft_s: float | None = None
    slo_attainable: bool = True
    spilled: Spilled | None = None  # served elsewhere because its own pool had no time; ``model`` names what answered
    considered: int = 0  # replicas that were weighed; more than candidates are kept: they were left out
    best_matched_tokens: int = 0  # the longest match of the prompt at any of them
    prefill_tokens_per_s: float | None = None  # the chosen replica's learned rate: what reuse saved is worth that much time
    boot_ms: int = 0  # unix ms of the router's start; with it, ``serial`` counts all records that this process made, from 1 on
    serial: int = 0
    audit: bool = False  # a probe of an isolation audit of ours, no request of the tenant's: left out of sums and lists
    trial: TrialRecord | None = None
    transfer: TransferRecord | None = None
    cause: CauseRecord | None = None
    alarm: str | None = None  # what an audit should look into, such as "cached_more_than_owned"; judges nothing
    attempts: tuple[AttemptRecord, ...] = ()
    candidates: tuple[CandidateRecord, ...] = ()


Why = Literal["asked", "error", "alarm", "slo", "sample"]
_UNREMARKABLE = frozenset({"ok", "client_error", "client_cancelled"})
_SHA256 = "sha256"  # by name: OpenSSL does it in one call
_SAMPLE_STEPS = 10_000
_decoder = msgspec.msgpack.Decoder(DecisionRecord)


def wants_candidates(record: DecisionRecord, *, asked: bool, share: float) -> Why | None:
    """Why the candidates of this request are worth keeping, or None.

    ``share`` of the ordinary requests are kept as a sample. Ids are random, so the id decides: the same record gets the same answer everywhere.
    """
    if asked:
        return "asked"
    if record.outcome not in _UNREMARKABLE or len(record.attempts) > 1:
        return "error"
    if record.alarm is not None:
        return "alarm"
    if not record.slo_attainable or (record.slo_ttft_s is not None and record.ttft_s is not None and record.ttft_s > record.slo_ttft_s):
        return "slo"
    return "sample" if record.id.int % _SAMPLE_STEPS < share * _SAMPLE_STEPS else None


def saved_us(record: DecisionRecord) -> int:
    """Engine time that cached tokens saved, in microseconds: as many tokens at the replica's learned prefill rate. An estimate; 0 if unknown.

    Prefill is not linear in the prompt's length, and a long prefix saves more than this says.
    """
    rate = record.prefill_tokens_per_s
    if not record.cached_tokens or record.cached_tokens < 0 or rate is None or not rate >= 1.0:
        return 0
    return round(record.cached_tokens / rate * 1e6)


_NOBODY_SENT = ("changed", "namespace_changed", "never_seen")  # misses (routing.core.cause) that no cache could have served
_MAX_TOKENS = 2**40


def ceiling_tokens(record: DecisionRecord) -> int:
    """Prompt tokens that some earlier request of the namespace had, as far as the router remembers: what a cache that forgets nothing would serve.

    At least what was cached. Without a cause it is what was cached. An estimate from below: a router's memory is bounded.
    """
    prompt, cached = (min(_MAX_TOKENS, max(0, count or 0)) for count in (record.prompt_tokens, record.cached_tokens))
    sent = 0
    if (cause := record.cause) is not None:
        sent = cause.warm_tokens - sum(cause.missed_tokens.get(why, 0) for why in _NOBODY_SENT)
    return max(cached, min(prompt, sent))


class RecordError(Exception):
    """A stream entry is not an authentic record."""


def encode(record: DecisionRecord) -> bytes:
    return msgspec.msgpack.encode(record)


def decode(data: bytes) -> DecisionRecord:
    """Decode a record.

    Raises:
        RecordError: malformed.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise RecordError(str(error)) from None


def authenticate(records_key: bytes, router_id: str, data: bytes) -> bytes:
    """The MAC of a stream entry (32 bytes), under a key of this router alone derived from ``records_key``."""
    return hmac.digest(router_key(records_key, router_id), data, _SHA256)


@lru_cache(maxsize=1024)
def router_key(records_key: bytes, router_id: str) -> bytes:
    """The key under which one router alone signs what it appends to the stream (32 bytes)."""
    return hmac.digest(records_key, b"router\x00" + router_id.encode(), _SHA256)


def verify(records_key: bytes, router_id: str, data: bytes, mac: bytes) -> None:
    """Check a stream entry's MAC.

    Raises:
        RecordError: it does not match.
    """
    if not hmac.compare_digest(authenticate(records_key, router_id, data), mac):
        raise RecordError("stream entry is not authentic")
