"""The scene of the benchmark through the wire: a fleet that notes first tokens."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from routing.traces.workloads import weak_reuse
from tests.bench.routing_fleet import First, body, watched_fleet


async def test_every_first_token_is_noted_with_what_was_cached(tmp_path: Path) -> None:
    seen: list[First] = []
    asked = [body(one, number) for number, one in enumerate(weak_reuse(1, count=2, per_s=4))]
    async with watched_fleet(tmp_path, 1000.0, seen) as fleet, aiohttp.ClientSession() as session:
        for place, payload in ((0, asked[0]), (2, asked[1]), (2, asked[1])):
            async with session.post(f"{fleet.replicas[place].url}/v1/chat/completions", json=payload) as reply:
                assert (await reply.read()).rstrip().endswith(b"[DONE]")
    assert [one.replica for one in seen] == [0, 2, 2]
    assert seen[0].cached_tokens == seen[1].cached_tokens == 0 < seen[2].cached_tokens
    assert all(one.ttft_s > 0 and one.prompt_tokens > 0 for one in seen)
