"""How far what the router believes about one engine's cache may be trusted, and why.

A *target* (one data-parallel rank of one engine) has a set of standing conditions; its state follows from them alone, so that the order in which they
arose does not matter:

- ``history``: events cannot be used here at all; the router's own history decides.
- ``degraded``: events were exact and something is wrong right now (a lost gap, a replay, silence); history decides until it passes.
- ``warming``: events are read, but what happened before is not all known; what they claim is true, what they lack says little.
- ``exact``: nothing stands against the events.

Each change is a value with its reason, for the log, the counters and the report.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

State = Literal["warming", "exact", "history", "degraded"]
Reason = Literal[
    "no_events",
    "unsupported",
    "unknown_spec_kind",
    "block_size",
    "no_tokens",
    "parity",
    "kappa",
    "budget",
    "gap",
    "replay",
    "stale",
    "malformed",
    "subscribing",
    "restart",
    "late_join",
    "relearning",
    "ok",
]

# Most serious first: the first that stands is the reason that is shown.
CONDITIONS: Final[dict[Reason, State]] = {
    "no_events": "history",  # the engine publishes none, or its source cannot be reached
    "unsupported": "history",  # a wire format or hash form that is not read
    "unknown_spec_kind": "history",  # a KV group whose rule of reuse is not known
    "block_size": "history",  # blocks of a size that changed or was never told
    "no_tokens": "history",  # the router cannot turn prompts into this model's tokens
    "parity": "history",  # the router's tokens differ from the engine's
    "kappa": "history",  # answers show far fewer cached tokens than events promise
    "gap": "degraded",  # messages are lost for good; what came since is known, and counts half until all is known again
    "stale": "degraded",  # the source is silent or disconnected
    "malformed": "degraded",  # messages that cannot be read
    "replay": "degraded",  # a replay is under way
    "budget": "degraded",  # the index dropped blocks to stay within its bound
    "subscribing": "warming",
    "restart": "warming",
    "late_join": "warming",  # the source's buffer did not reach back to its beginning
    "relearning": "warming",  # forgotten after silence, or in doubt
}
TokenReason = Literal["no_tokens", "parity"]
# Of these the router is the cause and not the engine: they say nothing against events where a prompt's tokens are known all the same.
ABOUT_TOKENS: Final[tuple[TokenReason, ...]] = get_args(TokenReason)
LOST_AFTER_S: Final = 30.0  # silence or bad messages this long: what was known is dropped


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of a target's state or of the reason for it. ``at_s`` is the caller's clock."""

    before: State
    after: State
    reason: Reason
    at_s: float


@dataclass(frozen=True, slots=True)
class Residency:
    """The standing conditions, each with the time since when."""

    conditions: tuple[tuple[Reason, float], ...] = ()
    since_s: float = 0.0

    @property
    def reason(self) -> Reason:
        standing = dict(self.conditions)
        return next((reason for reason in CONDITIONS if reason in standing), "ok")

    @property
    def state(self) -> State:
        reason = self.reason
        return "exact" if reason == "ok" else CONDITIONS[reason]

    @property
    def of_events(self) -> Residency:
        """What stands against the engine's events alone, for a prompt whose tokens are known."""
        return replace(self, conditions=tuple(condition for condition in self.conditions if condition[0] not in ABOUT_TOKENS))

    def has(self, reason: Reason) -> bool:
        return any(name == reason for name, _ in self.conditions)


def begin(at_s: float) -> Residency:
    """A target that was just added: subscribed to, and nothing is known."""
    return Residency((("subscribing", at_s),), at_s)


def add(residency: Residency, reason: Reason, at_s: float) -> tuple[Residency, Transition | None]:
    """A condition arose. Standing already, it keeps its time."""
    if residency.has(reason):
        return residency, None
    return _changed(residency, (*residency.conditions, (reason, at_s)), at_s)


def drop(residency: Residency, *reasons: Reason, at_s: float) -> tuple[Residency, Transition | None]:
    """Conditions passed."""
    kept = tuple(condition for condition in residency.conditions if condition[0] not in reasons)
    return (residency, None) if kept == residency.conditions else _changed(residency, kept, at_s)


def restarted(residency: Residency, at_s: float) -> tuple[Residency, Transition | None]:
    """Another process runs there now: what stood against the old one's events is over, what stands against the model's tokens is not."""
    kept = tuple(condition for condition in residency.conditions if condition[0] in ("no_events", *ABOUT_TOKENS))
    return _changed(residency, (*kept, ("restart", at_s)), at_s)


def overdue(residency: Residency, at_s: float) -> bool:
    """Whether silence or bad messages stand for so long that what was known must be forgotten."""
    return any(reason in {"stale", "malformed"} and at_s >= since_s + LOST_AFTER_S for reason, since_s in residency.conditions)


def _changed(residency: Residency, conditions: tuple[tuple[Reason, float], ...], at_s: float) -> tuple[Residency, Transition | None]:
    after = replace(residency, conditions=conditions)
    if (after.state, after.reason) == (residency.state, residency.reason):
        return after, None
    if after.state != residency.state:
        after = replace(after, since_s=at_s)
    return after, Transition(residency.state, after.state, after.reason, at_s)
