"""Chains of token digests: prefixes, seeds, sizes."""

from __future__ import annotations

import hashlib
import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import blocks

SEED = bytes(range(32))
ids = st.lists(st.integers(0, 2**32 - 1), max_size=40)
sizes = st.integers(1, 9)


def test_a_chain_by_hand() -> None:
    root = hashlib.sha256(b"saltroute/blocks/v1" + SEED).digest()[:16]
    first = hashlib.sha256(root + struct.pack("<2I", 5, 70000)).digest()[:16]
    second = hashlib.sha256(first + struct.pack("<2I", 0, 2**32 - 1)).digest()[:16]
    assert blocks.token_chain(SEED, [5, 70000, 0, 2**32 - 1, 9], 2) == (first, second)
    assert blocks.root(SEED) == root
    assert blocks.child(root, struct.pack("<2I", 5, 70000)) == first


@given(token_ids=ids, more=ids, size=sizes)
def test_a_longer_prompt_extends_the_chain_of_a_shorter(token_ids: list[int], more: list[int], size: int) -> None:
    shorter = blocks.token_chain(SEED, token_ids, size)
    assert len(shorter) == len(token_ids) // size
    assert blocks.token_chain(SEED, [*token_ids, *more], size)[: len(shorter)] == shorter


@given(token_ids=ids.filter(lambda ids: len(ids) > 0), size=sizes, data=st.data())
def test_a_change_alters_its_block_and_all_after_it(token_ids: list[int], size: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(token_ids) - 1))
    changed = [*token_ids[:at], token_ids[at] ^ 1, *token_ids[at + 1 :]]
    before, after = blocks.token_chain(SEED, token_ids, size), blocks.token_chain(SEED, changed, size)
    assert before[: at // size] == after[: at // size]
    assert not set(before[at // size :]) & set(after[at // size :])


def test_seeds_sizes_and_kinds_of_sequences() -> None:
    token_ids = list(range(64))
    chain = blocks.token_chain(SEED, token_ids, 16)
    assert blocks.token_chain(SEED, array("I", token_ids), 16) == chain
    assert not set(blocks.token_chain(bytes(32), token_ids, 16)) & set(chain)
    assert not set(blocks.token_chain(SEED, token_ids, 32)) & set(chain)
    assert all(len(digest) == blocks.DIGEST_BYTES for digest in chain)


@pytest.mark.parametrize("token_ids", [[-1] * 2, [2**32] * 2, ["a", "b"], [1.5, 2]])
def test_what_is_no_token_id_is_refused(token_ids: list[int]) -> None:
    with pytest.raises(ValueError, match="token id"):
        blocks.token_chain(SEED, token_ids, 2)


def test_a_block_has_at_least_one_token() -> None:
    with pytest.raises(ValueError, match="block_tokens"):
        blocks.token_chain(SEED, [1], 0)
