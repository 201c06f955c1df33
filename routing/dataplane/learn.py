"""What an answer teaches: bytes per token, speed, reuse; and whether it reports more cached tokens than its namespace's history explains."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from routing.core import alarm
from routing.dataplane.openai import Call

if TYPE_CHECKING:
    from routing.dataplane.inflight import Attempt, Flight

_NEAR = 32  # tokens of a match that block rounding may lose


def learn(flight: Flight) -> None:
    """Feed what the answer showed back into the estimates."""
    attempt, call, prompt, decision, usage = flight.attempt, flight.call, flight.prompt, flight.decision, flight.usage
    if attempt is None or call is None or prompt is None or decision is None or flight.endpoint is None or usage.prompt_tokens is None:
        return
    if flight.outcome != "ok" or flight.probe is not None:  # what audits send is like nobody's prompts
        return
    _compare(flight, attempt, call, usage.prompt_tokens, usage.cached_tokens)
    if call.learns:
        flight.plane.endpoint_state(flight.endpoint.entry.id).ratio.observe(len(call.prompt), usage.prompt_tokens)
    calibration, chosen = attempt.engine.calibration, decision.chosen
    if usage.cached_tokens is not None and (call.learns or call.token_bytes):
        calibration.observe_reuse(predicted_tokens=chosen.matched_tokens - _NEAR, cached_tokens=usage.cached_tokens)
    cached = usage.cached_tokens if usage.cached_tokens is not None else chosen.expected_cached_tokens
    uncached = max(1.0, usage.prompt_tokens - cached)
    attempt.engine.mean_uncached_tokens += (uncached - attempt.engine.mean_uncached_tokens) / 32
    if call.stream and flight.first_byte_s is not None:
        calibration.observe_ttft(
            tokens_ahead=attempt.tokens_ahead,
            uncached_tokens=uncached,
            idle=attempt.was_idle,
            ttft_s=flight.first_byte_s - attempt.started_s,
            expected_s=chosen.expected_ttft_s,
            now_s=time.monotonic(),
        )


def _compare(flight: Flight, attempt: Attempt, call: Call, prompt_tokens: int, cached_tokens: int | None) -> None:
    """Raise an alarm if the engine reports more cached tokens than the namespace's own requests can have left there."""
    if cached_tokens is None or call.sequences != 1 or not (call.learns or call.token_bytes):
        return
    explained_blocks = attempt.explained_blocks()
    if explained_blocks is None:
        return
    flight.alarm = alarm.alarm(
        cached_tokens=cached_tokens,
        explained_blocks=explained_blocks,
        prompt_bytes=len(call.prompt),
        prompt_tokens=prompt_tokens,
        block_tokens=attempt.engine.facts.block_tokens,
    )
    if flight.alarm is not None:
        flight.plane.metrics.alarms.labels(kind=flight.alarm).inc()
