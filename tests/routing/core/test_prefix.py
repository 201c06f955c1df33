"""The prefix chain: extends with the prompt, breaks at an edit, and is meaningless outside its namespace."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from routing.core import prefix
from routing.core.prefix import BLOCK_BYTES, FINE_BLOCKS, WIDE_BYTES

seeds = st.binary(min_size=32, max_size=32)
digests = st.binary(min_size=16, max_size=16)
prompts = st.binary(max_size=5 * BLOCK_BYTES + 7) | st.integers(0, 3 * WIDE_BYTES).map(lambda more: bytes(range(256)) * 16 + b"m" * more)
plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3),
    max_leaves=5,
)
messages = st.lists(st.fixed_dictionaries({"role": plain, "content": json_values}), max_size=4)


@given(seeds, prompts)
def test_one_digest_for_each_whole_block(seed: bytes, prompt: bytes) -> None:
    chain = prefix.chain(seed, prompt)
    assert len(chain) == prefix.whole_blocks(len(prompt))
    assert all(len(digest) == 16 for digest in chain)
    assert len(set(chain)) == len(chain)


@given(seeds, prompts, prompts)
def test_a_longer_prompt_extends_the_chain(seed: bytes, prompt: bytes, more: bytes) -> None:
    before, after = prefix.chain(seed, prompt), prefix.chain(seed, prompt + more)
    assert after[: len(before)] == before


@given(seeds, st.binary(min_size=2 * BLOCK_BYTES, max_size=6 * BLOCK_BYTES) | st.just(bytes(range(256)) * 30), st.data())
def test_an_edit_changes_every_digest_from_its_block_on_and_none_before(seed: bytes, prompt: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(prompt) - 1))
    edited = prompt[:place] + bytes([prompt[place] ^ 1]) + prompt[place + 1 :]
    before, after = prefix.chain(seed, prompt), prefix.chain(seed, edited)
    block = prefix.whole_blocks(place)
    assert after[:block] == before[:block]
    assert all(one != other for one, other in zip(before[block:], after[block:], strict=True))


@given(seeds, seeds, st.binary(min_size=BLOCK_BYTES, max_size=3 * BLOCK_BYTES))
def test_two_namespaces_have_no_digest_in_common(one: bytes, other: bytes, prompt: bytes) -> None:
    assume(one != other)
    assert not set(prefix.chain(one, prompt)) & set(prefix.chain(other, prompt))


def test_work_is_bounded_whatever_the_prompt() -> None:
    assert len(prefix.chain(bytes(32), bytes(prefix.MAX_BYTES + 1000))) == prefix.MAX_BLOCKS == prefix.whole_blocks(2 * prefix.MAX_BYTES)
    assert prefix.covered_bytes(prefix.MAX_BLOCKS) == prefix.MAX_BYTES


@given(st.integers(0, prefix.MAX_BYTES))
def test_what_blocks_cover_is_short_of_the_prompt_by_less_than_a_block(size_bytes: int) -> None:
    """Blocks and bytes are told from one another alike everywhere: what is covered fits, one block more would not, and what is lost is little."""
    blocks = prefix.whole_blocks(size_bytes)
    assert prefix.covered_bytes(blocks) <= size_bytes
    assert prefix.covered_bytes(blocks + 1) > size_bytes or blocks == prefix.MAX_BLOCKS
    lost = size_bytes - prefix.covered_bytes(blocks)
    assert lost < prefix.widest_bytes(size_bytes)
    assert lost < BLOCK_BYTES or lost < size_bytes / 8
    assert prefix.extent(blocks) * BLOCK_BYTES == prefix.covered_bytes(blocks)


@given(st.integers(0, 3 * FINE_BLOCKS))
def test_marks_are_as_far_apart_from_one_another_everywhere(blocks: int) -> None:
    """The measure of a working set counts a prompt's bytes, whatever its blocks."""
    digests = [bytes([block]) for block in range(blocks)]
    kept = prefix.marks(digests)
    ends = [prefix.covered_bytes(digests.index(one) + 1) for one in kept]
    assert ends == [WIDE_BYTES * (place + 1) for place in range(prefix.covered_bytes(blocks) // WIDE_BYTES)]


@given(messages, st.none() | st.lists(json_values, max_size=2))
def test_the_way_a_chat_is_written_does_not_count(conversation: list[Any], tools: list[Any] | None) -> None:
    spaced = json.loads(json.dumps(conversation, indent=3, sort_keys=True))
    reordered = [dict(reversed(message.items())) for message in conversation]
    written = prefix.chat_bytes(conversation, tools)
    assert prefix.chat_bytes(spaced, tools) == prefix.chat_bytes(reordered, tools) == written


@given(messages, messages, st.none() | st.lists(json_values, max_size=2))
def test_a_longer_chat_extends_a_shorter(conversation: list[Any], more: list[Any], tools: list[Any] | None) -> None:
    assert prefix.chat_bytes(conversation + more, tools).startswith(prefix.chat_bytes(conversation, tools))


@given(messages, messages)
def test_different_chats_are_written_differently(one: list[Any], other: list[Any]) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (prefix.chat_bytes(one) == prefix.chat_bytes(other)) == same


@given(st.lists(st.integers(0, 2**32 - 1)), st.lists(st.integers(0, 2**32 - 1)))
def test_different_token_lists_are_written_differently(one: list[int], other: list[int]) -> None:
    assert (prefix.prompt_bytes(one) == prefix.prompt_bytes(other)) == (one == other)


@given(plain, plain)
def test_different_texts_are_written_differently(one: str, other: str) -> None:
    assert (prefix.prompt_bytes(one) == prefix.prompt_bytes(other)) == (one == other)


@given(seeds, st.lists(digests, max_size=5), digests, digests)
def test_a_cold_prefix_ranks_replicas_alike_everywhere_and_apart(seed: bytes, chain: list[bytes], one: bytes, other: bytes) -> None:
    assume(one != other)
    assert prefix.rendezvous(seed, chain, one) == prefix.rendezvous(seed, chain[:2], one)  # a longer conversation keeps its first choice
    assert prefix.rendezvous(seed, chain, one) != prefix.rendezvous(seed, chain, other)
