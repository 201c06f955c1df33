"""A candidate policy beside the live one: in the shadow it moves nothing and says what it would have done; as a canary it places its share."""

from __future__ import annotations

from typing import Any

import pytest

from routing.core.snapshot import PolicyEntry
from tests.fakes.rig import Rig, bumped, endpoint

LIVE = PolicyEntry(name="live", version=3, spec={"policy": "ettft"})
CANDIDATE = PolicyEntry(name="turns", version=7, spec={"policy": "round_robin"})


SYSTEM = {"role": "system", "content": "All conversations of this service begin alike. " * 20}


def on_trial(rig: Rig, share: float) -> None:
    entry = endpoint(rig.acme.pools[0], routing_policy=LIVE, candidate_policy=CANDIDATE, canary_share=share)
    rig.publish(bumped(rig.acme, endpoints=(entry,)))


async def talk(rig: Rig, conversations: int = 6, turns: int = 4) -> list[list[Any]]:
    """Conversations, turn by turn beside one another; their records."""
    texts = [[f"conversation {number} " * 60] for number in range(conversations)]
    found: list[list[Any]] = [[] for _ in texts]
    for _ in range(turns):
        for number, said in enumerate(texts):
            messages = [SYSTEM, *({"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(said))]
            assert (await rig.chat({"model": "m-7b", "messages": messages})).status == 200
            found[number].append(rig.records()[-1])
            said.extend(["an answer", f"more of {number} " * 20])
    return found


async def test_in_the_shadow_the_live_policy_decides_and_the_other_choice_is_recorded(rig: Rig) -> None:
    on_trial(rig, 0.0)
    rows = await talk(rig)
    assert all(len({record.replica_name for record in row}) == 1 for row in rows)  # affinity: the live policy's work
    records = [record for row in rows for record in row]
    assert {(record.policy, record.policy_version) for record in records} == {("ettft", 3)}
    assert {(record.trial.policy, record.trial.policy_version, record.trial.placed) for record in records} == {("round_robin", 7, False)}
    assert {record.trial.replica_name for record in records} == {"A", "B"}
    differing = [record for record in records if record.trial.replica_id != record.replica_id]
    assert differing
    assert any(record.trial.expected_cached_tokens < record.expected_cached_tokens for record in differing)


async def test_as_a_canary_the_candidate_places_its_share_and_a_conversation_stays_on_one_side(rig: Rig) -> None:
    on_trial(rig, 0.5)
    rows = await talk(rig, conversations=24, turns=3)
    sides = [{record.trial.placed for record in row} for row in rows]
    assert all(len(side) == 1 for side in sides)
    placed = sum(True in side for side in sides)
    assert 4 <= placed <= 20
    for record in (record for row in rows for record in row):
        assert (record.policy, record.trial.policy) == (("round_robin", "ettft") if record.trial.placed else ("ettft", "round_robin"))


@pytest.mark.parametrize(("share", "placed"), [(0.0, False), (1.0, True)])
async def test_the_ends_of_the_share_are_none_and_all(rig: Rig, share: float, placed: bool) -> None:
    on_trial(rig, share)
    rows = await talk(rig, conversations=4, turns=1)
    assert {record.trial.placed for row in rows for record in row} == {placed}


async def test_without_a_candidate_nothing_is_said_of_one(rig: Rig) -> None:
    await rig.chat()
    assert rig.records()[-1].trial is None
