"""What operators see: health apart from readiness, metrics with bounded labels, on the internal port."""

from __future__ import annotations

import asyncio
import time

import msgspec

from tests.fakes.replica import Script, chunk, usage_chunk
from tests.fakes.rig import HI, Rig, bumped, sealed, tenant, until
from tests.routing.dataplane.conftest import MakeRig


async def _page(rig: Rig, path: str) -> tuple[int, bytes]:
    async with rig.client.get(f"{rig.internal}{path}") as answer:
        return answer.status, await answer.read()


async def test_health_is_not_readiness_and_both_are_on_both_ports(make_rig: MakeRig) -> None:
    rig = await make_rig(deliver=False)
    assert (await rig.call("GET", "/healthz", key=None)).status == 200
    starting = await rig.call("GET", "/readyz", key=None)
    assert (starting.status, starting.json["status"]) == (503, "starting")
    assert (await rig.chat()).error["code"] == "configuration_unavailable"
    rig.publish(rig.acme)
    assert (await rig.call("GET", "/readyz", key=None)).json["status"] == "ready"
    assert (await _page(rig, "/healthz"))[0] == 200
    assert (await _page(rig, "/readyz"))[0] == 200


async def test_metrics_and_status_are_on_the_internal_port_only(rig: Rig) -> None:
    status, page = await _page(rig, "/metrics")
    assert status == 200
    assert b"saltroute_requests_total" in page
    report = msgspec.json.decode((await _page(rig, "/status"))[1])
    assert report["versions"] == {str(rig.acme.tenant_id): 1, str(rig.globex.tenant_id): 1}
    for path in ("/metrics", "/status"):
        assert (await rig.call("GET", path)).status == 404


async def test_typos_and_attacks_make_no_series(rig: Rig) -> None:
    await rig.chat({**HI, "model": "typo"})
    await rig.chat(key="wrong")
    before = rig.router.plane.metrics.page()
    for number in range(200):
        await rig.chat({**HI, "model": f"typo-{number}"})
        await rig.chat(key=f"wrong-{number}")
    after = rig.router.plane.metrics.page()
    assert after.count(b"\n") == before.count(b"\n")
    assert b"typo" not in after
    assert len(after) < 1024 * 1024


async def test_tenants_make_no_series(rig: Rig) -> None:
    replicas = rig.acme.pools[0].replicas
    await rig.chat()
    before = rig.router.plane.metrics.page().count(b"\n")
    for number in range(30):
        key = f"sk-sr-tenant-{number}-of-the-tests-000000"
        rig.publish(tenant(f"tenant-{number}", replicas, {key: ""}))
        assert (await rig.chat(key=key)).status == 200
    assert rig.router.plane.metrics.page().count(b"\n") == before


async def test_token_counters_equal_records_and_what_engines_reported(rig: Rig) -> None:
    for count in (3, 5, 7):
        rig.a.script = rig.b.script = Script(sse=[chunk("x"), chunk(finish="stop"), usage_chunk(10, count, 4), "[DONE]"])
        await rig.chat({**HI, "stream": True})
    await rig.settled()
    page = rig.router.plane.metrics.page().decode()
    assert 'saltroute_tokens_total{kind="completion"} 15.0' in page
    assert 'saltroute_tokens_total{kind="prompt"} 30.0' in page
    assert sum(record.completion_tokens or 0 for record in rig.records()) == 15


async def test_stale_is_served_and_said_and_expired_is_refused(make_rig: MakeRig) -> None:
    rig = await make_rig(stale_s=100.0, expired_s=1000.0)
    feed = rig.router.plane.feed
    feed.contact_at = time.time() - 500
    stale = await rig.call("GET", "/readyz", key=None)
    assert (stale.status, stale.json["status"]) == (200, "stale")
    assert "stale_since" in stale.json
    assert (await rig.chat()).status == 200
    feed.contact_at = time.time() - 2000
    assert (await rig.call("GET", "/readyz", key=None)).status == 503
    assert (await rig.chat()).error["code"] == "configuration_expired"
    assert rig.served() == 1


async def test_a_full_record_queue_drops_and_counts_and_holds_nobody_up(make_rig: MakeRig) -> None:
    rig = await make_rig(record_queue=3)
    for _ in range(5):
        assert (await rig.chat()).status == 200
    assert len(rig.records()) == 3
    assert "saltroute_records_dropped_total 2.0" in rig.router.plane.metrics.page().decode()


async def test_more_requests_than_the_bound_are_refused_at_once(make_rig: MakeRig) -> None:
    rig = await make_rig(max_in_flight=1)
    gate = asyncio.Event()
    rig.a.script = rig.b.script = Script(hold=gate, body={"choices": []})
    first = asyncio.create_task(rig.chat())
    await until(lambda: rig.served() == 1)
    second = await rig.chat()
    assert (second.status, second.error["code"]) == (503, "overloaded")
    gate.set()
    assert (await first).status == 200


async def test_a_change_is_counted_and_a_bad_one_is_shown(rig: Rig) -> None:
    rig.publish(bumped(rig.acme))
    assert "saltroute_config_ok 1.0" in rig.router.plane.metrics.page().decode()
    bad = bumped(rig.acme)
    document = bytearray(sealed(bad))
    document[-1] ^= 1
    rig.router.snapshots.apply({bad.tenant_id: bytes(document)})
    page = rig.router.plane.metrics.page().decode()
    assert "saltroute_config_ok 0.0" in page
    assert 'saltroute_snapshots_refused_total{reason="invalid"} 1.0' in page
