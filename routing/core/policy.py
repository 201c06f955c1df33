"""Routing and SLO policies: data, checked and compiled by the same code wherever they are stored or run.

A policy document is a JSON object. ``compile_routing`` and ``compile_slo`` turn it into frozen values or refuse it, naming the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

PRIORITIES = ("interactive", "standard", "batch")  # classes inside a tenant, the first goes first
Overload = Literal["hold", "shed", "spill"]
PolicyName = Literal["ettft", "round_robin", "least_outstanding", "bounded_hash", "longest_prefix", "session", "weighted"]
SCORERS = ("wait", "prefill", "tier", "external_price", "pressure", "slo_guard", "adapter")
MOST_TIE_S = 0.02  # a share of a long prompt's score, its price included, is half a second of somebody's wait


class PolicyError(ValueError):
    """A policy document that cannot run. ``field`` is a dotted path inside the document; ``others`` are further errors of the same document."""

    def __init__(self, field: str, message: str, others: Sequence[PolicyError] = ()) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
        self.others = tuple(others)


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """A compiled routing policy. Fields that a policy does not use keep their defaults."""

    policy: PolicyName = "ettft"
    weights: tuple[tuple[str, float], ...] = tuple((name, 1.0) for name in SCORERS)
    price_of_recomputation: float = 2.0  # lambda: what a recomputed token costs everybody else
    price_auto: bool = False  # lambda from the pool's mean wait instead
    pressure: float = 1.0  # mu
    load_factor: float = 1.25  # bounded_hash, session: in-flight over the mean before the ring walks on
    prefix_tokens: int = 1024  # bounded_hash, longest_prefix: how much of the prompt is the key
    concurrency_threshold: int = 64  # longest_prefix: in-flight requests above which the next best match is taken
    tie_share: float = 0.02
    tie_s: float = 0.005

    def tie_within_s(self, best_s: float) -> float:
        """How much more than the best score (seconds) still ties with it."""
        return max(min(self.tie_share * best_s, MOST_TIE_S), self.tie_s)


@dataclass(frozen=True, slots=True)
class SloPolicy:
    """A compiled SLO policy. Percentile targets are in milliseconds where named so; None is no target.

    ``overload`` says what becomes of a request that no replica of its pool can start now: ``hold`` lets it wait for up to ``max_queue_ms``, ``shed``
    refuses it at once, ``spill`` lets it also start on ``spill_pool`` (same model, same identity) and, when the time for waiting is over, be answered
    by ``spill_model``, another endpoint of the tenant.
    """

    ttft_p50_ms: int | None = None
    ttft_p95_ms: int | None = None
    ttft_p99_ms: int | None = None
    e2e_p50_ms: int | None = None
    e2e_p95_ms: int | None = None
    e2e_p99_ms: int | None = None
    max_queue_ms: int = 10_000  # how long a request may wait for a replica; 0: refused, or spilled, at once instead
    priority: str = "standard"
    overload: Overload = "hold"
    spill_pool: str | None = None  # name of a pool that the tenant may use
    spill_model: str | None = None  # name of an endpoint of the tenant

    @property
    def priority_class(self) -> int:
        """Rank of the priority inside its tenant; lower goes first."""
        return PRIORITIES.index(self.priority)

    @property
    def ttft_s(self) -> float | None:
        """The target the scheduler steers by, in seconds: p95 where it is set, else p99, else p50."""
        targets = [target for target in (self.ttft_p95_ms, self.ttft_p99_ms, self.ttft_p50_ms) if target is not None]
        return targets[0] / 1000 if targets else None

    @property
    def objectives(self) -> tuple[tuple[str, float, float], ...]:
        """Each target as (name, share of requests that must meet it, seconds), such as ``("ttft_p95", 0.95, 2.0)``."""
        found = []
        for measure in ("ttft", "e2e"):
            for percentile in (50, 95, 99):
                target_ms = getattr(self, f"{measure}_p{percentile}_ms")
                if target_ms is not None:
                    found.append((f"{measure}_p{percentile}", percentile / 100, target_ms / 1000))
        return tuple(found)


_NUMBERS: dict[str, tuple[float, float]] = {
    "price_of_recomputation": (0, 10),
    "pressure": (0, 10),
    "load_factor": (1.0, 10),
    "tie_share": (0, 0.5),
    "tie_s": (0, 1),
}
_INTEGERS: dict[str, tuple[int, int]] = {"prefix_tokens": (16, 65_536), "concurrency_threshold": (1, 1024)}
_USED: dict[str, frozenset[str]] = {
    "ettft": frozenset({"price_of_recomputation", "pressure", "tie_share", "tie_s"}),
    "round_robin": frozenset(),
    "least_outstanding": frozenset(),
    "bounded_hash": frozenset({"load_factor", "prefix_tokens"}),
    "longest_prefix": frozenset({"prefix_tokens", "concurrency_threshold"}),
    "session": frozenset({"load_factor", "price_of_recomputation", "pressure", "tie_share", "tie_s"}),
    "weighted": frozenset({"weights", "price_of_recomputation", "pressure", "tie_share", "tie_s"}),
}
_SLO_FIELDS = {
    "ttft_p50_ms": (1, 3_600_000),
    "ttft_p95_ms": (1, 3_600_000),
    "ttft_p99_ms": (1, 3_600_000),
    "e2e_p50_ms": (1, 86_400_000),
    "e2e_p95_ms": (1, 86_400_000),
    "e2e_p99_ms": (1, 86_400_000),
    "max_queue_ms": (0, 600_000),
}
_SLO_WORDS: dict[str, tuple[str, ...]] = {"priority": PRIORITIES, "overload": get_args(Overload)}
_SLO_NAMES = ("spill_pool", "spill_model")
_OF_OVERLOAD = frozenset({"overload", "max_queue_ms", *_SLO_NAMES})
# For whoever shows documents as forms.
USED: Mapping[str, frozenset[str]] = _USED
RANGES: Mapping[str, tuple[float, float]] = {**_NUMBERS, **_INTEGERS, **_SLO_FIELDS}
SLO_WORDS: Mapping[str, tuple[str, ...]] = _SLO_WORDS
SLO_NAMES = _SLO_NAMES
_PERCENTILES = (50, 95, 99)
_MAX_NAME = 200


def _number(value: object, field: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyError(field, "must be a number")
    if not low <= value <= high:
        raise PolicyError(field, f"must be between {low} and {high}")
    return float(value)


def _integer(value: object, field: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise PolicyError(field, "must be a whole number")
    if not low <= value <= high:
        raise PolicyError(field, f"must be between {low} and {high}")
    return value


def _weights(value: object) -> tuple[tuple[str, float], ...]:
    if not isinstance(value, Mapping) or not value:
        raise PolicyError("weights", "must name at least one scorer and its weight")
    for name in value:
        if name not in SCORERS:
            raise PolicyError(f"weights.{name}", f"unknown scorer; known: {', '.join(SCORERS)}")
    weights = tuple((name, _number(value[name], f"weights.{name}", 0, 100)) for name in SCORERS if name in value)
    if not any(weight > 0 for _, weight in weights):
        raise PolicyError("weights", "at least one weight must be greater than zero")
    return weights


def compile_routing(spec: object) -> RoutingPolicy:
    """Check a routing policy document and compile it.

    Raises:
        PolicyError: not an object, an unknown policy or field, a field this policy does not use, a value out of range.
    """
    if not isinstance(spec, Mapping):
        raise PolicyError("routing_policy", "must be an object such as {policy: ettft}")
    name = spec.get("policy", "ettft")
    if name not in get_args(PolicyName):
        raise PolicyError("policy", f"unknown policy; known: {', '.join(get_args(PolicyName))}")
    values: dict[str, Any] = {"policy": name}
    for field in spec:
        if field == "policy":
            continue
        if field not in _USED[name]:
            known = ", ".join(sorted(_USED[name])) or "none"
            raise PolicyError(str(field), f"is not a field of {name}; its fields: {known}")
        if field == "weights":
            values[field] = _weights(spec[field])
        elif field == "price_of_recomputation" and spec[field] == "auto":
            values["price_auto"] = True
        elif field in _NUMBERS:
            values[field] = _number(spec[field], field, *_NUMBERS[field])
        else:
            values[field] = _integer(spec[field], field, *_INTEGERS[field])
    return RoutingPolicy(**values)


def compile_slo(spec: object) -> SloPolicy:
    """Check an SLO policy document and compile it. Whether the pool and the model that it names exist is the caller's question.

    Raises:
        PolicyError: not an object, an unknown field, a value out of range, or fields that contradict each other; all that is wrong at once.
    """
    if not isinstance(spec, Mapping):
        raise PolicyError("slo", "must be an object such as {ttft_p95_ms: 2000}")
    values: dict[str, Any] = {}
    found: list[PolicyError] = []
    for field in spec:
        try:
            values[field] = _slo_value(field, spec[field])
        except PolicyError as error:
            found.append(error)
    found += _target_errors(values)
    if not any(error.field in _OF_OVERLOAD for error in found):  # else what is missing there would be called a contradiction
        try:
            _check_overload(values)
        except PolicyError as error:
            found.append(error)
    if found:
        raise PolicyError(found[0].field, found[0].message, found[1:])
    return SloPolicy(**values)


def _slo_value(field: object, value: object) -> Any:
    if field in _SLO_WORDS:
        if value not in _SLO_WORDS[str(field)]:
            raise PolicyError(str(field), f"must be one of {', '.join(_SLO_WORDS[str(field)])}")
        return value
    if field in _SLO_NAMES:
        return _name(value, str(field))
    if field in _SLO_FIELDS:
        return _integer(value, str(field), *_SLO_FIELDS[str(field)])
    raise PolicyError(str(field), f"unknown field; known: {', '.join((*_SLO_FIELDS, *_SLO_WORDS, *_SLO_NAMES))}")


def _name(value: object, field: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= _MAX_NAME or not value.isprintable() or value != value.strip():
        raise PolicyError(field, f"must be a name of 1 to {_MAX_NAME} characters")
    return value


def _target_errors(values: Mapping[str, Any]) -> Iterator[PolicyError]:
    """A higher percentile is never tighter, and the whole answer never due before its first token."""
    for measure in ("ttft", "e2e"):
        last = 0
        for percentile in _PERCENTILES:
            field = f"{measure}_p{percentile}_ms"
            if values.get(field, last) < last:
                yield PolicyError(field, "a higher percentile cannot have a tighter target")
            last = values.get(field, last)
    for percentile in _PERCENTILES:
        whole, first = f"e2e_p{percentile}_ms", f"ttft_p{percentile}_ms"
        if whole in values and values[whole] < values.get(first, 0):
            yield PolicyError(whole, f"the whole answer cannot be due before its first token ({first})")


def _check_overload(values: dict[str, Any]) -> None:
    """``max_queue_ms: 0`` alone means shed, as it did before there was ``overload``."""
    wait_ms = values.get("max_queue_ms")
    overload = values.setdefault("overload", "shed" if wait_ms == 0 and not any(name in values for name in _SLO_NAMES) else "hold")
    if overload == "shed":
        if wait_ms:
            raise PolicyError("max_queue_ms", "contradicts overload: shed, which lets nothing wait")
        values["max_queue_ms"] = 0
    if overload == "hold" and wait_ms == 0:
        raise PolicyError("max_queue_ms", "contradicts overload: hold; to refuse at once say overload: shed")
    if overload == "spill" and not any(name in values for name in _SLO_NAMES):
        raise PolicyError("spill_pool", "overload: spill needs spill_pool, spill_model or both")
    if overload != "spill":
        for name in _SLO_NAMES:
            if name in values:
                raise PolicyError(name, f"is only for overload: spill, not for {overload}")
