"""What goes into the engine's core and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from routing.simulator.config import Adapter
from routing.simulator.events import KvEvent

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request as the core sees it. ``output_token_ids`` is what the model is going to say, at least one token."""

    request_id: str
    token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]
    finish_reason: FinishReason = "length"
    salt: str | None = None
    adapter: Adapter | None = None
    session_id: str | None = None
    read_cache: bool = True  # False: as vLLM treats prompt_logprobs
    report_reused: bool = False  # vLLM's kv_cache_report_mode=full
    hold: bool = False  # keep the blocks when it ends, until they are given back
    fetched: bool = False  # the prompt's blocks come from another engine


@dataclass(frozen=True, slots=True)
class Finished:
    """Why and when a request ended; times are on the driver's clock, in seconds."""

    reason: FinishReason
    prompt_tokens: int
    output_tokens: int
    computed_prompt_tokens: int
    preemptions: int
    arrived_s: float
    scheduled_s: float
    first_token_s: float
    finished_s: float


@dataclass(frozen=True, slots=True)
class Output:
    """One generated token, available when the step's duration has passed."""

    request_id: str
    index: int  # 0 for the first token of the answer
    token_id: int
    cached_tokens: int  # prompt tokens found in the cache when the request was first scheduled
    stored_tokens: int  # prompt tokens newly stored, whole blocks
    prompt_tokens: int
    arrived_s: float
    previous_token_s: float | None
    finished: Finished | None
    fetched_tokens: int = 0  # of the prompt, from another engine


@dataclass(frozen=True, slots=True)
class Stats:
    """Gauges as they are at the end of a step, and what this step added to the counters."""

    running: int
    waiting: int
    usage: float
    queried_tokens: int = 0
    hit_tokens: int = 0
    preemptions: int = 0
    scheduled_tokens: int = 0
    running_adapters: tuple[str, ...] = ()  # of requests, in their order
    waiting_adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    duration_s: float
    outputs: tuple[Output, ...]
    kv_events: tuple[KvEvent, ...]
    stats: Stats
