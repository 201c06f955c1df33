"""What routers tell the control plane: who is there, which build it is, and whom it cannot serve."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from console.reads import routers as read_by_console
from routing.dataplane.feeds import load
from routing.services.audits import reports as read_by_audits
from tests.fakes.replica import Script
from tests.fakes.rig import HI, KEY_B, Rig, bumped, endpoint, replica_entry
from tests.routing.dataplane.test_secrets import SECRET, sealed

LONG = {**HI, "messages": [{"role": "user", "content": "p" * 2000}]}


def speak(fake: Any, *, version: str = "0.32.0", model: str = "m-7b", started: float = 1000.0, block_size: int = 32) -> None:
    """Let a fake say what an engine says of itself."""
    lines = [
        f"process_start_time_seconds {started}",
        'vllm:num_requests_running{engine="0"} 1.0',
        'vllm:num_requests_waiting{engine="0"} 2.0',
        f'vllm:cache_config_info{{block_size="{block_size}",num_gpu_blocks="40",prefix_caching_hash_algo="sha256"}} 1.0',
    ]
    fake.on_path["/metrics"] = Script(body="\n".join(lines).encode() + b"\n", headers={"Content-Type": "text/plain"})
    fake.on_path["/version"] = Script(body={"version": version})
    models = [{"id": model, "root": "/m", "parent": None}, {"id": "ada", "parent": model}]
    fake.on_path["/v1/models"] = Script(body={"object": "list", "data": models})


async def check(rig: Rig, *, again: bool = False) -> dict[str, Any]:
    """One round of health checks, and what the router says of A then; ``again``: as if the minute between two questions were over."""
    plane = rig.router.plane
    for replica in plane.replicas.values():
        if again:
            plane.engine(replica.url).facts_due_s = 0.0
        await load.check(plane, replica)
    told: dict[str, Any] = report(rig)["replicas"][rig.a.url]
    return told


def report(rig: Rig) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.json.decode(rig.router.snapshots.status())
    return told


async def test_an_engine_is_reported_with_what_it_says_of_itself(rig: Rig) -> None:
    rig.only_a()
    speak(rig.a)
    await rig.chat(LONG)
    told = await check(rig)
    assert told == {
        "condition": "ok",
        "away_since": None,
        "in_flight": 0,
        "max_concurrency": None,
        "queued_tokens": 0,
        "waiting": 2.0,
        "residency": "history",
        "residency_reason": "no_events",
        "residency_for_s": None,
        "residency_since": None,
        "event_blocks": 0,
        "residency_blocks": 15,
        "trust": told["trust"],
        "named_ranks": 0,
        "build": told["build"],
        "block_size_tokens": 32,
        "calibration": {"tokens_per_s": 8000.0, "learned": False, "fixed_s": 0.03},  # nobody has measured it yet
        "capacity_tokens": told["capacity_tokens"],
        "models": ["m-7b", "ada"],
        "started_at": 1000.0,
    }
    assert len(told["build"]) == 32


async def test_the_control_plane_reads_what_routers_write(rig: Rig) -> None:
    speak(rig.a)
    told = await check(rig)
    found = read_by_audits.join([rig.router.snapshots.status()]).engines[rig.a.url]
    assert (found.build, found.block_tokens, found.started_at, found.models, found.waiting) == (told["build"], 32, 1000.0, ("m-7b", "ada"), 2.0)
    seen = read_by_console._added(read_by_console.Load(), told)
    assert (seen.health, seen.in_flight, seen.queued_tokens, seen.residency) == ("ok", 0, 0.0, "history")


@pytest.mark.parametrize("change", [{"version": "0.33.0"}, {"model": "other"}, {"block_size": 16}])
async def test_another_build_is_seen_when_it_is_asked_for_and_at_once_after_a_restart(rig: Rig, change: dict[str, Any]) -> None:
    speak(rig.a)
    before = (await check(rig))["build"]
    assert (await check(rig, again=True))["build"] == before
    speak(rig.a, **change)
    changed = (await check(rig, again=True))["build"]
    assert changed not in (None, before)
    speak(rig.a, started=2000.0)
    assert (await check(rig))["build"] == before


async def test_the_build_of_one_process_is_never_mixed_with_anothers(rig: Rig) -> None:
    speak(rig.a)
    before = (await check(rig))["build"]
    speak(rig.a, version="0.33.0", started=2000.0)
    rig.a.on_path["/version"] = Script(status=503, body=b"")
    assert (await check(rig))["build"] is None
    speak(rig.a, version="0.33.0", started=2000.0)
    assert (await check(rig))["build"] not in (None, before)


async def test_a_page_that_does_not_answer_changes_no_build(rig: Rig) -> None:
    speak(rig.a)
    before = (await check(rig))["build"]
    for path in ("/version", "/v1/models", "/metrics"):
        rig.a.on_path[path] = Script(status=500, body=b"")
        assert (await check(rig, again=True))["build"] == before


async def test_an_engine_that_says_nothing_of_itself_has_no_build(rig: Rig) -> None:
    told = await check(rig)
    assert (told["condition"], told["build"], told["block_size_tokens"], told["started_at"]) == ("ok", None, None, None)


async def test_its_pages_are_asked_for_with_the_replicas_own_credential(rig: Rig) -> None:
    replicas = (replica_entry(rig.a, credential=sealed(SECRET, "A")),)
    rig.publish(bumped(rig.acme, pools=(msgspec.structs.replace(rig.acme.pools[0], replicas=replicas),)))
    rig.publish(bumped(rig.globex, pools=(msgspec.structs.replace(rig.globex.pools[0], replicas=()),)))
    await check(rig)
    asked = {received.path: received.headers.get("authorization") for received in rig.a.probes}
    assert asked == dict.fromkeys(("/health", "/metrics", "/version", "/v1/models", "/kv_event_sources"), f"Bearer {SECRET}")


async def test_it_is_asked_once_a_minute_and_after_it_was_away(rig: Rig) -> None:
    speak(rig.a)

    def asked() -> int:
        return sum(received.path == "/version" for received in rig.a.probes)

    for _ in range(3):
        await check(rig)
    assert asked() == 1
    rig.a.on_path["/health"] = Script(status=503, body=b"")
    await check(rig)
    del rig.a.on_path["/health"]
    await check(rig)
    assert asked() == 2


def _audited(rig: Rig, *, of: str = "acme", **entry: Any) -> None:
    document = rig.acme if of == "acme" else rig.globex
    replicas = (replica_entry(rig.a, **entry), replica_entry(rig.b, state="paused"))
    rig.publish(bumped(document, pools=(msgspec.structs.replace(document.pools[0], isolation="audited", replicas=replicas),)))


async def test_who_was_refused_for_isolation_is_reported_until_it_is_served(rig: Rig) -> None:
    _audited(rig)
    a = str(replica_entry(rig.a).id)
    assert report(rig)["unserved"] == {}
    for scope in ("", "support", ""):
        headers = {"X-Saltroute-Scope": scope} if scope else {}
        assert (await rig.chat(headers=headers)).error["code"] == "isolation_unavailable"
    first, second = rig.namespace().public_id, rig.namespace(scope_path="support").public_id
    assert report(rig)["unserved"] == {a: [first, second]}
    assert read_by_audits.join([rig.router.snapshots.status()]).unserved == {a: (first, second)}
    _audited(rig, dedicated_namespace=first)
    assert report(rig)["unserved"] == {a: [second]}
    assert (await rig.chat()).status == 200


async def test_two_tenants_wishes_for_one_engine_stand_side_by_side(rig: Rig) -> None:
    for of in ("acme", "globex"):
        _audited(rig, of=of)
    await rig.chat()
    await rig.chat(key=KEY_B)
    (wished,) = report(rig)["unserved"].values()
    assert len(wished) == 2


async def test_nobody_waits_for_a_quarantined_replica_or_with_a_namespace_that_never_comes_back(rig: Rig) -> None:
    _audited(rig, isolation="quarantined")
    refused = await rig.chat()
    assert (refused.status, refused.error["code"]) == (503, "isolation_unavailable")
    assert {one.refusal for one in rig.records()[-1].candidates} == {"quarantined", "paused"}
    assert report(rig)["unserved"] == {}
    _audited(rig)
    rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0], sharing="none"),)))
    assert (await rig.chat()).error["code"] == "isolation_unavailable"
    assert report(rig)["unserved"] == {}


async def test_other_refusals_are_no_wishes(rig: Rig) -> None:
    _audited(rig, state="draining")
    assert (await rig.chat()).error["code"] == "no_ready_replica"
    assert report(rig)["unserved"] == {}


@pytest.mark.parametrize(("state", "served"), [("unverified", False), ("isolated", True), ("suspect", False), ("quarantined", False)])
async def test_a_state_acts_on_the_next_request(rig: Rig, state: Any, served: bool) -> None:
    _audited(rig, isolation=state)
    assert ((await rig.chat()).status == 200) is served
    assert rig.served() == served
