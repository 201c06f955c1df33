"""Windowed KV groups whose events leave blocks out, as vLLM's do (BlockPool.cache_full_blocks with a mask, or null blocks): they have the hashes of
what is kept, and the tokens of all. Under one hash the groups of an engine have the same prefix."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core import blocks, kv_events, kv_pieces
from routing.core.event_index import EventIndex
from routing.core.event_tables import IGNORED_BYTES
from routing.core.kv_events import Event, EventError, Removed, Stored, salt_of
from tests.routing.core.kv_stream import BLOCK_TOKENS, URL, batch, chain, claim, index_of, ns_key, salt, seed, stored, tokens

TARGET = (URL, 0)
WINDOW_BLOCKS = 2
WINDOW_TOKENS = 2 * BLOCK_TOKENS + 1  # reaches two blocks back
WIRE: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [6, 7, 8],
    "parent_block_hash": None,
    "token_ids": list(range(16)),
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [None, None, None],
    "group_idx": 1,
    "kv_cache_spec_kind": "sliding_window",
    "kv_cache_spec_sliding_window": WINDOW_TOKENS,
}


def _full(hashes: list[int], word: str, name: str = "A") -> Stored:
    return stored(hashes, word, keys=[salt(name)])


def _some(hashes: list[int], *, kind: str = "sliding_window", block_tokens: int = BLOCK_TOKENS, group: int = 1) -> Stored:
    """What a windowed group keeps of a longer run: these blocks, whichever they are."""
    return Stored(
        tuple(hashes), None, b"", block_tokens, "GPU", group=group, spec_kind=kind, sliding_window_tokens=WINDOW_TOKENS, sparse=True
    )  # fmt: skip


def _match(index: EventIndex, word: str, name: str = "A") -> int:
    return index.match(ns_key(name), chain(name, word), TARGET, 0.0).blocks


# -- as they come ----------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hashes", "keys"), [([6, 7, 8], [None] * 3), ([], []), ([3, 4, 5, 6, 7, 8], None)])
def test_fewer_hashes_than_blocks_are_read_without_tokens(hashes: list[int], keys: list[None] | None) -> None:
    whole = {**WIRE, "block_hashes": [1, 2, 3, 4], "token_ids": [1] * 8, "extra_keys": [[salt("A")], None, None, None], "group_idx": 0}
    payload = msgspec.msgpack.encode([1.0, [whole, {**WIRE, "block_hashes": hashes, "extra_keys": keys}, whole], 0])
    before, read, after = kv_events.decode(payload).events
    assert isinstance(read, Stored)
    assert (read.hashes, read.tokens, read.sparse, read.group, salt_of(read)) == (tuple(hashes), b"", True, 1, None)
    assert before == after
    assert isinstance(before, Stored)
    assert (len(before.tokens), before.sparse, salt_of(before)) == (8 * 4, False, salt("A"))


def test_the_first_that_is_kept_says_no_salt() -> None:
    """It need not be the prompt's first block, and what stands there could be an image's name."""
    read = kv_events.decode(msgspec.msgpack.encode([1.0, [{**WIRE, "extra_keys": [[salt("A")], None, None]}], 0])).events[0]
    assert isinstance(read, Stored)
    assert (read.sparse, salt_of(read)) == (True, None)


@pytest.mark.parametrize("more", [{"token_ids": list(range(15))}, {"token_ids": list(range(4))}, {"block_size": 0}, {"extra_keys": [None]}])
def test_other_numbers_stay_malformed(more: dict[str, object]) -> None:
    with pytest.raises(EventError):
        kv_events.decode(msgspec.msgpack.encode([1.0, [{**WIRE, **more}], 0]))


# -- what they are worth ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window_first", [False, True])
def test_a_windowed_group_is_found_through_the_hashes_of_the_full_one(window_first: bool) -> None:
    events: list[Event] = [_full([1, 2, 3, 4, 5, 6], "abcdef"), _some([5, 6])]
    index = index_of("A", "B")
    index.apply(TARGET, batch(*(events[::-1] if window_first else events)), 0.0)
    assert [_match(index, "abcdef"[:asked]) for asked in range(7)] == [0, 0, 0, 0, 0, 0, 6]
    assert _match(index, "abcdefg") == 6
    assert (_match(index, "abcdef", "B"), index.unusable(TARGET), index.sizes()[TARGET].ignored) == (0, None, 2)
    index.apply(TARGET, batch(_some([2, 3])), 0.0)
    assert [_match(index, "abcdef"[:asked]) for asked in range(7)] == [0, 0, 0, 3, 3, 3, 6]
    index.apply(TARGET, batch(Removed((6,), "GPU", 1)), 0.0)
    assert _match(index, "abcdef") == 3
    index.apply(TARGET, batch(Removed((3,), "GPU", 0)), 0.0)
    assert _match(index, "abcdef") == 0


def test_a_group_that_keeps_nothing_of_a_prompt_holds_nothing_of_it() -> None:
    index = index_of("A")
    index.apply(TARGET, batch(_full([1, 2], "ab")), 0.0)
    assert _match(index, "ab") == 2
    index.apply(TARGET, batch(_some([])), 0.0)
    assert _match(index, "ab") == 0


def test_what_came_whole_before_is_still_found_and_copies_are_counted() -> None:
    index = index_of("A")
    whole = stored([1, 2], "ab", keys=[salt("A")], group=1, kind="sliding_window", window=WINDOW_TOKENS)
    index.apply(TARGET, batch(whole, _full([1, 2], "ab"), stored([3, 4], "cd", parent=2), _some([3, 4])), 0.0)
    assert [_match(index, "abcd"[:asked]) for asked in range(5)] == [0, 1, 2, 3, 4]
    index.apply(TARGET, batch(_some([4]), Removed((4,), "GPU", 1), Removed((2,), "GPU", 1)), 0.0)
    assert [_match(index, "abcd"[:asked]) for asked in range(5)] == [0, 1, 1, 1, 4]
    index.apply(TARGET, batch(Removed((4,), "GPU", 1)), 0.0)
    assert _match(index, "abcd") == 1


def test_blocks_of_a_window_may_be_wider_than_those_of_full_attention() -> None:
    """Two blocks of full attention to one of the window: both end under one hash."""
    index = index_of("A")
    index.apply(TARGET, batch(_full([1, 2, 3, 4, 5, 6, 7], "abcdefg"), _some([6], block_tokens=2 * BLOCK_TOKENS)), 0.0)
    chains = [partial(blocks.token_chain, seed("A"), tokens("abcdefg"[:asked])) for asked in range(8)]
    assert [index.match_chain(ns_key("A"), chain_of, TARGET, 0.0).tokens for chain_of in chains] == [0, 0, 0, 0, 0, 0, 12, 12]


def test_a_salt_that_is_claimed_late_finds_its_window() -> None:
    whole = stored([1, 2], "ab", keys=[salt("A")], group=1, kind="sliding_window", window=WINDOW_TOKENS)
    index = index_of("B")
    index.apply(TARGET, batch(_full([1, 2, 3, 4], "abcd"), whole, _some([3, 4])), 0.0)
    claim(index, "A")
    assert [_match(index, "abcd"[:asked]) for asked in range(5)] == [0, 1, 2, 3, 4]
    assert (index.sizes()[TARGET].parked, index.unusable(TARGET)) == (0, None)


@pytest.mark.parametrize("known", [True, False])
def test_a_report_of_reuse_is_not_believed_of_a_windowed_group(known: bool) -> None:
    """In full report mode vLLM names every block of the prefix that it reused, also those that the window never kept. The last ones are there: a hit
    needs them. Nobody need have asked for it here, and the windowed group may come first."""
    report = stored([1, 2, 3, 4], "abcd", keys=[salt("A")], group=1, kind="sliding_window", window=WINDOW_TOKENS)
    for most in (2, 128):
        index = index_of("A")
        index.apply(TARGET, batch(_full([1, 2, 3, 4], "abcd"), _some([3, 4] if known else [])), 0.0)
        for piece in kv_pieces.cut(batch(report, _full([1, 2, 3, 4], "abcd")), most):
            index.apply(TARGET, piece, 0.0)
        assert [_match(index, "abcd"[:asked]) for asked in range(5)] == [0, 0, 0, 0, 4]
        index.apply(TARGET, batch(Removed((4,), "GPU", 1)), 0.0)
        assert _match(index, "abcd") == 0


@pytest.mark.parametrize("window_first", [False, True])
def test_a_report_does_not_bring_back_what_a_window_lost(window_first: bool) -> None:
    """An engine that keeps every block of a window until it needs the room: what it reports is what it reuses, the window's end."""
    whole = stored([1, 2, 3, 4], "abcd", keys=[salt("A")], group=1, kind="sliding_window", window=WINDOW_TOKENS)
    events = [whole, _full([1, 2, 3, 4], "abcd")] if window_first else [_full([1, 2, 3, 4], "abcd"), whole]
    index = index_of("A")
    index.apply(TARGET, batch(*events), 0.0)
    assert [_match(index, "abcd"[:asked]) for asked in range(5)] == [0, 1, 2, 3, 4]
    index.apply(TARGET, batch(Removed((1, 2), "GPU", 1), *events), 0.0)
    assert [_match(index, "abcd"[:asked]) for asked in range(5)] == [0, 0, 0, 0, 4]
    index.apply(TARGET, batch(Removed((4, 3), "GPU", 1), *events), 0.0)
    assert [_match(index, "abcd"[:asked]) for asked in range(5)] == [0, 1, 2, 3, 4]


def test_a_group_that_is_emptied_keeps_no_hashes() -> None:
    index = index_of("A")
    index.apply(TARGET, batch(_full([1, 2], "ab"), _some([1, 2])), 0.0)
    assert index.sizes()[TARGET].ignored == 2
    index.clear(TARGET)
    assert (index.sizes()[TARGET].ignored, index._contents.ignored, _match(index, "ab")) == (0, 0, 0)
    index.apply(TARGET, batch(_full([1, 2], "ab"), _some([])), 0.0)
    assert _match(index, "ab") == 0


def test_hashes_have_a_bound() -> None:
    index = index_of("A", ignored_bytes=100 * IGNORED_BYTES)
    index.apply(TARGET, batch(_full([1], "a"), _some(list(range(100, 190)))), 0.0)
    assert index.sizes()[TARGET].ignored == 90
    index.apply(TARGET, batch(_some(list(range(200, 300)))), 0.0)
    assert 95 < index.sizes()[TARGET].ignored == index._contents.ignored <= 100
    assert index.counters["ignored_dropped"] == 190 - index._contents.ignored


# -- what cannot be known --------------------------------------------------------------------------------------------------------------------------

_WIDE = msgspec.structs.replace(_full([1], "ab"), block_tokens=2 * BLOCK_TOKENS)


@pytest.mark.parametrize(
    ("events", "unusable"),
    [
        ([_full([1], "a"), _some([2], kind="full_attention", group=0)], True),
        ([_some([2], kind="mamba")], True),
        ([_some([1]), _full([1], "a"), _some([2])], False),
        ([_some([1])], False),
        ([_some([1]), _some([2])], True),  # a window and nothing else: nothing tells which blocks these are
        ([_some([]), _some([])], True),
        ([_WIDE, _some([1])], False),
        ([_WIDE, _some([1]), _some([2])], True),  # its blocks end where those of full attention do not
    ],
)
def test_a_group_whose_blocks_nothing_names_makes_a_steady_state(events: list[Event], unusable: bool) -> None:
    index = index_of("A")
    for event in events:
        index.apply(TARGET, batch(event), 0.0)
    assert index.unusable(TARGET) == ("unknown_spec_kind" if unusable else None)


def test_pieces_of_one_event_are_one() -> None:
    """The group of full attention may come after all of them."""
    index = index_of("A")
    pieces = kv_pieces.cut(batch(_some(list(range(1, 10)))), 3)
    assert [len(event.hashes) for piece in pieces for event in piece.events if isinstance(event, Stored)] == [3, 3, 3]
    for piece in pieces:
        index.apply(TARGET, piece, 0.0)
    index.apply(TARGET, batch(_full([1, 2], "ab"), _some([11])), 0.0)
    assert (index.unusable(TARGET), _match(index, "ab")) == (None, 2)


# -- against an engine -----------------------------------------------------------------------------------------------------------------------------


class _Hybrid:
    """A cache of two groups. A hit is as long as the first holds all of it and the second its last blocks, as many as the window reaches back."""

    def __init__(self) -> None:
        self.full: Counter[tuple[str, str]] = Counter()
        self.window: Counter[tuple[str, str]] = Counter()
        self.hashes: dict[tuple[str, str], int] = {}
        self.sparse = False
        self.once = True  # no first block was stored again: then copies are counted

    def hash(self, block: tuple[str, str]) -> int:
        return self.hashes.setdefault(block, 100 + len(self.hashes))

    def holds(self, name: str, word: str) -> int:
        whole = next((end for end in range(len(word)) if not self.full[name, word[: end + 1]]), len(word))
        return next(
            end for end in range(whole, -1, -1) if all(self.window[name, word[:each]] for each in range(max(1, end - WINDOW_BLOCKS + 1), end + 1))
        )

    def run(self, name: str, word: str, mask: list[bool], *, window_first: bool) -> list[Event]:
        """Serve a prompt; of what is computed the window keeps what ``mask`` says."""
        first = min(self.holds(name, word), len(word) - 1)
        path = [(name, word[: end + 1]) for end in range(first, len(word))]
        kept = [block for block, keep in zip(path, mask, strict=False) if keep]
        if first == 0 and len(kept) == len(path) > WINDOW_BLOCKS and self.sparse:
            del kept[0]  # as vLLM does: whoever leaves blocks out keeps no more of a beginning than a hit needs
        self.sparse = self.sparse or len(kept) < len(path)
        self.once = self.once and not (first == 0 and (self.full[path[0]] or self.window[path[0]]))
        self.full.update(path)
        self.window.update(kept)
        parent = self.hash((name, word[:first])) if first else None
        full = stored([self.hash(block) for block in path], word[first:], parent=parent, keys=[salt(name)])
        window = stored(
            [self.hash(block) for block in path], word[first:], parent=parent, keys=[salt(name)], group=1, kind="sliding_window", window=WINDOW_TOKENS
        )
        if len(kept) < len(path):
            hashes = tuple(self.hash(block) for block in kept)
            window = msgspec.structs.replace(window, hashes=hashes, tokens=b"", extra_keys=(None,) * len(kept), sparse=True)
        return [window, full] if window_first else [full, window]

    def evict(self, group: int, block: tuple[str, str]) -> Event:
        (self.full, self.window)[group][block] -= 1
        return Removed((self.hash(block),), "GPU", group)


_WORDS = ["".join(letters) for length in range(1, 6) for letters in product("ab", repeat=length)]
_STEP = st.tuples(st.sampled_from("AB"), st.sampled_from(_WORDS), st.lists(st.booleans(), min_size=5, max_size=5), st.integers(0, 3))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), steps=st.lists(_STEP, max_size=8), window_first=st.booleans(), late=st.integers(0, 8))
def test_what_is_found_is_what_the_engine_hits(data: st.DataObject, steps: list[Any], window_first: bool, late: int) -> None:
    """Whatever the window keeps, whichever group comes first, whoever claims when: never more. As much for who claimed before, while no first block
    came twice: of parked blocks those go whose parent went first."""
    engine, index = _Hybrid(), index_of("A")
    for number, (name, word, mask, evictions) in enumerate(steps):
        if number == late:
            claim(index, "B")
        events = engine.run(name, word, mask, window_first=window_first)
        for group, held in data.draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 99)), max_size=evictions)):
            there = [block for block, count in (engine.full, engine.window)[group].items() if count]
            if there:
                events.append(engine.evict(group, there[held % len(there)]))
        index.apply(TARGET, batch(*events), 0.0)
        assert index.unusable(TARGET) is None
    claim(index, "B")
    for name, word in product("AB", _WORDS):
        found, holds = _match(index, word, name), engine.holds(name, word)
        assert found <= holds
        if engine.once and name == "A":
            assert found == holds
    assert index._contents.ignored == index.sizes()[TARGET].ignored
