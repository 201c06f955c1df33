"""Payloads of engines, recorded and made by hand, and bytes that are none."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import blocks, kv_events, kv_events_trtllm
from routing.core.kv_events import Batch, Cleared, EventError, Removed, Stored, Unknown, decode, salt_of
from routing.core.kv_events_trtllm import BlockSize
from tests.routing.core.kv_stream import salt

VECTORS = Path(__file__).parents[2] / "vectors"
encode = msgspec.msgpack.encode
STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [7, 2**64 - 1],
    "parent_block_hash": 9,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": 1,
    "medium": "GPU",
    "lora_name": "ad",
    "extra_keys": [["ad"], ["ad"]],
    "group_idx": 3,
    "kv_cache_spec_kind": "sliding_window",
    "kv_cache_spec_sliding_window": 128,
    "locality": "LOCAL",
    "ownership": "me",
    "session_id": "s",
}
READ = Stored(
    (7, 2**64 - 1), 9, blocks.pack([1, 2, 3, 4]), 2, "GPU", "ad", (("ad",), ("ad",)), 3, "sliding_window", 128, "LOCAL", "me"
)  # fmt: skip


def _one(event: object) -> object:
    batch = decode(encode([1.5, [event], 2]))
    assert (batch.timestamp_s, batch.rank) == (1.5, 2)
    (read,) = batch.events
    return read


def test_a_map_of_vllm_with_every_field() -> None:
    assert _one(STORED) == READ
    assert _one({"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU", "group_idx": 2, "locality": "LOCAL", "ownership": "x"}) == Removed(
        (1,), "CPU", 2, "LOCAL", "x"
    )
    assert _one({"type": "AllBlocksCleared"}) == Cleared()


def test_an_array_of_older_vllm_may_end_early() -> None:
    values = [STORED[name] for name in list(STORED)[1:]]
    assert _one(["BlockStored", *values[:-1]]) == READ
    short = _one(["BlockStored", *values[:5]])
    assert short == Stored((7, 2**64 - 1), 9, READ.tokens, 2)
    assert _one(["BlockRemoved", [1]]) == Removed((1,))
    assert _one(["BlockRemoved", [1], "GPU", 1]) == Removed((1,), "GPU", 1)
    assert _one(["AllBlocksCleared"]) == Cleared()


def test_sglang_tells_the_salt_in_a_field_of_its_own() -> None:
    """Its array has seven elements and, with a salt, a map behind them; its newer map a field."""
    values = [[-1, 5], None, [1, 2, 3, 4], 2, None, "GPU"]
    for event in (
        ["BlockStored", *values, {"cache_salt": salt("A")}],
        {**dict(zip(list(STORED)[1:7], values, strict=True)), "type": "BlockStored", "cache_salt": salt("A"), "session_id": "s"},
    ):
        stored = _one(event)
        assert isinstance(stored, Stored)
        assert (stored.hashes, stored.medium, stored.extra_keys, salt_of(stored)) == ((2**64 - 1, 5), "GPU", None, salt("A"))
    assert _one(["BlockStored", *values]) == Stored((2**64 - 1, 5), None, READ.tokens, 2, "GPU")
    assert _one(["BlockStored", *values[:-1], "CPU_TIER1"]) == Stored((2**64 - 1, 5), None, b"", 2, "CPU_TIER1")


def test_hashes_of_32_bytes_and_integers_are_read_alike_from_the_recordings() -> None:
    rows = json.loads((VECTORS / "vllm-0.32" / "kv_lora.json").read_text())
    batches = [decode(base64.b64decode(row["payload_b64"])) for row in rows]
    assert all(batch.unknown_fields == 0 for batch in batches)
    assert [len(event.tokens) for batch in batches for event in batch.events if isinstance(event, Stored)] == [3 * 32 * 4] * 4


@pytest.mark.parametrize(
    ("keys", "adapter", "expected"),
    [
        (None, None, None),
        ([], None, None),
        (["s"], None, "s"),
        (["ad", "s"], "ad", "s"),
        (["ad"], "ad", None),
        (["s", "s"], "s", "s"),
        (["s"], "s", None),  # an adapter named like a salt is no salt
        ([["image", 3], "s"], None, "s"),
        (["ad", ["image", 3], "s"], "ad", "s"),
        ([["image", 3]], None, None),
        (["s", ["image", 3]], None, "s"),
        ([4, None], None, None),
    ],
)
def test_which_key_is_the_salt(keys: list[object] | None, adapter: str | None, expected: str | None) -> None:
    stored = _one({**STORED, "parent_block_hash": None, "lora_name": adapter, "extra_keys": [keys, None]})
    assert isinstance(stored, Stored)
    assert salt_of(stored) == expected
    child = _one({**STORED, "parent_block_hash": 1, "lora_name": adapter, "extra_keys": [keys, None]})
    assert isinstance(child, Stored)
    assert salt_of(child) is None


def test_what_is_new_is_counted_and_passed_over() -> None:
    batch = decode(
        encode(
            [
                1.0,
                [
                    {**STORED, "new": 1, "newer": 2},
                    {"type": "BlockMoved", "x": 1},
                    ["BlockMoved", 1],
                    {"no": "type"},
                    {**STORED, "token_ids": [[1, 2], [2, 3]]},
                    {"type": "AllBlocksCleared", "why": "x"},
                ],
                0,
                "more",
            ]
        )
    )
    assert batch.unknown_fields == 4
    assert batch.events == (READ, Unknown("BlockMoved"), Unknown("BlockMoved"), Unknown("None"), Unknown("BlockStored of pairs"), Cleared())


def test_placeholders_of_other_tiers_have_no_tokens() -> None:
    assert _one({"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": [], "block_size": 0, "medium": "CPU"}) == Stored(
        (1,), None, b"", 0, "CPU"
    )


@pytest.mark.parametrize("place", [{"medium": "cpu"}, {"medium": "STORAGE"}, {"locality": "REMOTE"}])
def test_of_other_tiers_the_hashes_alone_are_read(place: dict[str, str]) -> None:
    """Their connectors cut tokens and keys as they like: the last chunk of a prompt is short, and none of it may cost the engine's own events."""
    event = {**STORED, "token_ids": [1, 2, 3], "extra_keys": [None]}
    read = _one({**event, **place})
    assert read == Stored((7, 2**64 - 1), None, b"", 2, place.get("medium", "GPU"), group=3, locality=place.get("locality", "LOCAL"), ownership="me")
    with pytest.raises(EventError):
        _one(event)


@pytest.mark.parametrize(
    ("event", "where"),
    [
        ({"type": "BlockStored"}, "block_hashes"),
        ({**STORED, "token_ids": [1, 2, 3]}, "token_ids"),
        ({**STORED, "token_ids": [1, 2, 3, -4]}, "token_ids"),
        ({**STORED, "token_ids": [1, 2, 3, 2**32]}, "token_ids"),
        ({**STORED, "token_ids": [1, 2, 3, "4"]}, "token_ids"),
        ({**STORED, "block_size": 0}, "token_ids"),
        ({**STORED, "extra_keys": [None]}, "extra_keys"),
        ({**STORED, "block_hashes": ["x", "y"]}, "block_hashes"),
        ({**STORED, "block_hashes": [b"x" * 33, 1]}, "block_hashes"),
        ({**STORED, "group_idx": "0"}, "group_idx"),
        ({"type": "BlockRemoved", "block_hashes": [1] * (kv_events.MAX_BLOCKS + 1)}, "block_hashes"),
        (["BlockStored", [1]], "parent_block_hash"),
        ("BlockStored", "events"),
        ([], "events"),
    ],
)
def test_a_malformed_event_is_refused_by_its_field(event: object, where: str) -> None:
    with pytest.raises(EventError, match=where):
        _one(event)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        encode({}),
        encode([1.0]),
        encode(["x", [], 0]),
        encode([1.0, {}, 0]),
        encode([1.0, [], "0"]),
        encode([1.0, [], 0]) + b"\x00",
        b"\x91" * 100_000,
        encode([1.0, [{"type": "AllBlocksCleared"}] * (kv_events.MAX_EVENTS + 1), 0]),
        b"\x00" * (kv_events.MAX_MESSAGE_BYTES + 1),
    ],
    ids=range(11),
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(EventError):
        decode(payload)


@given(payload=st.binary(max_size=200))
def test_any_bytes_give_a_batch_or_one_error(payload: bytes) -> None:
    with suppress(EventError):
        assert isinstance(decode(payload), Batch)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**64 - 1) | st.text(max_size=5) | st.floats(allow_nan=False) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*STORED, "x"]), inner, max_size=5),
    max_leaves=12,
)


@given(
    fields=st.dictionaries(st.sampled_from(list(STORED)), JSON, max_size=6),
    tag=st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "x"]),
)
def test_any_values_in_the_known_fields_give_a_batch_or_one_error(fields: dict[str, Any], tag: str) -> None:
    for event in ({**STORED, **fields, "type": tag}, [tag, *{**STORED, **fields}.values()]):
        with suppress(EventError):
            decode(encode([1.0, [event], 0]))


def test_a_large_message_is_read_in_steps_that_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step reads about ``STEP_BYTES`` of events, or one; all together are what one go would have given, whatever form the events have."""
    events: list[Any] = [STORED, ["BlockRemoved", [1]], {**STORED, "new": 1}, {"type": "BlockRemoved", "block_hashes": [2]}, ["Odd", 1]] * 400
    payload = encode([1.5, events, 2, "more"])
    whole = decode(payload)
    steps = list(kv_events.decode_in_steps(payload))
    assert len(whole.events) == 2000
    assert [event for step in steps for event in step.events] == list(whole.events)
    assert sum(step.unknown_fields for step in steps) == whole.unknown_fields == 401
    assert len(steps) == -(-len(payload) // kv_events.STEP_BYTES)
    assert all((step.timestamp_s, step.rank) == (1.5, 2) for step in steps)
    many = list(kv_events.decode_in_steps(encode([1.5, [["x"]] * 2500, 2])))
    assert [len(step.events) for step in many] == [kv_events.STEP_EVENTS, kv_events.STEP_EVENTS, 500]
    monkeypatch.setattr(kv_events, "STEP_BYTES", 1)
    assert [len(step.events) for step in kv_events.decode_in_steps(payload)][:3] == [1, 1, 1]


def test_what_comes_before_a_malformed_event_is_good() -> None:
    steps = kv_events.decode_in_steps(encode([1.0, [STORED] * 400 + [{**STORED, "block_size": 3}], 0]))
    with pytest.raises(EventError, match="token_ids"):
        assert [next(steps).events[0] for _ in range(9)]


def test_extra_keys_of_very_many_parts_credit_nobody_and_are_not_built() -> None:
    """A thousand blocks of one adapter's name cost one; thousands of little lists would hold up others, so such a block is nobody's."""
    alike = {**STORED, "block_hashes": list(range(9000)), "token_ids": [1] * 9000, "block_size": 1, "extra_keys": [["adapter-name"]] * 9000}
    stored = _one(alike)
    assert isinstance(stored, Stored)
    assert stored.extra_keys == (("adapter-name",),) * 9000
    keys: list[Any] = [[number.to_bytes(4, "big"), []] for number in range(9000)]
    assert _one({**alike, "extra_keys": keys}) == Unknown("BlockStored with very many keys")
    assert _one({**alike, "extra_keys": [[[]] * kv_events.MAX_KEYS_BYTES] + [None] * 8999}) == Unknown("BlockStored with very many keys")


def _json(*events: object) -> bytes:
    return json.dumps(list(events)).encode()


def _polled(payload: bytes, size: BlockSize | None = None) -> list[kv_events_trtllm.Numbered]:
    return list(kv_events_trtllm.decode(payload, size or BlockSize()))


def _block(own: int, token_ids: list[int], **more: object) -> dict[str, object]:
    listed = [{"type": "unique_token", "token_id": token, "token_extra_id": 0} for token in token_ids]
    return {"type": "stored_block", "block_hash": own, "tokens": listed, "cache_level": 0, "priority": 35, **more}


def test_tensorrt_llm_stores_moves_and_removes() -> None:
    stored = {"type": "stored", "parent_hash": None, "blocks": [_block(1, [5, 6], cache_salt=salt("A")), _block(2, [7, 8]), _block(3, [9])]}
    answer = _polled(
        _json(
            {"event_id": 0, "data": {"type": "created", "num_blocks_per_cache_level": [10, 0]}, "window_size": 128},
            {"event_id": 1, "data": stored, "attention_dp_rank": 1},
            {
                "event_id": 2,
                "data": {"type": "updated", "block_hash": 1, "cache_level": {"type": "event_diff", "old_value": 0, "new_value": 1}, "priority": None},
            },
            {"event_id": 3, "data": {"type": "removed", "block_hashes": [2, -1]}},
            {"event_id": 4, "data": {"type": "updated", "block_hash": 1, "cache_level": None, "priority": {"old_value": 1, "new_value": 2}}},
            {"event_id": 5, "data": {"type": "later", "x": 1}},
        ),
    )
    assert [each.seq for each in answer] == [0, 1, 2, 3, 4, 5]
    assert answer[1].batch.rank == 1
    assert [each.batch.events for each in answer] == [
        (Cleared(),),
        (  # the partial block is left out
            Stored((1,), None, blocks.pack([5, 6]), 2, medium="GPU", cache_salt=salt("A")),
            Stored((2,), 1, blocks.pack([7, 8]), 2, medium="GPU"),
        ),
        (Stored((1,), None, b"", 0, medium="CPU"), Removed((1,), "GPU")),
        (Removed((2, 2**64 - 1), "GPU"), Removed((2, 2**64 - 1), "CPU")),
        (),
        (Unknown("later"),),
    ]


def test_tensorrt_llm_media_are_no_plain_blocks() -> None:
    stored = {"type": "stored", "parent_hash": 9, "blocks": [_block(1, [5, 6], mm_keys=[{"type": "mm_key", "hash": "ab", "start_offset": 0}])]}
    (answer,) = _polled(_json({"event_id": 1, "data": stored}), BlockSize(2))
    (event,) = answer.batch.events
    assert isinstance(event, Stored)
    assert event.extra_keys == ((("media",),),)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        _json({"event_id": 1}),
        _json({"event_id": 1, "data": {"type": "stored"}}),
        _json({"event_id": "1", "data": {"type": "created"}}),
        b"[" * 9999,
    ],
)
def test_tensorrt_llm_malformed_answers_are_refused(payload: bytes) -> None:
    with pytest.raises(EventError):
        _polled(payload)


def test_tensorrt_llm_token_ids_are_bounded() -> None:
    stored = {"type": "stored", "parent_hash": None, "blocks": [_block(1, [5, -6])]}
    with pytest.raises(EventError, match="token id"):
        _polled(_json({"event_id": 1, "data": stored}), BlockSize(2))


def test_tensorrt_llm_tells_no_block_size_until_a_block_has_a_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that came alone may be a prompt's partial end. What came before is read once the size showed, in order."""

    def stored(number: int, parent: int | None, *blocks: dict[str, object]) -> dict[str, object]:
        return {"event_id": number, "data": {"type": "stored", "parent_hash": parent, "blocks": list(blocks)}}

    size = BlockSize()
    assert _polled(_json(stored(0, None, _block(1, [5])), {"event_id": 1, "data": {"type": "removed", "block_hashes": [9]}}), size) == []
    assert _polled(_json(stored(2, None, _block(2, [5, 6]))), size) == []
    answer = _polled(_json(stored(3, 2, _block(3, [7, 8])), stored(4, 3, _block(4, [9]))), size)
    assert size.tokens == 2
    assert [each.seq for each in answer] == [0, 1, 2, 3, 4]
    assert [len(each.batch.events) for each in answer] == [0, 2, 1, 1, 0]
    monkeypatch.setattr(kv_events_trtllm, "MAX_WAITING", 2)
    size = BlockSize()
    assert _polled(_json(*[stored(number, None, _block(number, [5, 6])) for number in range(3)]), size) == []
    assert [each.seq for each in _polled(_json(stored(3, None, _block(8, [5, 6]), _block(9, [1]))), size)] == [3]  # those before are lost
