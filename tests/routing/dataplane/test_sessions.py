"""The session policy: a named session keeps its replica whatever it asks; the name itself stays in the router."""

from __future__ import annotations

from typing import Any

import pytest

from routing.core.snapshot import PolicyEntry
from tests.fakes.rig import Rig, bumped, endpoint


@pytest.fixture
def by_session(rig: Rig) -> Rig:
    entry = PolicyEntry(name="sticky", version=1, spec={"policy": "session", "load_factor": 10})
    rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0], routing_policy=entry),)))
    return rig


async def homes(rig: Rig, session: str | None, count: int = 6) -> set[str | None]:
    """Where so many unlike prompts go."""
    headers = {} if session is None else {"X-Session-ID": session}
    for number in range(count):
        body: dict[str, Any] = {"model": "m-7b", "messages": [{"role": "user", "content": f"{number} unlike {session} " * 50}]}
        assert (await rig.chat(body, headers=headers)).status == 200
    return {record.replica_name for record in rig.records()[-count:]}


async def test_a_session_keeps_its_replica_and_sessions_spread(by_session: Rig) -> None:
    found = [await homes(by_session, f"session {number}", 3) for number in range(8)]
    assert all(len(names) == 1 for names in found)
    assert set.union(*found) == {"A", "B"}


async def test_without_a_session_unlike_prompts_spread(by_session: Rig) -> None:
    assert await homes(by_session, None, 12) == {"A", "B"}


async def test_the_sessions_name_reaches_no_engine(by_session: Rig) -> None:
    await homes(by_session, "a-name-of-mine")
    for received in (*by_session.a.requests, *by_session.b.requests):
        assert "x-session-id" not in received.headers
        assert "a-name-of-mine" not in str(received.headers)
