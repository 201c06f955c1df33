"""What the scheduler reads and what it returns. Frozen values: a decision can be replayed from them alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from routing.core.weighing import Weighed


@dataclass(frozen=True, slots=True)
class Ask:
    """One request as the scheduler sees it. Token counts are estimates until the engine has answered."""

    prompt_tokens: int  # >= 1
    prefix_key: bytes  # first blocks of the prompt under the namespace: equal prefixes, equal keys
    ttft_slo_s: float | None = None
    session_key: bytes | None = None
    lot: bytes = b""  # what a trial tells conversations apart by, beside the prefix
    sequence: int = 0  # counts the endpoint's requests: round robin turns by it


@dataclass(slots=True)  # building a frozen one takes three times as long, and each decision builds one for each replica
class Replica:
    """One candidate, as known at this instant. Never written to by whoever did not make it.

    Speeds: ``prefill_tokens_per_s`` > 0. Times in seconds. ``queued_tokens`` is uncached prompt tokens that this router sent and that have no
    first byte yet; ``foreign_tokens`` is waiting work of others beyond that, as scraped, faded by age.
    """

    id: str
    name: str
    refusal: str | None = None  # why it may not be chosen, or None
    queued_tokens: float = 0.0
    foreign_tokens: float = 0.0
    active_decodes: float = 0.0
    in_flight: int = 0
    last_chosen: int = 0
    matched_tokens: int = 0  # prefix the replica probably holds
    confidence: float = 0.0  # [0, 0.995], of that belief
    evidence: str = "none"  # event, inferred, pending, none
    residency: str = "history"  # how far its events can be trusted: exact, warming, degraded, history
    evidence_age_s: float = 0.0
    prefill_tokens_per_s: float = 8000.0
    fixed_s: float = 0.03
    network_s: float = 0.0
    decode_interference: float = 0.004
    working_set_blocks: int = 0
    capacity_blocks: int = 0  # 0 = unknown
    new_blocks: int = 0
    reuse_share: float = 1.0  # of the tokens it was sent of late, those that it found in its cache
    kv_used: float = 0.0  # share of the KV cache in use, as of a fresh scrape
    max_concurrency: int | None = None  # requests in flight that it may have, where it is declared
    ramp: float = 1.0  # share of an ordinary load that it may take; below 1 for a while after it came back
    lower_tokens: float = 0.0  # of matched * confidence: what a lower tier of the cache holds
    tier: str | None = None  # which one
    tier_tokens_per_s: float | None = None  # how fast tokens come out of it; None: not measured
    adapter: str | None = None  # the LoRA adapter that the request asks for, as the engine calls it
    adapter_s: float = 0.0  # until it is in a slot there
    displaced_s: float = 0.0  # what that costs those whose adapter has to leave
    slot: str = "none"  # active, loading, free, full; none: no adapter is asked for
    rank: bytes = b""  # rendezvous rank of (namespace, prefix, replica)
    dp_rank: int | None = None  # the data-parallel rank that all of this is of, where a request may name one


@dataclass(slots=True)  # as above
class Candidate:
    """One replica as weighed; never written to. ``terms`` are seconds and add up to ``score_s``; both are empty for a refused replica."""

    replica_id: str
    replica_name: str
    refusal: str | None
    matched_tokens: int
    expected_cached_tokens: float
    uncached_tokens: float
    expected_ttft_s: float
    score_s: float
    queued_tokens: float
    wait_s: float  # others' work ahead, without the network
    in_flight: int
    evidence: str
    evidence_age_s: float
    residency: str = "history"
    terms: dict[str, float] = field(default_factory=dict)
    foreign_tokens: float = 0.0
    decodes: float = 0.0  # running there
    lower_tokens: float = 0.0  # of the prompt, expected in a lower tier of the cache, whether it counts or not
    tier: str | None = None
    adapter: str | None = None  # see Replica
    adapter_s: float = 0.0
    slot: str = "none"
    dp_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The choice and all that was weighed, best first, refused ones last."""

    policy: str
    chosen: Candidate
    candidates: Weighed
    attainable: bool  # whether the chosen replica is expected to meet the TTFT target
    full: bool = False  # every replica has as many requests as it may: wait


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate policy beside the live one. ``placed``: the candidate decided where the request went; ``other`` is what the policy that did not
    decide would have chosen."""

    placed: bool
    other: Candidate


@dataclass(frozen=True, slots=True)
class NoReplica:
    """Nobody may serve the request; each candidate says why."""

    candidates: Weighed
