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
    """Others' work on an engine or rank, as of ``at_s`` (monotonic): what it reported minus what was ours and our siblings' at that moment."""

    at_s: float
    foreign_waiting: float
    foreign_running: float


@dataclass(slots=True)
class Rank:
    """``number`` is what a request names. ``key`` stands for it in the history index and between routers, as an engine's URL does for an engine."""

    engine: Engine
    number: int
    ledger: Ledger = field(default_factory=Ledger)
    working_set: WorkingSet = field(default_factory=WorkingSet)
    in_flight: int = 0
    kv_used: float | None = None
    scrape: Scrape | None = None
    excess: tuple[float, float] = (0.0, 0.0)
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

    def take(self) -> None:
        """A request is sent there."""
        self.in_flight += 1
        self.engine.in_flight += 1

    def give_back(self) -> None:
        """It ended."""
        self.in_flight -= 1
        self.engine.in_flight -= 1

    def foreign(self, now_s: float) -> tuple[float, float]:
        """As of an engine: waiting tokens and decodes that others sent."""
        if self.scrape is None or (age_s := now_s - self.scrape.at_s) > SCRAPE_TOO_OLD_S:
            return 0.0, 0.0
        faded = math.exp(-age_s / SCRAPE_FADE_S)
        return self.scrape.foreign_waiting * self.engine.mean_uncached_tokens * faded, self.scrape.foreign_running * faded

    def kv_share(self, now_s: float) -> float:
        """As of an engine: the share of its KV cache in use; 0 where it does not say."""
        fresh = self.scrape is not None and now_s - self.scrape.at_s <= SCRAPE_TOO_OLD_S
        return self.kv_used if fresh and self.kv_used is not None else 0.0

    def scraped(self, load: RankLoad, now_s: float, shared: Shared | None) -> None:
        """Take in the rank's own rows of a scrape, as an engine does its sums."""
        _, waiting = self.ledger.queued(now_s)
        told = shared or NONE_SHARED
        excess = (max(0.0, load.waiting - waiting - told.waiting), max(0.0, load.running - max(0, self.in_flight - waiting) - told.decodes))
        foreign = excess if shared is None else (min(excess[0], self.excess[0]), min(excess[1], self.excess[1]))
        self.excess, self.kv_used = excess, load.kv_used
        self.scrape = Scrape(at_s=now_s, foreign_waiting=foreign[0], foreign_running=foreign[1])


def key(url: str, number: int) -> str:
    """The name of a rank; no URL of an engine has a fragment."""
    return f"{url}#{number}"
