"""The scene of ``tests.bench.routing``: workloads as prompts of a small language, and a fleet that says of every answer when its first token came.

One simulated token stands for ``SCALE`` real ones, so a prompt of 12,000 tokens is 750 words: lengths, caches and rates shrink alike, every ratio
stays, and a machine without a GPU can carry it. Time is compressed by ``speed``; everything reported is in seconds of the model.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from routing.simulator.config import EngineConfig, ReplicaConfig, TimeModel
from routing.simulator.fleet import Fleet, fleet_configs
from routing.simulator.language import KNOWN_WORDS
from routing.simulator.submission import Output
from routing.traces.request import TraceRequest, tokens_in
from routing.traces.workloads import BLOCK_TOKENS
from tests.fakes.artifacts import TEMPLATE

MODEL = "m-7b"
SCALE = 16
REPLICAS = 4
BLOCK = 16  # of the engine, in simulated tokens
CACHE_TOKENS = 416_000  # a replica's, in real tokens
VOCABULARY = 4096
# By arithmetic a 70B model on four H100: 12,700 prefill tokens/s in chunks of 8,192. A step decodes SCALE real tokens of each sequence.
TIME = TimeModel(
    step_s=0.1, prefill_tokens_per_s=12_700 / SCALE, attention_s_per_token_pair=0.0, decode_s_per_sequence=0.002, decode_s_per_context_token=0.0
)


@dataclass(frozen=True, slots=True)
class First:
    """What a replica knew when an answer's first token left; ``ttft_s`` from the request's arrival there, in seconds of the model."""

    replica: int
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int


def _noting(seen: list[First], number: int, speed: float) -> Callable[[Output], None]:
    """Notes first tokens by the clock of this process: the engine's own may lag behind it where the machine is busy."""

    def note(output: Output) -> None:
        if output.index == 0:
            ttft_s = (asyncio.get_running_loop().time() - output.arrived_s) * speed
            seen.append(First(number, ttft_s, output.prompt_tokens, output.cached_tokens))

    return note


@cache
def words() -> tuple[str, ...]:
    """The language: short words that nobody says, each one token."""
    letters = "abcdefghijklmnop"
    return tuple("".join(letters[(number >> shift) & 15] for shift in (8, 4, 0)) + "q" for number in range(VOCABULARY))


@cache
def tokenizer() -> bytes:
    """A word-level ``tokenizer.json`` of that language, of what simulated engines say, and of the marks of the demo's template."""
    marks = ["<|im_start|>", "<|im_end|>"]
    rest = sorted({"user", "assistant", "system"} | {form for word in KNOWN_WORDS for form in (word, f"{word}.")})
    vocabulary = {text: number for number, text in enumerate(["?", *marks, *words(), *rest])}
    added = [
        {"id": vocabulary[mark], "content": mark, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for mark in marks
    ]
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"},
        }
    ).encode()


def prompt_text(request: TraceRequest, number: int) -> str:
    """The words of a request: equal block ids give equal words, what no block covers is its own."""
    said: list[str] = []
    for place, block in enumerate(request.blocks):
        size = tokens_in(request, place + 1, BLOCK_TOKENS) - tokens_in(request, place, BLOCK_TOKENS)
        said += random.Random(f"block {block}").choices(words(), k=BLOCK_TOKENS // SCALE)[: round(size / SCALE)]
    missing = round(request.prompt_tokens / SCALE) - len(said)
    if missing > 0:
        said += random.Random(f"own {number}").choices(words(), k=missing)
    return " ".join(said or [words()[number % VOCABULARY]])


def body(request: TraceRequest, number: int) -> dict[str, Any]:
    """The request as a chat, streamed."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt_text(request, number)}],
        "max_tokens": max(1, round(request.output_tokens / SCALE)),
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _config(folder: Path, speed: float) -> ReplicaConfig:
    (folder / "tokenizer.json").write_bytes(tokenizer())
    (folder / "chat_template.jinja").write_bytes(TEMPLATE)
    blocks = CACHE_TOKENS // SCALE // BLOCK + 1
    time = TimeModel(
        step_s=TIME.step_s,
        prefill_tokens_per_s=TIME.prefill_tokens_per_s,
        attention_s_per_token_pair=TIME.attention_s_per_token_pair,
        decode_s_per_sequence=TIME.decode_s_per_sequence,
        decode_s_per_context_token=TIME.decode_s_per_context_token,
        speed=speed,
    )
    engine = EngineConfig(
        blocks=blocks,
        block_size_tokens=BLOCK,
        max_model_len_tokens=(blocks - 1) * BLOCK,
        max_num_batched_tokens=8192 // SCALE,
        max_num_seqs=256,
        time=time,
    )
    return ReplicaConfig(
        engine=engine,
        model=MODEL,
        recorded_requests=1,
        recorded_body_bytes=1,
        tokenizer_path=str(folder / "tokenizer.json"),
        chat_template_path=str(folder / "chat_template.jinja"),
    )


@asynccontextmanager
async def watched_fleet(folder: Path, speed: float, seen: list[First]) -> AsyncIterator[Fleet]:
    """A fresh fleet whose first tokens arrive in ``seen``."""
    fleet = Fleet(fleet_configs(_config(folder, speed), REPLICAS))
    for number, one in enumerate(fleet.replicas):
        for rank in one.ranks:
            rank.watch = _noting(seen, number, speed)
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.stop()


def paced(requests: Sequence[TraceRequest], per_s: float) -> list[float]:
    """Arrival times in seconds of the model: the trace's own, stretched to ``per_s`` requests a second in the mean."""
    first, last = requests[0].at_s, requests[-1].at_s
    wanted_s = len(requests) / per_s
    return [(one.at_s - first) / max(1e-9, last - first) * wanted_s for one in requests]
