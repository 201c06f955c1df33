"""Which LoRA adapters an engine has in its slots, as far as can be known, and what it takes to bring one in.

An engine keeps a few adapters where it computes with them (vLLM: ``max_loras``) and loads others on first use, in place of the one least recently
used. No engine says which ones are loaded: vLLM's metrics name those of the requests that run at that moment. So the slots are modelled: an adapter
is in one from its last dispatch, or its last appearance in a scrape, until as many others as there are slots came after it, the engine was
restarted, or nothing was seen of it for :data:`KEPT_S`. This is of the physical engine and over all its users: a slot holds weights, not prompts.

What loading takes, ``load_s``, is the median of what first uses took beyond their expected time to first token, of the last :data:`WINDOW`
and of :data:`PRIOR_COUNT` times the prior :data:`PRIOR_LOAD_S`; each sample is held within [0, :data:`MOST_LOAD_S`].

    active    0
    loading   what is left of load_s since the dispatch that began it
    free      load_s                                  a slot is free, or nobody knows how many there are
    full      load_s + load_s * 0.5 ** (idle / HALF_LIFE_S)
              the second part is for whoever brings the displaced adapter back: likely where it was used a moment ago (``idle`` seconds since)
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

PRIOR_LOAD_S = 0.2  # tens of megabytes from disk or host memory; not measured
PRIOR_COUNT = 4
WINDOW = 32
MOST_LOAD_S = 10.0
KEPT_S = 600.0
HALF_LIFE_S = 60.0
MAX_NAMES = 256  # believed to be in slots; no engine has so many

Slot = Literal["none", "active", "loading", "free", "full"]  # none: the request asks for no adapter


@dataclass(frozen=True, slots=True)
class Price:
    """``own_s`` delays the request itself; ``displaced_s`` is what it costs others."""

    slot: Slot
    own_s: float = 0.0
    displaced_s: float = 0.0


NO_PRICE = Price(slot="none")


@dataclass(slots=True)
class AdapterSlots:
    """One engine's slots as believed. ``now_s`` is monotonic and given by the caller."""

    slots: int | None = None  # None: the engine does not say
    used: OrderedDict[str, float] = field(default_factory=OrderedDict)  # when each was last seen in use; least recently used first
    loading: dict[str, float] = field(default_factory=dict)  # since when; of those in ``used``
    samples: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    dropped: int = 0  # beliefs that gave way to others
    loads: int = 0  # requests that brought their adapter in
    waits: int = 0  # requests that were sent while theirs was being loaded

    @property
    def load_s(self) -> float:
        """Seconds that bringing an adapter in takes, in [0, MOST_LOAD_S]."""
        return median([PRIOR_LOAD_S] * PRIOR_COUNT + list(self.samples))

    def price(self, name: str, now_s: float) -> Price:
        """What it would take to serve a request with the adapter ``name``."""
        seen_s = self.used.get(name)
        if seen_s is not None and now_s - seen_s <= KEPT_S:
            since_s = self.loading.get(name)
            left_s = 0.0 if since_s is None else max(0.0, self.load_s - max(0.0, now_s - since_s))
            return Price(slot="loading", own_s=left_s) if left_s > 0 else Price(slot="active")
        live = [one for one, at_s in self.used.items() if now_s - at_s <= KEPT_S]
        load_s = self.load_s
        if self.slots is None or len(live) < self.slots:
            return Price(slot="free", own_s=load_s)
        idle_s = now_s - self.used[live[0]] if live else KEPT_S
        return Price(slot="full", own_s=load_s, displaced_s=load_s * 0.5 ** (max(0.0, idle_s) / HALF_LIFE_S))

    def held(self, now_s: float) -> tuple[int, int]:
        """How many are believed in a slot, and how many of those are still being loaded."""
        slots = [self.price(name, now_s).slot for name in self.used]
        loading = slots.count("loading")
        return slots.count("active") + loading, loading

    def dispatched(self, name: str, now_s: float) -> bool:
        """A request with the adapter is sent; whether it is the one that brings it in."""
        slot = self.price(name, now_s).slot
        first = slot in ("free", "full")
        if first:
            self.loading[name] = now_s
        self.loads += first
        self.waits += slot == "loading"
        self._touch(name, now_s)
        return first

    def observe(self, running: Collection[str], slots: int | None, now_s: float) -> None:
        """What a scrape says: the adapters of requests that run, least recently used first, and how many slots there are."""
        if slots is not None:
            self.slots = max(1, min(slots, MAX_NAMES))
        for name in running:
            self.loading.pop(name, None)
            self._touch(name, now_s)
        self._trim()

    def observe_load(self, seconds: float) -> None:
        """A first use took ``seconds`` longer than its prompt explains."""
        self.samples.append(min(MOST_LOAD_S, max(0.0, seconds)))

    def loaded(self, name: str) -> None:
        """A request with the adapter was answered: it is in, however long that was thought to take."""
        self.loading.pop(name, None)

    def forget(self, name: str) -> None:
        """The engine does not serve the adapter after all."""
        self.used.pop(name, None)
        self.loading.pop(name, None)

    def clear(self) -> None:
        """Another process: all slots are free. How long loading takes is still known."""
        self.used.clear()
        self.loading.clear()

    def _touch(self, name: str, now_s: float) -> None:
        self.used[name] = now_s
        self.used.move_to_end(name)
        self._trim()

    def _trim(self) -> None:
        while len(self.used) > (self.slots or MAX_NAMES):
            gone, _ = self.used.popitem(last=False)
            self.loading.pop(gone, None)
            self.dropped += 1
