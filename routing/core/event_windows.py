"""How much of a prompt KV groups that need no more than a window of it agree on. Internal to :mod:`routing.core.event_index`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from routing.core.event_tables import Group, Segment

MAX_ROUNDS: Final = 64  # engines come to terms in two or three; one that chooses what it keeps could make thousands of them


class _Digests(Protocol):
    """What is held, by digest."""

    def __contains__(self, digest: bytes, /) -> bool: ...


class Window:
    """What one windowed group holds of a prompt. It is asked about shorter and shorter prefixes, and looks at each block once at most."""

    __slots__ = ("_block_tokens", "_digests", "_first", "_held", "_most")

    def __init__(self, held: _Digests, digests: Sequence[bytes], block_tokens: int, window_blocks: int) -> None:
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


class _Named:
    """The blocks of a windowed group by digest, where events tell their hashes alone: under one hash all groups have the same prefix, so what a
    namespace's blocks of full attention are called is what this group's are called."""

    __slots__ = ("_full", "_group")

    def __init__(self, group: Group, full: Segment) -> None:
        self._full = full.held
        self._group = group

    def __contains__(self, digest: bytes, /) -> bool:
        block = self._full.get(digest)
        return block is not None and self._group.holds(block.hash)


def add_by_hash(windows: list[Window], group: Group, full: Sequence[tuple[Segment, Sequence[bytes]]]) -> bool:
    """Add the window of a group whose blocks are known by hash alone. ``full``: a namespace's blocks in groups of full attention, and the prompt's
    digests there. False: in none of these a block ends wherever one of this group does."""
    for segment, digests in full:
        ratio, rest = divmod(group.block_tokens, segment.group.block_tokens)
        if group.window_blocks is not None and not rest:
            windows.append(Window(_Named(group, segment), digests[ratio - 1 :: ratio], group.block_tokens, group.window_blocks))
            return True
    return False


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
