"""What the router expects to be cached against what two real engines report, request by request: with caches too small for the conversations, an
event gap that a replay fills, one that nothing fills, and an engine that is restarted in mid-run. Each replica's state is printed at each moment.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from routing.core.snapshot import KvEvents, ReplicaEntry
from tests.engine.conftest import required
from tests.engine.installation import EngineUnavailableError, Installation
from tests.engine.relay import Relay
from tests.engine.vllm_cpu import BLOCK_TOKENS, MODEL_NAME, Replica, restart, start, stop
from tests.fakes.rig import KEY_A, Rig, bumped, endpoint, named, standard_rig, until

pytestmark = pytest.mark.engine

KV_BLOCKS = 140  # 4,448 tokens a replica, hardly more than one longest prompt needs: about a third of the conversations' tokens
CONVERSATIONS = 26
OPENING_TOKENS = (200, 700)
QUESTION_TOKENS = (20, 120)
ANSWER_TOKENS = 8
VOCABULARY = (1000, 100_000)  # ordinary tokens of the model
PHASE_REQUESTS = 60
SETTLED_S = 20.0


@dataclass
class Compared:
    """One request: expected and reported cached tokens, and on what the expectation rested."""

    expected: int
    reported: int
    evidence: str
    residency: str


@dataclass
class Course:
    """The run so far."""

    rig: Rig
    engines: dict[str, Replica]
    relays: dict[str, Relay]
    conversations: list[list[int]]
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    def states(self) -> dict[str, str]:
        plane = self.rig.router.plane
        shown = {name: plane.residency.of(engine.url) for name, engine in self.engines.items()}
        return {name: one.state if one.state == "exact" else f"{one.state} ({one.reason})" for name, one in shown.items()}

    async def ask(self) -> Compared:
        """The next turn of some conversation, in token ids, which are exact on both sides; old conversations begin anew."""
        place = self.rng.randrange(len(self.conversations))
        said = self.conversations[place]
        if len(said) > 1500 or not said:
            said[:] = self.tokens(*OPENING_TOKENS)
        said.extend(self.tokens(*QUESTION_TOKENS))
        body = {"model": "m-7b", "prompt": said, "max_tokens": ANSWER_TOKENS, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
        reply = await self.rig.call("POST", "/v1/completions", key=KEY_A, json=body)
        assert reply.status == 200, reply.body
        said.extend(reply.json["choices"][0]["token_ids"])
        record = self.rig.records()[-1]
        chosen = next(one for one in record.candidates if one.replica_id == record.replica_id)
        assert record.cached_tokens is not None
        return Compared(record.matched_tokens, record.cached_tokens, chosen.evidence, chosen.residency)

    async def phase(self, name: str, count: int = PHASE_REQUESTS) -> list[Compared]:
        rows = [await self.ask() for _ in range(count)]
        errors = [abs(row.expected - row.reported) for row in rows]
        exact = sum(error < BLOCK_TOKENS for error in errors) / len(rows)
        evidence = {kind: sum(row.evidence == kind for row in rows) for kind in ("event", "inferred", "pending", "none")}
        sys.stdout.write(
            f"\n{name:34} {count} requests  exact {exact:6.1%}  median error {statistics.median(errors):5.0f}  worst {max(errors):5d} tokens"
            f"  expected {sum(row.expected for row in rows):6d} reported {sum(row.reported for row in rows):6d}  {evidence}  {self.states()}"
        )
        return rows

    def moment(self, name: str) -> None:
        sys.stdout.write(f"\n  {name}: {self.states()}")

    async def settled(self, what: Callable[[dict[str, str]], bool], name: str) -> None:
        await until(lambda: what(self.states()), within_s=SETTLED_S)
        self.moment(name)

    def tokens(self, low: int, high: int) -> list[int]:
        return [self.rng.randrange(*VOCABULARY) for _ in range(self.rng.randint(low, high))]


def share_exact(rows: list[Compared]) -> float:
    return sum(abs(row.expected - row.reported) < BLOCK_TOKENS for row in rows) / len(rows)


@pytest.fixture(scope="module")
def small() -> Any:
    """Two engines with small caches, and a relay before the events of each."""
    installation = Installation.default()
    try:
        installation.ensure()
        started = start(installation, ("small-a", "small-b"), kv_blocks=KV_BLOCKS)
    except EngineUnavailableError as error:
        if required():
            pytest.fail(f"no engine: {error}", pytrace=False)
        pytest.skip(f"no engine: {error}")
    engines = {"A": started[0], "B": started[1]}
    relays = {name: Relay(engine.events) for name, engine in engines.items()}
    yield engines, relays
    for relay in relays.values():
        relay.close()
    stop(list(engines.values()))


async def course_of(rig: Rig, small: tuple[dict[str, Replica], dict[str, Relay]], *, replay: bool) -> Course:
    engines, relays = small
    entries = tuple(
        ReplicaEntry(
            id=named(f"replica {name}"),
            name=name,
            url=engine.url,
            engine="vllm",
            kv_events=KvEvents(endpoint=relays[name].endpoint, replay=engine.replay if replay else None),
        )
        for name, engine in engines.items()
    )
    pool = rig.acme.pools[0].__class__(
        id=rig.acme.pools[0].id, name="real", owner_tenant_id=rig.acme.tenant_id, isolation="declared", replicas=entries
    )
    rig.publish(bumped(rig.acme, pools=(pool,), endpoints=(endpoint(pool, served_model=MODEL_NAME),)))
    return Course(rig, engines, relays, [[] for _ in range(CONVERSATIONS)])


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with standard_rig(tmp_path / "state", scrape_s=0.5) as made:
        yield made


def exact(states: dict[str, str]) -> bool:
    return set(states.values()) == {"exact"}


async def test_expectations_come_true_through_a_gap_and_a_restart(rig: Rig, small: tuple[dict[str, Replica], dict[str, Relay]]) -> None:
    course = await course_of(rig, small, replay=True)
    course.moment("subscribed")
    await course.phase("warming up", 30)
    await course.settled(exact, "both read")
    steady = await course.phase("steady")
    assert share_exact(steady) >= 0.95
    assert {row.evidence for row in steady} & {"event"}

    course.relays["A"].dropping = course.relays["B"].dropping = True
    during = await course.phase("events are lost", 20)
    assert course.relays["A"].lost + course.relays["B"].lost > 0
    course.relays["A"].dropping = course.relays["B"].dropping = False
    await course.phase("events come again", 10)
    await course.settled(exact, "gap filled by replay")
    recovered = await course.phase("after the gap")
    assert share_exact(recovered) >= 0.95
    assert share_exact(during) <= share_exact(recovered)

    engine = small[0]["A"]
    small[0]["A"] = course.engines["A"] = await asyncio.to_thread(restart, Installation.default(), engine, kv_blocks=KV_BLOCKS)
    restarts = rig.router.plane.engines[engine.url].restarts
    await until(lambda: rig.router.plane.engines[engine.url].restarts >= max(1, restarts), within_s=SETTLED_S)
    course.moment("A was restarted")
    after = await course.phase("after the restart", 40)
    await course.settled(exact, "both read again")
    again = await course.phase("steady again")
    assert share_exact(after) >= 0.85
    assert share_exact(again) >= 0.95


async def test_a_gap_that_nothing_fills_is_said_and_nothing_is_claimed_exact(rig: Rig, small: tuple[dict[str, Replica], dict[str, Relay]]) -> None:
    course = await course_of(rig, small, replay=False)
    course.moment("subscribed, without replay")
    await course.phase("without replay")
    book, relay = rig.router.plane.residency, course.relays["A"]
    url, lost = small[0]["A"].url, relay.lost  # the other one may still be on its way to exact
    assert book.of(url).state == "exact"
    relay.dropping = True
    while relay.lost == lost:
        await course.ask()
    relay.dropping, passed = False, relay.passed
    while relay.passed == passed:
        await course.ask()
    await until(lambda: book.of(url).reason == "gap", within_s=SETTLED_S)
    course.moment("a gap that stays")
    assert book.of(url).state == "degraded"
    learning = await course.phase("learning anew", 40)
    assert share_exact([row for row in learning if row.residency == "exact"]) >= 0.95
    assert all(row.expected <= row.reported + BLOCK_TOKENS for row in learning if row.evidence == "event")  # no block is promised that is gone
