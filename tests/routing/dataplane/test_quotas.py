"""Quotas on the request path: what is refused and how, what is reserved and settled, and that nobody's words but the engine's and ours count."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest

from routing.core import quota
from routing.core.snapshot import QuotaEntry
from tests.fakes.replica import Script, chunk, completion, usage, usage_chunk
from tests.fakes.rig import HI, KEY_A, KEY_A_EMEA, KEY_B, Rig, bumped, named, until

STREAM = {**HI, "stream": True}
PROMPT = {**HI, "max_tokens": 10}


def put(rig: Rig, *entries: QuotaEntry, slug: str = "acme") -> None:
    """Give a tenant these quotas and no others."""
    rig.publish(bumped(getattr(rig, slug), quotas=entries))


def of(kind: Any, name: str = "", **limits: Any) -> QuotaEntry:
    return QuotaEntry(id=named(f"quota {kind} {name}"), of=kind, name=name, **limits)


def used(rig: Rig, entry: QuotaEntry, measure: quota.Measure) -> int:
    """What the router counts under one limit."""
    desk, limit = rig.router.plane.quotas, getattr(entry, measure)
    now_s = desk.now_s()
    meter = desk.meter(entry, measure, quota.month_of(now_s))
    return int(limit - meter.left(now_s, desk.terms(limit, meter)))


def refusals(rig: Rig) -> str:
    """The lines of the metric of refusals."""
    page = rig.router.plane.metrics.page().decode()
    return "\n".join(line for line in page.splitlines() if line.startswith("saltroute_quota_refused_total"))


async def test_requests_beyond_the_limit_are_refused_by_name(rig: Rig) -> None:
    """429 in OpenAI's shape with the quota's name, when to come back, the headers, a counter and a decision record; nothing reaches an engine."""
    put(rig, of("tenant", requests_per_minute=2))
    answers = [await rig.chat() for _ in range(3)]
    assert [one.status for one in answers] == [200, 200, 429]
    refused = answers[2]
    assert refused.error["code"] == "quota_requests_per_minute"
    assert refused.error["type"] == "rate_limit_exceeded"
    assert set(refused.error) == {"message", "type", "param", "code"}
    assert 1 <= int(refused.headers["Retry-After"]) <= quota.WINDOW_S + quota.SLOT_S + quota.MARGIN_S
    assert [one.headers["x-ratelimit-remaining-requests"] for one in answers] == ["1", "0", "0"]
    assert {one.headers["x-ratelimit-limit-requests"] for one in answers} == {"2"}
    assert refused.headers["x-ratelimit-reset-requests"].endswith("s")
    assert rig.served() == 2
    record = rig.records()[-1]
    assert (record.outcome, record.status, record.error_code) == ("refused", 429, "quota_requests_per_minute")
    assert record.endpoint == "m-7b"
    assert record.key_id is not None
    assert 'quota="quota_requests_per_minute"' not in refusals(rig)  # the label is the measure
    assert 'quota="requests_per_minute"' in refusals(rig)


async def test_without_a_quota_there_is_no_header_and_no_limit(rig: Rig) -> None:
    """The control: the same requests of a tenant without quotas, while another has some."""
    put(rig, of("tenant", requests_per_minute=1))
    answers = [await rig.chat(key=KEY_B) for _ in range(3)]
    assert [one.status for one in answers] == [200, 200, 200]
    assert not [name for one in answers for name in one.headers if name.lower().startswith("x-ratelimit")]


@pytest.mark.parametrize(
    ("entry", "key", "holds"),
    [
        (of("tenant", requests_per_minute=1), KEY_A_EMEA, True),
        (of("platform", requests_per_minute=1), KEY_A, True),
        (of("scope", "", requests_per_minute=1), KEY_A_EMEA, True),
        (of("scope", "support", requests_per_minute=1), KEY_A_EMEA, True),
        (of("scope", "support/emea", requests_per_minute=1), KEY_A_EMEA, True),
        (of("scope", "support", requests_per_minute=1), KEY_A, False),
        (of("key", KEY_A[:12], requests_per_minute=1), KEY_A, True),
        (of("key", "another", requests_per_minute=1), KEY_A, False),
        (of("endpoint", "m-7b", requests_per_minute=1), KEY_A, True),
        (of("endpoint", "another", requests_per_minute=1), KEY_A, False),
    ],
)
async def test_which_requests_a_quota_is_of(rig: Rig, entry: QuotaEntry, key: str, holds: bool) -> None:
    """Tenant, platform, the acting scope and those above it, key and endpoint; nobody else's."""
    put(rig, entry)
    assert [(await rig.chat(key=key)).status for _ in range(2)] == ([200, 429] if holds else [200, 200])


async def test_all_that_apply_must_hold(rig: Rig) -> None:
    """The nearest does not win: a generous quota of the key helps nothing against the tenant's, and a refused request takes nothing from either."""
    wide, narrow = of("key", KEY_A[:12], requests_per_minute=100), of("tenant", requests_per_minute=2)
    put(rig, wide, narrow)
    answers = [await rig.chat() for _ in range(5)]
    assert [one.status for one in answers] == [200, 200, 429, 429, 429]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "2"  # the one that has least left
    assert used(rig, wide, "requests_per_minute") == 2


async def test_tokens_are_reserved_and_then_settled_by_the_engine(rig: Rig) -> None:
    """While it runs a request holds its prompt and all the tokens that it allows; afterwards what the engine says it used."""
    entry = of("tenant", tokens_per_minute=10_000, tokens_per_month=10_000)
    put(rig, entry)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = Script(hold=gate, body=completion(usage=usage(prompt=40, completion=7)))
    asked = asyncio.create_task(rig.chat({**HI, "max_tokens": 500}))
    await until(lambda: rig.served() == 1)
    assert 500 < used(rig, entry, "tokens_per_minute") < 600
    assert used(rig, entry, "tokens_per_month") == used(rig, entry, "tokens_per_minute")
    gate.set()
    answer = await asked
    assert answer.status == 200
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) < 9_500
    assert answer.headers["x-ratelimit-limit-tokens-month"] == "10000"
    await rig.settled()
    assert used(rig, entry, "tokens_per_minute") == used(rig, entry, "tokens_per_month") == 47


@pytest.mark.parametrize("measure", ["tokens_per_minute", "tokens_per_month"])
async def test_tokens_beyond_the_limit_are_refused_by_name(rig: Rig, measure: str) -> None:
    """What a request may come to use counts before it runs, so that no answer ends beyond the limit."""
    put(rig, msgspec.structs.replace(of("tenant", requests_per_minute=100), **{measure: 600}))
    assert (await rig.chat({**HI, "max_tokens": 500})).status == 200  # used 14 in the end
    refused = await rig.chat({**HI, "max_tokens": 599})
    assert (refused.status, refused.error["code"]) == (429, f"quota_{measure}")
    assert int(refused.headers["Retry-After"]) >= 1
    assert refused.headers["x-ratelimit-remaining-requests"] == "98"  # as it stood when it was refused
    assert (await rig.chat({**HI, "max_tokens": 500})).status == 200
    assert rig.served() == 2
    entry = rig.acme.quotas[0]
    assert used(rig, entry, "requests_per_minute") == 2  # what was refused for its tokens is no request


async def test_what_reached_no_engine_costs_nothing(rig: Rig) -> None:
    """No replica, no use: request and tokens are given back."""
    entry = of("tenant", requests_per_minute=5, tokens_per_minute=5_000)
    pool = msgspec.structs.replace(rig.acme.pools[0], replicas=())
    rig.publish(bumped(rig.acme, quotas=(entry,), pools=(pool,)))
    assert (await rig.chat()).status == 503
    assert (used(rig, entry, "requests_per_minute"), used(rig, entry, "tokens_per_minute")) == (0, 0)


async def test_an_engine_that_fails_costs_no_tokens(rig: Rig) -> None:
    """The request was one; its tokens are not the client's fault."""
    entry = of("tenant", requests_per_minute=5, tokens_per_minute=5_000)
    put(rig, entry)
    rig.a.script = rig.b.script = Script(status=500, body={"error": {"message": "broken"}})
    assert (await rig.chat()).status == 502
    assert (used(rig, entry, "requests_per_minute"), used(rig, entry, "tokens_per_minute")) == (1, 0)


async def test_a_broken_stream_settles_with_what_is_known(rig: Rig) -> None:
    """The engine never came to say what it used: the chunks that were relayed count, and the prompt as the router counted it."""
    entry = of("tenant", tokens_per_minute=10_000)
    put(rig, entry)
    rig.a.script = rig.b.script = Script(sse=[chunk("a"), chunk("b"), chunk("c")], then="rst", chunked_end=False)
    answer = await rig.chat({**STREAM, "max_tokens": 900})
    assert answer.status == 200
    await rig.settled()
    record = rig.records()[-1]
    assert record.outcome == "incomplete"
    assert record.partial_usage
    assert record.prompt_tokens == record.estimated_prompt_tokens > 0
    assert used(rig, entry, "tokens_per_minute") == record.prompt_tokens + (record.completion_tokens or 0)
    assert record.completion_tokens == 3


async def test_leaving_before_the_usage_is_said_is_no_way_round_a_quota(rig: Rig) -> None:
    """A client that hangs up when it has read what it wanted pays for its prompt and for every chunk it got."""
    entry = of("tenant", tokens_per_month=100_000)
    put(rig, entry)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = Script(sse=[chunk("a"), chunk("b"), usage_chunk(), "[DONE]"], gates={2: gate})
    headers = {"Authorization": f"Bearer {KEY_A}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession() as session:
        answer = await session.post(f"{rig.url}/v1/chat/completions", data=msgspec.json.encode(STREAM), headers=headers)
        await answer.content.readuntil(b"\n\n")
        await answer.content.readuntil(b"\n\n")
        answer.close()
    await rig.settled()
    gate.set()
    record = rig.records()[-1]
    assert record.outcome == "client_cancelled"
    assert record.prompt_tokens == record.estimated_prompt_tokens > 0
    assert used(rig, entry, "tokens_per_month") == record.prompt_tokens + 2


async def test_clients_cannot_forge_what_they_used(rig: Rig) -> None:
    """Usage in a request's body or headers, of any spelling, changes nothing: the engine's answer counts, as the control shows."""
    entry = of("tenant", tokens_per_minute=100_000, requests_per_minute=1_000)
    put(rig, entry)
    rig.a.script = rig.b.script = Script(body=completion(usage=usage(prompt=40, completion=7)))
    forged = {
        **HI,
        "max_tokens": 100,
        "usage": {"prompt_tokens": 0, "completion_tokens": -1_000_000, "total_tokens": 0},
        "metadata": {"usage": {"completion_tokens": 0}},
        "extra_body": {"usage": {"prompt_tokens": 0}},
    }
    claims = {"x-ratelimit-remaining-tokens": "999999", "x-ratelimit-limit-tokens": "999999", "x-usage": "0", "X-Saltroute-Audit": "1"}
    answer = await rig.chat(forged, headers=claims)
    assert answer.status == 200
    assert answer.headers["x-ratelimit-limit-tokens"] == "100000"
    assert used(rig, entry, "tokens_per_minute") == 47
    rig.a.script = rig.b.script = Script(body=completion(usage=usage(prompt=50, completion=7)))
    await rig.chat(forged)
    assert used(rig, entry, "tokens_per_minute") == 47 + 57


@pytest.mark.parametrize("bound", [0, -5, True, "10", None, 1.5])
async def test_a_bound_that_is_none_is_not_believed(rig: Rig, bound: object) -> None:
    """What is no bound for an engine reserves what answers usually have, never nothing."""
    entry = of("tenant", tokens_per_minute=10_000)
    put(rig, entry)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = Script(hold=gate, body=completion())
    asked = asyncio.create_task(rig.chat({**HI, "max_tokens": bound}))
    await until(lambda: rig.served() == 1)
    assert used(rig, entry, "tokens_per_minute") > 100
    gate.set()
    await asked


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 5000, "max_completion_tokens": 1},
        {"max_tokens": 1, "max_completion_tokens": 5000},
        {"max_tokens": "5000"},
        {"max_tokens": 5000.0, "max_completion_tokens": 1},
        {"max_tokens": 500, "n": 10.0},
        {"max_tokens": 500, "n": "10"},
    ],
)
async def test_what_an_engine_takes_for_a_number_is_reserved(rig: Rig, body: dict[str, object]) -> None:
    """Engines read 10.0 and "10" as 10, and which of two bounds counts is theirs: many requests at once must not pass a limit by that."""
    entry = of("tenant", tokens_per_minute=100_000)
    put(rig, entry)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = Script(hold=gate, body=completion())
    asked = asyncio.create_task(rig.chat({**HI, **body}))
    await until(lambda: rig.served() == 1)
    assert 5000 < used(rig, entry, "tokens_per_minute") < 5100
    gate.set()
    await asked


async def test_several_answers_are_reserved_each(rig: Rig) -> None:
    """``n`` answers of at most ten tokens are n times ten."""
    entry = of("tenant", tokens_per_minute=10_000)
    put(rig, entry)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = Script(hold=gate, body=completion())
    asked = asyncio.create_task(rig.chat({**PROMPT, "n": 30}))
    await until(lambda: rig.served() == 1)
    assert 300 < used(rig, entry, "tokens_per_minute") < 400
    gate.set()
    await asked


async def test_every_answer_shows_what_is_left(rig: Rig) -> None:
    """Errors too, where a quota of the caller's applies: an unknown model, a malformed body; not to a stranger."""
    put(rig, of("tenant", requests_per_minute=5))
    answers = [await rig.chat({**HI, "model": "nobody"}), await rig.call("POST", "/v1/chat/completions", body=b"{")]
    assert [one.status for one in answers] == [404, 400]
    assert [one.headers["x-ratelimit-remaining-requests"] for one in answers] == ["5", "5"]
    stranger = await rig.chat(key="sk-sr-a-key-that-nobody-here-has-got")
    assert stranger.status == 401
    assert "x-ratelimit-remaining-requests" not in stranger.headers
    stream = await rig.chat(STREAM)
    assert stream.headers["x-ratelimit-remaining-requests"] == "4"


async def test_no_tenant_learns_of_anothers_quota(rig: Rig) -> None:
    """One tenant at its limit changes no byte of what another gets."""
    before = await rig.chat(key=KEY_B)
    put(rig, of("tenant", requests_per_minute=1, tokens_per_minute=1_000, tokens_per_month=1_000))
    assert [(await rig.chat()).status for _ in range(2)] == [200, 429]
    after = await rig.chat(key=KEY_B)
    secret = {"date", "x-saltroute-decision"}
    assert before.body == after.body
    assert {name: one for name, one in before.headers.items() if name.lower() not in secret} == {
        name: one for name, one in after.headers.items() if name.lower() not in secret
    }


async def test_a_limit_that_is_changed_keeps_what_was_used(rig: Rig) -> None:
    """Raising it lets more in at once, lowering it refuses at once; removing it forgets the count and holds nobody."""
    entry = of("tenant", requests_per_minute=1)
    put(rig, entry)
    assert [(await rig.chat()).status for _ in range(2)] == [200, 429]
    put(rig, msgspec.structs.replace(entry, requests_per_minute=2))
    assert [(await rig.chat()).status for _ in range(2)] == [200, 429]
    put(rig)
    assert [(await rig.chat()).status for _ in range(2)] == [200, 200]
    assert not rig.router.plane.quotas.meters


async def test_nothing_is_held_when_all_is_over(rig: Rig) -> None:
    """Whatever the ends of requests, no reservation stays."""
    entry = of("tenant", tokens_per_month=1_000_000)
    put(rig, entry)
    scripts = [Script(status=500), Script(status=400, body={"error": {"message": "no"}}), Script(sse=[chunk("a")], then="rst"), None]
    for script in scripts:
        rig.a.script = rig.b.script = script
        await rig.chat(STREAM)
    await rig.settled()
    (meter,) = rig.router.plane.quotas.meters.values()
    assert getattr(meter, "reserved") == 0  # noqa: B009 - of the month's meter
