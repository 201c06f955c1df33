"""The index fed with what real engines sent: it knows before each request what the engine then says it had cached."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from routing.core import blocks
from routing.core.event_index import EventIndex
from routing.core.kv_events import Batch, Cleared, Event, Removed, Stored, decode, salt_of
from tests.routing.core.kv_stream import ns_key, salt, seed

VECTORS = Path(__file__).parents[2] / "vectors"
BLOCK = 32
TARGET = ("http://engine:8000", 0)


def _load(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((VECTORS / name).read_text())
    return rows


def _salted(batch: Batch) -> Batch:
    """The recording with our salts for the recorded ones (none becomes one too), hashes as they are."""
    events: list[Event] = []
    for event in batch.events:
        if isinstance(event, Stored) and event.parent is None:
            adapter = () if event.lora_name is None else (event.lora_name,)
            first = (*adapter, salt(salt_of(event) or "none"))
            assert event.extra_keys is not None
            events.append(msgspec.structs.replace(event, extra_keys=(first, *event.extra_keys[1:])))
        else:
            events.append(event)
    return msgspec.structs.replace(batch, events=tuple(events))


def _index(*names: str, target: tuple[str, int] = TARGET) -> EventIndex:
    index = EventIndex()
    index.set_generation(target, 1, 0.0)
    for name in names:
        index.claim(salt(name), ns_key=ns_key(name), owner=b"o", seed=seed(name))
    return index


def _match(index: EventIndex, name: str, token_ids: list[int], target: tuple[str, int] = TARGET) -> int:
    return index.match(ns_key(name), blocks.token_chain(seed(name), token_ids, BLOCK), target, 1.0).blocks


def test_every_request_of_the_scenario_finds_what_the_index_says() -> None:
    index = _index("tenantA", "tenantB", "none")
    compared = 0
    for step in _load("vllm-0.32/kv_scenario.json"):
        if "prompt_token_ids" in step:
            name, prompt = step["salt"] or "none", step["prompt_token_ids"]
            most = (len(prompt) - 1) // BLOCK  # the engine always computes the last token
            usage = step["usage"] and step["usage"]["prompt_tokens_details"]
            if step["name"].startswith("16"):  # the reset before it is told with this request's own events, so nobody could know
                assert (_match(index, name, prompt), usage["cached_tokens"]) == (2, 0)
            elif usage:
                assert min(_match(index, name, prompt), most) * BLOCK == usage["cached_tokens"], step["name"]
                compared += 1
        for message in step["messages"]:
            applied = index.apply(TARGET, _salted(decode(base64.b64decode(message["payload_b64"]))), 1.0)
            assert applied.unusable is None
    assert compared > 15
    assert index.counters["hash_conflicts"] == index.counters["hash_twins"] == 0


def test_after_every_message_the_index_holds_what_a_plain_reading_of_the_stream_leaves() -> None:
    """The plain reading: copies of each hash, counted; from the full report to the reset, one removal is the end of it."""
    index = _index("tenantA", "tenantB", "none")
    copies: Counter[object] = Counter()
    as_set = False
    for step in _load("vllm-0.32/kv_scenario.json"):
        for message in step["messages"]:
            batch = decode(base64.b64decode(message["payload_b64"]))
            as_set = as_set or step.get("report_mode") == "full"
            for event in batch.events:
                if isinstance(event, Stored):
                    for hash_ in event.hashes:
                        copies[hash_] = 1 if as_set else copies[hash_] + 1
                elif isinstance(event, Removed):
                    for hash_ in event.hashes:
                        copies[hash_] = 0 if as_set else copies[hash_] - 1
                elif isinstance(event, Cleared):
                    copies.clear()
                    as_set = False
            index.apply(TARGET, _salted(batch), 1.0)
            assert index.sizes()[TARGET].credited == sum(1 for count in copies.values() if count > 0), step["name"]


def test_a_copy_that_stays_still_counts_after_the_other_was_evicted() -> None:
    """Steps 17 to 20: the same answer generated twice, one copy evicted, and the engine still finds it."""
    index = _index("tenantA", "none")
    steps = {step["name"][:3].strip(): step for step in _load("vllm-0.32/kv_scenario.json")}
    answered = steps["17"]["prompt_token_ids"] + steps["17"]["output_token_ids"]
    matches = []
    for number in ("16", "17", "18", "19", "19b"):
        for message in steps[number]["messages"]:
            index.apply(TARGET, _salted(decode(base64.b64decode(message["payload_b64"]))), 1.0)
        matches.append(_match(index, "tenantA", answered))
    assert matches == [2, 3, 3, 3, 3]
    assert index.counters["copies"] == 1
    assert index.counters["removed"] == 1


def test_without_a_claim_nothing_of_the_scenario_is_credited_and_with_a_late_one_all_is() -> None:
    index = _index()
    first = next(step for step in _load("vllm-0.32/kv_scenario.json") if step["name"].startswith("01"))
    for message in first["messages"]:
        index.apply(TARGET, _salted(decode(base64.b64decode(message["payload_b64"]))), 1.0)
    assert _match(index, "tenantA", first["prompt_token_ids"]) == 0
    assert index.sizes()[TARGET].parked == 3
    index.claim(salt("tenantA"), ns_key=ns_key("tenantA"), owner=b"o", seed=seed("tenantA"))
    assert _match(index, "tenantA", first["prompt_token_ids"]) == 2
    assert index.sizes()[TARGET].parked == 0


def test_salts_that_are_not_ours_are_passed_over() -> None:
    index = _index("tenantA")
    for step in _load("vllm-0.32/kv_scenario.json"):
        for message in step["messages"]:
            index.apply(TARGET, decode(base64.b64decode(message["payload_b64"])), 1.0)
    sizes = index.sizes()[TARGET]
    assert (sizes.credited, sizes.parked, sizes.orphans) == (0, 0, 0)
    assert index.counters["ignored_foreign"] > 90


def test_adapters_with_32_byte_hashes() -> None:
    """Four prompts of the same tokens: base, ad1, ad2, ad1 with a salt. Names of adapters are no salts."""
    rows = [decode(base64.b64decode(row["payload_b64"])) for row in _load("vllm-0.32/kv_lora.json")]
    stores = [event for batch in rows for event in batch.events if isinstance(event, Stored)]
    assert [(event.lora_name, salt_of(event)) for event in stores] == [(None, None), ("ad1", None), ("ad2", None), ("ad1", "tA")]
    assert all(isinstance(hash_, bytes) and len(hash_) == 32 for event in stores for hash_ in event.hashes)
    index = _index("none", "tA")
    for batch in rows:
        index.apply(TARGET, _salted(batch), 1.0)
    token_ids = [int.from_bytes(stores[0].tokens[at : at + 4], "little") for at in range(0, len(stores[0].tokens), 4)]
    assert _match(index, "none", token_ids) == 3
    assert _match(index, "tA", token_ids) == 3
    assert index.counters["ignored_adapter"] == 6  # ad1 and ad2 under the salt that serves the base


def test_prefill_and_decode_replicas_are_apart() -> None:
    prefill, decoding = ("http://p:8000", 0), ("http://d:8000", 0)
    index = _index("none", "tA", "sA", "sB", target=prefill)
    index.set_generation(decoding, 1, 0.0)
    longest: list[int] = []
    for row in _load("kv_events/pd_nixl.json"):
        batch = decode(base64.b64decode(row["payload_b64"]))
        for event in batch.events:
            assert isinstance(event, Stored)
            longest = [int.from_bytes(event.tokens[at : at + 4], "little") for at in range(0, len(event.tokens), 4)]
        index.apply(prefill if row["replica"] == "P" else decoding, _salted(batch), 1.0)
    held = {(name, target): _match(index, name, longest, target) for name in ("none", "tA", "sA", "sB") for target in (prefill, decoding)}
    # The last request was computed at P under one salt and pulled to D under another: each holds it under its own alone.
    assert held[("sA", prefill)] == held[("sB", decoding)] == 6
    assert held[("sA", decoding)] == held[("sB", prefill)] == 0
    assert index.sizes()[prefill].credited == index.sizes()[decoding].credited == 18
