"""One physical engine as the router knows it, over all tenants: what was sent there, what it said of itself, what was learned of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from routing.core.adapters import NO_PRICE, AdapterSlots, Price
from routing.core.breaker import Breaker
from routing.core.build import Facts
from routing.core.calibration import Calibration
from routing.core.exposition import EngineLoad
from routing.core.ledger import Ledger
from routing.core.reach import Condition
from routing.core.siblings import Shared
from routing.core.work_clock import WorkClock
from routing.core.working_set import WorkingSet
from routing.dataplane.feeds.kv_sources import Source
from routing.dataplane.ranks import Rank, Scrape, own_work

if TYPE_CHECKING:
    from routing.dataplane.patience import Patience

MISSES_UNTIL_UNREACHABLE = 2
MODELS_TOO_OLD_S = 180.0  # a list of models that is older says nothing any more
MODELS_AGAIN_S = 5.0  # before a list of models that refused somebody is asked for again
Health = Literal["unknown", "ok", "failing", "blocked"]


@dataclass(slots=True)
class Engine:
    """One physical engine."""

    url: str
    breaker: Breaker
    ledger: Ledger = field(default_factory=Ledger)
    calibration: Calibration = field(default_factory=Calibration)
    working_set: WorkingSet = field(default_factory=WorkingSet)
    work: WorkClock = field(default_factory=WorkClock)  # of this router's requests
    evicted_blocks: int = 0  # that its KV events told to be gone
    adapters: AdapterSlots = field(default_factory=AdapterSlots)
    returned_at_s: float = -math.inf  # monotonic; when it was last seen to be back, or to be another process
    in_flight: int = 0
    more_answers: int = 0  # that requests in flight ask for beyond one each
    awaited: dict[Patience, None] = field(default_factory=dict)  # requests without a byte of answer, the oldest first
    words: int = 0  # answers to requests, and pieces of such, that came from it
    failures: int = 0
    mean_uncached_tokens: float = 500.0
    health: Health = "unknown"
    misses: int = 0  # health checks failed in a row
    answered_s: float = -math.inf  # monotonic; when it last answered a health check
    away_since: float | None = None  # unix s; since then nothing sent there can be expected to be answered (routing.core.reach)
    started_at: float | None = None  # of the engine's process, unix s
    restarts: int = 0
    asleep: bool = False  # as it last said
    capacity_tokens: int | None = None
    kv_used: float | None = None  # share of its KV cache in use, as of the latest scrape
    promised_tokens: float = 0.0  # prompts and expected answers of this router's requests in flight there
    promised_scraped: float = 0.0  # as of the latest scrape, which shows them
    scrape: Scrape | None = None
    waiting: float | None = None  # requests in its queue, as it last said
    facts: Facts = field(default_factory=Facts)
    facts_due_s: float = 0.0  # monotonic; when to ask again which build it is
    sources: tuple[Source, ...] | None = None  # where it says it publishes KV events; None: not asked yet
    sequences: int = 0  # answers asked of it by this router and its siblings since they began; after a restart also those that either process got
    sequences_scraped: int = 0  # as of the latest scrape
    counts_requests: bool = False  # it says how many requests it finished
    served_others: bool = False  # it finished more than this router sent: others use it too
    ranks: tuple[Rank, ...] = ()  # data-parallel ranks that requests name; none where there is one, or the engine chooses

    @property
    def key(self) -> str:
        """What stands for it as a place that requests go to (:mod:`routing.dataplane.ranks`)."""
        return self.url

    @property
    def target(self) -> tuple[str, int]:
        return self.url, 0

    @property
    def targets(self) -> tuple[tuple[str, int], ...]:
        """Where its answers are judged: at each rank that requests name, else at one."""
        return tuple(rank.target for rank in self.ranks) or (self.target,)

    @property
    def keys(self) -> tuple[str, ...]:
        """Its own, and those of ranks that requests name."""
        return self.url, *[rank.key for rank in self.ranks]

    def take(self, answers: int = 1) -> None:
        """A request for so many answers is sent there."""
        self.in_flight += 1
        self.more_answers += answers - 1

    def give_back(self, answers: int = 1) -> None:
        """It ended."""
        self.in_flight -= 1
        self.more_answers -= answers - 1

    def queued(self, now_s: float) -> tuple[float, int]:
        """Tokens and requests of this router without their first token, over all ranks."""
        found = [self.ledger.queued(now_s), *[rank.ledger.queued(now_s) for rank in self.ranks]]
        return sum([tokens for tokens, _ in found]), sum([waiting for _, waiting in found])

    def restarted(self) -> None:
        """Its process is another one. What was sent since the last scrape may have reached either."""
        self.working_set.clear()
        for rank in self.ranks:
            rank.working_set.clear()
        self.adapters.clear()
        self.restarts += 1
        self.away_since = None
        self.facts, self.facts_due_s = Facts(), 0.0
        self.sequences -= self.sequences_scraped
        self.sequences_scraped = 0
        self.served_others = self.counts_requests = False

    def history_is_whole(self, since: float) -> bool:
        """Whether this router, there since ``since`` (unix s), saw all that the engine was ever sent."""
        return self.started_at is not None and self.started_at > since and self.counts_requests and not self.served_others

    def serves(self, model: str, now_s: float) -> bool:
        """Whether it serves a model or adapter of this name, as it last said; what it did not say, or not of late, speaks against nobody."""
        facts = self.facts
        return not facts.lists_all or now_s - facts.listed_s > MODELS_TOO_OLD_S or model in facts.served

    def list_again(self, now_s: float) -> None:
        """Its list of models may be out of date: ask soon."""
        self.facts_due_s = min(self.facts_due_s, max(now_s, self.facts.listed_s + MODELS_AGAIN_S))

    def adapter_price(self, model: str, now_s: float, *, declared: bool) -> Price:
        """What it takes to serve ``model``: something only where that is an adapter, by the engine's list or else by declaration."""
        known = self.facts.lists_all and model in self.facts.served
        return self.adapters.price(model, now_s) if (model in self.facts.adapters if known else declared) else NO_PRICE

    def reachable(self) -> bool:
        return self.misses < MISSES_UNTIL_UNREACHABLE and not self.asleep

    def condition(self, now_s: float) -> Condition:
        """One word for status pages: what keeps requests away, or ``ok``."""
        if self.health == "blocked":
            return "blocked: address not allowed"
        breaker = self.breaker.state(now_s)
        if breaker == "open" or (breaker == "half_open" and self.away_since is not None):
            return "failing (passive)"
        if self.asleep:
            return "asleep"
        if not self.reachable():
            return "failing (active)"
        return "returning" if breaker == "half_open" else "unknown" if self.health == "unknown" else "ok"

    def watched(self, now_s: float, unix_s: float, *, back: bool = False) -> None:
        """Note whether it is away, and since when; asked after every health check. ``back``: it answers again after an outage.

        Behind a breaker that is half open it stays away until a request succeeded there, or until it came back from an outage.
        """
        breaker = self.breaker.state(now_s)
        failing = breaker == "open" or (breaker == "half_open" and self.away_since is not None and not back)
        if not (failing or self.health == "blocked" or self.misses >= MISSES_UNTIL_UNREACHABLE):
            self.away_since = None
        elif self.away_since is None:
            self.away_since = unix_s

    def scraped(self, load: EngineLoad, now_s: float, shared: Shared | None = None, *, underway: int = 0) -> None:
        """Take in a scrape; ``shared`` is what siblings have there, None where there are none. ``underway``: answers of this router that were under
        way when the page was asked for. Those that ended since may stand in it, and are nobody else's."""
        _, waiting = self.queued(now_s)
        self.waiting = load.waiting
        if load.running_adapters is not None:
            self.adapters.observe(load.running_adapters, load.adapter_slots, now_s)
        self.kv_used, self.promised_scraped = load.kv_used, self.promised_tokens
        if load.finished is not None:
            self.counts_requests = True
            self.served_others |= load.finished > self.sequences
        self.sequences_scraped = self.sequences
        own = own_work(waiting, self.in_flight + self.more_answers, underway)
        self.scrape = Scrape.of((load.waiting or 0.0, load.running or 0.0), own, shared, self.scrape, now_s)

    def free_tokens(self, now_s: float) -> float | None:
        """Tokens of its KV cache that nobody uses, as of the latest scrape, less what was sent there since; None: it does not say, or
        has not of late."""
        if self.kv_used is None or self.capacity_tokens is None or self.scrape is None or not self.scrape.fresh(now_s):
            return None
        return self.capacity_tokens * (1.0 - self.kv_used) - max(0.0, self.promised_tokens - self.promised_scraped)

    def kv_share(self, now_s: float) -> float:
        """The share of its KV cache in use, as of a scrape that is not old; 0 where it does not say: what nobody knows keeps nobody away."""
        return self.kv_used if self.kv_used is not None and self.scrape is not None and self.scrape.fresh(now_s) else 0.0

    def foreign(self, now_s: float) -> tuple[float, float]:
        """Foreign waiting tokens and foreign decodes, faded by the scrape's age; a scrape never replaces the ledger, it only adds an excess."""
        return (0.0, 0.0) if self.scrape is None else self.scrape.faded(now_s, self.mean_uncached_tokens)
