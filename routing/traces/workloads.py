"""Made-up workloads, and recorded ones cut and shifted: all from a seed alone.

A prompt is a list of segments, each a label and a number of tokens; a block's id is a digest of all labels and lengths up to its end, so two prompts
share exactly as far as their segments agree.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile

from routing.traces.request import TraceRequest

BLOCK_TOKENS = 512
Segment = tuple[str, int]  # label, tokens


def blocks_of(segments: Iterable[Segment], block_tokens: int = BLOCK_TOKENS) -> tuple[int, ...]:
    """Ids of a prompt's blocks, the last one partial."""
    running = hashlib.blake2b(digest_size=8)
    ids: list[int] = []
    filled = 0
    for label, tokens in segments:
        start = 0
        while start < tokens:
            part = min(tokens - start, block_tokens - filled)
            running.update(f"{label}:{start}:{part};".encode())
            start += part
            filled += part
            if filled == block_tokens:
                ids.append(int.from_bytes(running.digest(), "big"))
                filled = 0
    if filled:
        ids.append(int.from_bytes(running.digest(), "big"))
    return tuple(ids)


def request(at_s: float, segments: Sequence[Segment], output_tokens: int, **more: str) -> TraceRequest:
    """One request over the given segments."""
    return TraceRequest(at_s, sum(tokens for _, tokens in segments), output_tokens, blocks_of(segments), **more)  # type: ignore[arg-type]


def zipf(draw: random.Random, count: int, exponent: float) -> Callable[[], int]:
    """A source of ranks 0 to ``count`` - 1, the first the most frequent."""
    cumulated = list(accumulate(1 / (rank + 1) ** exponent for rank in range(count)))
    ranks = range(count)
    return lambda: draw.choices(ranks, cum_weights=cumulated)[0]


def arrivals(draw: random.Random, per_s: float, count: int) -> Iterator[float]:
    """Times of a Poisson process."""
    at_s = 0.0
    for _ in range(count):
        at_s += draw.expovariate(per_s)
        yield at_s


def _tokens(draw: random.Random, mean: int) -> int:
    """A length with a long tail: log-normal, at least 16, at most eight times the mean."""
    return min(8 * mean, max(16, round(mean * draw.lognormvariate(-0.32, 0.8))))


def repositories(seed: int, *, count: int, per_s: float, repos: int = 24) -> Iterator[TraceRequest]:
    """A repository assistant: a few hot repositories (Zipf 1.1), each with a context of 8k to 32k tokens before the question."""
    draw = random.Random(seed)
    pick = zipf(draw, repos, 1.1)
    sizes = [draw.randint(8_000, 32_000) for _ in range(repos)]
    for number, at_s in enumerate(arrivals(draw, per_s, count)):
        repo = pick()
        segments = [("instructions", 600), (f"repo {repo}", sizes[repo]), (f"question {number}", _tokens(draw, 800))]
        yield request(at_s, segments, _tokens(draw, 250))


def hot_prefix(seed: int, *, count: int, per_s: float, share: float = 0.6, prefix_tokens: int = 8192) -> Iterator[TraceRequest]:
    """Most requests share one prefix of 8k tokens; the others share nothing."""
    draw = random.Random(seed)
    for number, at_s in enumerate(arrivals(draw, per_s, count)):
        own = _tokens(draw, 600)
        segments = [("hot", prefix_tokens), (f"own {number}", own)] if draw.random() < share else [(f"own {number}", _tokens(draw, 4000))]
        yield request(at_s, segments, _tokens(draw, 200))


def weak_reuse(seed: int, *, count: int, per_s: float) -> Iterator[TraceRequest]:
    """One short system prompt before long text that nobody sends twice."""
    draw = random.Random(seed)
    for number, at_s in enumerate(arrivals(draw, per_s, count)):
        yield request(at_s, [("system", 512), (f"own {number}", _tokens(draw, 6000))], _tokens(draw, 250))


def bursts(seed: int, *, count: int, every_s: float, size: int = 16, tokens: int = 24_000, background_per_s: float = 1.0) -> Iterator[TraceRequest]:
    """Bursts of identical long prompts within 100 ms, over a light background of other requests."""
    draw = random.Random(seed)
    found: list[TraceRequest] = []
    groups = count // (size + 1)
    for group in range(groups):
        at_s = (group + 0.5 + draw.uniform(-0.2, 0.2)) * every_s
        prompt = [(f"group {group}", tokens)]
        found.extend(request(at_s + draw.uniform(0, 0.1), prompt, 60, kind="burst") for _ in range(size))
    others = list(arrivals(draw, background_per_s, round(groups * every_s * background_per_s)))
    found.extend(request(at_s, [(f"own {number}", _tokens(draw, 3000))], 150, kind="other") for number, at_s in enumerate(others))
    yield from sorted(found, key=lambda one: one.at_s)


def rag(seed: int, *, count: int, per_s: float, tenants: int = 12, documents: int = 300) -> Iterator[TraceRequest]:
    """Retrieval: a tenant's instructions, then five shared documents in varying order, then the question."""
    draw = random.Random(seed)
    pick, whose = zipf(draw, documents, 0.9), zipf(draw, tenants, 0.8)
    for number, at_s in enumerate(arrivals(draw, per_s, count)):
        chosen = list({pick() for _ in range(5)})
        draw.shuffle(chosen)
        tenant = whose()
        segments = [(f"instructions {tenant}", 2048), *((f"document {one}", 1024) for one in chosen), (f"question {number}", 100)]
        yield request(at_s, segments, _tokens(draw, 150), scope=f"tenant {tenant}")


def long_outputs(seed: int, *, count: int, per_s: float) -> Iterator[TraceRequest]:
    """Short prompts, long answers: prefill hardly matters."""
    draw = random.Random(seed)
    for number, at_s in enumerate(arrivals(draw, per_s, count)):
        yield request(at_s, [("system", 64), (f"own {number}", _tokens(draw, 150))], _tokens(draw, 1500))


def with_batch(interactive: Iterable[TraceRequest], seed: int, *, every_s: float, size: int, until_s: float) -> Iterator[TraceRequest]:
    """Interactive requests and, every so often, a batch of low priority all at once: one long instruction before many short records."""
    draw = random.Random(seed)
    found = [replace(one, kind="interactive") for one in interactive]
    at_s, number = every_s / 2, 0
    while at_s < until_s:
        for _ in range(size):
            number += 1
            segments = [("batch", 4096), (f"record {number}", _tokens(draw, 1500))]
            found.append(request(at_s + draw.uniform(0, 2), segments, _tokens(draw, 80), kind="batch"))
        at_s += every_s
    yield from sorted(found, key=lambda one: one.at_s)


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of a recorded trace: ``count`` requests from number ``start`` on, time divided by ``speedup``, each shifted by up to ``jitter_s``."""

    start: int = 0
    count: int | None = None
    speedup: float = 1.0
    jitter_s: float = 0.0

    def of(self, requests: Iterable[TraceRequest], seed: int) -> Iterator[TraceRequest]:
        draw = random.Random(seed)
        piece = list(requests)[self.start : None if self.count is None else self.start + self.count]
        began_s = piece[0].at_s if piece else 0.0
        shifted = [replace(one, at_s=(one.at_s - began_s) / self.speedup + draw.uniform(0, self.jitter_s)) for one in piece]
        yield from sorted(shifted, key=lambda one: one.at_s)


def sessions(requests: Iterable[TraceRequest], seed: int, *, count: int, spread_s: float, turns: int, longest_tokens: int) -> Iterator[TraceRequest]:
    """``count`` sessions of a trace, drawn without repetition, begun at random within ``spread_s``; at most ``turns`` turns of each, and none from
    the first prompt beyond ``longest_tokens`` on.

    Within a session only the distance from answer to next turn is kept; pauses are cut at 60 s, so that one of an hour does not stretch the run.
    """
    draw = random.Random(seed)
    by_session: dict[str, list[TraceRequest]] = {}
    for one in requests:
        by_session.setdefault(one.session, []).append(one)
    fitting = sorted(name for name, ones in by_session.items() if ones[0].prompt_tokens <= longest_tokens)
    names = draw.sample(fitting, min(count, len(fitting)))
    found: list[TraceRequest] = []
    for name in names:
        start_s = draw.uniform(0, spread_s)
        for place, one in enumerate(takewhile(lambda one: one.prompt_tokens <= longest_tokens, by_session[name][:turns])):
            found.append(replace(one, at_s=start_s, after_s=None if place == 0 else min(60.0, one.after_s or 0.0)))
    yield from sorted(found, key=lambda one: one.at_s)
