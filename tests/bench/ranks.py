"""What naming the data-parallel rank is worth: ``python -m tests.bench.ranks``.

Conversations of several turns, under one system prompt, through a real router to one simulated engine of several ranks behind one URL, in three ways:

    named     the router names the rank
    balanced  the engine chooses, by loads that are up to 100 ms old, as vLLM does where its ranks report them
    turns     the engine chooses by what it sent alone, so ranks take turns, as vLLM does where they do not

Printed for each: the share of prompt tokens found in a cache, the tokens that were computed, and the least that could have been (each rank
computes the system prompt once, everything else is computed once). Times are not printed: router, engine and clients share one process here, and
it is their processor time that they would show.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec

from routing.core.record import DecisionRecord
from routing.simulator.config import EngineConfig, ReplicaConfig, TimeModel
from routing.simulator.fleet import running_fleet
from tests.fakes.rig import Rig, bumped, replica_entry, standard_rig, until

RANKS = 4
CONVERSATIONS = 64
TURNS = 6
SYSTEM_TOKENS, FIRST_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 640, 1200, 400, 16
BLOCK = 16
RANK_BLOCKS = 4000  # all conversations in their last turn take about 3,500 of each rank, if none is kept twice
AT_ONCE = 16
THINK_S = 8.0  # mean, in seconds of the model, which run SPEED times as fast
SPEED = 10.0
ARMS = {"named": (True, 0.1 / SPEED), "balanced": (False, 0.1 / SPEED), "turns": (False, None)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One arm, as measured. ``prompts`` by rank are known only where one is named."""

    hit_share: float
    computed_tokens: int
    prompts: tuple[int, ...]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args(arguments)
    least = CONVERSATIONS * (FIRST_TOKENS + (TURNS - 1) * TURN_TOKENS) + RANKS * SYSTEM_TOKENS
    sys.stdout.write(f"{RANKS} ranks, {CONVERSATIONS} conversations of {TURNS} turns, at least {least:,d} tokens to compute\n")
    for seed in range(options.seeds):
        for name in ARMS:
            one = asyncio.run(measure(name, seed))
            sys.stdout.write(
                f"seed {seed} {name:9} hits {one.hit_share:6.1%}  computed {one.computed_tokens:8,d}  prompts by rank {one.prompts or 'not known'}\n"
            )
            sys.stdout.flush()
    return 0


async def measure(arm: str, seed: int) -> Outcome:
    """One run of an arm; equal seeds send equal conversations."""
    name_ranks, balance_s = ARMS[arm]
    engine = EngineConfig(blocks=RANK_BLOCKS, block_size_tokens=BLOCK, max_model_len_tokens=8192, time=TimeModel(speed=SPEED))
    config = ReplicaConfig(engine=engine, model="m-7b", data_parallel=RANKS, balance_s=balance_s)
    with tempfile.TemporaryDirectory() as state:
        async with running_fleet(config) as fleet, standard_rig(Path(state), scrape_s=0.2, name_ranks=name_ranks, kv_retry_s=0.05) as rig:
            entries = (replica_entry(fleet[0].url, "sim"),)
            rig.publish(bumped(rig.acme, pools=tuple(msgspec.structs.replace(pool, replicas=entries) for pool in rig.acme.pools)))
            plane, url = rig.router.plane, fleet[0].url
            await until(lambda: len(plane.residency.of(url).targets) == RANKS and plane.residency.of(url).state == "exact", 30.0)
            await until(lambda: len(plane.engine(url).ranks) == (RANKS if name_ranks else 0), 30.0)
            await _talk(rig, seed)
            return _outcome(rig.records())


async def _talk(rig: Rig, seed: int) -> None:
    dice = random.Random(seed)
    system = [dice.randrange(100, 30_000) for _ in range(SYSTEM_TOKENS)]
    limit = asyncio.Semaphore(AT_ONCE)

    async def conversation(own: random.Random) -> None:
        said = [*system, *[own.randrange(100, 30_000) for _ in range(FIRST_TOKENS)]]
        await asyncio.sleep(own.random() * THINK_S / SPEED)
        for _ in range(TURNS):
            async with limit:
                body = {"model": "m-7b", "prompt": said, "max_tokens": ANSWER_TOKENS, "stream": True, "stream_options": {"include_usage": True}}
                answer = await rig.call("POST", "/v1/completions", json=body)
            if answer.status != 200:
                raise RuntimeError(answer.body.decode()[:200])
            said = [*said, *[own.randrange(100, 30_000) for _ in range(TURN_TOKENS)]]
            await asyncio.sleep(own.expovariate(SPEED / THINK_S))

    await asyncio.gather(*[conversation(random.Random(dice.random())) for _ in range(CONVERSATIONS)])
    await until(lambda: len(rig.records()) >= CONVERSATIONS * TURNS)


def _outcome(records: list[DecisionRecord]) -> Outcome:
    prompts = sum(one.prompt_tokens or 0 for one in records)
    cached = sum(one.cached_tokens or 0 for one in records)
    ranks = Counter(one.attempts[-1].dp_rank for one in records if one.attempts)
    return Outcome(
        hit_share=cached / prompts,
        computed_tokens=prompts - cached,
        prompts=() if None in ranks else tuple(ranks[rank] for rank in range(RANKS)),
    )


if __name__ == "__main__":
    sys.exit(main())
