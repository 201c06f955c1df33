"""Replays of one list of requests, as commands and jobs do them: waiting as in the live router, each request's own figures kept."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from routing.core.policy import RoutingPolicy
from routing.traces.fleet import FleetConfig
from routing.traces.measure import Measures
from routing.traces.replay import Replay
from routing.traces.request import Trace, TraceRequest

CURVE_POINTS = 100
NO_ANSWER = -1.0


@dataclass(slots=True)
class Tracked(Measures):
    """With what became of each request, in the order of the list that was replayed. A time of :data:`NO_ANSWER`: refused or cut."""

    places: dict[int, int] = field(default_factory=dict)  # id() of a request -> its place
    each_ttft_s: array[float] = field(default_factory=lambda: array("f"))
    each_cached: array[int] = field(default_factory=lambda: array("i"))

    def answered(self, request: TraceRequest, *, ttft_s: float, cached_tokens: int, **more: float) -> None:
        """Count a whole answer."""
        Measures.answered(self, request, ttft_s=ttft_s, cached_tokens=cached_tokens, **more)  # type: ignore[arg-type]  # as above
        place = self.places[id(request)]
        self.each_ttft_s[place], self.each_cached[place] = ttft_s, cached_tokens


def replayed(
    requests: Sequence[TraceRequest],
    fleet: FleetConfig,
    policy: RoutingPolicy,
    *,
    ttft_slo_s: float | None,
    seed: int,
    tick: Callable[[], None] = lambda: None,
) -> Tracked:
    """Replay ``requests``, which must be in order of time, under one policy. ``tick`` is called as each is taken."""

    def taken() -> Iterator[TraceRequest]:
        for one in requests:
            tick()
            yield one

    run = Replay(Trace("", fleet.block_tokens, True, taken()), fleet, policy, ttft_slo_s=ttft_slo_s, seed=seed, late_binding=True)
    measures = Tracked(replicas=len(fleet.speeds), ttft_slo_s=ttft_slo_s)
    measures.places = {id(one): place for place, one in enumerate(requests)}
    measures.each_ttft_s = array("f", [NO_ANSWER]) * len(requests)
    measures.each_cached = array("i", [0]) * len(requests)
    run.measures = measures
    run.run()
    return measures


def faster(requests: Sequence[TraceRequest], speedup: float) -> list[TraceRequest]:
    """The same requests at ``speedup`` times the rate, from time 0 on. Pauses of sessions stay."""
    began_s = requests[0].at_s if requests else 0.0
    return [replace(one, at_s=(one.at_s - began_s) / speedup) for one in requests]


def jittered(requests: Sequence[TraceRequest], seed: int, by_s: float) -> tuple[list[TraceRequest], list[int]]:
    """The requests, each up to ``by_s`` later, in order of time; and for each of the result its place in ``requests``."""
    draw = random.Random(seed)
    later = [(one.at_s + draw.uniform(0, by_s), place) for place, one in enumerate(requests)]
    later.sort()
    return [replace(requests[place], at_s=at_s) for at_s, place in later], [place for _, place in later]


def curve(ttft_s: Sequence[float]) -> list[float]:
    """Times to first token at the quantiles 0, 1 / :data:`CURVE_POINTS` ... 1, in s; empty of nothing."""
    ordered = sorted(ttft_s)
    last = len(ordered) - 1
    return [round(ordered[round(last * place / CURVE_POINTS)], 6) for place in range(CURVE_POINTS + 1)] if ordered else []
