"""A real engine of two data-parallel ranks behind one URL: each turn is named the rank that holds its conversation, and is cached as was expected."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from routing.core.record import DecisionRecord
from routing.core.snapshot import ReplicaEntry
from tests.engine.conftest import required
from tests.engine.installation import EngineUnavailableError, Installation
from tests.engine.vllm_cpu import BLOCK_TOKENS, MODEL_NAME, Replica, start, stop
from tests.fakes.rig import KEY_A, Rig, bumped, endpoint, named, standard_rig, until

pytestmark = pytest.mark.engine

RANKS = 2
CONVERSATIONS, TURNS = 8, 4
OPENING_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 400, 100, 4
VOCABULARY = (1000, 100_000)  # ordinary tokens of the model
SETTLED_S = 30.0


@pytest.fixture(scope="module")
def engine() -> Iterator[Replica]:
    installation = Installation.default()
    try:
        installation.ensure()
        (started,) = start(installation, ("ranks",), ranks=RANKS)
    except EngineUnavailableError as error:
        if required():
            pytest.fail(f"no engine: {error}", pytrace=False)
        pytest.skip(f"no engine: {error}")
    yield started
    stop([started])


@pytest.fixture
async def rig(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with standard_rig(tmp_path / "state", scrape_s=0.5, name_ranks=request.param) as made:
        yield made


async def talk(rig: Rig, engine: Replica, *, seed: int, named_ranks: int) -> list[list[DecisionRecord]]:
    """The records of each conversation's turns; the conversations take turns with one another."""
    entry = ReplicaEntry(id=named("replica of ranks"), name="ranks", url=engine.url, engine="vllm")  # its event sources are asked for
    pool = rig.acme.pools[0].__class__(
        id=rig.acme.pools[0].id, name="real", owner_tenant_id=rig.acme.tenant_id, isolation="declared", replicas=(entry,)
    )
    rig.publish(bumped(rig.acme, pools=(pool,), endpoints=(endpoint(pool, served_model=MODEL_NAME),)))
    plane = rig.router.plane
    await until(lambda: len(plane.residency.of(engine.url).targets) == RANKS and plane.residency.of(engine.url).state == "exact", SETTLED_S)
    await until(lambda: len(plane.engine(engine.url).ranks) == named_ranks, SETTLED_S)
    rng = random.Random(seed)
    said = [[rng.randrange(*VOCABULARY) for _ in range(OPENING_TOKENS)] for _ in range(CONVERSATIONS)]
    records: list[list[DecisionRecord]] = [[] for _ in said]
    for _, place in itertools.product(range(TURNS), range(CONVERSATIONS)):
        prompt = said[place]
        prompt.extend(rng.randrange(*VOCABULARY) for _ in range(QUESTION_TOKENS))
        body = {"model": "m-7b", "prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
        reply = await rig.call("POST", "/v1/completions", key=KEY_A, json=body)
        assert reply.status == 200, reply.body
        prompt.extend(reply.json["choices"][0]["token_ids"])
        records[place].append(rig.records()[-1])
    return records


def later_share(records: list[list[DecisionRecord]]) -> float:
    """The share of the later turns' prompt tokens that the engine had cached."""
    later = [one for turns in records for one in turns[1:]]
    return sum(one.cached_tokens or 0 for one in later) / sum(one.prompt_tokens or 0 for one in later)


@pytest.mark.parametrize("rig", [True], indirect=True)
async def test_turns_go_to_the_rank_of_their_conversation_and_are_cached_there_as_expected(rig: Rig, engine: Replica) -> None:
    records = await talk(rig, engine, seed=7, named_ranks=RANKS)
    ranks = [[one.attempts[-1].dp_rank for one in turns] for turns in records]
    sys.stdout.write(f"\nranks named {ranks}, later turns' tokens cached {later_share(records):.1%}")
    assert {turns[0] for turns in ranks} == set(range(RANKS))
    assert all(len(set(turns)) == 1 for turns in ranks)
    for one in itertools.chain.from_iterable(records):
        assert abs(one.matched_tokens - (one.cached_tokens or 0)) < BLOCK_TOKENS
    assert later_share(records) > 0.75


@pytest.mark.parametrize("rig", [False], indirect=True)
async def test_where_ranks_are_not_named_the_engine_chooses(rig: Rig, engine: Replica) -> None:
    """The control: another talk, and no rank in any record."""
    records = await talk(rig, engine, seed=6, named_ranks=0)
    sys.stdout.write(f"\nno rank named, later turns' tokens cached {later_share(records):.1%}")
    assert {one.attempts[-1].dp_rank for turns in records for one in turns} == {None}
