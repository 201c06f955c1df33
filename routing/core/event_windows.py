"""How much of a prompt KV groups that need no more than a window of it agree on. Internal to :mod:`routing.core.event_index`."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

MAX_ROUNDS: Final = 64  # engines come to terms in two or three; one that chooses what it keeps could make thousands of them


class Window:
    """What one windowed group holds of a prompt. It is asked about shorter and shorter prefixes, and looks at each block once at most."""

    __slots__ = ("_block_tokens", "_digests", "_first", "_held", "_most")

    def __init__(self, held: Container[bytes], digests: Sequence[bytes], block_tokens: int, window_blocks: int) -> None:
        self._held = held
        self._digests = digests
        self._block_tokens = block_tokens
        self._most = window_blocks
        self._first = len(digests)  # from here to the end of the prefix asked about last, all blocks are held

    def cut(self, tokens: int) -> int:
        """The longest prefix of at most so many tokens whose last blocks, as many as the window has (or all, if shorter), are held."""
        held, digests, most = self._held, self._digests, self._most
        end = tokens // self._block_tokens
        first = min(self._first, end)
        while first and end - first < most:
            first -= 1
            if digests[first] not in held:
                end = first
        self._first = first
        return end * self._block_tokens


def agreed(tokens: int, unit: int, windows: Sequence[Window]) -> int:
    """The longest prefix of at most so many tokens that ends where blocks of all groups do and that every window takes: so vLLM takes its hits. What
    one of them cuts is asked of the others again, ``MAX_ROUNDS`` times at most; whatever they could then still agree on counts as nothing."""
    tokens -= tokens % unit
    for _ in range(MAX_ROUNDS):
        asked = tokens
        for window in windows:
            tokens = window.cut(tokens)
            tokens -= tokens % unit
        if tokens == asked:
            return tokens
    return 0
