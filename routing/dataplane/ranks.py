"""One data-parallel rank of an engine that lets requests name it: a cache, a queue and an account of its own.

What is a matter of the process stays with the engine: health, breaker, speed, start. What a dispatch takes it takes at its *place*: the rank that it
names, or the engine as a whole where there is only one, or none to be named.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from routing.core.exposition import RankLoad
from routing.core.ledger import Ledger
from routing.core.siblings import NONE_SHARED, Shared
from routing.core.working_set import WorkingSet

if TYPE_CHECKING:
    from routing.dataplane.engine import Engine

SCRAPE_FADE_S = 5.0
SCRAPE_TOO_OLD_S = 15.0


@dataclass(slots=True)
class Scrape:
    """Others' work at an engine or rank, as of ``at_s`` (monotonic): what it reported minus what was ours and our siblings' at that moment."""

    at_s: float
    foreign_waiting: float
    foreign_running: float
    excess: tuple[float, float]  # requests waiting and running that nobody known here has sent

    @classmethod
    def of(cls, reported: tuple[float, float], own: tuple[int, int], shared: Shared | None, before: Scrape | None, now_s: float) -> Scrape:
        """What is neither ours nor, as they last said, our siblings' (``shared``; None: there are none) is foreign. ``reported`` and ``own`` are
        requests waiting and running.

        Who is known here and counted as waiting may run there already: an answer that does not stream never says when its prefill was over, and an
        engine calls a request running from its first step on. So foreign is no more, waiting and running together, than what the engine has beyond
        all that is known. What siblings began a moment ago they have not said yet: where there are siblings, foreign is only what two scrapes in a
        row show.
        """
        told = shared or NONE_SHARED
        known = (own[0] + told.waiting, own[1] + told.decodes)
        beyond = max(0.0, sum(reported) - sum(known))
        waiting = min(beyond, max(0.0, reported[0] - known[0]))
        excess = (waiting, min(beyond - waiting, max(0.0, reported[1] - known[1])))
        earlier = (0.0, 0.0) if before is None else before.excess
        foreign = excess if shared is None else (min(excess[0], earlier[0]), min(excess[1], earlier[1]))
        return cls(at_s=now_s, foreign_waiting=foreign[0], foreign_running=foreign[1], excess=excess)

    def fresh(self, now_s: float) -> bool:
        """Whether it still says anything."""
        return now_s - self.at_s <= SCRAPE_TOO_OLD_S

    def faded(self, now_s: float, mean_tokens: float) -> tuple[float, float]:
        """Foreign waiting tokens, at ``mean_tokens`` a request, and foreign decodes, faded by age."""
        age_s = now_s - self.at_s
        if age_s > SCRAPE_TOO_OLD_S:
            return 0.0, 0.0
        faded = math.exp(-age_s / SCRAPE_FADE_S)
        return self.foreign_waiting * mean_tokens * faded, self.foreign_running * faded


@dataclass(slots=True)
class Rank:
    """``number`` is what a request names. ``key`` stands for it in the history index and between routers, as an engine's URL does for an engine."""

    engine: Engine
    number: int
    ledger: Ledger = field(default_factory=Ledger)
    working_set: WorkingSet = field(default_factory=WorkingSet)
    in_flight: int = 0
    more_answers: int = 0  # that requests in flight ask for beyond one each
    kv_used: float | None = None
    scrape: Scrape | None = None
    key: str = field(init=False)
    target: tuple[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.key = key(self.engine.url, self.number)
        self.target = (self.engine.url, self.number)

    @property
    def capacity_tokens(self) -> int | None:
        """Of its KV cache: an equal share, as ranks are alike."""
        whole = self.engine.capacity_tokens
        return None if whole is None else whole // max(1, len(self.engine.ranks))

    def take(self, answers: int = 1) -> None:
        """A request for so many answers is sent there."""
        self.in_flight += 1
        self.more_answers += answers - 1
        self.engine.take(answers)

    def give_back(self, answers: int = 1) -> None:
        """It ended."""
        self.in_flight -= 1
        self.more_answers -= answers - 1
        self.engine.give_back(answers)

    def foreign(self, now_s: float) -> tuple[float, float]:
        """As of an engine: waiting tokens and decodes that others sent."""
        return (0.0, 0.0) if self.scrape is None else self.scrape.faded(now_s, self.engine.mean_uncached_tokens)

    def kv_share(self, now_s: float) -> float:
        """As of an engine: the share of its KV cache in use; 0 where it does not say."""
        return self.kv_used if self.kv_used is not None and self.scrape is not None and self.scrape.fresh(now_s) else 0.0

    def scraped(self, load: RankLoad, now_s: float, shared: Shared | None, *, underway: int = 0) -> None:
        """Take in the rank's own rows of a scrape, as an engine does its sums."""
        own = own_work(self.ledger.queued(now_s)[1], self.in_flight + self.more_answers, underway)
        self.kv_used = load.kv_used
        self.scrape = Scrape.of((load.waiting, load.running), own, shared, self.scrape, now_s)


def own_work(waiting: int, answers: int, underway: int) -> tuple[int, int]:
    """What a scrape shows that is this router's, waiting and running: answers, as engines count them, of now or of when the page was asked for."""
    return waiting, max(0, max(answers, underway) - waiting)


def key(url: str, number: int) -> str:
    """The name of a rank; no URL of an engine has a fragment."""
    return f"{url}#{number}"
