"""Conversations through the router: does a later turn land where its prefix is, and what does that save?

    python -m tests.bench.conversations [--conversations 200] [--turns 5] [--seed 1]

Each policy gets a fresh router, a fresh fleet of four simulated replicas with caches small enough to evict, and the same conversations: they start at
random times (exponential gaps), and their users think between turns. Before each later turn every replica's real cache is asked, without touching it,
how much of the turn's prompt it holds; the turn is *right* if the replica that served it holds as much as the best one, and more than the shared
system prompt. Prints one line for each policy; nothing is asserted here (tests/journeys does that).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from routing.core.snapshot import PolicyEntry, TenantSnapshot
from routing.dataplane.app import Router
from routing.dataplane.config import Config
from routing.simulator.config import EngineConfig, ReplicaConfig, TimeModel
from routing.simulator.fleet import Fleet, running_fleet
from routing.simulator.hashes import block_hash, extra_keys, root_hash
from routing.simulator.language import KNOWN_WORDS
from routing.simulator.replica import Replica
from routing.simulator.requests import prompt_token_ids
from tenants.core import api_key
from tests.fakes import rig

REPLICAS = 4
START_GAP_S = 0.3  # mean time between two conversations' starts
THINK_S = 0.4  # mean time between an answer and the next turn
SYSTEM_WORDS = 120
BLOCKS = 1000  # of 16 tokens a replica: holds the live conversations, evicts the finished ones
WORDS = sorted(KNOWN_WORDS)
MODEL = "m-7b"


@dataclass
class Result:
    """What one policy did. ``ttft_s`` are times to the first byte of the body, seen by the client."""

    policy: str
    later_turns: int = 0
    right: int = 0
    held_tokens: int = 0  # most that any replica held, summed over later turns
    prompt_tokens: int = 0
    cached_tokens: int = 0
    refused: int = 0
    ttft_s: list[float] = field(default_factory=list)

    @property
    def right_share(self) -> float:
        return self.right / max(1, self.later_turns)

    @property
    def cached_share(self) -> float:
        return self.cached_tokens / max(1, self.prompt_tokens)

    def quantile_s(self, share: float) -> float:
        ordered = sorted(self.ttft_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def line(self) -> str:
        return (
            f"{self.policy:18} right replica {self.right_share:6.1%} of {self.later_turns} later turns   cached share {self.cached_share:6.1%}   "
            f"TTFT p50 {self.quantile_s(0.5) * 1000:6.1f} ms  p99 {self.quantile_s(0.99) * 1000:7.1f} ms   refused {self.refused}"
        )


def held_tokens(replica: Replica, body: dict[str, Any], salt: str) -> int:
    """How many tokens of ``body``'s prompt the replica's cache holds right now, by its own hashes. Touches nothing."""
    (tokens,) = prompt_token_ids("chat", body, replica.config, replica.tokenizer)
    engine = replica.config.engine
    size, parent, held = engine.block_size_tokens, root_hash(engine.hash_algorithm), 0
    cached = replica.engine.pool.cached_digests
    for index in range((len(tokens) - 1) // size):
        extra = extra_keys(index, salt=salt, adapter=None, mode=engine.salt_mode)
        parent = block_hash(parent, tokens[index * size : (index + 1) * size], extra, engine.hash_algorithm)
        if parent not in cached:
            break
        held += size
    return held


def text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(words))


class Run:
    """One policy over one fleet."""

    def __init__(self, policy: str, router: Router, fleet: Fleet, client: aiohttp.ClientSession) -> None:
        self.result = Result(policy)
        self._router, self._fleet, self._client = router, fleet, client
        grant = router.plane.view.keys[api_key.digest(rig.KEY_A)]
        entry = grant.tenant.endpoints[MODEL].entry
        self._salt = grant.tenant.namespace(entry, scope_path="", key_id=grant.key.id, context={}, subdivision=None).salt

    async def all(self, conversations: int, turns: int, seed: int) -> Result:
        """Hold the conversations; times and texts follow from the seed alone, not from the policy."""
        draw = random.Random(seed)
        system = text(draw, SYSTEM_WORDS)
        starts_s, at_s = [], 0.0
        for _ in range(conversations):
            starts_s.append(at_s)
            at_s += draw.expovariate(1 / START_GAP_S)
        await asyncio.gather(
            *(self._conversation(random.Random(seed * 1_000_003 + number), number, system, turns, start_s) for number, start_s in enumerate(starts_s))
        )
        return self.result

    async def _conversation(self, draw: random.Random, number: int, system: str, turns: int, start_s: float) -> None:
        await asyncio.sleep(start_s)
        messages = [{"role": "system", "content": system}]
        for turn in range(turns):
            if turn:
                await asyncio.sleep(draw.expovariate(1 / THINK_S))
            messages.append({"role": "user", "content": f"[{number}.{turn}] " + text(draw, 900 if turn == 0 else 80)})
            body = {"model": MODEL, "messages": messages, "max_tokens": 24, "stream": True, "stream_options": {"include_usage": True}}
            answer = await self._turn(body, later=turn > 0)
            if answer is None:
                return
            messages.append({"role": "assistant", "content": answer})

    async def _turn(self, body: dict[str, Any], *, later: bool) -> str | None:
        held = [held_tokens(one.replica, body, self._salt) for one in self._fleet.replicas] if later else []
        began_s = time.perf_counter()
        url = f"http://127.0.0.1:{self._router.port}/v1/chat/completions"
        async with self._client.post(url, json=body, headers={"Authorization": f"Bearer {rig.KEY_A}"}) as reply:
            if reply.status != 200:
                self.result.refused += 1
                return None
            raw = await reply.content.readany()
            self.result.ttft_s.append(time.perf_counter() - began_s)
            raw += await reply.read()
        pieces, usage = _read_stream(raw)
        self.result.prompt_tokens += usage["prompt_tokens"]
        self.result.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
        if later:
            served = self._served_by(body["messages"][-1]["content"])
            self.result.later_turns += 1
            self.result.held_tokens += max(held)
            self.result.right += held[served] == max(held) and max(held) > 2 * SYSTEM_WORDS
        return pieces

    def _served_by(self, last_text: str) -> int:
        """The replica whose record holds the turn, found by its unique last message."""
        wanted = last_text.encode()
        for number, one in enumerate(self._fleet.replicas):
            if any(wanted in request.body for request in reversed(one.replica.requests)):
                return number
        raise LookupError("no replica recorded the turn")


def _read_stream(raw: bytes) -> tuple[str, dict[str, Any]]:
    content = ""
    usage: dict[str, Any] = {}
    for line in raw.split(b"\n\n"):
        if line.startswith(b"data: {"):
            event = msgspec.json.decode(line[6:])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                content += choice["delta"].get("content") or ""
    return content, usage


def _tenant(fleet: Fleet, policy: str) -> TenantSnapshot:
    replicas = tuple(rig.replica_entry(one.url, f"r{number}") for number, one in enumerate(fleet.replicas))
    document = rig.tenant("acme", replicas, {rig.KEY_A: ""})
    routing = PolicyEntry(name=policy, version=1, spec={"policy": policy})
    return msgspec.structs.replace(document, endpoints=tuple(msgspec.structs.replace(one, routing_policy=routing) for one in document.endpoints))


async def measure(policy: str, *, conversations: int, turns: int, seed: int) -> Result:
    """Run one policy on a fleet and router of its own."""
    engine = EngineConfig(blocks=BLOCKS, time=TimeModel(speed=0.5))
    replica = ReplicaConfig(engine=engine, model=MODEL, recorded_requests=64)
    with tempfile.TemporaryDirectory() as state:
        config = Config(router_id="bench", state_dir=Path(state), valkey_url=None, port=0, internal_port=0, allowed_ranges=rig.LOOPBACK, scrape_s=1.0)
        async with running_fleet(replica, replicas=REPLICAS) as fleet, aiohttp.ClientSession() as client:
            router = Router(config, rig.SECRETS)
            await router.start()
            try:
                document = _tenant(fleet, policy)
                router.snapshots.apply({document.tenant_id: rig.sealed(document)})
                return await Run(policy, router, fleet, client).all(conversations, turns, seed)
            finally:
                await router.stop()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", action="append", help="may be repeated; default: round_robin, least_outstanding, ettft")
    options = parser.parse_args(arguments)
    for policy in options.policy or ("round_robin", "least_outstanding", "ettft"):
        result = asyncio.run(measure(policy, conversations=options.conversations, turns=options.turns, seed=options.seed))
        sys.stdout.write(result.line() + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
