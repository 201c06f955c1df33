"""What a trace could reuse: ceilings, capacity, gaps, concentration and where prompts part. One pass, bounded memory.

* **Ceiling**: share of prompt tokens whose block was seen before, whatever its age: in the same session, in the same scope, anywhere. The gaps
  between the three are the price of isolation. No router and no cache can do better.
* **Capacity curve**: hits of a leaf-first LRU cache, for a list of capacities at once (``routing.traces.stack``).
* Both are exact up to ``limit`` distinct blocks. Beyond that they are estimates from a sample of the blocks; ``Report.sample`` says which share.
* **Branches** are counted while everything is exact, that is over the first ``Report.branch_requests`` requests. Points through which fewer than
  ``MIN_GROUP`` requests went are left out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from routing.traces.request import TraceRequest, tokens_in
from routing.traces.stack import LeafFirstStack

CAPACITIES_TOKENS = tuple(1 << power for power in range(12, 27))  # 4k to 67M
LIMIT_BLOCKS = 250_000
MAX_SESSIONS = 200_000  # beyond this many distinct sessions or scopes, those are not told apart any more
MIN_GROUP = 20
_GAP_STEPS = 8  # to an octave: gaps are known to 9 %
# What an interrupted analysis keeps beside its stack and its owners' blocks.
_KEPT = (
    *("requests", "prompt_tokens", "output_tokens", "_ends_s", "_hit_tokens", "_new_blocks", "_gaps", "_parting", "_children", "_passed"),
    *("_branch_requests", "_within"),
)


def telling(capacity: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The part of a capacity curve, (tokens, hit share), that says something: from the last size without a hit to the first that gets all."""
    first = max((place for place, (_, share) in enumerate(capacity) if share == 0.0), default=0)
    last = next((place for place, (_, share) in enumerate(capacity) if share == capacity[-1][1]), 0)
    return list(capacity[min(first, last) : last + 1])


def ceiling(requests: Iterable[TraceRequest], block_tokens: int) -> float:
    """The exact ceiling of a trace that fits into memory."""
    seen: set[int] = set()
    hit_tokens = tokens = 0
    for request in requests:
        matched = 0
        for block in request.blocks:
            if block not in seen:
                break
            matched += 1
        hit_tokens += tokens_in(request, matched, block_tokens)
        tokens += request.prompt_tokens
        seen.update(request.blocks)
    return hit_tokens / max(1, tokens)


@dataclass(frozen=True, slots=True)
class Branch:
    """A prefix after which prompts part: ``branches`` different continuations over ``requests`` requests, after ``tokens`` shared tokens."""

    tokens: int
    branches: int
    requests: int


@dataclass(frozen=True, slots=True)
class Report:
    """What an analysis found. Shares are of prompt tokens, 0 to 1, unless said otherwise; gaps in seconds, None where the trace has no times."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    span_s: float
    sessions: int | None  # None: not known, or too many to count
    ceiling: float
    ceiling_in_scope: float | None
    ceiling_in_session: float | None
    capacity: tuple[tuple[int, float], ...]  # (tokens, hit share)
    gap_p50_s: float | None
    gap_p80_s: float | None
    gap_p95_s: float | None
    top_tenth: float  # the most used tenth of the distinct blocks: their share of all hits
    never_reused: float  # share of distinct blocks
    distinct_tokens: int
    parting: tuple[tuple[int, float], ...]  # (tokens up to, share of requests whose first new block begins before that and not before the previous)
    branches: tuple[Branch, ...]
    branch_requests: int
    sample: float  # share of distinct blocks that was looked at: 1.0 is exact


class _Seen:
    """Blocks seen by owner (a session, a scope): hits in tokens, weighted."""

    def __init__(self) -> None:
        self.owners: set[str] = set()
        self.pairs: set[tuple[str, int]] = set()
        self.hit_tokens = 0.0
        self.gave_up = False

    def add(self, owner: str, block: int, tokens: float) -> None:
        if self.gave_up:
            return
        if owner not in self.owners:
            if len(self.owners) >= MAX_SESSIONS:
                self.gave_up = True
                self.owners, self.pairs = set(), set()
                return
            self.owners.add(owner)
        pair = (owner, block)
        if pair in self.pairs:
            self.hit_tokens += tokens
        else:
            self.pairs.add(pair)

    def state(self) -> dict[str, Any]:
        """As plain data: blocks by owner, so that each owner is named once."""
        blocks: dict[str, list[int]] = {owner: [] for owner in self.owners}
        for owner, block in self.pairs:
            blocks[owner].append(block)
        return {"blocks": blocks, "hit_tokens": self.hit_tokens, "gave_up": self.gave_up}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.owners, self.hit_tokens, self.gave_up = set(state["blocks"]), state["hit_tokens"], state["gave_up"]
        self.pairs = {(owner, block) for owner, blocks in state["blocks"].items() for block in blocks}


@dataclass
class Analysis:
    """Add requests in order, then ask for the report."""

    block_tokens: int
    timed: bool = True
    limit: int = LIMIT_BLOCKS
    capacities_tokens: Sequence[int] = CAPACITIES_TOKENS
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    _ends_s: list[float] = field(default_factory=lambda: [0.0, 0.0])
    _hit_tokens: int = 0
    _new_blocks: int = 0
    _gaps: dict[int, float] = field(default_factory=dict)
    _parting: dict[int, int] = field(default_factory=dict)
    _children: dict[int, int] = field(default_factory=dict)
    _passed: dict[int, tuple[int, int]] = field(default_factory=dict)  # block -> (position, requests)
    _branch_requests: int = 0

    def __post_init__(self) -> None:
        self._stack = LeafFirstStack(self.limit)
        self._capacity_blocks = [tokens // self.block_tokens for tokens in self.capacities_tokens]
        self._within = [0.0] * (len(self._capacity_blocks) + 1)
        self._sessions, self._scopes = _Seen(), _Seen()

    def add(self, request: TraceRequest) -> None:
        """Take in the next request of the trace."""
        self._ends_s[min(1, self.requests)] = request.at_s
        self.requests += 1
        self.prompt_tokens += request.prompt_tokens
        self.output_tokens += request.output_tokens
        stack, size = self._stack, self.block_tokens
        kept = stack.kept(request.blocks)
        sampling = stack.weight
        matched = 0
        for position, block in kept:
            weight = stack.weight_of(block)
            tokens = weight * min(size, request.prompt_tokens - position * size)
            found = stack.look(block)
            if found is None:
                self._new_blocks += weight
            else:
                matched = position + 1
                self._hit(found, tokens, request.at_s)
            if request.session:
                self._sessions.add(request.session, block, tokens)
            if request.scope:
                self._scopes.add(request.scope, block, tokens)
        if not stack.sampled:
            self._part(request, matched)
        stack.touch([block for _, block in kept], request.at_s)
        for seen in (self._sessions, self._scopes):
            while len(seen.pairs) > 2 * self.limit:
                stack.thin()
                self._forget_unkept()
        if stack.weight != sampling:
            self._forget_unkept()

    def _forget_unkept(self) -> None:
        for seen in (self._sessions, self._scopes):
            seen.pairs = {pair for pair in seen.pairs if self._stack.keeps(pair[1])}

    def _hit(self, found: tuple[int, float], tokens: int, at_s: float) -> None:
        distance, before_s = found
        self._hit_tokens += tokens
        # Fewer than C blocks are more recent: it is among the C most recent ones.
        self._within[bisect_left(self._capacity_blocks, distance + 1)] += tokens
        if self.timed:
            bin_ = round(math.log2(max(1e-3, at_s - before_s)) * _GAP_STEPS)
            self._gaps[bin_] = self._gaps.get(bin_, 0.0) + tokens

    def _part(self, request: TraceRequest, matched: int) -> None:
        """Note where the prompt leaves what was seen before."""
        self._branch_requests += 1
        for position, block in enumerate(request.blocks[: matched + 1]):
            before = 1 if position < matched else 0  # whoever brought the block
            self._passed[block] = (position, self._passed.get(block, (0, before))[1] + 1)
        for parent, child in zip(request.blocks[max(0, matched - 1) : matched], request.blocks[matched : matched + 1], strict=False):
            self._children[parent] = self._children.get(parent, 0) + (child is not None)
        octave = 0 if matched == 0 else matched.bit_length()
        self._parting[octave] = self._parting.get(octave, 0) + 1

    def state(self) -> dict[str, Any]:
        """What was found so far, as plain data: an analysis of the same settings that is given it goes on as this one would."""
        kept = {name: getattr(self, name) for name in _KEPT}
        return {**kept, "stack": self._stack.state(), "sessions": self._sessions.state(), "scopes": self._scopes.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state`; an analysis of other settings would make nonsense of it."""
        for name in _KEPT:
            setattr(self, name, state[name])
        self._passed = {block: (position, requests) for block, (position, requests) in self._passed.items()}
        for part, kept in ((self._stack, "stack"), (self._sessions, "sessions"), (self._scopes, "scopes")):
            part.restore(state[kept])

    def report(self) -> Report:
        """What was found so far."""
        total = max(1, self.prompt_tokens)
        within, hits = [], 0.0
        for tokens, hit in zip(self.capacities_tokens, self._within, strict=False):
            hits += hit
            within.append((tokens, hits / total))
        top_tenth, reused = self._concentration()
        gaps = [self._gap(share) if self._gaps else None for share in (0.5, 0.8, 0.95)]
        return Report(
            requests=self.requests,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            span_s=self._ends_s[1] - self._ends_s[0] if self.requests > 1 else 0.0,
            sessions=len(self._sessions.owners) or None,
            ceiling=self._hit_tokens / total,
            ceiling_in_scope=self._scopes.hit_tokens / total if self._scopes.owners else None,
            ceiling_in_session=self._sessions.hit_tokens / total if self._sessions.owners else None,
            capacity=tuple(within),
            gap_p50_s=gaps[0],
            gap_p80_s=gaps[1],
            gap_p95_s=gaps[2],
            top_tenth=top_tenth,
            never_reused=1 - reused / max(1, self._stack.total),
            distinct_tokens=round(self._new_blocks * self.block_tokens),
            parting=self._partings(),
            branches=self._branches(),
            branch_requests=self._branch_requests,
            sample=1 / self._stack.weight,
        )

    def _concentration(self) -> tuple[float, int]:
        """(share of all hits that goes to the most used tenth of the distinct blocks, how many blocks were ever used again), both as estimated."""
        weighted = sorted(((uses, self._stack.weight_of(block)) for block, uses in self._stack.uses.items()), reverse=True)
        tenth, top, place = self._stack.total / 10, 0.0, 0.0
        for uses, weight in weighted:
            top += uses * max(0.0, min(weight, tenth - place))
            place += weight
        return top / max(1, sum(uses * weight for uses, weight in weighted)), sum(weight for _, weight in weighted)

    def gap_curve(self) -> list[tuple[float, float]]:
        """(seconds, share of reused tokens whose previous use was no longer ago), rising."""
        total, so_far, found = sum(self._gaps.values()), 0.0, []
        for bin_ in sorted(self._gaps):
            so_far += self._gaps[bin_]
            found.append((float(2 ** (bin_ / _GAP_STEPS)), so_far / total))
        return found

    def concentration_curve(self, points: int = 20) -> list[tuple[float, float]]:
        """(share of the distinct blocks, the most used first; their share of all hits), from (0, 0) to (1, 1) where anything was used again."""
        weighted = sorted(((uses, self._stack.weight_of(block)) for block, uses in self._stack.uses.items()), reverse=True)
        hits, blocks = sum(uses * weight for uses, weight in weighted), max(1, self._stack.total)
        found, place, top, step = [(0.0, 0.0)], 0.0, 0.0, blocks / points
        for uses, weight in weighted:
            place, top = place + weight, top + uses * weight
            if place >= step * len(found):
                found.append((place / blocks, top / hits))
        return [*found, (1.0, 1.0)] if hits else []

    def _gap(self, share: float) -> float:
        """A quantile of the gaps, weighted by tokens."""
        wanted, so_far = share * sum(self._gaps.values()), 0.0
        for bin_ in sorted(self._gaps):
            so_far += self._gaps[bin_]
            if so_far >= wanted:
                break
        return float(2 ** (bin_ / _GAP_STEPS))

    def _partings(self) -> tuple[tuple[int, float], ...]:
        return tuple((self.block_tokens << octave, count / max(1, self._branch_requests)) for octave, count in sorted(self._parting.items()))

    def _branches(self) -> tuple[Branch, ...]:
        found = [
            Branch(tokens=(self._passed[block][0] + 1) * self.block_tokens, branches=children + 1, requests=self._passed[block][1])
            for block, children in self._children.items()
            if self._passed[block][1] >= MIN_GROUP
        ]
        return tuple(sorted(found, key=lambda one: (-one.branches, one.tokens))[:5])


def analyse(requests: Iterable[TraceRequest], block_tokens: int, *, timed: bool = True, limit: int = LIMIT_BLOCKS) -> Report:
    """The report of a whole trace."""
    analysis = Analysis(block_tokens, timed=timed, limit=limit)
    for request in requests:
        analysis.add(request)
    return analysis.report()
