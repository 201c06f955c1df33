"""How long one engine step takes, from what was scheduled into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from routing.simulator.config import TimeModel


@dataclass(frozen=True, slots=True)
class Work:
    """One request's share of a step."""

    new_tokens: int  # computed in this step, at least 1
    context_tokens: int  # already in the cache before it
    decoding: bool  # True once the prompt is behind it


def step_duration_s(model: TimeModel, work: Sequence[Work]) -> float:
    """Duration of a step in seconds; 0 when nothing was scheduled.

    Every new token attends to its context and to the new tokens up to itself, so a prompt computed in chunks costs
    as many pairs as one computed at once; a cached prefix saves its own tokens and pairs, but is still attended to.
    """
    if not work:
        return 0.0
    seconds = model.step_s
    for part in work:
        if part.decoding:
            seconds += model.decode_s_per_sequence + part.context_tokens * model.decode_s_per_context_token
        else:
            pairs = part.new_tokens * part.context_tokens + part.new_tokens * (part.new_tokens + 1) // 2
            seconds += part.new_tokens / model.prefill_tokens_per_s + pairs * model.attention_s_per_token_pair
    return seconds / model.speed
