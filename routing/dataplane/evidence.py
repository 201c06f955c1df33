"""What is believed of a replica's cache for one prompt: events where they can be trusted, the router's own history for the rest.

State ``exact`` and exact tokens: what events show, and beyond it only dispatches in flight and answers younger than the events' lag; an older answer
would have been confirmed by now, so without a confirmation the block is gone. Nor does an answer count that is older than the engine's word that it
removed what it showed: with a small cache that is sooner. Otherwise events and history both count, whichever is surer for each
part of the prompt. State ``history``: history alone.

Confidence in a block that events show is that of its tier, halved while messages of its engine are missing. Where a request names its data-parallel
rank, all of this is that rank's alone; where the engine picks the rank itself, the mean over its ranks is what to expect.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from routing.core import prefix
from routing.core.event_tables import GONE_S
from routing.core.residency import AGE_CONSTANT_S, NO_MATCH, P_EVENT, Match
from routing.core.residency_state import Reason, State
from routing.core.trust import engine_rule
from routing.dataplane.choice import Prompt
from routing.dataplane.ranks import Rank
from routing.dataplane.residency import Shown
from routing.dataplane.state import Plane

EVENT_LAG_S = GONE_S  # an engine says within this what it holds
DURING_GAP = 0.5
TIER_TRUST = {"GPU": 1.0, "CPU": 0.8, "STORAGE": 0.5}  # that a block there is used; slower tiers have yet to prove themselves
UNTRUE = Shown(state="history", reason="kappa", since_s=None)  # of a namespace, or a tenant: what events promised it did not come true
# Of a namespace that the event index forgot, beyond as many as a tenant has there, and took up again: what lies there from before is unknown.
FORGOTTEN = Shown(state="degraded", reason="budget", since_s=None)
_GAPS: frozenset[Reason] = frozenset({"gap", "stale", "malformed", "replay"})


class Belief(NamedTuple):
    """``confidence`` in [0, P_EVENT] is the mean over the matched tokens, before kappa; ``evidence`` and ``age_s`` are those of the last of them."""

    matched_tokens: int
    confidence: float
    evidence: str  # event, inferred, pending, none
    age_s: float
    state: State
    held_bytes: int  # of the prompt as history knows it
    lower_tokens: float = 0.0  # of matched_tokens * confidence: what a lower tier holds
    tier: str | None = None


class _Shown(NamedTuple):
    """What events show: tokens, and how many of them to expect. ``silent``: that is all of which events can speak, and the prompt goes on, beyond its
    first image or its longest chain; there history can. ``most_tokens`` is what the engine would take from its cache if it held all; ``removed_s``:
    when it said that what follows was removed, -inf where it did not of late. ``withheld_tokens``: a block that it holds and computes anew, which
    ``tokens`` leave out."""

    tokens: int
    most_tokens: int
    expected_tokens: float
    silent: bool
    age_s: float
    removed_s: float
    lower_tokens: float
    tier: str | None
    partial: bool
    withheld_tokens: int


def believe(
    plane: Plane, url: str, key: bytes, prompt: Prompt, *, owner: bytes, now_s: float, tau_s: float = AGE_CONSTANT_S, rank: Rank | None = None
) -> Belief:
    """The belief for the prompt of a namespace (``key``: the 16 bytes of its public id) at the engine of ``url``, or at one ``rank`` of it."""
    exact = prompt.token_ids is not None
    ask = plane.residency.of if exact else plane.residency.told
    standing = ask(url, None if rank is None else rank.number)
    target = (url, 0) if rank is None else rank.target
    if standing.state != "history" and not plane.trust.believes_events(target, owner, key):
        standing = UNTRUE
    shown = None
    if exact and standing.state != "history":
        shown = _events(plane, standing, key, prompt, now_s=now_s, withheld=plane.trust.withholds(target, owner))
        if shown.partial and standing.state == "exact":
            standing = FORGOTTEN
    bound = shown is not None and standing.state == "exact" and not shown.silent
    history = NO_MATCH
    if prompt.digests:
        place = url if rank is None else rank.key
        max_age_s = min(EVENT_LAG_S, now_s - shown.removed_s) if shown is not None and bound else math.inf
        history = plane.index.match(key, prompt.digests, place, now_s, owner=owner, max_age_s=max_age_s, tau_s=tau_s)
    held_bytes = prefix.covered_bytes(history.blocks)
    remembered = min(prompt.tokens, int(held_bytes / prompt.bytes_per_token))
    if shown is not None:
        remembered = max(0, min(remembered, shown.most_tokens) - shown.withheld_tokens)
    if shown is None or not shown.tokens:
        return Belief(remembered, history.confidence, history.source or "none", history.age_s, standing.state, held_bytes)
    return _both(prompt, shown, history, remembered, standing.state)


def _both(prompt: Prompt, shown: _Shown, history: Match, remembered: int, state: State) -> Belief:
    """Each part of the prompt by the surer evidence."""
    if not remembered:
        held_bytes, confidence = int(shown.tokens * prompt.bytes_per_token), min(P_EVENT, shown.expected_tokens / shown.tokens)
        return Belief(shown.tokens, confidence, "event", shown.age_s, state, held_bytes, shown.lower_tokens, shown.tier)
    matched = max(shown.tokens, remembered)
    surer = max(shown.expected_tokens / shown.tokens, history.confidence)
    common = min(shown.tokens, remembered)
    expected = common * surer + (shown.tokens - common) * shown.expected_tokens / shown.tokens + (remembered - common) * history.confidence
    by_events = shown.tokens >= remembered
    return Belief(
        matched_tokens=matched,
        confidence=min(P_EVENT, expected / matched),
        evidence="event" if by_events else history.source or "none",
        age_s=shown.age_s if by_events else history.age_s,
        state=state,
        held_bytes=max(prefix.covered_bytes(history.blocks), int(shown.tokens * prompt.bytes_per_token)),
        lower_tokens=shown.lower_tokens if by_events else 0.0,
        tier=shown.tier if by_events else None,
    )


def _events(plane: Plane, standing: Shown, key: bytes, prompt: Prompt, *, now_s: float, withheld: bool) -> _Shown:
    sure = P_EVENT * (DURING_GAP if standing.reason in _GAPS else 1.0)
    matches = [plane.events.match_chain(key, prompt.chain, target, now_s) for target in standing.targets]
    if len(matches) == 1:
        size, age_s, removed_s = matches[0].block_tokens, matches[0].age_s, matches[0].removed_s
    else:
        size = max([match.block_tokens for match in matches], default=0)
        age_s = max([match.age_s for match in matches], default=0.0)
        removed_s = min([match.removed_s for match in matches], default=-math.inf)  # said by all ranks, where the engine chooses one
    tokens = expected = below = 0.0
    tier: str | None = None
    for match in matches:
        tokens += match.tokens
        expected += sure * match.tokens
        if match.lower_blocks:
            lower = match.lower_blocks * (match.tokens // match.blocks if match.blocks else size)
            trusted = sure * lower * TIER_TRUST[match.medium]
            tokens, expected, below, tier = tokens + lower, expected + trusted, below + trusted, match.medium
    count = len(matches) or 1
    partial = True in [match.partial for match in matches]
    whole_tokens = size * len(prompt.chain(size)) if size else 0
    goes_on = prompt.exact_tokens < prompt.tokens or whole_tokens + size <= prompt.exact_tokens
    silent = goes_on and int(tokens / count) >= whole_tokens > 0
    most_tokens = engine_rule(prompt.tokens, size) if size else prompt.tokens
    withheld_tokens = size if withheld else 0
    held = max(0, min(most_tokens, int(tokens / count)) - withheld_tokens)
    expected = min(held * P_EVENT, expected / count)
    return _Shown(held, most_tokens, expected, silent, age_s, removed_s, below / count, tier, partial, withheld_tokens)
