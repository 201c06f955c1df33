"""A piece of work over one trace, as data: an analysis, a replay of policies, a review of a candidate. Carried out step by step.

Whoever runs it hands in the requests, is told how far it is, and gets checkpoints: plain bytes with which the same work over the same requests goes
on where it was. A step is one request in one run. Replays are kept by whole runs, an analysis at any request.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from routing.core.policy import compile_routing
from routing.traces import pages, review, runs
from routing.traces.analysis import CAPACITIES_TOKENS, LIMIT_BLOCKS, Analysis, ceiling
from routing.traces.fleet import FleetConfig, Residency
from routing.traces.report import analysis_values
from routing.traces.request import Trace, TraceRequest, coarsen
from routing.traces.review import Runs
from routing.traces.stored import apart

REPLAY_BLOCK_TOKENS = 512
MAX_REPLICAS = 64
MAX_POLICIES = 8
MAX_REPLAYS = 10  # of each policy in a review
JITTER_S = 0.1  # by which arrivals differ from replay to replay of a review
CHECKPOINT_S = 15.0
TELL_S = 0.5
MAX_CACHE_TOKENS = 1 << 30

Speed = Annotated[float, msgspec.Meta(gt=0, le=100)]


class NamedPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy document and what it is called in the report."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    spec: dict[str, Any]


class FleetShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay runs on: one speed for each replica (1 is the time model's own), and each one's KV cache."""

    speeds: Annotated[tuple[Speed, ...], msgspec.Meta(min_length=1, max_length=MAX_REPLICAS)] = (1.0,) * 4
    cache_tokens: Annotated[int, msgspec.Meta(ge=1024, le=MAX_CACHE_TOKENS)] = 1_000_000
    residency: Residency = "events"

    def config(self, block_tokens: int) -> FleetConfig:
        longest = min(262_144, self.cache_tokens)
        return FleetConfig(
            speeds=self.speeds,
            cache_tokens=self.cache_tokens,
            max_model_len_tokens=longest,
            residency=self.residency,
            block_tokens=block_tokens,
        )


class Analyze(msgspec.Struct, frozen=True, kw_only=True, tag="analyze", tag_field="kind"):
    """Ceilings, capacity, gaps, concentration, where prompts part, advice."""

    limit_blocks: Annotated[int, msgspec.Meta(ge=1000, le=2_000_000)] = LIMIT_BLOCKS


class Replay(msgspec.Struct, frozen=True, kw_only=True, tag="replay", tag_field="kind"):
    """Each policy over the same requests."""

    policies: Annotated[tuple[NamedPolicy, ...], msgspec.Meta(min_length=1, max_length=MAX_POLICIES)]
    fleet: FleetShape = FleetShape()
    slo_ttft_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] | None = None
    speedup: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 1.0
    seed: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1


class Review(msgspec.Struct, frozen=True, kw_only=True, tag="review", tag_field="kind"):
    """The candidate beside the current policy, ``replays`` times each."""

    current: NamedPolicy
    candidate: NamedPolicy
    fleet: FleetShape = FleetShape()
    slo_ttft_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] | None = None
    replays: Annotated[int, msgspec.Meta(ge=2, le=MAX_REPLAYS)] = 5
    assumed: tuple[str, ...] = ()  # of the fleet, in words


Work = Analyze | Replay | Review


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker must know beside the requests. ``isolated``: blocks are shared within a scope alone; ``notes`` go into the report."""

    name: str
    block_tokens: int
    timed: bool
    work: Work
    isolated: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it: values for JSON, the page, and its plots by name."""

    values: dict[str, Any]
    html: str
    plots: dict[str, str]


class TooLarge(Exception):
    """The result does not fit into what a report may take."""


@dataclass
class Watcher:
    """Whoever is told: how far it is (``total`` None: not known), and what to go on from. Both may raise to end the work."""

    progress: Callable[[int, int | None], None] = lambda _done, _total: None
    checkpoint: Callable[[bytes], None] = lambda _content: None
    clock: Callable[[], float] = time.monotonic
    tell_s: float = TELL_S
    checkpoint_s: float = CHECKPOINT_S


def perform(head: Head, requests: Iterator[TraceRequest], *, count: int | None, watcher: Watcher, before: bytes | None = None) -> Outcome:
    """Carry it out. ``before`` is the last checkpoint of the same work over the same requests; one of other work is passed over.

    Raises:
        ValueError: the trace's blocks do not fit into the fleet's, or the trace holds no request.
        TooLarge: the report would be larger than it may.
    """
    steps = _Steps(_fingerprint(head, count), count, watcher, before)
    if isinstance(head.work, Analyze):
        values = _analyze(head, head.work, requests, steps)
    else:
        trace = Trace(head.name, head.block_tokens, head.timed, apart(requests) if head.isolated else requests)
        if REPLAY_BLOCK_TOKENS % head.block_tokens == 0:
            trace = coarsen(trace, REPLAY_BLOCK_TOKENS)
        held = runs.faster(list(trace.requests), head.work.speedup if isinstance(head.work, Replay) else 1.0)
        if not held:
            raise ValueError("the trace holds no request")
        values = (_replay if isinstance(head.work, Replay) else _review)(head, head.work, held, trace.block_tokens, steps)  # type: ignore[arg-type]  # by its kind
    values["notes"] = list(head.notes)
    page = pages.PAGES[values["kind"]](values)
    html = page.html(head.notes)
    if len(html) > pages.MAX_PAGE_BYTES:
        raise TooLarge(f"the report would take {len(html)} bytes")
    steps.tell(final=True)
    return Outcome(values, html, dict(page.plots))


def _fingerprint(head: Head, count: int | None) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode([head, count, CAPACITIES_TOKENS]), digest_size=16).digest()


class _Steps:
    """Counts steps, tells of them, and keeps what is to be gone on from."""

    def __init__(self, fingerprint: bytes, count: int | None, watcher: Watcher, before: bytes | None) -> None:
        self.count, self.total, self.done = count, count, 0
        self._watcher, self._fingerprint = watcher, fingerprint
        self._told_s = self._kept_s = watcher.clock()
        kept = None if before is None else msgspec.msgpack.decode(before, strict=False)
        self.kept: Any = kept["kept"] if isinstance(kept, dict) and kept.get("of") == fingerprint else None

    def step(self) -> bool:
        """One more request; whether it is time for a checkpoint."""
        self.done += 1
        if self.done % 64:
            return False
        self.tell()
        return self._watcher.clock() - self._kept_s >= self._watcher.checkpoint_s

    def tell(self, *, final: bool = False) -> None:
        now_s = self._watcher.clock()
        if final or now_s - self._told_s >= self._watcher.tell_s:
            self._told_s = now_s
            self._watcher.progress(self.done, self.done if final else self.total)

    def keep(self, kept: Any) -> None:
        self._watcher.progress(self.done, self.total)
        self._watcher.checkpoint(msgspec.msgpack.encode({"of": self._fingerprint, "kept": kept}))
        self._kept_s = self._watcher.clock()


# ---- analysis ----------------------------------------------------------------------------------------------------------


def _analyze(head: Head, work: Analyze, requests: Iterator[TraceRequest], steps: _Steps) -> dict[str, Any]:
    analysis = Analysis(head.block_tokens, timed=head.timed, limit=work.limit_blocks)
    skipped = 0
    if steps.kept is not None:
        analysis.restore(steps.kept)
        skipped = analysis.requests
    for place, one in enumerate(requests):
        if place >= skipped:
            analysis.add(one)
        if steps.step() and place >= skipped:
            steps.keep(analysis.state())
    if not analysis.requests:
        raise ValueError("the trace holds no request")
    curves = {"gap_curve": analysis.gap_curve(), "concentration_curve": analysis.concentration_curve()}
    values = {"kind": "analyze", "trace": head.name, **analysis_values(analysis.report()), **curves}
    plain: dict[str, Any] = msgspec.to_builtins(values)
    return plain


# ---- replays -----------------------------------------------------------------------------------------------------------


def _replay(head: Head, work: Replay, requests: list[TraceRequest], block_tokens: int, steps: _Steps) -> dict[str, Any]:
    fleet = work.fleet.config(block_tokens)
    done: list[dict[str, Any]] = list(steps.kept or ())
    steps.total, steps.done = len(requests) * len(work.policies), len(requests) * len(done)
    possible = ceiling(requests, block_tokens)
    for policy in work.policies[len(done) :]:
        compiled = compile_routing(policy.spec)
        measures = runs.replayed(requests, fleet, compiled, ttft_slo_s=work.slo_ttft_s, seed=work.seed, tick=lambda: _tick(steps))
        done.append(_run(policy, possible, measures))
        steps.keep(done)
    return {
        "kind": "replay",
        "trace": head.name,
        "requests": len(requests),
        "fleet": fleet.line(),
        "slo_ttft_s": work.slo_ttft_s,
        "speedup": work.speedup,
        "seed": work.seed,
        "runs": done,
    }


def _tick(steps: _Steps) -> None:
    steps.step()


def _run(policy: NamedPolicy, possible: float, measured: runs.Tracked) -> dict[str, Any]:
    """One policy's figures in one replay."""
    named = {"name": policy.name, "policy": policy.spec.get("policy", "ettft"), "spec": policy.spec, "ceiling": possible}
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(measured.summary()))  # lists for tuples, as checkpoints give them back
    return named | plain | {"ttft_curve_s": runs.curve(measured.ttft_s)}


_SIDES: tuple[Literal["current", "candidate"], ...] = ("current", "candidate")


def _review(head: Head, work: Review, requests: list[TraceRequest], block_tokens: int, steps: _Steps) -> dict[str, Any]:
    fleet = work.fleet.config(block_tokens)
    kept: dict[str, list[dict[str, Any]]] = dict(steps.kept or {side: [] for side in _SIDES})
    steps.total = 2 * work.replays * len(requests)
    steps.done = sum(map(len, kept.values())) * len(requests)
    possible = ceiling(requests, block_tokens)
    for seed in range(1, work.replays + 1):
        later, places = runs.jittered(requests, seed, JITTER_S)
        for side in _SIDES:
            if len(kept[side]) >= seed:
                continue
            policy: NamedPolicy = getattr(work, side)
            compiled = compile_routing(policy.spec)
            measures = runs.replayed(later, fleet, compiled, ttft_slo_s=work.slo_ttft_s, seed=seed, tick=lambda: _tick(steps))
            kept[side].append(_kept(_run(policy, possible, measures), measures, places))
            steps.keep(kept)
    sides = {side: _side(kept[side]) for side in _SIDES}
    found = review.compare(
        sides["current"][1],
        sides["candidate"][1],
        prompt_tokens=np.array([one.prompt_tokens for one in requests]),
        groups=review.groups_of(requests),
        slo_s=work.slo_ttft_s,
    )
    return {
        "kind": "review",
        "trace": head.name,
        "requests": len(requests),
        "fleet": fleet.line(),
        "slo_ttft_s": work.slo_ttft_s,
        "replays": work.replays,
        "current": sides["current"][0],
        "candidate": sides["candidate"][0],
        "comparison": msgspec.to_builtins(found),
        "verdict": review.verdict(found),
        "sentence": review.sentence(found),
        "method": review.METHOD,
        "assumed": list(work.assumed),
    }


def _kept(run: dict[str, Any], measures: runs.Tracked, places: Sequence[int]) -> dict[str, Any]:
    """One replay of a review: its figures, and what each request got, in the order of the trace."""
    ttft_s, cached = np.empty(len(places), np.float32), np.empty(len(places), np.int32)
    ttft_s[places], cached[places] = np.frombuffer(measures.each_ttft_s, np.float32), np.frombuffer(measures.each_cached, np.int32)
    return {"run": run, "ttft_s": ttft_s.tobytes(), "cached_tokens": cached.tobytes()}


def _side(kept: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], Runs]:
    """One policy's figures over all its replays: means, with the curve of all of them together."""
    ttft_s = np.stack([np.frombuffer(one["ttft_s"], np.float32) for one in kept])
    cached = np.stack([np.frombuffer(one["cached_tokens"], np.int32) for one in kept])
    first = kept[0]["run"]
    mean: dict[str, Any] = dict(first)
    for name, value in first.items():
        if isinstance(value, int | float) and name != "ceiling":
            mean[name] = type(value)(round(sum(one["run"][name] for one in kept) / len(kept), 9))
    mean["utilisation"] = [sum(shares) / len(kept) for shares in zip(*(one["run"]["utilisation"] for one in kept), strict=True)]
    mean["ttft_curve_s"] = runs.curve(ttft_s[ttft_s != runs.NO_ANSWER].tolist())
    return mean, Runs(ttft_s, cached)
