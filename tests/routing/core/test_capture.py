"""Block ids of captures: equal for equal prefixes under one key, and for nothing else."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namespaces.core.captures import capture_key
from namespaces.core.keyring import TenantKey
from routing.core import capture
from routing.core.record import RecordError

KEY, OTHER = b"k" * 32, b"o" * 32
TENANT = uuid.UUID(int=7)


def ids(packed: bytes) -> tuple[int, ...]:
    return capture.ids(packed)


@given(st.integers(1, 1600), st.integers(0, 2**32 - 1), st.data())
def test_equal_ids_are_equal_prefixes(length: int, first: int, data: st.DataObject) -> None:
    """Changing one token changes its block's id and every later one, and no earlier one."""
    tokens = [(first + 7919 * place) % 200_000 for place in range(length)]
    place = data.draw(st.integers(0, length - 1))
    changed = [*tokens[:place], tokens[place] + 1, *tokens[place + 1 :]]
    before, after = ids(capture.token_blocks(KEY, tokens)), ids(capture.token_blocks(KEY, changed))
    block = place // capture.BLOCK_TOKENS
    assert len(before) == -(-len(tokens) // capture.BLOCK_TOKENS)
    assert before[:block] == after[:block]
    assert not set(before[block:]) & set(after[block:])


def test_a_longer_prompt_shares_the_whole_blocks_and_not_the_partial_one() -> None:
    tokens = list(range(1100))
    short, long = ids(capture.token_blocks(KEY, tokens[:1030])), ids(capture.token_blocks(KEY, tokens))
    assert short[:2] == long[:2]
    assert short[2] != long[2]


def test_a_partial_block_is_no_beginning_of_a_whole_one() -> None:
    """Its mark is a piece of content too: a prompt that ends in the bytes of the mark is another prompt."""
    text = b"a" * 100
    assert ids(capture.text_blocks(KEY, text)) != ids(capture.text_blocks(KEY, text + b"cut".ljust(32, b"\0")))


def test_text_and_tokens_never_match_and_their_lengths_agree_with_their_blocks() -> None:
    """The bytes of token ids, taken as text, give other ids; a text's blocks are as many as its length has."""
    tokens = list(range(512))
    packed = b"".join(token.to_bytes(4, "little") for token in tokens)
    assert not set(ids(capture.token_blocks(KEY, tokens))) & set(ids(capture.text_blocks(KEY, packed)))
    for length in (1, 3, 4, 2047, 2048, 2051, 2052, 9000):
        text = b"x" * length
        assert len(ids(capture.text_blocks(KEY, text))) == -(-capture.text_tokens(text) // capture.BLOCK_TOKENS)


def test_another_key_gives_other_ids_everywhere() -> None:
    """Blocks, sessions, scopes and the sample; the same key gives the same ones."""
    tokens = list(range(2000))
    assert capture.token_blocks(KEY, tokens) == capture.token_blocks(KEY, tuple(tokens))
    assert not set(ids(capture.token_blocks(KEY, tokens))) & set(ids(capture.token_blocks(OTHER, tokens)))
    assert capture.session_id(KEY, b"c") == capture.session_id(KEY, b"c") != capture.session_id(OTHER, b"c")
    assert capture.scope_id(KEY, b"c") != capture.scope_id(OTHER, b"c")
    assert len({capture.session_id(KEY, b"c"), capture.scope_id(KEY, b"c"), *ids(capture.text_blocks(KEY, b"c"))}) == 3


def test_a_share_of_the_conversations_is_taken_and_each_wholly() -> None:
    """The same answer for a conversation however often it is asked; a larger share takes all of a smaller one; the number is the share."""
    names = [str(number).encode() for number in range(4000)]
    quarter = {name for name in names if capture.sampled(KEY, name, 0.25)}
    half = {name for name in names if capture.sampled(KEY, name, 0.5)}
    assert quarter == {name for name in names if capture.sampled(KEY, name, 0.25)}
    assert quarter < half
    assert 850 < len(quarter) < 1150
    assert all(capture.sampled(KEY, name, 1.0) for name in names)
    assert quarter != {name for name in names if capture.sampled(OTHER, name, 0.25)}


def test_the_capture_s_key_needs_both_halves() -> None:
    """Another tenant key, capture or seed gives another key; a seed that could be guessed gives none."""
    key = TenantKey(tenant_id=TENANT, version=1, secret=b"t" * 32)
    one = uuid.UUID(int=1)
    found = {
        capture_key(key, one, b"s" * 32),
        capture_key(key, one, b"r" * 32),
        capture_key(key, uuid.UUID(int=2), b"s" * 32),
        capture_key(TenantKey(tenant_id=TENANT, version=1, secret=b"u" * 32), one, b"s" * 32),
    }
    assert len(found) == 4
    assert {len(one) for one in found} == {32}
    for seed in (b"", b"s" * 31, b"s" * 33):
        with pytest.raises(ValueError, match="32 bytes"):
            capture_key(key, one, seed)


def test_long_prompts_have_ids_up_to_the_bound() -> None:
    size = capture.MAX_BLOCKS * capture.BLOCK_TOKENS
    assert len(ids(capture.text_blocks(KEY, b"x" * (size * 4 + 5000)))) == capture.MAX_BLOCKS
    assert len(ids(capture.token_blocks(KEY, [1] * (size + 5)))) == capture.MAX_BLOCKS


@pytest.mark.parametrize("data", [b"", b"\x90", b"not msgpack"])
def test_what_is_no_record_is_told(data: bytes) -> None:
    with pytest.raises(RecordError, match="malformed"):
        capture.decode(data)
