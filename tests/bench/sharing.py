"""What isolation costs in cache hits: the four sharing levels on recorded dialogues.

    SALTROUTE_DATA=... python -m tests.bench.sharing [--seed 1] [--scopes 10] [--keys 2] [--capacity 32768 --capacity 131072 ...]

100 dialogues of tau-bench (airline; one system prompt in all of them, turns of user, assistant and tools) are dealt out at random over 10 auth scopes
with 2 keys each. Every assistant turn is one request: all messages before it are the prompt, its own text is what the engine says. The salts are the
router's own (a compiled snapshot, ``namespaces.core``), the cache is the simulated engine's in simulated time: one replica, least recently used
blocks of 16 tokens evicted first. Tokens are words and punctuation marks (the simulator's tokenizer), not a model's. Dialogues begin, users think
and tools work for random times that depend on the seed alone. Prints a table; asserts nothing.
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec

from routing.core.snapshot import SharingLevel
from routing.dataplane.keys import Keys
from routing.dataplane.view import TenantView, compile_tenant
from routing.simulator.config import EngineConfig
from routing.simulator.engine import Engine
from routing.simulator.submission import Submission
from routing.simulator.tokenizer import WordTokenizer
from tenants.core.snapshot import KeyEntry, ScopeEntry
from tests.fakes.rig import SECRETS, endpoint, named, tenant

FILE = "traces/taubench_airline_first100.jsonl.gz"
LEVELS: tuple[SharingLevel, ...] = get_args(SharingLevel)
BLOCK_TOKENS = 16
CAPACITIES_TOKENS = (32_768, 131_072, 524_288)  # 4, 16 and 64 GiB of an 8B model's bfloat16 KV cache at 128 KiB a token
START_GAP_S = 2.0  # mean time between two dialogues' starts
THINK_S = 15.0  # mean time between an answer and the user's next message
TOOL_S = 0.5  # mean time that a tool takes
MODEL = "m-7b"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a dialogue. ``after_tool``: its last message is a tool's, so that no user thinks before it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    after_tool: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """Sums over all requests of a run, in tokens."""

    prompt_tokens: int
    cached_tokens: int

    @property
    def cached_share(self) -> float:
        return self.cached_tokens / max(1, self.prompt_tokens)


def read(path: Path) -> list[list[Turn]]:
    """The dialogues of a file, as tokens.

    Raises:
        FileNotFoundError: it is not there.
    """
    tokenizer = WordTokenizer()

    def tokens(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=True))

    def render(messages: Sequence[Any]) -> str:
        return tokenizer.render(messages, tools=None, add_generation_prompt=True, template_kwargs={})

    dialogues = []
    with gzip.open(path, "rb") as lines:
        for line in lines:
            messages = msgspec.json.decode(line)["messages"]
            turns = []
            for place, message in enumerate(messages):
                if message["role"] != "assistant" or place == 0:
                    continue
                before, after = render(messages[:place]), render(messages[: place + 1])
                said = after.removeprefix(before).removesuffix("<|im_start|>assistant\n")
                turns.append(Turn(prompt=tokens(before), answer=tokens(said), after_tool=messages[place - 1]["role"] == "tool"))
            dialogues.append(turns)
    return dialogues


class Tenant:
    """A tenant with its scopes, keys and one endpoint for each sharing level, as a router holds it."""

    def __init__(self, scopes: int, keys: int) -> None:
        plain = tenant("acme", (), {})
        root = ScopeEntry(id=named("scope"), path="", version=1)
        entries = tuple(ScopeEntry(id=named(f"scope {number}"), path=f"team-{number}", version=1) for number in range(scopes))
        self.keys = tuple(
            KeyEntry(
                id=named(f"key {scope.path} {number}"), name=f"key-{number}", digest=named(f"{scope.path} {number}").bytes * 2, scope_id=scope.id
            )
            for scope in entries
            for number in range(keys)
        )
        endpoints = tuple(endpoint(plain.pools[0], level, sharing=level) for level in LEVELS)
        document = msgspec.structs.replace(plain, scopes=(root, *entries), keys=self.keys, endpoints=endpoints)
        self._view: TenantView = compile_tenant(document, Keys(SECRETS))

    def salt(self, level: SharingLevel, key: KeyEntry) -> str:
        """What the router would send for a request under ``key``."""
        path = self._view.scope_paths[key.scope_id]
        entry = self._view.endpoints[level].entry
        return self._view.namespace(entry, scope_path=path, key_id=key.id, context={}, subdivision=None).salt


def _spread(dialogues: Sequence[Sequence[Turn]], keys: Sequence[KeyEntry], seed: int) -> list[KeyEntry]:
    """A key for each dialogue: dealt out evenly, in random order."""
    dealt = [keys[number % len(keys)] for number in range(len(dialogues))]
    random.Random(seed).shuffle(dealt)
    return dealt


def run(
    dialogues: Sequence[Sequence[Turn]], *, level: SharingLevel, scopes: int = 10, keys: int = 2, seed: int = 1, capacity_tokens: int | None = None
) -> Outcome:
    """Hold all dialogues on one replica at one sharing level; ``capacity_tokens`` None is a cache that never evicts."""
    owner = Tenant(scopes, keys)
    keyed = _spread(dialogues, owner.keys, seed)
    longest = max(len(turn.prompt) + len(turn.answer) for turns in dialogues for turn in turns)
    everything = sum(len(turn.prompt) + len(turn.answer) + BLOCK_TOKENS for turns in dialogues for turn in turns)
    blocks = -(-(capacity_tokens or everything) // BLOCK_TOKENS) + 1
    engine = Engine(EngineConfig(blocks=blocks, block_size_tokens=BLOCK_TOKENS, max_model_len_tokens=longest, max_num_batched_tokens=8192))
    draws = [random.Random(seed * 1_000_003 + number) for number in range(len(dialogues))]
    starts, at_s = random.Random(seed), 0.0
    due: list[tuple[float, int, int]] = []  # (s, dialogue, turn)
    for number in range(len(dialogues)):
        heapq.heappush(due, (at_s, number, 0))
        at_s += starts.expovariate(1 / START_GAP_S)
    now_s, prompt_tokens, cached_tokens = 0.0, 0, 0
    while due or engine.has_work:
        if not engine.has_work:
            now_s = max(now_s, due[0][0])
        while due and due[0][0] <= now_s:
            _, number, place = heapq.heappop(due)
            turn = dialogues[number][place]
            salt = owner.salt(level, keyed[number])
            engine.submit(Submission(request_id=f"{number}.{place}", token_ids=turn.prompt, output_token_ids=turn.answer, salt=salt), now_s)
        result = engine.step(now_s)
        now_s += result.duration_s
        for output in result.outputs:
            if output.index == 0:
                prompt_tokens += output.prompt_tokens
                cached_tokens += output.cached_tokens
            if output.finished is not None:
                number, place = map(int, output.request_id.split("."))
                if place + 1 < len(dialogues[number]):
                    wait_s = TOOL_S if dialogues[number][place + 1].after_tool else THINK_S
                    heapq.heappush(due, (now_s + draws[number].expovariate(1 / wait_s), number, place + 1))
    return Outcome(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)


def table(dialogues: Sequence[Sequence[Turn]], *, scopes: int, keys: int, seed: int, capacities: Sequence[int | None]) -> Iterator[str]:
    """Cached share of prompt tokens by sharing level and capacity, and how much less than ``tenant`` that is, in percentage points."""
    requests = sum(map(len, dialogues))
    tokens = sum(len(turn.prompt) for turns in dialogues for turn in turns)
    titles = ["never evicts" if capacity is None else f"{capacity:,} tokens" for capacity in capacities]
    yield (
        f"{len(dialogues)} dialogues, {requests} requests, {tokens:,} prompt tokens; {scopes} scopes x {keys} keys; seed {seed}; "
        f"blocks of {BLOCK_TOKENS} tokens; words as tokens"
    )
    yield f"{'sharing':10}" + "".join(f"{title:>26}" for title in titles)
    best: dict[int | None, float] = {}
    for level in LEVELS:
        cells = []
        for capacity in capacities:
            share = run(dialogues, level=level, scopes=scopes, keys=keys, seed=seed, capacity_tokens=capacity).cached_share
            best.setdefault(capacity, share)
            cells.append(f"{share:10.2%} ({(share - best[capacity]) * 100:+7.2f} points)")
        yield f"{level:10}" + "".join(f"{cell:>26}" for cell in cells)


def _path(given: Path | None) -> Path | None:
    """The data: the path given, or below ``SALTROUTE_DATA``."""
    if given is not None:
        return given
    root = os.environ.get("SALTROUTE_DATA")
    return Path(root) / FILE if root else None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("path", type=Path, nargs="?", help=f"default: $SALTROUTE_DATA/{FILE}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scopes", type=int, default=10)
    parser.add_argument("--keys", type=int, default=2, help="keys for each scope")
    parser.add_argument("--capacity", type=int, action="append", help=f"cache in tokens, may be repeated; default {CAPACITIES_TOKENS}")
    options = parser.parse_args(arguments)
    path = _path(options.path)
    if path is None or not path.is_file():
        sys.stderr.write(
            f"No dialogues at {path or 'any path'}: set SALTROUTE_DATA to the folder that holds {FILE}, or give a file of that format.\n"
        )
        return 2
    capacities = [None, *(options.capacity or CAPACITIES_TOKENS)]
    for line in table(read(path), scopes=options.scopes, keys=options.keys, seed=options.seed, capacities=capacities):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
