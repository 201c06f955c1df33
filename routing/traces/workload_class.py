"""What kind of traffic a trace is, and what to do about it, in plain words. Rules of thumb over a report; each says what it saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from routing.traces.analysis import Report

WorkloadClass = Literal["long generation", "weak reuse", "coding or agent", "batch", "RAG", "chat"]
EARLY_TOKENS = 2048  # a prefix that ends before this and after which everybody parts is an early change
CROWD = 0.5  # of the requests: so many different continuations of one prefix mean that it is a common instruction


@dataclass(frozen=True, slots=True)
class Advice:
    """A class, the figures that speak for it, and what follows."""

    kind: WorkloadClass
    because: str
    advice: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Facts:
    prompt_tokens: float
    output_tokens: float
    turns: float | None
    ceiling: float
    session_ceiling: float | None
    crowd: float  # branches of the widest point over requests
    crowd_tokens: int
    crowd_share: float  # of all reuse, what lies before that point


def _facts(report: Report) -> _Facts:
    requests = max(1, report.requests)
    widest = report.branches[0] if report.branches else None
    return _Facts(
        prompt_tokens=report.prompt_tokens / requests,
        output_tokens=report.output_tokens / requests,
        turns=requests / report.sessions if report.sessions else None,
        ceiling=report.ceiling,
        session_ceiling=report.ceiling_in_session,
        crowd=widest.branches / max(1, report.branch_requests) if widest else 0.0,
        crowd_tokens=widest.tokens if widest else 0,
        crowd_share=widest.tokens * widest.requests / max(1.0, report.ceiling * report.prompt_tokens) if widest else 0.0,
    )


def _is_batch(one: _Facts) -> bool:
    return one.crowd > CROWD and one.crowd_share > 0.8 and one.ceiling > 0.2 and one.output_tokens < one.prompt_tokens / 4


def _is_rag(one: _Facts) -> bool:
    short_answers = one.prompt_tokens >= 2000 and one.output_tokens < one.prompt_tokens / 5
    return short_answers and one.ceiling < 0.5 and (one.turns or 1) < 1.5 and one.crowd <= CROWD


_RULES: tuple[tuple[WorkloadClass, Callable[[_Facts], bool]], ...] = (
    ("long generation", lambda one: one.output_tokens > 2 * one.prompt_tokens),
    ("weak reuse", lambda one: one.ceiling < 0.1),
    ("coding or agent", lambda one: one.prompt_tokens >= 16_000 and one.ceiling >= 0.8),
    ("batch", _is_batch),
    ("RAG", _is_rag),
)
_ADVICE: dict[WorkloadClass, tuple[str, ...]] = {
    "long generation": (
        "Prefill is a small part of the work, so cache-aware routing cannot help much whatever its hit rate; balance decodes.",
    ),
    "weak reuse": ("Nearly every token is new. Route by load; a larger cache would not help.",),
    "coding or agent": (
        "Long contexts that grow turn by turn: keep a session where its context is, and give caches room for all live sessions at once.",
        "A turn sent elsewhere recomputes the whole context and evicts another's: a price on recomputation matters more than balance.",
    ),
    "batch": (
        "Many records behind one instruction: few replicas are enough; keep the instruction first, the record last, the priority low.",
    ),
    "RAG": (
        "Prompts share an instruction and then part: documents in a stable order (by id, say) turn equal sets into equal prefixes.",
        "Put what changes (the question, the date, the user) behind what does not.",
    ),
    "chat": ("Turns reuse their own conversation: caches must hold what is live until it goes on.",),
}  # fmt: skip


def _duration(span_s: float) -> str:
    """Of 0.2, 75 and 9000 seconds: a second, 75 seconds, 150 minutes."""
    return "a second" if span_s <= 1 else f"{span_s:.0f} seconds" if span_s < 120 else f"{span_s / 60:,.0f} minutes"


def classify(report: Report) -> Advice:
    """The first class whose rule holds, else chat; with advice from the report's own figures."""
    facts = _facts(report)
    kind: WorkloadClass = next((kind for kind, holds in _RULES if holds(facts)), "chat")
    seen = [f"mean prompt {facts.prompt_tokens:,.0f} tokens, mean answer {facts.output_tokens:,.0f}", f"ceiling {facts.ceiling:.1%}"]
    if facts.turns is not None:
        seen.append(f"{facts.turns:.1f} requests a session")
    if facts.crowd > CROWD:
        seen.append(f"{facts.crowd:.0%} as many continuations as requests after {facts.crowd_tokens:,} shared tokens")
    return Advice(kind=kind, because="; ".join(seen), advice=(*_ADVICE[kind], *_measured(report, facts)))


def _measured(report: Report, facts: _Facts) -> tuple[str, ...]:
    """Advice that holds for any class, where the figures say so."""
    found = []
    if report.ceiling > 0.05 and report.gap_p50_s is not None and report.gap_p95_s is not None:
        found.append(f"Half of what is reused is reused within {_duration(report.gap_p50_s)}, 95 % within {_duration(report.gap_p95_s)}.")
    if facts.crowd > CROWD and facts.crowd_tokens <= EARLY_TOKENS and facts.ceiling < 0.5:
        found.append(f"Prompts part after {facts.crowd_tokens:,} tokens: a date, a name or an id that stands there belongs at the end.")
    if report.ceiling > 0.05:
        enough = next((tokens for tokens, share in report.capacity if share >= 0.9 * report.ceiling), None)
        if enough is None:
            found.append(f"Even {report.capacity[-1][0]:,} tokens of cache get less than 90 % of what an endless cache would.")
        elif report.distinct_tokens <= enough:  # this much holds the whole trace: what smaller caches do was not looked at, or does not matter
            found.append(f"All of it is {report.distinct_tokens:,} distinct tokens: a cache that holds them loses nothing.")
        else:
            found.append(f"{enough:,} tokens of cache, over all replicas and without copies, get 90 % of what an endless cache would.")
    if report.ceiling_in_scope is not None and report.ceiling - report.ceiling_in_scope > 0.02:
        found.append(f"Keeping scopes apart costs {(report.ceiling - report.ceiling_in_scope) * 100:.1f} points of the ceiling.")
    return tuple(found)
