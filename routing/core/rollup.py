"""Records added up: by the minute for how well it goes, by the day for who used what. Whole numbers only, so a sum is the same in any order.

Rollups of the same key are merged by :meth:`Rollup.plus`, which is associative and commutative: rows are written as batches arrive, and folded later.

Of each minute there are sums of several grains, so that a question about a thousand endpoints reads no row of each of their replicas: ``detail`` has
every part of the key, ``endpoint`` and ``scope`` one of them, ``total`` neither. Coarser sums hold fewer distributions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Literal, NamedTuple, get_args
from uuid import UUID

import msgspec

from routing.core import cause_sum
from routing.core.cause_sum import CauseSum
from routing.core.histogram import EMPTY, Histogram, HistogramError, bucket
from routing.core.record import DecisionRecord, ceiling_tokens, saved_us

MINUTE_S = 60
DAY_S = 86_400
# Rows older than the first number of seconds are folded to this width. A range of 6 h is drawn in steps of 7.5 minutes, a day in half hours.
WIDTHS = ((25 * 3600, 3600), (7 * 3600, 600))
Grain = Literal["detail", "endpoint", "scope", "total"]
GRAINS: tuple[Grain, ...] = get_args(Grain)  # a row says which by its place here
# By endpoint there are as many rows as endpoints in each step, so steps are wide early. A range begins with one of its widest step.
WIDTHS_OF: dict[Grain, tuple[tuple[int, int], ...]] = {
    "detail": WIDTHS,
    "endpoint": ((49 * 3600, 6 * 3600), (7 * 3600, 3600), (75 * 60, 1800), (20 * 60, 300)),
    "scope": WIDTHS,
    "total": WIDTHS,
}
COARSE_OBSERVED = ("ttft_s", "e2e_s", "tpot_s", "queue_s")
MAX_TOKENS = 2**40  # of one request; what is beyond was no engine's count
OBSERVED = ("ttft_s", "e2e_s", "tpot_s", "queue_s", "prompt_tokens", "cached_tokens", "completion_tokens")
_decoder = msgspec.msgpack.Decoder(dict[str, bytes])
_encoder = msgspec.msgpack.Encoder(order="deterministic")


class Key(NamedTuple):
    """What a row of the minute is of. ``start_s``: unix s, a whole number of ``width_s``. ``replica_id`` is empty where none was chosen."""

    tenant_id: UUID
    start_s: int
    width_s: int
    endpoint_id: UUID | None
    scope_id: UUID | None
    replica_id: str
    outcome: str
    grain: Grain = "detail"


@dataclass(frozen=True, slots=True)
class Rollup:
    """Requests of one key. ``reported_*`` are over requests whose engine said how much was cached; shares of reuse are of those alone."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reported_prompt_tokens: int = 0
    matched_tokens: int = 0  # of those: what the router's index held for the chosen replica
    expected_tokens: int = 0  # of those: the same, discounted by trust, as the decision used it
    ceiling_tokens: int = 0  # of those: what an engine that forgets nothing would have had, see record.ceiling_tokens
    slo_missed: int = 0
    saved_us: int = 0
    codes: Mapping[str, int] = field(default_factory=dict)  # by our error code
    causes: CauseSum = cause_sum.NONE
    histograms: Mapping[str, Histogram] = field(default_factory=dict)  # by a name of OBSERVED

    def plus(self, other: Rollup) -> Rollup:
        """Both together."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in SUMS}
        codes = dict(self.codes)
        for code, count in other.codes.items():
            codes[code] = codes.get(code, 0) + count
        histograms = dict(self.histograms)
        for name, histogram in other.histograms.items():
            histograms[name] = histograms.get(name, EMPTY).plus(histogram)
        return Rollup(**sums, codes=codes, causes=self.causes.plus(other.causes), histograms=histograms)

    def encoded_histograms(self) -> bytes:
        return _encoder.encode({name: histogram.encode() for name, histogram in self.histograms.items()})


SUMS = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reported_prompt_tokens",
    "matched_tokens",
    "expected_tokens",
    "ceiling_tokens",
    "slo_missed",
    "saved_us",
)


class UsageKey(NamedTuple):
    """Whose use of what, on which day (UTC). ``key_id`` None: an audit of the product's own."""

    tenant_id: UUID
    day: date
    key_id: UUID | None
    scope_id: UUID | None
    endpoint_id: UUID | None


class Usage(NamedTuple):
    """What was used. ``input_tokens`` include the cached ones. ``saved_us``: engine time saved, an estimate; see ``saved_us``."""

    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    saved_us: int = 0

    def plus(self, other: Usage) -> Usage:
        """Both together."""
        return Usage(*(one + two for one, two in zip(self, other, strict=True)))


def decode_histograms(data: bytes, wanted: Collection[str] = OBSERVED) -> dict[str, Histogram]:
    """What :meth:`Rollup.encoded_histograms` wrote, of the names that are wanted.

    Raises:
        HistogramError: something else.
    """
    try:
        return {name: Histogram.decode(one) for name, one in _decoder.decode(data).items() if name in wanted}
    except msgspec.MsgspecError:
        raise HistogramError("malformed") from None


def width_s(age_s: float, grain: Grain = "detail") -> int:
    """How wide the rows of this age should be."""
    return next((width for older_than_s, width in WIDTHS_OF[grain] if age_s > older_than_s), MINUTE_S)


def rollups(records: Iterable[DecisionRecord]) -> dict[Key, Rollup]:
    """Add up by key and minute, in detail. Each record counts once: whoever calls this must not give one twice."""
    return {key: _rollup(members) for key, members in _grouped(records).items()}


def every_grain(records: Iterable[DecisionRecord]) -> dict[Key, Rollup]:
    """The same, and the sums of the other grains. Those hold causes as their tenant may read them, since they no longer say of which replica."""
    found: dict[Key, Rollup] = {}
    for key, members in _grouped(records).items():
        one = found[key] = _rollup(members)
        foreign = any(record.cause is not None and not record.cause.own_pool for record in members)
        causes = cause_sum.of((record.cause for record in members), fold=True) if foreign else one.causes
        less = replace(one, causes=causes, histograms={name: one.histograms[name] for name in COARSE_OBSERVED if name in one.histograms})
        bare = key._replace(endpoint_id=None, scope_id=None, replica_id="")
        for at in (
            bare._replace(endpoint_id=key.endpoint_id, grain="endpoint"),
            bare._replace(scope_id=key.scope_id, grain="scope"),
            bare._replace(grain="total"),
        ):
            found[at] = found[at].plus(less) if at in found else less
    return found


def _grouped(records: Iterable[DecisionRecord]) -> dict[Key, list[DecisionRecord]]:
    grouped: dict[tuple[UUID, int, UUID | None, UUID | None, str, str], list[DecisionRecord]] = {}
    for record in records:
        start_s = int(record.started_at // MINUTE_S) * MINUTE_S
        of = (record.tenant_id, start_s, record.endpoint_id, record.scope_id, (record.replica_id or "")[:64], record.outcome)
        grouped.setdefault(of, []).append(record)
    return {Key(of[0], of[1], MINUTE_S, *of[2:]): members for of, members in grouped.items()}


def usages(records: Iterable[DecisionRecord]) -> dict[UsageKey, Usage]:
    """Add up by key and day. Only what engines reported counts; what no engine said is nothing."""
    found: dict[tuple[UUID, date, UUID | None, UUID | None, UUID | None], list[int]] = {}
    days: dict[int, date] = {}
    for record in records:
        number = int(record.started_at // DAY_S)
        day = days.get(number)
        if day is None:
            day = days[number] = datetime.fromtimestamp(record.started_at, tz=UTC).date()
        key = (record.tenant_id, day, record.key_id, record.scope_id, record.endpoint_id)
        sums = found.setdefault(key, [0] * len(Usage._fields))
        for place, used in enumerate(usage(record)):
            sums[place] += used
    return {UsageKey(*key): Usage(*sums) for key, sums in found.items()}


def usage(record: DecisionRecord) -> Usage:
    """What one request used."""
    return Usage(1, _tokens(record.prompt_tokens), _tokens(record.cached_tokens), _tokens(record.completion_tokens), saved_us(record))


def _tokens(count: int | None) -> int:
    return 0 if not count or count < 0 else count if count < MAX_TOKENS else MAX_TOKENS


def _rollup(records: list[DecisionRecord]) -> Rollup:
    """One pass: ingest does this for every record."""
    prompts = cached = completions = reported = matched = expected = ceiling = missed = saved = 0
    codes: dict[str, int] = {}
    counts: dict[str, dict[int, int]] = {name: {} for name in OBSERVED}
    for one in records:
        prompt_tokens, cached_tokens = _tokens(one.prompt_tokens), _tokens(one.cached_tokens)
        prompts += prompt_tokens
        cached += cached_tokens
        completions += _tokens(one.completion_tokens)
        if one.cached_tokens is not None:
            reported += prompt_tokens
            matched += min(_tokens(one.matched_tokens), prompt_tokens)
            expected += min(_whole(one.expected_cached_tokens), prompt_tokens)
            ceiling += ceiling_tokens(one)
        missed += one.slo_ttft_s is not None and one.ttft_s is not None and one.ttft_s > one.slo_ttft_s
        saved += saved_us(one)
        if one.error_code is not None:
            codes[one.error_code] = codes.get(one.error_code, 0) + 1
        for name, value in _observations(one):
            if value is not None and math.isfinite(value):
                index = bucket(value)
                found = counts[name]
                found[index] = found.get(index, 0) + 1
    return Rollup(
        requests=len(records),
        prompt_tokens=prompts,
        cached_tokens=cached,
        completion_tokens=completions,
        reported_prompt_tokens=reported,
        matched_tokens=matched,
        expected_tokens=expected,
        ceiling_tokens=ceiling,
        slo_missed=missed,
        saved_us=saved,
        codes=codes,
        causes=cause_sum.of(one.cause for one in records),
        histograms={name: Histogram(found) for name, found in counts.items() if found},
    )


def _observations(one: DecisionRecord) -> tuple[tuple[str, float | None], ...]:
    return (
        ("ttft_s", one.ttft_s),
        ("e2e_s", one.e2e_s),
        ("tpot_s", _time_per_token_s(one)),
        ("queue_s", one.queue_s),
        ("prompt_tokens", one.prompt_tokens),
        ("cached_tokens", one.cached_tokens),
        ("completion_tokens", one.completion_tokens),
    )


def _whole(value: float) -> int:
    return _tokens(round(value)) if math.isfinite(value) else 0


def _time_per_token_s(record: DecisionRecord) -> float | None:
    """Time for each token after the first, of streams that ended well."""
    ttft_s, e2e_s, tokens = record.ttft_s, record.e2e_s, record.completion_tokens
    if record.outcome != "ok" or ttft_s is None or e2e_s is None or tokens is None or tokens < 2:
        return None
    return max(0.0, e2e_s - ttft_s) / (tokens - 1)
