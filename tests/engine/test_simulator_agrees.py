"""The same 300 requests on two real vLLM replicas and on the simulated fleet: what was cached of each prompt, and what share of all tokens.

Prompts are conversations in token ids whose turns are drawn in advance, so that both sides are asked exactly the same; the caches hold about a third
of them. First the real side, with the router choosing; then the simulated side twice: every request at the replica that the real one went to, which
must give the same cached tokens request by request, and once more with the router choosing for itself, whose hit rate may differ because choices
depend on time.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import msgspec
import pytest

from routing.core.snapshot import KvEvents, ReplicaEntry
from routing.simulator.config import EngineConfig, ReplicaConfig, TimeModel
from routing.simulator.fleet import Fleet, running_fleet
from tests.engine.vllm_cpu import BLOCK_TOKENS, CONTEXT_TOKENS, KV_BLOCKS, MODEL_NAME, Replica
from tests.fakes.rig import KEY_A, Rig, bumped, endpoint, named, standard_rig, until

pytestmark = pytest.mark.engine

REQUESTS = 300
CONVERSATIONS = 60
OPENING_TOKENS, TURN_TOKENS = (200, 900), (40, 260)
ANSWER_TOKENS = 4
VOCABULARY = (1000, 100_000)  # ordinary tokens of the model
SETTLED_S = 20.0
FILL_TOKENS = 3000  # of each prompt that clears a replica's cache of everything that was there


@dataclass(frozen=True, slots=True)
class Target:
    """An engine as both sides offer it."""

    name: str
    url: str
    events: str
    replay: str


@dataclass(frozen=True, slots=True)
class Served:
    """One request: which replica, and what that said was cached."""

    replica: str
    cached_tokens: int


def requests(seed: int) -> list[list[int]]:
    """Turns of conversations in a random order; each prompt repeats its conversation's last one and goes on."""
    rng = random.Random(seed)

    def drawn(low: int, high: int) -> list[int]:
        return [rng.randrange(*VOCABULARY) for _ in range(rng.randint(low, high))]

    said: list[list[int]] = [drawn(*OPENING_TOKENS) for _ in range(CONVERSATIONS)]
    made: list[list[int]] = []
    for _ in range(REQUESTS):
        one = said[rng.randrange(CONVERSATIONS)]
        if len(one) > 2500:
            one[:] = drawn(*OPENING_TOKENS)
        one.extend(drawn(*TURN_TOKENS))
        made.append(list(one))
    return made


def body_of(model: str, prompt: Sequence[int], **more: Any) -> dict[str, Any]:
    return {"model": model, "prompt": list(prompt), "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True, **more}


async def ask(client: aiohttp.ClientSession, target: Target, prompt: Sequence[int]) -> int:
    """Ask an engine directly; its cached tokens."""
    async with client.post(f"{target.url}/v1/completions", json=body_of(MODEL_NAME, prompt, cache_salt="of-the-test")) as answer:
        said = await answer.json()
        assert answer.status == 200, said
        return int((said["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


async def cleared(client: aiohttp.ClientSession, targets: Sequence[Target], seed: int) -> None:
    """Fill every cache once with what nobody asks for again, so that both sides begin with equal order of eviction."""
    rng = random.Random(seed)
    for target in targets:
        for _ in range(KV_BLOCKS * BLOCK_TOKENS // FILL_TOKENS + 2):
            assert await ask(client, target, [rng.randrange(*VOCABULARY) for _ in range(FILL_TOKENS)]) == 0


async def routed(rig: Rig, targets: Sequence[Target], prompts: Sequence[Sequence[int]]) -> list[Served]:
    """Ask everything through the router, one after another."""
    entries = tuple(
        ReplicaEntry(id=named(f"replica {each.name}"), name=each.name, url=each.url, engine="vllm", kv_events=KvEvents(each.events, each.replay))
        for each in targets
    )
    pool = msgspec.structs.replace(rig.acme.pools[0], name="compared", isolation="declared", replicas=entries)
    rig.publish(bumped(rig.acme, pools=(pool,), endpoints=(endpoint(pool, served_model=MODEL_NAME),)))
    names = {entry.id: entry.name for entry in entries}
    await until(lambda: all(rig.router.plane.residency.of(each.url).state == "exact" for each in targets), within_s=SETTLED_S)
    served: list[Served] = []
    for prompt in prompts:
        reply = await rig.call("POST", "/v1/completions", key=KEY_A, json=body_of("m-7b", prompt))
        assert reply.status == 200, reply.body
        record = rig.records()[-1]
        assert record.replica_id is not None
        assert record.cached_tokens is not None
        served.append(Served(names[UUID(str(record.replica_id))], record.cached_tokens))
    return served


def hit_rate(served: Sequence[Served], prompts: Sequence[Sequence[int]]) -> float:
    return sum(one.cached_tokens for one in served) / sum(map(len, prompts))


async def test_the_simulated_fleet_caches_what_the_real_one_does(tmp_path: Path, replicas: list[Replica]) -> None:
    prompts = requests(seed=5)
    real = [Target(name, each.url, each.events, each.replay) for name, each in zip("AB", replicas, strict=True)]
    async with aiohttp.ClientSession() as client, standard_rig(tmp_path / "real", scrape_s=0.5) as rig:
        await cleared(client, real, seed=1)
        observed = await routed(rig, real, prompts)

    engine = EngineConfig(
        blocks=KV_BLOCKS,
        block_size_tokens=BLOCK_TOKENS,
        max_model_len_tokens=CONTEXT_TOKENS,
        time=TimeModel(step_s=0.002, prefill_tokens_per_s=20_000),
    )

    def simulated(fleet: Fleet) -> list[Target]:
        return [Target(name, one.url, str(one.kv_endpoint), str(one.replay_endpoint)) for name, one in zip("AB", fleet.replicas, strict=True)]

    async with running_fleet(ReplicaConfig(engine=engine, model=MODEL_NAME), replicas=2) as fleet, aiohttp.ClientSession() as client:
        targets = {each.name: each for each in simulated(fleet)}
        await cleared(client, list(targets.values()), seed=1)
        followed = [Served(was.replica, await ask(client, targets[was.replica], prompt)) for was, prompt in zip(observed, prompts, strict=True)]
    async with running_fleet(ReplicaConfig(engine=engine, model=MODEL_NAME), replicas=2) as fleet, aiohttp.ClientSession() as client:
        free = simulated(fleet)
        await cleared(client, free, seed=1)
        async with standard_rig(tmp_path / "simulated", scrape_s=0.5) as rig:
            chosen = await routed(rig, free, prompts)

    equal = sum(one == other for one, other in zip(observed, followed, strict=True))
    worst = max(abs(one.cached_tokens - other.cached_tokens) for one, other in zip(observed, followed, strict=True))
    rates = [hit_rate(each, prompts) for each in (observed, followed, chosen)]
    ceiling = _ceiling(prompts)
    together = sum(one.replica == other.replica for one, other in zip(observed, chosen, strict=True)) / REQUESTS
    sys.stdout.write(
        f"\n{REQUESTS} requests of {sum(map(len, prompts)):,} tokens; ceiling {ceiling:.1%}: real {rates[0]:.2%}; simulated at the same replicas"
        f" {rates[1]:.2%}, cached tokens equal in {equal / REQUESTS:.1%} (worst difference {worst} tokens); own choices {rates[2]:.2%};"
        f" same replica in {together:.1%}\n"
    )
    assert 0.2 < rates[0] < ceiling - 0.05, "the caches must be small enough to evict, or the comparison shows nothing"
    assert equal / REQUESTS >= 0.98
    assert abs(rates[2] - rates[0]) < 0.05


def _ceiling(prompts: Sequence[Sequence[int]]) -> float:
    """The hit rate of one cache that never evicts, in whole blocks; the last token is always computed."""
    seen: set[tuple[int, ...]] = set()
    hits = 0
    for prompt in prompts:
        ends = range(BLOCK_TOKENS, len(prompt) + 1, BLOCK_TOKENS)
        chain = [tuple(prompt[end - BLOCK_TOKENS : end]) for end in ends]  # drawn at random: a block's own tokens name it
        hits += BLOCK_TOKENS * sum(1 for _ in itertools.takewhile(seen.__contains__, chain[: (len(prompt) - 1) // BLOCK_TOKENS]))
        seen.update(chain)
    return hits / sum(map(len, prompts))
