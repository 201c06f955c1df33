"""What answers say of reuse lowers what is expected next, in that namespace and at that replica; what says nothing of it changes nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from routing.core.trust import DWELL
from routing.dataplane import learn
from tests.fakes.replica import Script, completion, usage
from tests.fakes.rig import HI, KEY_A, KEY_B, Rig
from tests.routing.core.test_trust import answer
from tests.routing.dataplane.test_alarms import scraped

TEXT = "one two three four five six seven eight nine ten " * 80
CHAT = {**HI, "messages": [{"role": "user", "content": TEXT}]}


def reports(rig: Rig, cached_tokens: int) -> None:
    rig.a.script = Script(body=completion(usage=usage(1000, 1, cached_tokens)))


async def send(rig: Rig, count: int, body: dict[str, Any] = CHAT, **more: Any) -> None:
    for _ in range(count):
        assert (await rig.chat(body, **more)).status == 200


def key_of(rig: Rig, key: str = KEY_A, scope_path: str = "") -> bytes:
    return rig.namespace(key, scope_path).key


def kappa(rig: Rig, key: str = KEY_A, scope_path: str = "") -> float:
    owner = (rig.acme if key == KEY_A else rig.globex).tenant_id.bytes
    return rig.router.plane.trust.kappa((rig.a.url, 0), owner, key_of(rig, key, scope_path), exact=False, now_s=0.0)


@pytest.fixture
async def alone(rig: Rig) -> Rig:
    """A alone, with one prompt that it is believed to hold."""
    rig.only_a()
    reports(rig, 0)
    await send(rig, 1)
    return rig


async def test_reuse_that_does_not_come_true_lowers_what_is_expected(alone: Rig) -> None:
    reports(alone, 992)
    await send(alone, 1)
    before = alone.records()[-1]
    assert before.expected_cached_tokens > 500
    reports(alone, 0)
    await send(alone, 40)
    after = alone.records()[-1]
    assert after.matched_tokens == pytest.approx(before.matched_tokens, abs=100)
    assert after.expected_cached_tokens < before.expected_cached_tokens / 3
    reports(alone, 992)
    await send(alone, 80)
    assert alone.records()[-1].expected_cached_tokens > before.expected_cached_tokens * 0.8


async def test_reuse_that_comes_true_lowers_nothing(alone: Rig) -> None:
    reports(alone, 992)
    await send(alone, 40)
    assert kappa(alone) > 1


async def test_another_namespace_is_judged_by_its_own_answers(alone: Rig) -> None:
    await send(alone, 40)
    reports(alone, 992)
    await send(alone, 40, headers={"X-Saltroute-Scope": "support"})
    assert kappa(alone) < 0.3
    assert kappa(alone, scope_path="support") > 1
    assert kappa(alone, KEY_B) < 1  # of which nothing is known: as the others at this replica fare


@pytest.mark.parametrize(
    "body",
    [
        {**CHAT, "prompt_logprobs": 1},
        {**CHAT, "truncate_prompt_tokens": 40},
        {**CHAT, "n": 2},
        {**HI, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]}]},
    ],
    ids=["logprobs", "truncated", "two answers", "media"],
)
async def test_prompts_whose_reuse_nobody_predicted_teach_nothing(alone: Rig, body: dict[str, Any]) -> None:
    before = alone.router.plane.trust.report((alone.a.url, 0), 0.0)
    await send(alone, 3, body)
    assert alone.router.plane.trust.report((alone.a.url, 0), 0.0) == before
    await send(alone, 1)
    assert alone.router.plane.trust.report((alone.a.url, 0), 0.0).answers == before.answers + 1


async def test_an_engine_that_reports_no_cached_tokens_is_not_judged(alone: Rig) -> None:
    before = alone.router.plane.trust.report((alone.a.url, 0), 0.0)
    alone.a.script = Script(body=completion(usage={**usage(1000, 1), "prompt_tokens_details": None}))
    await send(alone, 3)
    assert alone.router.plane.trust.report((alone.a.url, 0), 0.0) == before


async def test_the_report_and_the_metrics_say_how_predictions_fare(alone: Rig) -> None:
    await send(alone, 20)
    said: Any = alone.router.plane.engine_report(0.0)[alone.a.url]["trust"]
    assert said["verdict"] == "fine"  # history is advice: it is discounted, never judged
    assert said["answers"] == 20  # the first prompt promised nothing
    assert said["kappa"] < 0.7
    assert said["share_exact"] < 0.2
    assert said["median_error_tokens"] > 500
    page = alone.router.plane.metrics.page().decode()
    assert f'saltroute_replica_trust{{cause="none",replica="{alone.a.url}",verdict="fine"}} 1.0' in page
    assert f'saltroute_replica_predictions_exact{{replica="{alone.a.url}"}} 0.0' in page


async def test_a_restarted_engine_starts_with_a_clean_sheet(alone: Rig) -> None:
    await scraped(alone)
    await send(alone, 40)
    assert kappa(alone) < 0.5
    await scraped(alone, started=alone.router.plane.began_at + 120)
    assert kappa(alone) == 1.0


# -- verdicts on events ------------------------------------------------------------------------------------------------


def doubt(rig: Rig, answers: int) -> None:
    """So many answers in acme's namespace at A of which nothing came true that its events promised."""
    plane = rig.router.plane
    for _ in range(answers):
        learn.act(plane, plane.trust.observe((rig.a.url, 0), rig.acme.tenant_id.bytes, key_of(rig), answer(1600, 0), 0.0))


def asked_in_full(rig: Rig) -> list[bool]:
    return [request.json.get("vllm_xargs", {}).get("kv_cache_report_mode") == "full" for request in rig.a.requests]


async def test_while_events_are_doubted_a_few_requests_ask_for_the_full_report(alone: Rig) -> None:
    await send(alone, 3, {**CHAT, "vllm_xargs": {"kv_cache_report_mode": "full"}})
    assert not any(asked_in_full(alone))  # never the client's
    doubt(alone, DWELL)
    alone.a.requests.clear()
    await send(alone, 6)
    await send(alone, 6, key=KEY_B)
    assert sum(asked_in_full(alone)) <= 1
    assert asked_in_full(alone)[0]


async def test_a_changed_verdict_is_logged_and_counted(alone: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="saltroute.trust"):
        doubt(alone, 2 * DWELL)
    assert [record.getMessage() for record in caplog.records] == [
        f"trust in {alone.a.url} rank 0: relearn, was fine; cause: unknown",
        f"trust in {alone.a.url} rank 0: demote, was relearn; cause: unknown",
    ]
    page = alone.router.plane.metrics.page().decode()
    for scope in ("replica", "namespace"):
        assert f'saltroute_trust_changes_total{{cause="unknown",scope="{scope}",verdict="demote"}} 1.0' in page
