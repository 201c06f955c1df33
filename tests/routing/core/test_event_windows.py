"""KV groups that need no more than a window: a prefix counts where all of them hold what they need of it, as vLLM's hit does."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import blocks, event_windows
from routing.core.event_index import EventIndex, EventMatch
from routing.core.event_windows import Window, agreed
from routing.core.kv_events import Removed, Stored
from tests.routing.core.kv_stream import BLOCK_TOKENS, URL, batch, ns_key, salt, seed

TARGET = (URL, 0)
TOKENS = list(range(48))


def _group(number: int, block_tokens: int, window_tokens: int | None, kept: set[int]) -> tuple[Stored, Removed]:
    """A group that stored the prompt and then lost all blocks but those ``kept``. A window of so many tokens reaches one less back."""
    count = len(TOKENS) // block_tokens
    kind, window = ("full_attention", None) if window_tokens is None else ("sliding_window", window_tokens + 1)
    keys = ((salt("A"),), *[None] * (count - 1))
    store = Stored(tuple(range(count)), None, blocks.pack(TOKENS), block_tokens, "GPU", None, keys, number, kind, window)
    return store, Removed(tuple(place for place in range(count) if place not in kept), "GPU", number)


def _match(*groups: tuple[Stored, Removed]) -> EventMatch:
    index = EventIndex()
    index.set_generation(TARGET, 1, 0.0)
    index.claim(salt("A"), ns_key=ns_key("A"), owner=b"o", seed=seed("A"))
    index.apply(TARGET, batch(*[event for group in groups for event in group]), 0.0)
    return index.match_chain(ns_key("A"), lambda size: blocks.token_chain(seed("A"), TOKENS, size), TARGET, 0.0)


def test_what_one_window_cuts_the_others_are_asked_about_again() -> None:
    """The second kept the window of a shorter prefix, of which the first has nothing left."""
    everything = set(range(24))
    full = _group(0, 2, None, everything)
    assert _match(full, _group(1, 2, 4, {22, 23}), _group(2, 2, 8, everything)).blocks == 24
    assert _match(full, _group(1, 2, 4, {22, 23}), _group(2, 2, 8, {10, 11, 12, 13})).blocks == 0
    assert _match(full, _group(1, 2, 4, {12, 13, 22, 23}), _group(2, 2, 8, {10, 11, 12, 13})).blocks == 14


def test_a_window_reaches_back_from_where_blocks_of_all_groups_end() -> None:
    """Blocks of four tokens and windows in blocks of two: what ends inside a wide block is no hit, and shorter needs other blocks."""
    wide = _group(0, 4, None, set(range(12)))
    assert _match(wide, _group(1, 2, 4, {8, 9})).tokens == 20
    assert _match(wide, _group(1, 2, 4, {9, 10})).tokens == 0
    assert _match(wide, _group(1, 2, 4, {8, 9, 10})).tokens == 20


_GROUP = st.tuples(st.sets(st.integers(0, 11)), st.integers(1, 4))


@given(st.lists(_GROUP, min_size=1, max_size=3), st.integers(0, 12), st.sampled_from([1, 2, 3]))
def test_the_longest_prefix_that_all_windows_take(groups: list[tuple[set[int], int]], asked: int, unit: int) -> None:
    """Against all lengths, tried from the longest on."""
    digests = [bytes([place]) for place in range(12)]
    windows = [Window({digests[place] for place in kept}, digests, BLOCK_TOKENS, most) for kept, most in groups]
    ends = [end for end in range(0, asked + 1, unit) if all(place in kept for kept, most in groups for place in range(max(0, end - most), end))]
    assert agreed(asked * BLOCK_TOKENS, unit * BLOCK_TOKENS, windows) == max(ends) * BLOCK_TOKENS


class _Counting(set[bytes]):
    asked = 0

    def __contains__(self, digest: object) -> bool:
        self.asked += 1
        return super().__contains__(digest)


def test_groups_that_cut_one_another_for_ever_agree_on_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine chooses what it keeps. No block is looked at twice in a group, and there are so many rounds at most."""
    digests = [bytes(place) for place in product(range(256), range(4))]
    even, odd = _Counting([*digests[::2], digests[1]]), _Counting([*digests[1::2], digests[0]])

    def match() -> int:
        return agreed(1024, 1, [Window(even, digests, 1, 1), Window(odd, digests, 1, 1)])

    assert match() == 0
    assert 0 < even.asked + odd.asked <= 4 * event_windows.MAX_ROUNDS
    monkeypatch.setattr(event_windows, "MAX_ROUNDS", 1024)
    even.asked = odd.asked = 0
    assert match() == 2
    assert 1000 < even.asked + odd.asked <= 2 * len(digests)
