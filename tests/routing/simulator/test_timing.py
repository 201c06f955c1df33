"""Laws of the time model."""

from __future__ import annotations

import pytest

from routing.simulator.config import TimeModel
from routing.simulator.timing import Work, step_duration_s


def prompt_s(model: TimeModel, tokens: int, *, cached: int = 0, chunk: int | None = None) -> float:
    """Time of a prompt alone on the engine, without the fixed cost of its steps."""
    chunk = chunk or tokens
    total_s, done = 0.0, cached
    while done < tokens:
        new = min(chunk, tokens - done)
        total_s += step_duration_s(model, [Work(new, done, decoding=False)]) - model.step_s
        done += new
    return total_s


def test_nothing_scheduled_takes_no_time() -> None:
    """An empty step is free."""
    assert step_duration_s(TimeModel(), []) == 0.0


def test_chunks_cost_as_much_as_the_whole() -> None:
    """Chunking a prompt changes its latency only by the fixed cost of each step."""
    model = TimeModel()
    assert prompt_s(model, 4096, chunk=512) == pytest.approx(prompt_s(model, 4096))


def test_cached_prefix_saves_most_of_the_time() -> None:
    """But not all: what is new still attends to it."""
    model = TimeModel()
    cold_s, warm_s = prompt_s(model, 4096), prompt_s(model, 4096, cached=4080)
    assert warm_s < cold_s / 50
    assert warm_s > prompt_s(model, 16)


def test_attention_grows_faster_than_the_prompt() -> None:
    """Twice the prompt, more than twice the time."""
    model = TimeModel()
    assert prompt_s(model, 8192) > 2 * prompt_s(model, 4096)


def test_speed_divides_everything() -> None:
    """A factor for demos and tests."""
    work = [Work(100, 0, decoding=False), Work(1, 500, decoding=True)]
    assert step_duration_s(TimeModel(speed=10), work) == pytest.approx(step_duration_s(TimeModel(), work) / 10)


@pytest.mark.parametrize("broken", [{"speed": 0.0}, {"prefill_tokens_per_s": 0.0}])
def test_impossible_models_are_refused(broken: dict[str, float]) -> None:
    """Time must pass."""
    with pytest.raises(ValueError, match="positive"):
        TimeModel(**broken)
