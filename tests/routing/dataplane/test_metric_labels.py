"""Series of a router stay as few as its tables: whatever clients, keys, engines and their pages say, no value of theirs becomes a label."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest

from routing.core.record import Why
from routing.dataplane.feeds import load
from routing.dataplane.metrics import STATUSES, failure
from tests.fakes.replica import Script, chunk, completion, usage_chunk
from tests.fakes.rig import HI, Rig, until
from tests.routing.dataplane.conftest import MakeRig

Series = frozenset[tuple[str, tuple[tuple[str, str], ...]]]
KNOWN = (*sorted(map(int, STATUSES)), 302, 405, 418, 599, 666)  # what is told apart, and one of each that is not
USED: tuple[dict[str, Any], ...] = (
    {"usage": 7},
    {"usage": {"prompt_tokens": 10**30, "completion_tokens": -1}},
    {"usage": {"evil": {"cached": "evil"}}},
)


def series(rig: Rig) -> Series:
    """Every series of the page, by name and labels."""
    registry = rig.router.plane.metrics.registry
    return frozenset((sample.name, tuple(sorted(sample.labels.items()))) for family in registry.collect() for sample in family.samples)


async def ask(rig: Rig, script: Script, **more: Any) -> None:
    """One request, which both engines answer in the same way."""
    rig.a.script = rig.b.script = script
    await rig.chat({**HI, **more})


async def hostile_engine(rig: Rig, status: int, word: str) -> None:
    """An engine that answers with this status, or says under 200 that it does, or breaks a stream with it, or names errors as it likes."""
    error = {"message": word, "type": word, "param": word, "code": word}
    await ask(rig, Script(status=status, body={"error": error}))
    await ask(rig, Script(body={"error": {**error, "code": status}}))
    await ask(rig, Script(body={"object": "error", "message": word, "code": str(status)}))
    await ask(rig, Script(sse=[{"error": {**error, "code": status}}]), stream=True)
    await ask(rig, Script(sse=[chunk("a"), {"error": {**error, "code": status}}]), stream=True)
    await ask(rig, Script(sse=[chunk("a"), chunk(finish=word), usage_chunk(), "[DONE]"]), stream=True)
    await ask(rig, Script(body=completion(word, model=word, object=word, **{word: word})))
    await ask(rig, Script(body=b"", headers={"Content-Encoding": word}))
    await ask(rig, Script(body=b"{}", headers={"Content-Type": word, "Retry-After": word, "Location": word}, status=status))


async def hostile_pages(rig: Rig, word: str) -> None:
    """What engines say of themselves between requests."""
    rows = f'vllm:lora_requests_info{{max_lora="2",running_lora_adapters="{word}",waiting_lora_adapters=""}} 1.0\n'
    rows += f'vllm:num_requests_running{{engine="{word}",model_name="{word}"}} 1.0\n{word}{{{word}="{word}"}} 1.0\n'
    for fake in (rig.a, rig.b):
        fake.on_path["/metrics"] = Script(body=rows.encode(), headers={"Content-Type": "text/plain"})
        fake.on_path["/version"] = Script(body={"version": word})
        fake.on_path["/v1/models"] = Script(body={"object": "list", "data": [{"id": name, "owned_by": word} for name in ("m-7b", word)]})
        fake.on_path["/kv_event_sources"] = Script(body={word: {"endpoint": word, "topic": word}})
    for replica in rig.router.plane.replicas.values():
        rig.router.plane.engine(replica.url).facts_due_s = 0.0
        await load.check(rig.router.plane, replica)


async def hostile_client(rig: Rig, word: str) -> None:
    """Everything that a client may write, its method and path among it."""
    rig.a.script = rig.b.script = None
    headers = {"X-Saltroute-Scope": word, "X-Saltroute-Context": f"{word}={word}", "X-Session-ID": word, "traceparent": word, "X-Request-Id": word}
    for usual in (HI, {**HI, "stream": True}):
        await rig.chat(usual, headers={"X-Session-ID": word, "X-Request-Id": word, "traceparent": word})
    for name, value in headers.items():
        await rig.chat(headers={name: value})
    await rig.chat(key=word)
    await rig.chat({**HI, "model": word})
    await rig.chat({**HI, word: word, "user": word, "cache_salt": word})
    await rig.chat(body=word.encode())
    await rig.call("POST", f"/v1/{word}", json=HI)
    await rig.call("POST", f"/t/{word}/v1/chat/completions", json=HI)
    await rig.call("GET", f"/v1/models/{word}")
    await rig.call(word.upper(), "/v1/chat/completions")
    await rig.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": word})


async def test_no_value_of_a_strangers_makes_a_series(make_rig: MakeRig) -> None:
    """After each kind of thing has happened once, five hundred others of each kind add nothing."""
    rig = await make_rig(breaker_failures=10**9)  # an engine that is left alone says nothing
    await hostile_pages(rig, "first")
    await hostile_client(rig, "first")
    for status in KNOWN:
        await hostile_engine(rig, status, "first")
    for body in USED:
        await ask(rig, Script(body=completion(**body)))
    await rig.settled()
    before = series(rig)
    causes = {dict(labels)["cause"] for name, labels in before if name == "saltroute_attempts_failed_total"}
    assert {f"status_{one}" for one in STATUSES} <= causes  # what is told apart was seen
    for number, status in zip(itertools.count(), range(300, 700, 3), strict=False):
        await hostile_engine(rig, status, f"evil{number}")
    for number in range(8):
        await hostile_pages(rig, f"evil{number}")
        await hostile_client(rig, f"evil{number}")
    await rig.settled()
    after = series(rig)
    with_time = {(f"saltroute_records_shortened_{what}", (("why", why),)) for what in ("total", "created") for why in get_args(Why)}  # of so many
    assert after - before - with_time == frozenset()
    assert not [labels for _, labels in after if any("evil" in value or "first" in value for _, value in labels)]
    await until(lambda: rig.router.plane.in_flight == 0)


@pytest.mark.parametrize(
    ("code", "label"),
    [
        ("status_500", "status_500"),
        ("status_429", "status_429"),
        ("status_599", "status_5xx"),
        ("status_418", "status_4xx"),
        ("status_302", "status_3xx"),
        ("status_666", "status_other"),
        ("status_99", "status_other"),
        ("status_5000", "status_other"),
        ("status_", "status_other"),
        ("first_byte_timeout", "first_byte_timeout"),
        ("", ""),
    ],
)
def test_a_failure_is_one_of_a_closed_list(code: str, label: str) -> None:
    assert failure(code) == label


def test_all_statuses_make_fourteen_labels() -> None:
    assert len({failure(f"status_{status}") for status in range(2000)}) == len(STATUSES) + 4
