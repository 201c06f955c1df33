"""Tokens and tenants: what one tenant sent warms nothing for another, and what one uploaded harms nobody but itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.artifacts import ENDLESS, EXPANSION, GIGABYTE, RANGE, REGEX, TEMPLATE, TOKENIZER, digest, naming
from tests.fakes.replica import Script, chunk, event
from tests.fakes.rig import KEY_A, KEY_A_EMEA, KEY_B, Rig, until
from tests.routing.dataplane.conftest import MakeRig

LONG = {"model": "m-7b", "messages": [{"role": "system", "content": "Salt. " * 60}, {"role": "user", "content": "a" * 40 + "b"}]}


def load(rig: Rig, content: bytes, kind: Any) -> bytes:
    rig.router.plane.tokens.prompts.load(digest(content), content, kind)
    return content


async def named(rig: Rig, *, a: tuple[bytes, bytes] = (TOKENIZER, TEMPLATE), b: tuple[bytes, bytes] = (TOKENIZER, TEMPLATE)) -> None:
    """Put artifacts in force for acme and for globex, and wait until the router works with them."""
    for tokenizer, template in (a, b):
        load(rig, tokenizer, "tokenizer")
        load(rig, template, "chat_template")
    rig.publish(naming(rig.acme, *a))
    rig.publish(naming(rig.globex, *b))
    await until(lambda: rig.router.artifacts._started)


def caches(rig: Rig) -> dict[str, int]:
    """Hits of everything that this router caches of prompts."""
    stats = rig.router.plane.tokens.prompts.stats()
    return {"segments": int(stats["segment_hits"]), "residency": rig.router.plane.index.hits}


def misses(rig: Rig) -> int:
    return int(rig.router.plane.tokens.prompts.stats()["segment_misses"])


def result(rig: Rig, name: str) -> float:
    return rig.router.plane.metrics.registry.get_sample_value("saltroute_tokenised_total", {"result": name}) or 0.0


@pytest.mark.parametrize("stranger", [KEY_B, KEY_A_EMEA])
async def test_the_first_prompt_of_another_namespace_finds_nothing_warm(make_rig: MakeRig, stranger: str) -> None:
    """The same words, the same artifacts: for another tenant, and for another scope of the same tenant, every cache of the router is cold."""
    rig = await make_rig(tokens_s=30.0, poll_s=0.02, parity_s=3600.0)
    await named(rig)
    await until(lambda: len(rig.router.plane.tokens.parity) == 4, 30)  # the samples of parity are done: they count as well
    await rig.chat(LONG)
    first = misses(rig)
    before = caches(rig)
    await rig.chat(LONG, key=stranger)
    assert caches(rig) == before
    assert misses(rig) > first
    again = misses(rig)
    await rig.chat(LONG)  # the control: its own words are warm in each of them
    assert misses(rig) == again
    assert all(now > then for now, then in zip(caches(rig).values(), before.values(), strict=True)), (caches(rig), before)
    assert result(rig, "exact") == 3


@pytest.mark.parametrize(
    "hostile",
    [(TOKENIZER, RANGE), (TOKENIZER, ENDLESS), (TOKENIZER, GIGABYTE), (REGEX, TEMPLATE), (EXPANSION, TEMPLATE)],
    ids=["range", "endless", "gigabyte", "regex", "expansion"],
)
async def test_a_hostile_artifact_costs_its_own_tenant_the_tokens_and_nobody_else_anything(make_rig: MakeRig, hostile: tuple[bytes, bytes]) -> None:
    """Several of acme's prompts meet its artifact while globex sends as many: all are answered, globex's with exact tokens, acme's from history."""
    rig = await make_rig(tokens_s=5.0, poll_s=0.02)
    await named(rig, a=hostile)
    replies = await asyncio.gather(*(rig.chat(LONG, key=key) for key in (KEY_A, KEY_B) * 3))
    assert [reply.status for reply in replies] == [200] * 6
    assert result(rig, "exact") == 3
    assert rig.router.plane.metrics.registry.get_sample_value("saltroute_tokenise_seconds_count") == 6
    rig.assert_nothing_held()
    assert (await rig.chat(LONG, key=KEY_B)).status == 200
    assert result(rig, "exact") == 4


async def test_megabytes_of_text_hold_up_neither_probes_nor_streams(make_rig: MakeRig) -> None:
    """Field case FC-PX-12: while eight prompts of two megabytes are tokenised, health probes are answered and a running stream goes on, a piece after
    each probe. And all of the eight are answered."""
    rig = await make_rig(tokens_s=30.0, poll_s=0.02)
    await named(rig)
    pieces = [event(chunk(f"{number} ")) for number in range(200)] + [b"data: [DONE]\n\n"]
    gates = {place: asyncio.Event() for place in range(1, len(pieces))}
    rig.a.scripts = [Script(pieces=pieces, gates=gates)]
    rig.b.scripts = [Script(pieces=pieces, gates=gates)]
    plane = rig.router.plane

    def tokenised() -> float:
        return plane.metrics.registry.get_sample_value("saltroute_tokenise_seconds_count") or 0.0

    headers = {"Authorization": f"Bearer {KEY_A}"}
    short = {"model": "m-7b", "stream": True, "messages": [{"role": "user", "content": "go on"}]}
    async with rig.client.post(f"{rig.url}/v1/chat/completions", json=short, headers=headers) as stream:
        got = await stream.content.readuntil(b"\n\n")
        rig.a.scripts, rig.b.scripts, before = [], [], tokenised()
        large = {"model": "m-7b", "messages": [{"role": "user", "content": "Tell me of salt. " * (2 * 1024 * 1024 // 17)}]}
        asked = [asyncio.create_task(rig.chat(large)) for _ in range(8)]
        await until(lambda: plane.in_flight == 9, 30)
        meanwhile = 0
        for gate in gates.values():
            assert (await rig.call("GET", "/healthz")).status == 200
            gate.set()
            got = await stream.content.readuntil(b"\n\n")
            if tokenised() > before:
                break
            meanwhile += 1
        for gate in gates.values():
            gate.set()
        await stream.content.read()
    assert got
    assert meanwhile > 3  # on the loop, the first prompt alone would have taken longer than the first probe
    assert [reply.status for reply in await asyncio.gather(*asked)] == [200] * 8
    assert tokenised() - before == 8
    await rig.settled()
