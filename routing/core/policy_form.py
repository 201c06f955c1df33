"""A policy document as a form: its fields, from texts to the document and back. Pure; what may run :mod:`routing.core.policy` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from routing.core import glossary
from routing.core.policy import RANGES, SCORERS, SLO_NAMES, SLO_WORDS, USED, PolicyName, RoutingPolicy, SloPolicy

Kind = Literal["routing", "slo"]
POLICIES: tuple[str, ...] = get_args(PolicyName)
MAX_CHARACTERS = 200  # of what is written into one field

_HINTS = {
    "price_of_recomputation": "What a recomputed token costs everybody else; “auto” takes the pool's mean wait.",
    "pressure": "How much a replica's full cache counts against it.",
    "tie_share": "Scores that differ by less than this share are a tie.",
    "tie_s": "Scores that differ by less than so many seconds are a tie.",
    "load_factor": "Requests in flight over the mean, before the next replica is taken.",
    "prefix_tokens": "How much of the prompt decides where it goes.",
    "concurrency_threshold": "Requests in flight above which the next best match is taken.",
    "max_queue_ms": "How long a request may wait for a replica.",
    "priority": "Who goes first among the tenant's own requests.",
    "overload": "What becomes of a request that no replica can start now.",
    "spill_pool": "For overload: spill, a pool that the tenant may use.",
    "spill_model": "For overload: spill, another endpoint of the tenant.",
}


@dataclass(frozen=True, slots=True)
class FormField:
    """One input. ``default`` is what counts where it is left empty; ``words`` are all that it may be, where they are few."""

    name: str
    default: str
    hint: str
    words: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None


def form_fields(kind: Kind, policy: str) -> tuple[FormField, ...]:
    """The inputs of a document; of a routing policy those that ``policy`` uses. An unknown one has none."""
    if kind == "slo":
        return tuple(_field(name, SLO_DEFAULTS) for name in (*(name for name in SLO_DEFAULTS if name in RANGES), *SLO_WORDS, *SLO_NAMES))
    used = [name for name in ROUTING_DEFAULTS if name in USED.get(policy, ())]
    found = [_field(name, ROUTING_DEFAULTS) for name in used if name != "weights"]
    if "weights" in used:
        found += [FormField(f"weights.{name}", "0", _factor(name), low=0, high=100) for name in SCORERS]
    return tuple(found)


def values(kind: Kind, spec: Mapping[str, Any]) -> dict[str, str]:
    """The texts of a document's fields."""
    found: dict[str, str] = {}
    for name, value in spec.items():
        if name == "weights" and isinstance(value, Mapping):
            found |= {f"weights.{scorer}": _text(weight) for scorer, weight in value.items()}
        else:
            found[name] = _text(value)
    if kind == "routing":
        found.setdefault("policy", ROUTING_DEFAULTS["policy"])
    return found


def document(kind: Kind, texts: Mapping[str, str]) -> dict[str, Any]:
    """The document that filled-in texts mean: empty ones are left out, numbers are numbers, and what is none stays for the compiler to refuse."""
    policy = texts.get("policy", "").strip()
    spec: dict[str, Any] = {"policy": policy} if kind == "routing" else {}
    weights: dict[str, Any] = {}
    for field in form_fields(kind, policy):
        text = texts.get(field.name, "").strip()[:MAX_CHARACTERS]
        if not text:
            continue
        value = text if field.words or field.low is None else _number(text)
        if field.name.startswith("weights."):
            weights[field.name.removeprefix("weights.")] = value
        else:
            spec[field.name] = value
    if weights:
        spec["weights"] = weights
    return spec


def _field(name: str, defaults: Mapping[str, str]) -> FormField:
    low, high = RANGES.get(name, (None, None))
    return FormField(name, defaults[name], _HINTS.get(name, ""), words=SLO_WORDS.get(name, ()), low=low, high=high)


def _factor(scorer: str) -> str:
    found = glossary.term("score", scorer)
    return "" if found is None else f"Multiplies these seconds: {found.meaning[0].lower()}{found.meaning[1:]}"


def _number(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)


ROUTING_DEFAULTS = {one.name: _text(one.default) for one in fields(RoutingPolicy)}
SLO_DEFAULTS = {one.name: _text(one.default) for one in fields(SloPolicy)}
