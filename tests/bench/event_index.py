"""The event index: bytes for each block, time of a look-up, blocks decoded and applied each second, in CPU time of one core.

    python -m tests.bench.event_index [--blocks 1000000] [--targets 8] [--block-tokens 16] [--conversations 64]

Synthetic: each target holds conversations of many blocks under several namespaces, stored in prefill chunks of 128 blocks as an engine sends them
(MessagePack, 64-bit hashes). Prints numbers; asserts nothing. Ten million blocks take about 3 GB.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from array import array
from collections.abc import Callable, Iterator

import msgspec

from routing.core import blocks
from routing.core.event_index import EventIndex
from routing.core.event_tables import BLOCK_BYTES
from routing.core.kv_events import decode

CHUNK_BLOCKS = 128
CONVERSATION_BLOCKS = 1024
SAMPLES = 100
TOKENS = [(number * 2_654_435_761) % 150_000 for number in range(1_000_000)]  # any stretch of it is a prompt
_encode = msgspec.msgpack.Encoder().encode


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def resident_bytes() -> int:
    """The process's resident memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def payloads(rng: random.Random, salt: str, block_tokens: int, chunk_blocks: int) -> Iterator[tuple[list[int], bytes]]:
    """One conversation's messages, with the token ids of each."""
    parent = None
    for start in range(0, CONVERSATION_BLOCKS, chunk_blocks):
        at = rng.randrange(len(TOKENS) - chunk_blocks * block_tokens)
        token_ids = TOKENS[at : at + chunk_blocks * block_tokens]
        hashes = [rng.getrandbits(64) for _ in range(chunk_blocks)]
        event = {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": parent,
            "token_ids": token_ids,
            "block_size": block_tokens,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [[salt] if start == 0 and position == 0 else None for position in range(chunk_blocks)],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        parent = hashes[-1]
        yield token_ids, _encode([1.0, [event], 0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--targets", type=int, default=8)
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--namespaces", type=int, default=16)
    options = parser.parse_args()
    rng = random.Random(1)
    index = EventIndex(budget_bytes=2 * options.blocks * BLOCK_BYTES)
    targets = [(f"http://replica-{number}:8000", 0) for number in range(options.targets)]
    for target in targets:
        index.set_generation(target, 1, 0.0)
    salts = [f"sr1-{number:043d}" for number in range(options.namespaces)]
    seeds = [bytes([number]) * 32 for number in range(options.namespaces)]
    for number, salt in enumerate(salts):
        index.claim(salt, ns_key=bytes([number]) * 16, owner=bytes([number]) * 16, seed=seeds[number])
    gc.collect()
    before = resident_bytes()
    decode_s = apply_s = 0.0
    done = 0
    samples: list[tuple[int, array[int]]] = []
    while done < options.blocks:
        number = rng.randrange(options.namespaces)
        target = targets[rng.randrange(options.targets)]
        whole: list[int] = []
        for token_ids, payload in payloads(rng, salts[number], options.block_tokens, CHUNK_BLOCKS):
            started = time.process_time()
            batch = decode(payload)
            decoded = time.process_time()
            index.apply(target, batch, 0.0)
            decode_s += decoded - started
            apply_s += time.process_time() - decoded
            done += CHUNK_BLOCKS
            if len(samples) < SAMPLES:
                whole.extend(token_ids)
        if len(samples) < SAMPLES:
            samples.append((number, array("I", whole)))
    gc.collect()
    used = resident_bytes() - before
    held = sum(size.credited for size in index.sizes().values())
    _say(f"{held:,} blocks of {options.block_tokens} tokens at {options.targets} targets in {options.namespaces} namespaces")
    _say(f"memory: {used / held:.0f} bytes a block (the budget counts {BLOCK_BYTES}), {used / 1e9:.2f} GB")
    _say(f"decode: {done / decode_s:,.0f} blocks/s; apply: {done / apply_s:,.0f} blocks/s; both: {done / (decode_s + apply_s):,.0f} blocks/s")
    _look_up(index, targets, samples, seeds, options.block_tokens)
    _single_blocks(index, targets, rng, salts[0], options.block_tokens)
    _forget(f"a target of {held // options.targets:,} blocks", index, lambda: index.forget(targets[0]))
    largest = max(index.owners().values())[0]
    _forget(f"a namespace of {largest:,} blocks", index, lambda: index.disclaim(max(zip(index.owners().values(), salts, strict=True))[1]))


def _forget(what: str, index: EventIndex, forget: Callable[[], None]) -> None:
    started = time.process_time()
    forget()
    forgotten_s, slices_s = time.process_time() - started, []
    while index._contents.remains:
        started = time.process_time()
        index.advance()
        slices_s.append(time.process_time() - started)
    _say(
        f"forgetting {what}: {forgotten_s * 1e3:.1f} ms, "
        f"then {len(slices_s)} slices of {max(slices_s) * 1e3:.1f} ms at most, {sum(slices_s) * 1e3:.0f} ms in all"
    )


def _look_up(index: EventIndex, targets: list[tuple[str, int]], samples: list[tuple[int, array[int]]], seeds: list[bytes], block_tokens: int) -> None:
    chains = [(bytes([number]) * 16, blocks.token_chain(seeds[number], token_ids, block_tokens)) for number, token_ids in samples]
    started = time.process_time()
    for number, token_ids in samples[:50]:
        blocks.token_chain(seeds[number], token_ids, block_tokens)
    _say(f"chain of {CONVERSATION_BLOCKS} blocks: {(time.process_time() - started) / 50 * 1e6:.0f} us")
    rounds = 0
    started = time.process_time()
    while time.process_time() - started < 2.0:
        for ns_key, digests in chains:
            for target in targets:
                index.match(ns_key, digests, target, 0.0)
                rounds += 1
    spent = time.process_time() - started
    _say(f"match of {CONVERSATION_BLOCKS} blocks: {spent / rounds * 1e6:.2f} us a target, of {len(targets)} where one holds it")


def _single_blocks(index: EventIndex, targets: list[tuple[str, int]], rng: random.Random, salt: str, block_tokens: int) -> None:
    """Decoding sends one block at a time, and evictions as many."""
    stores, removals = [], []
    for _ in range(20_000):
        hash_ = rng.getrandbits(64)
        stored = {
            "type": "BlockStored",
            "block_hashes": [hash_],
            "parent_block_hash": None,
            "token_ids": [rng.randrange(150_000) for _ in range(block_tokens)],
            "block_size": block_tokens,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [[salt]],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        stores.append(_encode([1.0, [stored], 0]))
        removals.append(_encode([1.0, [{"type": "BlockRemoved", "block_hashes": [hash_], "medium": "GPU", "group_idx": 0}], 0]))
    for name, messages in (("stores", stores), ("removals", removals)):
        started = time.process_time()
        for payload in messages:
            index.apply(targets[0], decode(payload), 0.0)
        _say(f"{name} of one block a message, decoded and applied: {len(messages) / (time.process_time() - started):,.0f} messages/s")


if __name__ == "__main__":
    main()
