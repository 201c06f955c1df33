"""Does an answer report more cached tokens than the namespace's own history at that replica could explain?

That raises an audit and judges nothing: every term below errs towards silence. What the history explains is counted in bytes and an answer in tokens,
so the bound is generous: twice the tokens that the explained bytes have at the prompt's own mean, one block more, and what a chat template writes
before every prompt.
"""

from __future__ import annotations

from routing.core import prefix

CACHED_MORE_THAN_OWNED = "cached_more_than_owned"
TEMPLATE_TOKENS = 256  # templates of today's models write less before the first message
DENSITY = 2.0  # how much denser than its mean the beginning of a prompt may be
DEFAULT_BLOCK_TOKENS = 64


def explained_tokens(*, explained_blocks: int, prompt_bytes: int, prompt_tokens: int, block_tokens: int | None) -> float:
    """The most tokens that may come from the cache, given the leading history blocks that the namespace itself put there."""
    explained_bytes = prefix.covered_bytes(explained_blocks + 1)
    return DENSITY * explained_bytes * prompt_tokens / prompt_bytes + TEMPLATE_TOKENS + (block_tokens or DEFAULT_BLOCK_TOKENS)


def alarm(*, cached_tokens: int, explained_blocks: int, prompt_bytes: int, prompt_tokens: int, block_tokens: int | None) -> str | None:
    """The alarm's name, or None. ``prompt_tokens`` is the engine's own count.

    A prompt of more tokens than bytes was not written by the messages alone (documents, a template of its own): nothing is said of it.
    """
    if prompt_tokens < 1 or prompt_bytes < prompt_tokens:
        return None
    bound = explained_tokens(explained_blocks=explained_blocks, prompt_bytes=prompt_bytes, prompt_tokens=prompt_tokens, block_tokens=block_tokens)
    return CACHED_MORE_THAN_OWNED if cached_tokens > bound else None
