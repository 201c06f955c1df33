"""What TensorRT-LLM's events say of a process's blocks, and what reading them may cost. Their form is held in ``test_kv_events.py``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from routing.core import kv_events_trtllm
from routing.core.kv_events import Batch, Stored
from routing.core.kv_events_trtllm import BlockSize


def _block(own: int, tokens: Sequence[int], **more: object) -> dict[str, object]:
    return {"block_hash": own, "tokens": [{"token_id": token} for token in tokens], **more}


def _stored(number: int, *blocks: dict[str, object], parent: int | None = None, **more: object) -> dict[str, object]:
    return {"event_id": number, "data": {"type": "stored", "parent_hash": parent, "blocks": list(blocks)}, **more}


def _read(size: BlockSize, *events: dict[str, object]) -> list[tuple[int, list[int]]]:
    """Each event's number, and the sizes of the blocks it brings."""
    answer = kv_events_trtllm.decode(json.dumps(events).encode(), size)
    return [(one.seq, [each.block_tokens for each in one.batch.events if isinstance(each, Stored)]) for one in answer]


CREATED: dict[str, object] = {"event_id": 0, "data": {"type": "created"}}


@pytest.mark.parametrize("first", [[CREATED], []], ids=["says that it began", "its beginning is lost"])
def test_numbers_that_go_back_bring_blocks_of_another_size(first: list[dict[str, object]]) -> None:
    """Another process may be configured otherwise; the size of the one before would credit none of its blocks."""
    size = BlockSize()
    assert _read(size, _stored(7, _block(1, [5, 6]), _block(2, [7, 8]))) == [(7, [2, 2])]
    assert _read(size, _stored(8, _block(3, [5, 6]))) == [(8, [2])]  # the control: numbers go on, and a block that comes alone is read
    again = [*first, _stored(1, _block(1, [1, 2, 3, 4]), _block(2, [5, 6, 7, 8]))]
    assert _read(size, *again) == [*[(0, []) for _ in first], (1, [4, 4])]


def test_that_an_engine_was_restarted_does_not_wait_for_the_size_of_its_blocks() -> None:
    """Until that is known the old process's blocks would count: the first event is handed on at once, what follows waits."""
    size = BlockSize()
    _read(size, _stored(7, _block(1, [5, 6]), _block(2, [7, 8])))
    assert _read(size, _stored(3, _block(1, [1, 2, 3, 4]))) == [(3, [])]
    assert _read(size, _stored(4, _block(2, [5, 6, 7, 8]))) == []
    assert _read(size, _stored(5, _block(3, [1]), parent=2)) == [(4, [4]), (5, [])]


def test_another_ranks_numbers_say_nothing_of_this_ones_process() -> None:
    size = BlockSize()
    _read(size, _stored(7, _block(1, [5, 6]), _block(2, [7, 8])))
    assert _read(size, _stored(0, _block(9, [1, 2]), attention_dp_rank=1), _stored(8, _block(3, [5, 6]))) == [(0, [2]), (8, [2])]


@pytest.mark.parametrize(("keys", "plain"), [({}, True), ({"mm_keys": None}, True), ({"mm_keys": []}, True), ({"mm_keys": [{"hash": "ab"}]}, False)])
def test_media_part_a_block_from_text_and_what_names_them_is_not_built(keys: dict[str, Any], plain: bool) -> None:
    """One event of 2 MB of little lists held the router for 0.15 s."""
    (answer,) = kv_events_trtllm.decode(json.dumps([_stored(1, _block(1, [5, 6], **keys))]).encode(), BlockSize(2))
    assert isinstance(answer.batch, Batch)
    (event,) = answer.batch.events
    assert isinstance(event, Stored)
    assert event.extra_keys == (None if plain else ((("media",),),))
    block = msgspec.json.decode(json.dumps(_block(1, [5, 6], **keys)).encode(), type=kv_events_trtllm._StoredBlock)
    assert isinstance(block.mm_keys, msgspec.Raw)
