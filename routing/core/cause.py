"""Why a request took as long as it did: its time split into parts that add up to the whole, in whole microseconds.

The measure is a warm and idle replica: one that holds all of the prompt that an engine can take from a cache, and has nothing else to do. What it
would have needed for the first token is the part ``ideal``; everything else has a name:

    router              reading, tokenising, deciding                                              measured
    queue_router        waiting in the router's own queue                                          measured
    retry               attempts that failed before the one that served                            measured
    no_answer           the replica did not answer, and failed its health checks meanwhile         measured
    transfer            moving KV blocks from a prefill replica                                    measured
    generation          from the first token to the end (whole answers: tokens at the usual pace)  measured, or estimated
    missed_*            prompt tokens computed that a warm replica would have held                 estimated: tokens / prefill rate
    slow_replica        the same work at this replica's learned rate instead of its pool's         estimated
    queue_engine        others' work at the replica                                                estimated: what is left, within a bound
    unexplained         what is left then

Engines tell no queue time for a request, so ``queue_engine`` is a residual, and only where somebody else was known to be there, for no longer than
they were, up to ``OTHERS_FACTOR`` times the wait that was expected plus the request's own work once more. Where the estimated parts exceed what was
measured, all of them shrink alike; while nobody has measured the replica's rate they also grow alike on an idle one, and the bound on a busy one
grows, up to ``MOST_GROWTH`` times. Of a whole answer from a replica whose pace of generation nobody knows nothing but its end was measured: nothing
grows, ``queue_engine`` is the expected wait at most, and the rest is generation. Read are the router's own clock, the engine's ``usage``, its health
checks and what the router believed of others; nothing else.

Missed tokens are told apart along the prompt, from the first token that was not cached on:

    evicted             the chosen replica, or some replica that is still there, was sent them and no longer had them
    not_ready           a request still in flight was to put them at the chosen replica
    policy              another replica held them, and the policy chose otherwise
    replica_lost        the replica that was sent them is gone, out of service, or has restarted
    other_pool          they were sent to a replica that serves the asker, through another endpoint whose pool this one may not use
    changed             the conversation's last turn said something else there (a date in the system prompt, edited or shortened history)
    namespace_changed   the same asker sent them under another cache identity (an epoch, a scope's version, a revision)
    never_seen          nobody here was sent them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Miss = Literal["evicted", "not_ready", "policy", "replica_lost", "other_pool", "changed", "namespace_changed", "never_seen"]
Part = Literal[
    "ideal",
    "router",
    "queue_router",
    "queue_engine",
    "retry",
    "no_answer",
    "transfer",
    "missed_evicted",
    "missed_not_ready",
    "missed_policy",
    "missed_replica_lost",
    "missed_other_pool",
    "missed_changed",
    "missed_namespace_changed",
    "missed_never_seen",
    "slow_replica",
    "generation",
    "unexplained",
]
MISSES: tuple[Miss, ...] = get_args(Miss)
PARTS: tuple[Part, ...] = get_args(Part)
ESTIMATED: frozenset[str] = frozenset({"ideal", "slow_replica", "queue_engine", *(f"missed_{miss}" for miss in MISSES)})
OTHERS_FACTOR = 3.0
MOST_GROWTH = 4.0  # how far from the assumed rate an unmeasured replica may be
OF_THE_REPLICA: frozenset[str] = frozenset({"queue_engine", "slow_replica", "unexplained"})  # what tells of others' load or of a replica's speed


@dataclass(frozen=True, slots=True)
class Known:
    """What was known of a prompt when it was sent, as lengths of its prefix in tokens.

    ``matched`` was believed at the chosen replica (``pending``: because of a request still in flight), ``elsewhere`` is the best match at any other
    that could have been chosen. ``sent`` is common with the conversation's last turn; ``last_turn`` is that turn's length where the prompt differs
    from it (0: it does not, or no turn is known). ``lost``: the replica of that turn cannot have it any more; ``apart``: it is well, in a pool that
    this endpoint does not use. ``former`` was sent by the same asker under another namespace.
    """

    matched: int = 0
    pending: bool = False
    elsewhere: int = 0
    sent: int = 0
    last_turn: int = 0
    lost: bool = False
    apart: bool = False
    former: int = 0


def missed(known: Known, *, cached_tokens: int, warm_tokens: int, rounding_tokens: int = 0) -> dict[str, int]:
    """Tokens between what the engine had cached and what a warm one would have, by why they were missing. The counts add up to the difference.

    A stretch of at most ``rounding_tokens`` proves nothing, since blocks of engine and router end in different places: it goes with what follows.
    """
    claims: tuple[tuple[int, Miss], ...] = (
        (known.matched, "not_ready" if known.pending else "evicted"),
        (known.elsewhere, "policy"),
        (known.sent, "replica_lost" if known.lost else "other_pool" if known.apart else "evicted"),
        (known.last_turn, "changed"),
        (known.former, "namespace_changed"),
        (warm_tokens, "never_seen"),
    )
    found: dict[str, int] = {}
    place = cached_tokens
    for claimed, miss in claims:
        end = min(claimed, warm_tokens)
        if end - place > (0 if miss == "never_seen" else rounding_tokens):
            found[miss] = found.get(miss, 0) + end - place
            place = end
    return found


@dataclass(frozen=True, slots=True)
class Times:
    """What the router's clock says, in seconds. ``serving_s`` is the last attempt from dispatch to its end (0: none was made), ``first_token_s`` its
    time to the first byte of a stream; None: there was none, or the answer came whole. ``silent_s``: at its end the replica had not answered for
    so long, nor health checks."""

    total_s: float
    router_s: float = 0.0
    queue_s: float = 0.0
    retry_s: float = 0.0
    transfer_s: float = 0.0
    serving_s: float = 0.0
    first_token_s: float | None = None
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """What was to do at the replica. Rates in prompt tokens/s, > 0.

    Of others: ``wait_s`` was expected for their work, ``behind_s`` is what could have come on top, ``others_s`` how long they were there at most (0:
    nobody was; infinite: nobody knows when they left).
    """

    prompt_tokens: int = 0
    warm_tokens: int = 0
    rate: float = 8000.0
    pool_rate: float = 8000.0
    fixed_s: float = 0.0
    wait_s: float = 0.0
    behind_s: float = 0.0
    others_s: float = 0.0
    completion_tokens: int = 0
    token_s: float | None = None  # the replica's usual time per generated token; None: not known
    learned: bool = True  # the rates come from answers; False: nobody has measured any yet


def split(times: Times, work: Work, misses: Mapping[str, int]) -> dict[str, int]:
    """The request's time by part, in microseconds, parts of zero left out. All parts are >= 0 and add up to the total exactly."""
    purse = _Purse(_us(times.total_s))
    purse.take("router", _us(times.router_s))
    purse.take("queue_router", _us(times.queue_s))
    purse.take("retry", _us(times.retry_s))
    serving_us = min(purse.left_us, _us(times.serving_s))
    if serving_us:
        inside = _Purse(serving_us)
        inside.take("no_answer", _us(times.silent_s))
        if times.first_token_s is not None:
            inside.take("generation", inside.left_us - _us(times.first_token_s))
        inside.take("transfer", _us(times.transfer_s))
        _estimate(inside, work, misses, whole=times.first_token_s is None)
        for part, part_us in inside.parts.items():
            purse.take(part, part_us)
    purse.take("unexplained", purse.left_us)
    return purse.parts


def _estimate(purse: _Purse, work: Work, misses: Mapping[str, int], *, whole: bool) -> None:
    """Share what is left among the estimated parts. ``whole``: generation is in it too."""
    reference = max(work.rate, work.pool_rate)
    computed = sum(misses.values()) + max(1, work.prompt_tokens - work.warm_tokens)
    wanted: dict[str, float] = {"ideal": work.fixed_s + max(1, work.prompt_tokens - work.warm_tokens) / reference}
    for miss, tokens in misses.items():
        wanted[f"missed_{miss}"] = tokens / reference
    wanted["slow_replica"] = computed / work.rate - computed / reference
    own_s = sum(wanted.values())
    if whole and work.completion_tokens > 1 and work.token_s is not None:
        wanted["generation"] = (work.completion_tokens - 1) * work.token_s
    available_us = purse.left_us
    wanted_us = sum(_us(value) for value in wanted.values())
    pace_unknown = whole and work.completion_tokens > 1 and work.token_s is None
    shared = work.others_s > 0
    most = 1.0 if work.learned or shared or pace_unknown else MOST_GROWTH
    fit = min(most, available_us / wanted_us) if wanted_us else 1.0
    for part, value in wanted.items():
        purse.take(part, int(_us(value) * fit))
    if shared:
        likely_s = (OTHERS_FACTOR * (work.wait_s + work.behind_s) + own_s) * (1.0 if work.learned else MOST_GROWTH)
        # Where nothing tells the rest from generation, others took what they were expected to and no more.
        purse.take("queue_engine", _us(min(work.others_s, work.wait_s if pace_unknown else likely_s)))
    purse.take("generation" if pace_unknown else "unexplained", purse.left_us)


class _Purse:
    """A sum of microseconds from which parts are taken until nothing is left."""

    def __init__(self, total_us: int) -> None:
        self.left_us = total_us
        self.parts: dict[str, int] = {}

    def take(self, part: str, wanted_us: int) -> None:
        taken = wanted_us if wanted_us < self.left_us else self.left_us
        if taken > 0:
            self.parts[part] = self.parts.get(part, 0) + taken
            self.left_us -= taken


def _us(value_s: float) -> int:
    return round(value_s * 1e6) if value_s > 0 else 0


def main(parts_us: Mapping[str, int], *, late: bool) -> str | None:
    """The part that a request's time is mostly due to, apart from ``ideal``; None where there is no other.

    ``late``: its first token missed its target, so that generation is not what is asked about.
    """
    asked = {part: value for part, value in parts_us.items() if part != "ideal" and value > 0 and not (late and part == "generation")}
    return max(asked, key=lambda part: (asked[part], part), default=None)


def folded(parts_us: Mapping[str, int]) -> dict[str, int]:
    """The parts as a tenant on a platform's pool may read them: what tells of others is one part, ``replica``. The sum stays."""
    found = {part: value for part, value in parts_us.items() if part not in OF_THE_REPLICA}
    others = sum(value for part, value in parts_us.items() if part in OF_THE_REPLICA)
    return {**found, "replica": others} if others else found


def blind(choices: Sequence[tuple[int, str]]) -> str | None:
    """The replica that a choice blind to caches takes, of ``(requests in flight, id)``: the one with the fewest; None of none."""
    return min(choices, default=(0, None))[1]
