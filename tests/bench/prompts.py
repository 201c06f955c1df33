"""What exact tokens cost: rendering, tokenising, hashing and looking up prompts of one, ten and a hundred thousand tokens.

    python -m tests.bench.prompts [DIRECTORY] [--repeat 5]

DIRECTORY (else $SALTROUTE_TOKENIZERS) holds folders with ``tokenizer.json`` and ``tokenizer_config.json``. For each tokenizer, size and place of
work (*sandbox*: a tenant's artifacts, in a worker process; *here*: a catalogue's, in the router's process) one conversation is sent three times:
*cold* (no segment seen before), *next turn* (an answer and a question of 200 tokens more), and *again* (the same once more). Times are medians over
conversations with different texts, in milliseconds; ``total`` is what a request waits for its ids, pipes and threads included. ``hash`` is the
chain of blocks of 16 under the namespace (made once for each request), ``look up`` finds its longest prefix at eight engines. Nothing is resident
when *cold* is sent, the whole of *cold* at every engine afterwards. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routing.core import blocks
from routing.core.event_index import EventIndex
from routing.core.kv_events import Batch, Stored
from routing.prompts.pool import PoolLimits
from routing.prompts.service import Limits, NoTokens, PromptModel, Prompts, Tokens

SIZES = (1_000, 10_000, 100_000)
TURN_TOKENS = 500
NEXT_TOKENS = 200
PATIENT_S = 120.0
OWNER, NS, SEED, SALT = b"bench", b"n" * 16, b"s" * 32, "sr1-" + "b" * 43
ENGINES, BLOCK_TOKENS = 8, 16
PROSE = "the cache of a model keeps keys and values for every token of each prompt so that the next one with same prefix is cheap"
CODE = "def return import self for in if not None True class print len range str int list dict router replica tenant namespace salt block"
WORDS = [*PROSE.split(" "), *CODE.split(" ")]
COLUMNS = ("tokenizer", "where", "size", "step", "tokens", "held", "missed", "render ms", "tokenise ms", "total ms", "hash ms", "look up ms")


@dataclass(frozen=True, slots=True)
class Source:
    """A tokenizer's folder, read."""

    name: str
    tokenizer: bytes
    configuration: bytes
    model: PromptModel


@dataclass(frozen=True, slots=True)
class Placed:
    """What hashing and looking up took, in milliseconds, and how many tokens every engine was found to hold."""

    hash_ms: float
    look_up_ms: float
    held_tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt on its way."""

    result: Tokens
    took_ms: float
    placed: Placed


def sources(directory: Path) -> Iterator[Source]:
    """The tokenizers below a directory."""
    for folder in sorted(directory.iterdir()):
        if (folder / "tokenizer.json").exists():
            tokenizer, configuration = ((folder / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json"))
            model = PromptModel(hashlib.sha256(tokenizer).digest(), hashlib.sha256(configuration).digest())
            yield Source(folder.name, tokenizer, configuration, model)


def text(rng: random.Random, tokens: int) -> str:
    """Words, code and punctuation of about so many tokens."""
    words = [
        rng.choice(WORDS) if rng.random() < 0.9 else rng.choice(["\n", "x = 1;", "(a, b)", "é", "2024", "東京"]) for _ in range(int(tokens * 0.87))
    ]
    return " ".join(words)


def conversation(rng: random.Random, tokens: int) -> list[dict[str, Any]]:
    """Turns of ``TURN_TOKENS`` that come to about ``tokens``."""
    roles = ["system", *(("user", "assistant")[turn % 2] for turn in range(max(1, tokens // TURN_TOKENS - 1)))]
    return [{"role": role, "content": text(rng, TURN_TOKENS)} for role in roles]


class Residency:
    """Eight engines of which the router knows what they hold."""

    def __init__(self) -> None:
        self._index = EventIndex()
        self._targets = [(f"http://replica-{number}:8000", 0) for number in range(ENGINES)]
        self._blocks = 0
        for target in self._targets:
            self._index.set_generation(target, 1, 0.0)
        self._index.claim(SALT, ns_key=NS, owner=OWNER, seed=SEED)

    def store(self, ids: Sequence[int]) -> None:
        """Every engine says that it holds the prompt."""
        count = len(ids) // BLOCK_TOKENS
        hashes = tuple(range(self._blocks + 1, self._blocks + 1 + count))
        self._blocks += count
        tokens = blocks.pack(ids[: count * BLOCK_TOKENS])
        salted = ((SALT,), *(() for _ in range(count - 1)))
        stored = Stored(hashes, None, tokens, BLOCK_TOKENS, "GPU", extra_keys=salted, spec_kind="full_attention")
        for target in self._targets:
            self._index.apply(target, Batch(1.0, (stored,), 0), 0.0)

    def measure(self, ids: Sequence[int]) -> Placed:
        """Hash and look up a prompt."""
        began_s = time.perf_counter()
        chain = blocks.token_chain(SEED, ids, BLOCK_TOKENS)
        hashed_s = time.perf_counter()
        found = [self._index.match(NS, chain, target, 0.0).tokens for target in self._targets]
        return Placed((hashed_s - began_s) * 1000, (time.perf_counter() - hashed_s) * 1000, min(found))


async def measure(prompts: Prompts, source: Source, messages: Sequence[Mapping[str, Any]]) -> tuple[Tokens, float]:
    """The tokens of a conversation, and what it took in milliseconds."""
    began_s = time.perf_counter()
    result = await prompts.tokens({"messages": messages}, api="chat", model=source.model, ns_key=NS, owner=OWNER, deadline_s=PATIENT_S)
    took_ms = (time.perf_counter() - began_s) * 1000
    if isinstance(result, NoTokens):
        raise RuntimeError(result.reason)  # noqa: TRY004 - a reason, not a type
    return result, took_ms


async def rows(source: Source, where: str, repeat: int) -> list[dict[str, Any]]:
    """The table's rows for one tokenizer at one place."""
    model = source.model
    catalogue = frozenset((model.tokenizer_digest, model.template_digest or b"")) if where == "here" else frozenset()
    limits = Limits(render_s=PATIENT_S, encode_s=PATIENT_S, pool=PoolLimits(load_s=PATIENT_S), segment_owner_bytes=64 * 1024 * 1024)
    prompts = Prompts(catalogue=catalogue, limits=limits)
    await prompts.start()
    found: list[dict[str, Any]] = []
    try:
        prompts.load(model.tokenizer_digest, source.tokenizer, "tokenizer")
        prompts.load(model.template_digest or b"", source.configuration, "chat_template")
        await measure(prompts, source, [{"role": "user", "content": "warm up"}])
        for size in SIZES:
            residency = Residency()
            samples: dict[str, list[Sample]] = {"cold": [], "next turn": [], "again": []}
            for seed in range(repeat):
                rng = random.Random(f"{size} {seed}")
                messages = conversation(rng, size)
                longer = [*messages, {"role": "assistant", "content": text(rng, NEXT_TOKENS)}, {"role": "user", "content": text(rng, NEXT_TOKENS)}]
                for step, sent in (("cold", messages), ("next turn", longer), ("again", longer)):
                    result, took_ms = await measure(prompts, source, sent)
                    samples[step].append(Sample(result, took_ms, residency.measure(result.ids)))
                    if step == "cold":
                        residency.store(result.ids)
            found.extend(row(source.name, where, size, step, each) for step, each in samples.items())
    finally:
        await prompts.stop()
    return found


def row(tokenizer: str, where: str, size: int, step: str, samples: Sequence[Sample]) -> dict[str, Any]:
    """One row: medians."""
    results = [sample.result for sample in samples]
    return {
        "tokenizer": tokenizer,
        "where": where,
        "size": size,
        "step": step,
        "tokens": int(statistics.median(len(result.ids) for result in results)),
        "missed": int(statistics.median(result.segments_missed for result in results)),
        "render ms": statistics.median(result.render_s for result in results) * 1000,
        "tokenise ms": statistics.median(result.tokenise_s for result in results) * 1000,
        "total ms": statistics.median(sample.took_ms for sample in samples),
        "hash ms": statistics.median(sample.placed.hash_ms for sample in samples),
        "look up ms": statistics.median(sample.placed.look_up_ms for sample in samples),
        "held": int(statistics.median(sample.placed.held_tokens for sample in samples)),
    }


def table(found: Sequence[Mapping[str, Any]], columns: Sequence[str] = COLUMNS) -> str:
    """Rows as text."""
    lines = [list(columns)]
    lines += [[f"{each[name]:.2f}" if isinstance(each[name], float) else f"{each[name]}" for name in columns] for each in found]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="What exact tokens cost.")
    parser.add_argument("directory", nargs="?", default=os.environ.get("SALTROUTE_TOKENIZERS"))
    parser.add_argument("--repeat", type=int, default=5)
    chosen = parser.parse_args(arguments)
    if chosen.directory is None:
        parser.error("name a directory with tokenizers, or set SALTROUTE_TOKENIZERS")
    found: list[dict[str, Any]] = []
    for source in sources(Path(chosen.directory)):
        for where in ("sandbox", "here"):
            found += asyncio.run(rows(source, where, chosen.repeat))
    sys.stdout.write(table(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
