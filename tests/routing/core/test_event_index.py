"""The event index case by case: tiers, KV groups, media, adapters, orphans, claims, generations, bounds, and engines whose hashes name nothing."""

from __future__ import annotations

import gc
import math
import weakref
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import blocks, event_contents, event_holdings, event_index, event_tables
from routing.core.event_index import NO_EVENT_MATCH, EventIndex, EventMatch
from routing.core.event_tables import BLOCK_BYTES, IGNORED_BYTES, SALT_BYTES, SEGMENT_BLOCKS, WAITING_BYTES
from routing.core.kv_events import Batch, Cleared, Event, Hash, Removed, Stored, Unknown
from tests.routing.core.kv_stream import URL, batch, chain, claim, index_of, ns_key, salt, seed, stored, tokens

TARGET = (URL, 0)


def _room(blocks_: int, segments: int = 1) -> int:
    """Bytes of so many credited blocks in so many segments."""
    return (blocks_ + SEGMENT_BLOCKS * segments) * BLOCK_BYTES


def _match(index: EventIndex, word: str, name: str = "A") -> int:
    return index.match(ns_key(name), chain(name, word), TARGET, 0.0).blocks


def _root(hashes: list[int], word: str, name: str = "A", **more: object) -> Stored:
    return stored(hashes, word, keys=[salt(name)], **more)  # type: ignore[arg-type]


def _holding(*events: Event) -> EventIndex:
    index = index_of("A")
    index.apply(TARGET, batch(*events), 0.0)
    return index


# -- look-up ---------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 25, 26])
def test_every_length_is_found(held: int) -> None:
    word = "abcdefghijklmnopqrstuvwxyz"
    index = _holding(_root(list(range(held)), word[:held])) if held else index_of("A")
    assert [_match(index, word[:asked]) for asked in range(27)] == [min(asked, held) for asked in range(27)]


def test_a_match_tells_its_age_and_its_tokens() -> None:
    index = index_of("A")
    index.apply(TARGET, batch(_root([1, 2], "ab")), 5.0)
    index.apply(TARGET, batch(), 7.0)
    shown = EventMatch(blocks=2, tokens=4, lower_blocks=0, medium="GPU", age_s=2.5, block_tokens=2)
    assert index.match(ns_key("A"), chain("A", "abc"), TARGET, 9.5) == shown
    assert index.match(ns_key("A"), chain("A", "abc"), (URL, 1), 9.5) == NO_EVENT_MATCH
    assert index.match(ns_key("A"), (), TARGET, 9.5) == shown._replace(blocks=0, tokens=0)


def test_a_hole_ends_the_match_and_is_counted() -> None:
    """A removal of an inner block, as lost messages or set semantics leave it: bisection alone would jump over it."""
    index = _holding(_root([1, 2, 3, 4], "abcd"), Removed((2,)))
    assert [_match(index, word) for word in ("a", "ab", "abc", "abcd")] == [1, 1, 1, 1]
    assert index.counters["holes_matched"] == 4
    index.apply(TARGET, batch(stored([2], "b", parent=1)), 0.0)
    assert _match(index, "abcd") == 4
    assert index.counters["holes_matched"] == 4


def test_digests_of_another_seed_or_size_find_nothing() -> None:
    index = _holding(_root([1, 2], "ab"))
    assert index.match(ns_key("A"), chain("B", "ab"), TARGET, 0.0).blocks == 0
    assert index.match(ns_key("A"), blocks.token_chain(seed("A"), tokens("ab"), 1), TARGET, 0.0).blocks == 0
    assert index.block_sizes(TARGET) == (2,)


# -- removals ---------------------------------------------------------------------------------------------------------------------------------------


def _removed_s(index: EventIndex, word: str, name: str = "A") -> float:
    return index.match(ns_key(name), chain(name, word), TARGET, 30.0).removed_s


def test_a_removal_is_remembered_for_a_while_by_the_block_that_a_prompt_misses() -> None:
    index = _holding(_root([1, 2, 3], "abc"))
    assert _removed_s(index, "abc") == _removed_s(index, "abcd") == -math.inf
    index.apply(TARGET, batch(Removed((3,))), 5.0)
    assert (_removed_s(index, "abc"), _removed_s(index, "abcd"), _removed_s(index, "ab")) == (5.0, 5.0, -math.inf)
    index.apply(TARGET, batch(Removed((2,))), 6.0)
    assert [_removed_s(index, word) for word in ("abc", "ab", "abx", "axc", "a", "x")] == [6.0, 6.0, 6.0, -math.inf, -math.inf, -math.inf]
    assert _removed_s(index, "abc", "B") == -math.inf
    index.apply(TARGET, batch(stored([2], "b", parent=1)), 6.5)
    assert _removed_s(index, "abc") == 5.0
    index.apply(TARGET, batch(_root([9], "z"), Removed((9,))), 5.0 + 2 * event_tables.GONE_S)
    assert _removed_s(index, "abc") == -math.inf
    index.apply(TARGET, batch(Cleared()), 20.0)
    assert _removed_s(index, "abc") == _removed_s(index, "q") == 20.0
    index.apply(TARGET, batch(_root([1], "a")), 21.0)
    assert _removed_s(index, "abc") == 20.0


def test_a_prompt_that_begins_with_media_makes_no_table_for_its_namespace() -> None:
    """Nothing of it is credited; an engine could make one for each namespace in each group, and none would count."""
    index = index_of("A")
    index.apply(TARGET, batch(stored([1, 2], "ab", keys=["image", salt("A")])), 0.0)
    assert (index.counters["ignored_media"], len(index._contents.segments)) == (2, 0)
    index.apply(TARGET, batch(_root([3], "x")), 0.0)
    assert (_match(index, "x"), len(index._contents.segments)) == (1, 1)


def test_a_parent_named_a_thousand_times_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time would go through all orphans that wait for it and are still to come in the same event."""
    index = index_of("A")
    orphans = list(range(100, 200))
    index.apply(TARGET, batch(*[stored([hash_], "b", parent=5) for hash_ in orphans]), 0.0)
    assert index.counters["orphaned"] == 100
    waited = 0
    wait = event_tables.Group.wait

    def counting(group: event_tables.Group, parent: Hash, child: Hash) -> None:
        nonlocal waited
        waited += 1
        wait(group, parent, child)

    monkeypatch.setattr(event_tables.Group, "wait", counting)
    piece = msgspec.structs.replace(stored([5] * 1000, "c" * 1000, keys=["theirs"]), continued=frozenset(orphans))
    index.apply(TARGET, batch(piece), 0.0)
    assert 0 < waited <= len(orphans)


def test_a_namespace_of_which_nothing_is_left_keeps_no_table() -> None:
    """Namespaces come and go by the thousand, and an emptied table is as large as it ever was."""
    index = index_of("A", "B")
    index.apply(TARGET, batch(_root([1, 2], "ab"), _root([3], "x", "B")), 0.0)
    assert len(index._contents.segments) == 2
    index.apply(TARGET, batch(Removed((1, 2))), 0.0)
    assert (len(index._contents.segments), _match(index, "ab"), _match(index, "x", "B")) == (1, 0, 1)
    index.apply(TARGET, batch(_root([5, 6], "ab"), Removed((3,))), 0.0)
    assert (len(index._contents.segments), _match(index, "ab"), _match(index, "x", "B")) == (1, 2, 0)


def test_a_copy_or_a_tier_that_stays_is_no_removal() -> None:
    index = _holding(_root([1, 2], "ab"), stored([2], "b", parent=1))
    index.apply(TARGET, batch(Removed((2,))), 5.0)
    assert _removed_s(index, "ab") == -math.inf
    index.apply(TARGET, batch(Removed((2,))), 6.0)
    assert _removed_s(index, "ab") == 6.0
    index.apply(TARGET, batch(stored([2], "b", parent=1), _reached([2], "CPU"), Removed((2,))), 7.0)
    assert (_match(index, "ab"), _removed_s(index, "ab")) == (1, -math.inf)  # the slower tier has it


@pytest.mark.parametrize("kind", ["full_attention", "sliding_window"])
def test_of_several_groups_a_removal_in_any_counts(kind: str) -> None:
    index = _holding(_root([1, 2], "ab"), _root([3, 4], "ab", group=1, kind=kind, window=5))
    assert (_match(index, "ab"), _removed_s(index, "ab")) == (2, -math.inf)
    index.apply(TARGET, batch(Removed((4,), group=1)), 5.0)
    assert (_match(index, "ab"), _removed_s(index, "ab")) == (1, 5.0)


def test_remembered_removals_are_bounded_and_what_is_forgotten_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_holdings, "MAX_GONE", 2)
    index = _holding(_root([1, 2, 3], "abc"))
    index.apply(TARGET, batch(Removed((3,))), 5.0)
    assert _removed_s(index, "abc") == 5.0
    index.apply(TARGET, batch(Removed((2,)), Removed((1,)), _root([1, 2], "ab")), 6.0)
    assert (_match(index, "abc"), _removed_s(index, "abc")) == (2, -math.inf)
    assert index.counters["removals_forgotten"] == 1


# -- copies ----------------------------------------------------------------------------------------------------------------------------------------


def test_copies_are_counted() -> None:
    index = _holding(_root([1, 2], "ab"), stored([2], "b", parent=1), Removed((2,)))
    assert _match(index, "ab") == 2
    index.apply(TARGET, batch(Removed((2,))), 0.0)
    assert _match(index, "ab") == 1
    assert index.apply(TARGET, batch(Removed((2,))), 0.0).removed_unknown == 1


def test_a_report_in_full_ends_counting_until_the_cache_is_empty() -> None:
    index = _holding(_root([1, 2], "ab"))
    assert index.apply(TARGET, batch(_root([1, 2], "ab")), 0.0).set_semantics
    index.apply(TARGET, batch(Removed((2,))), 0.0)
    assert _match(index, "ab") == 1
    index.apply(TARGET, batch(Cleared(), _root([1, 2], "ab"), stored([2], "b", parent=1), Removed((2,))), 0.0)
    assert _match(index, "ab") == 2


def test_a_report_that_was_asked_for_is_never_counted() -> None:
    index = _holding(_root([1, 2], "ab"))
    index.use_set_semantics(TARGET)
    index.apply(TARGET, batch(stored([2], "b", parent=1), Removed((2,))), 0.0)
    assert _match(index, "ab") == 1


def test_copies_counted_before_a_report_count_as_one_after_it() -> None:
    index = _holding(_root([1, 2], "ab"), stored([2], "b", parent=1))
    index.use_set_semantics(TARGET)
    index.apply(TARGET, batch(Removed((2,))), 0.0)
    assert _match(index, "ab") == 1


def test_a_first_block_computed_again_is_neither_a_copy_nor_a_report() -> None:
    """A prompt of exactly one block looks the same either way: the safe reading, for this block alone."""
    index = _holding(_root([1, 2], "ab"), _root([1], "a"), stored([2], "b", parent=1), Removed((2,)))
    assert _match(index, "ab") == 2
    assert index.counters["set_semantics"] == 0


# -- tiers -----------------------------------------------------------------------------------------------------------------------------------------


def _reached(hashes: list[int], medium: str) -> Stored:
    return Stored(tuple(hashes), None, b"", 0, medium)


def test_a_slower_tier_continues_a_match() -> None:
    index = _holding(_root([1, 2, 3, 4], "abcd"), _reached([3, 4], "CPU"), _reached([4], "DISK"))
    for hash_ in (4, 3):
        index.apply(TARGET, batch(Removed((hash_,), "GPU")), 0.0)
    match = index.match(ns_key("A"), chain("A", "abcde"), TARGET, 0.0)
    assert (match.blocks, match.lower_blocks, match.medium) == (2, 2, "CPU")
    index.apply(TARGET, batch(Removed((4,), "CPU_TIER1")), 0.0)
    match = index.match(ns_key("A"), chain("A", "abcde"), TARGET, 0.0)
    assert (match.blocks, match.lower_blocks, match.medium) == (2, 2, "STORAGE")
    index.apply(TARGET, batch(stored([3], "c", parent=2)), 0.0)
    match = index.match(ns_key("A"), chain("A", "abcde"), TARGET, 0.0)
    assert (match.blocks, match.lower_blocks) == (3, 1)
    index.apply(TARGET, batch(Removed((4,), "STORAGE")), 0.0)
    assert index.match(ns_key("A"), chain("A", "abcde"), TARGET, 0.0) == EventMatch(3, 6, 0, "GPU", 0.0, 2, 0.0)


def test_events_without_tokens_name_nobody_new_and_unknown_media_are_counted() -> None:
    index = _holding(_root([1], "a"), _reached([1, 9], "CPU"), _root([5], "b", medium="moon"), Removed((1,), "moon"))
    assert index.counters["without_tokens_unknown"] == 1
    assert index.counters["unknown_medium"] == 2
    assert (_match(index, "a"), _match(index, "b")) == (1, 0)


def test_what_is_elsewhere_is_the_slowest_tier() -> None:
    event = msgspec.structs.replace(_reached([1], "CPU"), locality="REMOTE")
    match = _holding(_root([1], "a"), event, Removed((1,))).match(ns_key("A"), chain("A", "a"), TARGET, 0.0)
    assert (match.blocks, match.lower_blocks, match.medium) == (0, 1, "STORAGE")


_CPU = Stored((1,), None, blocks.pack(tokens("a")), 2, "CPU")


@pytest.mark.parametrize(
    ("said", "as_gpu"),
    [
        (_CPU, "hash_conflict"),  # Mooncake's store names no keys
        (msgspec.structs.replace(_CPU, hashes=(1, 2), tokens=blocks.pack(tokens("ab")), spec_kind="full_attention"), "hash_conflict"),  # offloading
        (msgspec.structs.replace(_CPU, hashes=(777,), tokens=blocks.pack(tokens("ab")), block_tokens=4), "block_size"),  # LMCache's chunks
        (_root([2], "x", medium="CPU"), "hash_conflict"),
        (_root([2], "x", "B", medium="CPU"), "hash_conflict"),
        (_root([9], "a", medium="CPU", group=1, kind="mamba"), "unknown_spec_kind"),
    ],
)
def test_what_a_connector_says_of_a_slower_tier_contradicts_nothing(said: Stored, as_gpu: str) -> None:
    """Connectors publish beside the engine, with fewer keys, other sizes and hashes of their own."""
    index = index_of("A", "B")
    index.apply(TARGET, batch(_root([1, 2], "ab"), said, Removed((2,))), 0.0)
    match = index.match(ns_key("A"), chain("A", "ab"), TARGET, 0.0)
    assert (index.unusable(TARGET), match.blocks, match.lower_blocks) == (None, 1, 1 if 2 in said.hashes else 0)
    index.apply(TARGET, batch(_root([1, 2], "ab"), msgspec.structs.replace(said, medium="GPU")), 0.0)
    assert index.unusable(TARGET) == as_gpu


def test_a_slower_tier_gives_nobody_a_block_that_the_engine_did_not_name() -> None:
    """Not even where the parent is known: the second block has an image behind the same tokens, which connectors do not tell."""
    events = (msgspec.structs.replace(_root([1, 2], "ab"), extra_keys=((salt("A"),), (("image", 3),))), stored([2], "b", parent=1, medium="CPU"))
    index = _holding(*events, _root([7], "x", medium="CPU"), Removed((2,), "CPU"), stored([3], "c", parent=2))
    assert [index.match(ns_key("A"), chain("A", word), TARGET, 0.0)[:3] for word in ("abc", "x")] == [(1, 2, 0), (0, 0, 0)]
    assert (index.sizes()[TARGET].credited, index.sizes()[TARGET].ignored) == (1, 2)


# -- KV groups -------------------------------------------------------------------------------------------------------------------------------------


def test_a_prefix_counts_as_far_as_every_group_holds_it() -> None:
    index = _holding(_root([1, 2, 3], "abc"), _root([1, 2, 3], "abc", group=1, kind="mla_attention"), Removed((3,), "GPU", 1))
    assert _match(index, "abc") == 2
    index.apply(TARGET, batch(Removed((3,), "GPU", 0)), 0.0)
    assert _match(index, "abc") == 2
    index.apply(TARGET, batch(Removed((2,), "GPU", 0)), 0.0)
    assert index.match(ns_key("A"), chain("A", "abc"), TARGET, 0.0) == EventMatch(1, 2, 0, "GPU", 0.0, 2, 0.0)


_SOME = st.tuples(st.sampled_from("AB"), st.integers(1, 6), st.sampled_from(["GPU", "CPU"]))


@given(st.lists(_SOME, max_size=8), st.lists(_SOME, max_size=8))
def test_one_group_is_matched_as_two_alike_are(kept: list[tuple[str, int, str]], gone: list[tuple[str, int, str]]) -> None:
    """The short way of engines with one group comes to what the general way comes to where a second group says the same: blocks, tokens, tiers, age,
    for the own namespace and for others'."""
    found = []
    for groups in (1, 2):
        index = index_of("A", "B")
        for group in range(groups):
            events: list[Event] = [
                _root([ord(name) * 100 + place for place in range(count)], "abcdef"[:count], name, group=group, medium=medium)
                for name, count, medium in kept
            ]
            events += [Removed((ord(name) * 100 + count - 1,), medium, group) for name, count, medium in gone]
            index.apply(TARGET, batch(*events), 1.0)
        words = ["abcdef"[:asked] for asked in range(7)]
        found.append([index.match(ns_key(name), chain(name, word), TARGET, 3.0) for name in "ABC" for word in words])
    assert found[0] == found[1]


def test_groups_of_different_block_sizes_have_chains_of_their_own() -> None:
    wide = Stored((9, 10), None, blocks.pack(tokens("abcd")), 4, "GPU", extra_keys=((salt("A"),), None), group=1, spec_kind="full_attention")
    index = _holding(_root([1, 2, 3], "abc"), wide)
    match = index.match_chain(ns_key("A"), lambda size: blocks.token_chain(seed("A"), tokens("abcd"), size), TARGET, 0.0)
    assert (match.blocks, match.tokens) == (2, 4)  # three blocks of two tokens, whole blocks of four
    assert index.block_sizes(TARGET) == (2, 4)


def test_a_windowed_group_needs_the_blocks_in_its_window() -> None:
    """A window of 5 tokens reaches 4 back, two blocks: what lies before may go."""
    windowed = _root([1, 2, 3, 4, 5], "abcde", group=1, kind="sliding_window", window=5)
    index = _holding(_root([1, 2, 3, 4, 5], "abcde"), windowed, Removed((1, 2), "GPU", 1))
    assert [_match(index, word) for word in ("a", "ab", "abc", "abcd", "abcde")] == [0, 0, 0, 4, 5]
    index.apply(TARGET, batch(Removed((4,), "GPU", 1)), 0.0)
    assert _match(index, "abcde") == 0
    index.apply(TARGET, batch(_root([1, 2], "ab", group=1, kind="sliding_window", window=5)), 0.0)
    assert _match(index, "abcde") == 3
    assert _match(index, "a") == 1  # shorter than the window, and whole


def _sized(block_tokens: int) -> Stored:
    """A block of so many tokens, in a group of its own."""
    return msgspec.structs.replace(_root([1], "a", group=block_tokens), block_tokens=block_tokens, tokens=bytes(block_tokens * blocks.TOKEN_BYTES))


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([_root([1], "a", kind="mamba")], "unknown_spec_kind"),
        ([_root([1], "a", kind="sliding_window")], "unknown_spec_kind"),
        ([_root([1], "a"), _root([1], "a", group=1, kind="chunked_local_attention")], "unknown_spec_kind"),
        ([_root([1], "a"), msgspec.structs.replace(_root([2], "b"), block_tokens=4, tokens=bytes(16))], "block_size"),
        ([_root([1], "a", group=number) for number in range(event_contents.MAX_GROUPS + 1)], "too_many_groups"),
        ([_sized(number + 1) for number in range(event_contents.MAX_SIZES + 1)], "block_size"),
    ],
)
def test_what_is_not_understood_makes_a_target_useless_until_its_next_generation(events: list[Event], reason: str) -> None:
    index = index_of("A")
    assert index.apply(TARGET, batch(*events), 0.0).unusable == reason
    index.apply(TARGET, batch(_root([7], "x")), 0.0)
    assert (index.unusable(TARGET), _match(index, "x"), index.sizes()[TARGET].credited) == (reason, 0, 0)
    assert index.set_generation(TARGET, 2, 0.0)
    index.apply(TARGET, batch(_root([7], "x")), 0.0)
    assert (index.unusable(TARGET), _match(index, "x")) == (None, 1)


def test_some_block_sizes_at_one_engine_are_well() -> None:
    index = index_of("A")
    assert index.apply(TARGET, batch(*[_sized(number + 1) for number in range(event_contents.MAX_SIZES)]), 0.0).unusable is None
    assert len(index.block_sizes(TARGET)) == event_contents.MAX_SIZES


def test_full_attention_stays_so_whatever_window_it_names() -> None:
    assert _match(_holding(_root([1], "a", window=128)), "a") == 1


# -- whose block -----------------------------------------------------------------------------------------------------------------------------------


def test_a_block_with_media_ends_the_chain_that_can_be_followed() -> None:
    event = msgspec.structs.replace(_root([1, 2, 3], "abc"), extra_keys=((salt("A"),), (("image", 3),), None))
    index = _holding(event, stored([4], "d", parent=3))
    assert _match(index, "abcd") == 1
    assert index.counters["ignored_media"] == 3
    first = msgspec.structs.replace(_root([5, 6], "xy"), extra_keys=((("image", 0), salt("A")), None))
    index.apply(TARGET, batch(first), 0.0)
    assert _match(index, "xy") == 0
    assert index.counters["ignored_media"] == 5
    assert index.unusable(TARGET) is None


def test_a_salt_serves_one_adapter() -> None:
    index = _holding(
        _root([1, 2], "ab", adapter="ad"), _root([3], "a", adapter="other"), _root([4], "b"), stored([5], "c", parent=3, adapter="other")
    )
    assert (_match(index, "ab"), _match(index, "b")) == (2, 0)
    assert index.counters["ignored_adapter"] == 3


def test_an_adapter_named_like_a_salt_gives_no_namespace() -> None:
    index = index_of("A", "B")
    index.apply(TARGET, batch(stored([1], "a", adapter=salt("A")), stored([2], "a", keys=[salt("B")], adapter=salt("A"))), 0.0)
    assert (_match(index, "a", "A"), _match(index, "a", "B")) == (0, 1)


def test_orphans_are_never_credited_and_adopted_when_their_parents_come() -> None:
    index = index_of("A")
    applied = index.apply(TARGET, batch(stored([2, 3], "bc", parent=1), stored([4], "d", parent=3)), 0.0)
    assert (applied.orphaned, index.sizes()[TARGET].orphans) == (3, 3)
    assert _match(index, "abcd") == 0
    index.apply(TARGET, batch(_root([1], "a")), 0.0)
    assert _match(index, "abcd") == 4
    assert (index.counters["orphans_adopted"], index.sizes()[TARGET].orphans) == (3, 0)


def test_a_full_report_adopts_and_counts_nothing_twice() -> None:
    index = index_of("A")
    index.apply(TARGET, batch(stored([2, 3], "bc", parent=1)), 0.0)
    index.apply(TARGET, batch(_root([1, 2, 3], "abc"), Removed((3,))), 0.0)
    assert _match(index, "abc") == 2


def test_a_lower_block_that_orphans_continue_from_memory_is_in_memory() -> None:
    """A run whose parent is unknown may hold a block that is credited already: its copy in GPU memory is counted there like any other."""
    index = _holding(_root([1, 2], "ab"), _reached([1, 2], "CPU"), Removed((2, 1)))
    (segment,) = index._contents.segments.values()
    assert segment.lower == 2
    index.apply(TARGET, batch(stored([9, 2], "xb", parent=8)), 0.0)
    assert (index.sizes()[TARGET].orphans, segment.lower) == (1, 1)
    index.apply(TARGET, batch(_root([1], "a")), 0.0)
    assert (segment.lower, index.match(ns_key("A"), chain("A", "ab"), TARGET, 0.0).lower_blocks) == (0, 0)


def test_orphans_of_a_foreign_prompt_are_foreign() -> None:
    index = _holding(stored([2], "b", parent=1), stored([1], "a", keys=["theirs"]))
    assert (index.sizes()[TARGET].orphans, index.sizes()[TARGET].ignored) == (0, 2)


def test_orphans_in_a_circle_wait_for_nobody_for_ever() -> None:
    index = _holding(stored([1], "a", parent=1), stored([2], "b", parent=3), stored([3], "c", parent=2), Removed((2,)))
    assert index.sizes()[TARGET].orphans == 2
    assert _match(index, "a") == 0


def test_parked_blocks_follow_removals_and_go_to_whoever_claims_the_salt() -> None:
    index = index_of("B")
    index.apply(TARGET, batch(_root([1, 2, 3], "abc"), stored([3], "c", parent=2), Removed((3,)), _root([9], "x", "C")), 0.0)
    assert index.sizes()[TARGET].parked == 4
    index.apply(TARGET, batch(Removed((3,))), 0.0)
    assert index.sizes()[TARGET].parked == 3
    claim(index, "A")
    assert (_match(index, "abc"), _match(index, "abc", "B"), index.sizes()[TARGET].parked) == (2, 0, 1)


def test_a_parked_block_whose_parent_was_stored_again_waits_for_it() -> None:
    index = index_of()
    index.apply(TARGET, batch(_root([1, 2, 3], "abc"), Removed((1,)), _root([1], "a")), 0.0)
    claim(index, "A")
    assert _match(index, "abc") == 3


def test_a_parked_block_never_goes_to_another_namespace() -> None:
    """Its parent's hash means another's block by the time its salt is claimed: such an engine is not believed at all."""
    for other in ("B", "unclaimed"):
        index = index_of("B")
        index.apply(TARGET, batch(_root([1, 2], "ab"), Removed((1,)), _root([1], "a", other)), 0.0)
        claim(index, "A")
        claim(index, "unclaimed")
        assert index.unusable(TARGET) == "hash_conflict"
        assert [_match(index, "ab", name) for name in ("A", "B", "unclaimed")] == [0, 0, 0]


def test_a_parked_block_whose_parent_is_gone_is_dropped() -> None:
    index = index_of("B")
    index.apply(TARGET, batch(_root([1, 2], "ab"), Removed((1,))), 0.0)
    claim(index, "A")
    assert index.counters["parked_dropped"] == 1
    index.apply(TARGET, batch(_root([1], "a", "B")), 0.0)
    assert (_match(index, "ab", "A"), _match(index, "ab", "B")) == (0, 1)


def test_parked_blocks_in_a_circle_are_dropped() -> None:
    index = index_of()
    index.apply(TARGET, batch(_root([1, 2], "ab"), Removed((1,)), stored([1], "c", parent=2), _root([5, 6], "xy")), 0.0)
    claim(index, "A")
    for _ in range(3):
        index.advance()
    assert index.sizes()[TARGET].parked == 0
    assert _match(index, "xy") == 2
    assert [_match(index, word) for word in ("a", "ab", "c")] == [0, 0, 0]


def test_claims_are_credited_in_slices_and_what_comes_meanwhile_waits_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_index, "UNPARK_SLICE", 2)
    index = index_of()
    index.apply(TARGET, batch(_root([1, 2, 3, 4, 5, 6], "abcdef")), 0.0)
    monkeypatch.setattr(EventIndex.advance, "__defaults__", (2,))
    claim(index, "A")
    assert _match(index, "abcdefg") == 2
    index.apply(TARGET, batch(stored([7], "g", parent=6), _root([1, 2, 3], "abc")), 0.0)
    assert index.unusable(TARGET) is None
    assert _match(index, "abcdefg") >= 3
    while index.advance(2):
        pass
    assert _match(index, "abcdefg") == 7
    assert index.sizes()[TARGET].parked == 0


def test_a_salt_belongs_to_its_first_claim_and_a_namespace_has_one_salt() -> None:
    index = _holding(_root([1], "a"))
    index.claim(salt("A"), ns_key=ns_key("B"), owner=b"thief", seed=seed("A"))
    index.claim(salt("B"), ns_key=ns_key("A"), owner=b"A", seed=seed("A"))
    assert index.counters["claim_conflicts"] == 2
    assert index.match(ns_key("B"), chain("A", "a"), TARGET, 0.0).blocks == 0
    claim(index, "A")
    assert (_match(index, "a"), index.counters["claims"]) == (1, 1)


def test_a_dropped_claim_takes_its_blocks_along() -> None:
    index = index_of("A", "B")
    index.apply(TARGET, batch(_root([1, 2], "ab"), _root([3], "a", "B")), 0.0)
    index.disclaim(salt("A"))
    index.disclaim(salt("nobody"))
    assert (_match(index, "ab"), _match(index, "a", "B")) == (0, 1)
    assert index.owners() == {b"B": (1, 0)}
    index.apply(TARGET, batch(Removed((2, 1)), _root([1], "a")), 0.0)
    assert index.sizes()[TARGET].parked == 1


def test_an_owner_that_is_gone_takes_all_its_namespaces_along() -> None:
    """And nobody else's; what its engines still say of its salts waits for somebody who claims them."""
    index = index_of("A", "B")
    index.claim(salt("C"), ns_key=ns_key("C"), owner=b"A", seed=seed("C"))
    index.apply(TARGET, batch(_root([1, 2], "ab"), _root([3], "a", "B"), _root([4], "a", "C")), 0.0)
    assert (_match(index, "ab"), _match(index, "a", "B"), _match(index, "a", "C")) == (2, 1, 1)
    index.forget_owner(b"A")
    index.forget_owner(b"nobody")
    assert (_match(index, "ab"), _match(index, "a", "B"), _match(index, "a", "C")) == (0, 1, 0)
    assert index.owners() == {b"B": (1, 0)}


def test_an_owner_has_so_many_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_index, "MAX_CLAIMS", 2)
    index = index_of()
    for name in ("A", "B", "A", "C"):  # A is used again before C comes: B goes
        index.claim(salt(name), ns_key=ns_key(name), owner=b"o", seed=seed(name))
    index.apply(TARGET, batch(*[_root([number], "a", name) for number, name in enumerate("ABC")]), 0.0)
    assert [_match(index, "a", name) for name in "ABC"] == [1, 0, 1]
    assert index.counters["claims_dropped"] == 1


# -- hashes that name nothing ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "events",
    [
        [_root([1], "a"), _root([1], "a", "B")],
        [_root([1], "a"), stored([1], "a")],
        [stored([1], "a"), _root([1], "a")],
        [_root([1], "a"), _root([1], "a", "unclaimed")],
        [_root([1], "a", "unclaimed"), _root([1], "a")],
        [_root([1], "a", "unclaimed"), _root([1], "a", "other")],
        [_root([1, 2], "ab"), _root([3], "a", "B"), stored([2], "b", parent=3)],
        [_root([1, 1], "ab")],
    ],
)
def test_one_hash_for_two_blocks_fails_closed(events: list[Event]) -> None:
    """An engine that leaves the salt out of its hashes, or names an adapter's blocks like a salt's: what continues them could be anybody's."""
    index = index_of("A", "B")
    assert index.apply(TARGET, batch(*events), 0.0).unusable == "hash_conflict"
    index.apply(TARGET, batch(stored([9], "z", parent=1)), 0.0)
    assert [_match(index, word, name) for word in ("a", "ab", "az") for name in "AB"] == [0] * 6
    assert index.counters["hash_conflicts"] == 1


def test_a_claim_that_brings_a_conflict_to_light_fails_closed() -> None:
    """Two hashes said to be one prompt's first block: no such engine, and no crash."""
    index = index_of("B")
    index.apply(TARGET, batch(_root([1], "a"), _root([2], "a")), 0.0)
    claim(index, "A")
    assert index.counters["hash_twins"] == 1
    assert _match(index, "a") <= 1


@pytest.mark.parametrize(("twins", "times"), [(False, 1), (True, 2)])
def test_an_event_whose_blocks_each_find_twins_is_stored_twice_at_most(twins: bool, times: int) -> None:
    """After each block two orphans with the same tokens wait. Once for every pair the whole event was stored anew, a megabyte of tokens each time."""
    word = "abcdefghijklmnop"
    index = index_of("A")
    for place in range(1, len(word) + 1):
        index.apply(TARGET, batch(stored([100 + place], "y", parent=place), stored([200 + place], "y" if twins else "z", parent=place)), 0.0)
    index.apply(TARGET, batch(_root(list(range(1, len(word) + 1)), word)), 0.0)
    assert index.counters["stored"] <= times * 3 * len(word)
    assert (index.counters["hash_twins"], index.counters["orphans_dropped"]) == ((1, len(word)) if twins else (0, 0))
    assert (_match(index, word), _match(index, word[:4] + "y"), index.sizes()[TARGET].orphans) == (len(word), 5, 0)


def test_what_waits_with_a_twin_is_adopted_when_the_event_is_stored_again() -> None:
    index = index_of("A")
    index.apply(TARGET, batch(*[stored([hash_], letter, parent=1) for hash_, letter in ((7, "b"), (8, "b"), (9, "c"))]), 0.0)
    index.apply(TARGET, batch(_root([1], "a")), 0.0)
    assert (index.counters["hash_twins"], _match(index, "ac"), index.sizes()[TARGET].orphans) == (1, 2, 0)


# -- generations -----------------------------------------------------------------------------------------------------------------------------------


def test_batches_of_other_generations_and_of_targets_that_are_not_there_are_refused() -> None:
    index = _holding(_root([1], "a"))
    assert not index.set_generation(TARGET, 1, 0.0)
    assert index.set_generation(TARGET, 5, 0.0)
    assert _match(index, "a") == 0
    assert not index.apply(TARGET, batch(_root([1], "a")), 0.0, generation=1).accepted
    assert index.apply(TARGET, batch(_root([1], "a")), 0.0, generation=5).accepted
    index.forget(TARGET)
    assert not index.apply(TARGET, batch(_root([2], "b")), 0.0, generation=5).accepted
    assert (index.generation(TARGET), index.sizes(), index.owners()) == (None, {}, {b"A": (0, 0)})
    assert (index.counters["old_generation"], index.counters["unknown_target"]) == (1, 1)


def test_clearing_forgets_all_that_a_target_holds_and_how_it_was_counted_stays() -> None:
    index = index_of("A")
    index.use_set_semantics(TARGET)
    index.apply(TARGET, batch(_root([1], "a"), _root([2], "b", "P"), stored([4], "c", parent=3), stored([5], "d")), 0.0)
    index.clear(TARGET)
    assert _match(index, "a") == 0
    index.advance()
    assert index.size_bytes == 0
    index.apply(TARGET, batch(_root([1], "a"), stored([2], "b", parent=1), stored([2], "b", parent=1), Removed((2,))), 0.0)
    assert _match(index, "ab") == 1


def test_what_was_forgotten_is_taken_apart_in_slices_and_counts_until_then() -> None:
    """A million blocks at once would hold up every request of the router for half a second."""
    index = index_of("A", sweep_slice=2)
    index.apply(TARGET, batch(_root([1, 2, 3, 4], "abcd"), _root([5], "x"), _root([6], "y", "P"), stored([7], "c", parent=99)), 0.0)
    whole = index.size_bytes
    index.clear(TARGET)
    assert (_match(index, "abcd"), index.sizes()[TARGET].credited, index._contents.remains) == (0, 0, 7)
    seen = []
    while index._contents.remains:
        seen.append(index._contents.remains)
        assert 0 < index.size_bytes <= whole
        index.advance()
    assert seen[0] == 7
    assert all(0 <= before - after <= 2 for before, after in pairwise(seen))
    assert index.size_bytes == 0
    assert not index._contents.owners[b"A"].leaves


def test_a_dropped_namespace_is_taken_apart_in_slices_and_counts_until_then() -> None:
    """A million blocks of one salt at once would hold up every request for a fifth of a second."""
    index = index_of("A", "B", sweep_slice=3)
    index.apply(TARGET, batch(_root([1, 2, 3, 4], "abcd"), _root([5], "a", "B")), 0.0)
    whole = index.size_bytes
    index.disclaim(salt("A"))
    assert (_match(index, "abcd"), _match(index, "a", "B"), index.sizes()[TARGET].credited) == (0, 1, 1)
    assert (index._contents.remains, index.size_bytes) == (4, whole)
    index.advance()
    assert 0 < index._contents.remains < 4
    index.advance()
    assert (index._contents.remains, index.size_bytes, _match(index, "a", "B")) == (0, _room(1), 1)
    assert len(index._contents.tables[TARGET].groups[0].known) == 1


def test_what_a_dropped_namespace_held_is_unknown_at_once_although_nobody_swept_it() -> None:
    """Its hashes are neither parents, nor copies, nor in conflict with what others store under them."""
    index = index_of("A", "B", sweep_slice=0)
    index.apply(TARGET, batch(_root([1, 2, 3, 4, 5], "abcde")), 0.0)
    index.disclaim(salt("A"))
    contents = index._contents
    for event in (Removed((4,)), _reached([5], "CPU"), stored([6], "f", parent=5), _root([1], "b", "B"), _root([3], "z", "P"), stored([2], "x")):
        change = contents.store if isinstance(event, Stored) else contents.remove
        change(contents.tables[TARGET], event)  # type: ignore[arg-type]
    sizes = index.sizes()[TARGET]
    assert (sizes.credited, sizes.parked, sizes.orphans, sizes.ignored, contents.remains) == (1, 1, 1, 1, 5)
    assert (index.counters["removed"], index.counters["removed_unknown"], index.counters["copies"]) == (0, 1, 0)
    assert (index.counters["without_tokens_unknown"], index.unusable(TARGET)) == (1, None)
    assert (_match(index, "b", "B"), len(next(contents.groups()).known)) == (1, 6)


def test_what_comes_again_after_its_namespace_was_dropped_stays_when_the_old_is_swept() -> None:
    index = index_of("A", sweep_slice=0)
    index.apply(TARGET, batch(_root([1, 2, 3], "abc")), 0.0)
    index.disclaim(salt("A"))
    claim(index, "A")
    assert _match(index, "abc") == 0
    contents = index._contents
    contents.store(contents.tables[TARGET], _root([1, 2], "ab"))
    assert (_match(index, "abc"), contents.remains) == (2, 3)
    contents.sweep(100)
    assert (_match(index, "abc"), contents.remains, index.sizes()[TARGET].credited) == (2, 0, 2)
    contents.store(contents.tables[TARGET], stored([3], "c", parent=2))
    assert (_match(index, "abc"), index.size_bytes) == (3, _room(3))


def test_an_engine_that_is_cleared_while_a_dropped_namespace_waits_leaves_nothing() -> None:
    index = index_of("A", "B", sweep_slice=0)
    index.apply(TARGET, batch(_root([1, 2, 3], "abc"), _root([4], "a", "B")), 0.0)
    index.disclaim(salt("A"))
    index.clear(TARGET)
    assert index.owners() == {b"B": (0, 0)}
    index._contents.sweep(100)
    assert (index._contents.remains, index.size_bytes, len(index._contents.owners[b"B"].leaves)) == (0, 0, 0)


def test_what_was_forgotten_and_what_is_new_never_take_more_than_the_bound() -> None:
    index = index_of("A", budget_bytes=_room(12), sweep_slice=0)
    for number in range(12):
        index.apply(TARGET, batch(_root([number], chr(ord("a") + number))), 0.0)
    for _ in range(3):
        index.clear(TARGET)
        for number in range(12):
            index.apply(TARGET, batch(_root([number], chr(ord("a") + number))), 0.0)
            assert index.size_bytes <= _room(12, 2)
    assert index.counters["evicted"] == 0


def test_a_full_owner_evicts_what_it_holds_and_not_what_was_forgotten() -> None:
    """Leaves of a cleared engine that nobody swept stand first among the least recently used."""
    index = index_of("A", budget_bytes=_room(4))
    index.apply(TARGET, batch(_root([1], "a"), _root([2], "b")), 0.0)
    index.clear(TARGET)
    contents = index._contents
    for number, letter in enumerate("cdefg", 3):
        contents.store(contents.tables[TARGET], _root([number], letter))
    contents.trim()
    assert [_match(index, letter) for letter in "abcdefg"] == [0, 0, 0, 1, 1, 1, 1]
    index.advance()
    assert [_match(index, letter) for letter in "abcdefg"] == [0, 0, 0, 1, 1, 1, 1]
    assert len(contents.owners[b"A"].leaves) == 4


def test_unknown_events_and_fields_are_counted() -> None:
    index = index_of("A")
    index.apply(TARGET, Batch(0.0, (Unknown("BlockMoved"), Unknown("x")), 0, unknown_fields=3), 0.0)
    assert (index.counters["unknown_events"], index.counters["unknown_fields"]) == (2, 3)


# -- bounds ----------------------------------------------------------------------------------------------------------------------------------------


def test_least_recently_used_leaves_go_first_and_leave_no_holes() -> None:
    index = index_of("A", budget_bytes=_room(6))
    index.apply(TARGET, batch(_root([1, 2, 3], "abc"), _root([4, 5, 6], "xyz")), 0.0)
    assert _match(index, "abc") == 3  # used again
    assert index.apply(TARGET, batch(_root([7, 8], "mn")), 0.0).evicted == 2
    assert [_match(index, word) for word in ("abc", "xyz", "mn")] == [3, 1, 2]
    assert (index.counters["evicted"], index.counters["holes_matched"], index.owners()[b"A"]) == (2, 0, (6, 2))


def test_each_pays_down_to_its_share_and_no_further() -> None:
    """Both come over it in one batch: whoever is asked first does not pay for both."""
    index = index_of("A", "B", budget_bytes=_room(6, 2))
    index.apply(TARGET, batch(_root([1, 2, 3, 4, 5, 6], "abcdef"), _root([7, 8, 9, 10, 11], "abcde", "B")), 0.0)
    assert (_match(index, "abcdef", "A"), _match(index, "abcdef", "B")) == (3, 3)


def test_a_namespace_in_a_group_takes_as_much_as_some_blocks() -> None:
    """A block of each of many namespaces takes three times what a block of one takes; else the bound would be passed by as much."""
    names = "ABCDEFGH"
    index = index_of(*names, budget_bytes=_room(4, 4))
    for number, name in enumerate(names):
        index.apply(TARGET, batch(_root([number], "a", name)), 0.0)
        assert index.size_bytes <= _room(4, 4)
    assert sum(_match(index, "a", name) for name in names) == 4
    one = index_of("A", budget_bytes=_room(4, 4))
    one.apply(TARGET, batch(_root(list(range(20)), "abcdefghijklmnopqrst")), 0.0)
    assert _match(one, "abcdefghijklmnopqrst") == 4 + 3 * SEGMENT_BLOCKS


def test_the_garbage_collector_goes_through_no_namespaces_and_none_outlives_its_index() -> None:
    """A million segments would hold up every request for a third of a second in each full collection."""
    index = _holding(*[_root([number], letter) for number, letter in enumerate("abc")])
    index.apply(TARGET, batch(Removed((1,))), 0.0)
    (group,) = index._contents.groups()
    (segment,) = group.segments.values()
    assert not any(gc.is_tracked(each) for each in (segment, segment.held, segment.lost, group.segments, index._contents.segments))
    assert gc.is_tracked(group)
    gone = weakref.ref(group)
    del group, segment, index
    gc.collect()
    assert gone() is None


def test_whoever_spreads_blocks_over_namespaces_pays_for_that() -> None:
    """Five blocks in five namespaces against nine in one, with room for ten and six: the five take more than an equal share."""
    index = EventIndex(budget_bytes=_room(10, 6))
    index.set_generation(TARGET, 1, 0.0)
    for name, owner in [("B", b"B"), *((name, b"A") for name in "PQRST")]:
        index.claim(salt(name), ns_key=ns_key(name), owner=owner, seed=seed(name))
    index.apply(TARGET, batch(_root(list(range(9)), "abcdefghi", "B")), 0.0)
    for number, name in enumerate("PQRST", 100):
        index.apply(TARGET, batch(_root([number], "a", name)), 0.0)
    assert {owner: held[0] for owner, held in index.owners().items()} == {b"A": 3, b"B": 9}
    assert index._contents.owners[b"A"].weight <= (10 + 6 * SEGMENT_BLOCKS) // 2


def test_parked_blocks_are_bounded_and_the_largest_salt_pays() -> None:
    size = WAITING_BYTES + 8 + SALT_BYTES
    index = index_of(parked_bytes=11 * size - SALT_BYTES)
    index.apply(TARGET, batch(_root([1, 2], "ab"), *[_root([100 + number], chr(97 + number), "B") for number in range(20)]), 0.0)
    assert index.counters["parked_dropped"] == 12
    claim(index, "A")
    claim(index, "B")
    assert _match(index, "ab") == 2
    assert [_match(index, letter, "B") for letter in "ahi"] == [1, 1, 0]


def test_salts_that_are_parked_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_contents, "MAX_PARKED_SALTS", 2)
    index = _holding(*[_root([number], "a", name) for number, name in enumerate("PQR")])
    assert (index.sizes()[TARGET].parked, index.counters["ignored_crowded"]) == (2, 1)
    claim(index, "R")
    index.apply(TARGET, batch(_root([2], "a", "R")), 0.0)
    assert _match(index, "a", "R") == 1


OTHER = ("http://other:8000", 0)


def _index_of_two(*names: str, **bounds: int) -> EventIndex:
    """A true engine, and another with two ranks whose owner lies."""
    index = index_of(*names, **bounds)
    for rank in (0, 1):
        index.set_generation((OTHER[0], rank), 1, 0.0)
    return index


def test_an_engine_with_many_salts_crowds_out_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_contents, "MAX_PARKED_SALTS", 2)
    index = _index_of_two()
    index.apply(OTHER, batch(*[_root([number], "a", name) for number, name in enumerate("PQR")]), 0.0)
    assert index.counters["ignored_crowded"] == 1
    index.apply(TARGET, batch(_root([1], "a")), 0.0)
    claim(index, "A")
    assert _match(index, "a") == 1


def test_parked_blocks_of_small_salts_push_out_no_other_engines() -> None:
    index = _index_of_two(parked_bytes=20 * (WAITING_BYTES + 8 + SALT_BYTES))
    index.apply(TARGET, batch(_root([1, 2, 3, 4, 5], "abcde")), 0.0)
    for number in range(100):
        index.apply((OTHER[0], number % 2), batch(_root([number], "a", f"f{number}")), 0.0)
    assert index.counters["parked_dropped"] > 0
    claim(index, "A")
    assert _match(index, "abcde") == 5


def test_large_orphans_push_out_no_other_engines() -> None:
    index = _index_of_two("A", orphan_bytes=100 * 1024)
    index.apply(TARGET, batch(*[stored([number], "b", parent=number + 100) for number in range(10)]), 0.0)
    for number in range(9):
        index.apply(OTHER, batch(Stored((number,), number + 100, bytes(40 * 1024), 10 * 1024)), 0.0)
    assert index.counters["orphans_dropped"] > 0
    assert index.sizes()[TARGET].orphans == 10


def test_passed_over_blocks_in_many_groups_push_out_no_other_engines() -> None:
    index = _index_of_two("A", ignored_bytes=40 * IGNORED_BYTES)
    index.apply(TARGET, batch(*[stored([number], "b") for number in range(10)]), 0.0)
    for number in range(8):
        events = [stored([1000 * number + each], "b", group=number // 2) for each in range(9)]
        index.apply((OTHER[0], number % 2), batch(*events), 0.0)
    assert index.counters["ignored_dropped"] > 0
    assert index.sizes()[TARGET].ignored == 10


@pytest.mark.parametrize("more", [{"keys": ["sr1-" + "x" * 1_000_000]}, {"keys": [salt("P")], "adapter": "y" * 1_000_000}])
def test_names_as_long_as_messages_are_not_kept(more: dict[str, object]) -> None:
    index = _holding(stored([1], "a", **more))  # type: ignore[arg-type]
    assert (index.sizes()[TARGET].parked, index.sizes()[TARGET].ignored) == (0, 1)


def test_orphans_are_bounded_and_the_oldest_go() -> None:
    index = index_of("A", orphan_bytes=5 * (WAITING_BYTES + 8))
    index.set_generation((URL, 1), 1, 0.0)
    index.apply((URL, 1), batch(stored([1], "a", parent=0)), 0.0)
    index.apply(TARGET, batch(*[stored([number], "b", parent=number + 100) for number in range(10)]), 0.0)
    assert (index.sizes()[(URL, 1)].orphans, index.sizes()[TARGET].orphans) == (1, 4)
    assert index.counters["orphans_dropped"] == 6
    index.apply(TARGET, batch(_root([109], "z")), 0.0)
    assert _match(index, "zb") == 2


class Compared(int):
    """An engine's hash that counts how often it is compared with another."""

    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return int.__eq__(self, other)

    __hash__ = int.__hash__


@pytest.mark.parametrize("first", [1, -1], ids=["oldest first", "newest first"])
def test_of_very_many_orphans_of_one_parent_any_goes_as_quickly(first: int) -> None:
    """One removal among 160,000 would cost milliseconds otherwise, and one event holds 65,536 of them."""
    index = index_of("A")
    hashes = [Compared(number + 10) for number in range(500)]
    index.apply(TARGET, batch(*[stored([each], "b", parent=5) for each in hashes]), 0.0)
    assert index.sizes()[TARGET].orphans == 500
    Compared.times = 0
    index.apply(TARGET, batch(Removed(tuple(hashes[::first][:499]))), 0.0)
    assert index.sizes()[TARGET].orphans == 1
    assert Compared.times < 10 * 500
    (left,) = hashes[::first][499:]
    index.apply(TARGET, batch(_root([5], "z")), 0.0)  # the parent of the one that is left
    assert (_match(index, "zb"), index.sizes()[TARGET].orphans) == (2, 0)
    index.apply(TARGET, batch(Removed((left,))), 0.0)
    assert _match(index, "zb") == 1


@pytest.mark.parametrize("gone", [(), (0,), (7,), (0, 7), (0, 7, 8)])
def test_orphans_of_one_parent_are_adopted_but_those_that_went_before(gone: tuple[int, ...]) -> None:
    """Zero is a hash as any other."""
    index = index_of("A")
    index.apply(TARGET, batch(*[stored([each], word, parent=5) for each, word in zip((0, 7, 8), "bcd", strict=True)]), 0.0)
    index.apply(TARGET, batch(Removed(gone), _root([5], "z")), 0.0)
    assert [_match(index, f"z{word}") for word in "bcd"] == [1 if each in gone else 2 for each in (0, 7, 8)]
    (group,) = index._tables[TARGET].groups.values()
    assert (group.waiting_for, len(group.orphans)) == ({}, 0)


def test_passed_over_blocks_are_bounded() -> None:
    index = index_of("A", ignored_bytes=4 * IGNORED_BYTES)
    index.apply(TARGET, batch(*[stored([number], "b") for number in range(10)]), 0.0)
    assert (index.sizes()[TARGET].ignored, index.counters["ignored_dropped"]) == (4, 6)
