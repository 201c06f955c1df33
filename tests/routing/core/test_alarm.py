"""An alarm needs more cached tokens than the namespace's own history could explain under any reading of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import prefix
from routing.core.alarm import CACHED_MORE_THAN_OWNED, alarm

counts = st.integers(1, 200_000)


@pytest.mark.parametrize(
    ("expected", "cached_tokens", "explained_blocks"),
    [(None, 0, 0), (None, 300, 0), (CACHED_MORE_THAN_OWNED, 1024, 0), (None, 1024, 32), (CACHED_MORE_THAN_OWNED, 8000, 32), (None, 8000, 250)],
)
def test_what_is_too_much(expected: str | None, cached_tokens: int, explained_blocks: int) -> None:
    """A prompt of 40 kB and 10,000 tokens: a history block is 32 tokens."""
    told = alarm(cached_tokens=cached_tokens, explained_blocks=explained_blocks, prompt_bytes=40_000, prompt_tokens=10_000, block_tokens=16)
    assert told == expected


@given(counts, st.floats(1.0, 12.0), st.floats(0.0, 1.0), st.floats(0.5, 2.0))
def test_hits_on_ones_own_history_never_raise_it(prompt_tokens: int, bytes_per_token: float, share: float, density: float) -> None:
    """Whatever share of the prompt the namespace had sent before, and even where that part is twice as dense as the rest."""
    prompt_bytes = int(prompt_tokens * bytes_per_token) + 1
    shared_bytes = int(prompt_bytes * share)
    cached_tokens = min(prompt_tokens, int(shared_bytes / (prompt_bytes / prompt_tokens) * density))
    explained_blocks = shared_bytes // prefix.BLOCK_BYTES
    assert (
        alarm(
            cached_tokens=cached_tokens,
            explained_blocks=explained_blocks,
            prompt_bytes=prompt_bytes,
            prompt_tokens=prompt_tokens,
            block_tokens=None,
        )
        is None
    )


@given(counts, counts, st.integers(0, 2000), counts)
def test_more_history_never_raises_it(cached_tokens: int, prompt_bytes: int, explained_blocks: int, prompt_tokens: int) -> None:
    def told(blocks: int) -> str | None:
        return alarm(cached_tokens=cached_tokens, explained_blocks=blocks, prompt_bytes=prompt_bytes, prompt_tokens=prompt_tokens, block_tokens=16)

    assert told(explained_blocks) is not None or told(explained_blocks + 1) is None


def test_nothing_is_said_of_prompts_that_their_messages_did_not_write() -> None:
    assert alarm(cached_tokens=5000, explained_blocks=0, prompt_bytes=400, prompt_tokens=6000, block_tokens=16) is None
    assert alarm(cached_tokens=5000, explained_blocks=0, prompt_bytes=0, prompt_tokens=0, block_tokens=16) is None
