"""What a replay measures."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from routing.traces.request import TraceRequest


def quantile(ordered: Sequence[float], share: float) -> float:
    """Nearest-rank quantile of sorted values; 0 where there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass(slots=True)
class Measures:
    """Sums and samples of one run: 8 bytes a request for each of a few columns. Times in seconds."""

    replicas: int
    ttft_slo_s: float | None = None
    requests: int = 0
    refused: int = 0
    cut: int = 0  # lost after the first byte
    retried: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    expected_cached_tokens: float = 0.0
    within_slo: int = 0
    evicted_blocks: int = 0
    span_s: float = 0.0
    ttft_s: array[float] = field(default_factory=lambda: array("d"))
    e2e_s: array[float] = field(default_factory=lambda: array("d"))
    queued_s: array[float] = field(default_factory=lambda: array("d"))
    expected_ttft_s: array[float] = field(default_factory=lambda: array("d"))
    engine_ttft_s: array[float] = field(default_factory=lambda: array("d"))  # from dispatch on: what was expected is this
    by_kind: dict[str, array[float]] = field(default_factory=dict)  # TTFT of each declared class
    placed: list[int] = field(default_factory=list)  # requests by replica
    utilisation: list[float] = field(default_factory=list)  # share of the span in which a replica worked
    timeline: list[tuple[float, int]] = field(default_factory=list)  # (arrival, replica) of every answer
    copies: list[float] = field(default_factory=list)  # resident over distinct blocks, sampled

    def __post_init__(self) -> None:
        self.placed = [0] * self.replicas

    @property
    def answered_count(self) -> int:
        return len(self.ttft_s)

    def arrived(self, _request: TraceRequest) -> None:
        self.requests += 1

    def answered(
        self,
        request: TraceRequest,
        *,
        replica: int,
        at_s: float,
        ttft_s: float,
        e2e_s: float,
        queued_s: float,
        cached_tokens: int,
        expected_cached_tokens: float,
        expected_ttft_s: float,
        engine_ttft_s: float,
    ) -> None:
        """Count a whole answer."""
        self.prompt_tokens += request.prompt_tokens
        self.cached_tokens += cached_tokens
        self.expected_cached_tokens += expected_cached_tokens
        self.within_slo += self.ttft_slo_s is None or ttft_s <= self.ttft_slo_s
        self.ttft_s.append(ttft_s)
        self.e2e_s.append(e2e_s)
        self.queued_s.append(queued_s)
        self.expected_ttft_s.append(expected_ttft_s)
        self.engine_ttft_s.append(engine_ttft_s)
        self.by_kind.setdefault(request.kind, array("d")).append(ttft_s)
        self.placed[replica] += 1
        self.timeline.append((at_s, replica))

    def sample(self, held: Sequence[Collection[bytes]]) -> None:
        """Look at what is resident where, now."""
        resident = sum(map(len, held))
        if resident:
            self.copies.append(resident / len(frozenset().union(*held)))

    def finish(self, span_s: float, busy_s: Sequence[float], evicted_blocks: int) -> None:
        self.span_s, self.evicted_blocks = span_s, evicted_blocks
        self.utilisation = [busy / span_s if span_s else 0.0 for busy in busy_s]

    def summary(self) -> Summary:
        """The figures of a report."""
        ttft, e2e, queued = sorted(self.ttft_s), sorted(self.e2e_s), sorted(self.queued_s)
        answered = max(1, len(ttft))
        return Summary(
            requests=self.requests,
            answered=len(ttft),
            refused=self.refused,
            cut=self.cut,
            retried=self.retried,
            ttft_mean_s=sum(ttft) / answered,
            ttft_p50_s=quantile(ttft, 0.5),
            ttft_p95_s=quantile(ttft, 0.95),
            ttft_p99_s=quantile(ttft, 0.99),
            e2e_p50_s=quantile(e2e, 0.5),
            e2e_p99_s=quantile(e2e, 0.99),
            queue_mean_s=sum(queued) / answered,
            queue_p99_s=quantile(queued, 0.99),
            hit_share=self.cached_tokens / max(1, self.prompt_tokens),
            expected_share=self.expected_cached_tokens / max(1, self.prompt_tokens),
            slo_share=self.within_slo / max(1, self.requests),
            evicted_per_s=self.evicted_blocks / self.span_s if self.span_s else 0.0,
            copies=sum(self.copies) / len(self.copies) if self.copies else 0.0,
            utilisation=tuple(self.utilisation),
            span_s=self.span_s,
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """One run in figures. Shares are 0 to 1; ``slo_share`` counts refused and cut requests as misses."""

    requests: int
    answered: int
    refused: int
    cut: int
    retried: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    ttft_p99_s: float
    e2e_p50_s: float
    e2e_p99_s: float
    queue_mean_s: float
    queue_p99_s: float
    hit_share: float
    expected_share: float
    slo_share: float
    evicted_per_s: float
    copies: float  # resident over distinct blocks: 1.0 is no duplication
    utilisation: tuple[float, ...]
    span_s: float
