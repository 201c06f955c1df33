"""No request leaves without its own salt, whatever a client sends and wherever it sends it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from namespaces.core.snapshot import KeyMaterial
from routing.core import body as bodies
from routing.core.snapshot import AdapterEntry
from routing.dataplane.routes import ENGINE_ROUTES, Route
from tests.fakes.replica import Script
from tests.fakes.rig import HI, KEY_A, KEY_A_EMEA, KEY_B, Rig, bumped, endpoint, prefer_a, replica_entry, until

BODIES: dict[str, dict[str, Any]] = {"chat_completions": HI, "completions": {"model": "m-7b", "prompt": "hi"}}
EVIL = {
    "cache_salt": "evil",
    "kv_transfer_params": {"do_remote_prefill": True, "remote_prefill_cached_tokens": 99999},
    "vllm_xargs": {"cache_salt": "evil", "kv_transfer_params": "x", "session_id": "s", "kept": 1},
    "nvext": {"cache_salt": "evil", "agent_hints": 1},
    "extra_body": {"cache_salt": "evil", "kept": 1},
    "extra_key": "evil",
    "priority": -1,
    "request_id": "id",
    "rid": "id",
    "session_id": "s",
    "data_parallel_rank": 1,
}
EVIL_HEADERS = {
    "X-Cache-Salt": "evil",
    "x-tenant-id": "acme",
    "X-Session-ID": "s",
    "X-Vllm-Priority": "1",
    "X-data-parallel-rank": "1",
    "x-prefiller-url": "http://10.0.0.9",
    "x-prefiller-host-port": "10.0.0.9:80",
    "x-gateway-destination-endpoint": "10.0.0.9:80",
    "x-provider-endpoint": "http://10.0.0.9",
    "x-smg-routing-key": "z",
    "Host": "10.0.0.9",
    "X-Forwarded-Host": "10.0.0.9",
    "Forwarded": "host=10.0.0.9",
    "Cookie": "sessionid=abc",
    "Proxy-Authorization": "Basic eA==",
    "tracestate": "a=1",
    "baggage": "k=v",
    "Accept-Language": "de",
}


@pytest.mark.parametrize("route", ENGINE_ROUTES, ids=lambda route: route.name)
async def test_every_route_to_an_engine_strips_salts_and_records(rig: Rig, route: Route) -> None:
    """The contract of the route register: a route added to it is held to this by being in it, and needs a body here."""
    reply = await rig.call("POST", route.path, json={**BODIES[route.name], **EVIL}, headers=EVIL_HEADERS)
    assert reply.status == 200
    (received,) = [*rig.a.requests, *rig.b.requests]
    assert received.path == route.engine_path
    expected = {**BODIES[route.name], "vllm_xargs": {"kept": 1}, "nvext": {"agent_hints": 1}, "extra_body": {"kept": 1}}
    assert received.json == {**expected, "cache_salt": rig.namespace().salt}
    assert set(received.headers) == {
        "host", "content-type", "accept", "accept-encoding", "user-agent", "x-request-id", "x-saltroute-hop", "traceparent", "content-length",
    }  # fmt: skip
    assert received.headers["host"] in (f"127.0.0.1:{rig.a.port}", f"127.0.0.1:{rig.b.port}")
    (record,) = rig.records()
    assert (record.route, record.outcome, record.namespace) == (route.name, "ok", rig.namespace().public_id)


async def test_two_tenants_and_two_scopes_give_four_salts_none_of_them_a_clients(rig: Rig) -> None:
    calls = [(KEY_A, {}), (KEY_A, {"X-Saltroute-Scope": "support"}), (KEY_B, {}), (KEY_B, {"X-Saltroute-Scope": "support"})]
    known = rig.namespace(KEY_A).salt
    for key, headers in calls:
        await rig.chat({**HI, "cache_salt": known}, key=key, headers=headers)
        await rig.chat({**HI, "cache_salt": "mine"}, key=key, headers=headers)
        await rig.chat(key=key, headers=headers)
    salts = [received.json["cache_salt"] for received in [*rig.a.requests, *rig.b.requests]]
    assert len(salts) == 12
    assert len(set(salts)) == 4
    assert all(re.fullmatch(r"sr1-[A-Za-z0-9_-]{43}", salt) for salt in salts)
    assert {"mine"}.isdisjoint(salts)
    for key, headers in calls[2:]:
        assert rig.namespace(key, headers.get("X-Saltroute-Scope", "")).salt in salts
        assert rig.namespace(key, headers.get("X-Saltroute-Scope", "")).salt != known


async def test_all_keys_of_a_scope_share_and_a_new_key_changes_nothing(rig: Rig) -> None:
    await rig.chat(key=KEY_A, headers={"X-Saltroute-Scope": "support/emea"})
    await rig.chat(key=KEY_A_EMEA)
    first, second = (received.json["cache_salt"] for received in [*rig.a.requests, *rig.b.requests])
    assert first == second


async def test_salts_are_the_same_in_every_router(rig: Rig, make_rig: Any) -> None:
    other = await make_rig()
    assert other.namespace().salt == rig.namespace().salt


@pytest.mark.parametrize("change", ["scope", "tenant epoch", "endpoint epoch", "model", "adapter", "context"])
async def test_what_must_not_share_gets_another_salt(rig: Rig, change: str) -> None:
    before = rig.namespace().salt
    one = rig.acme.endpoints[0]
    model = msgspec.structs.replace(one.model, revision="r2")
    changes: dict[str, dict[str, Any]] = {
        "scope": {"scopes": tuple(msgspec.structs.replace(scope, version=2) for scope in rig.acme.scopes)},
        "tenant epoch": {"epoch": 2},
        "endpoint epoch": {"endpoints": (msgspec.structs.replace(one, epoch=2),)},
        "model": {"endpoints": (msgspec.structs.replace(one, model=model),)},
        "adapter": {"endpoints": (msgspec.structs.replace(one, adapter=AdapterEntry(name="ada", revision="1")),)},
        "context": {"endpoints": (msgspec.structs.replace(one, context={"org": "v1"}),)},
    }
    rig.publish(bumped(rig.acme, **changes[change]))
    assert rig.namespace().salt != before


async def test_a_clients_salt_subdivides_its_own_namespace_where_the_endpoint_says_so(rig: Rig) -> None:
    """POLICY: elsewhere it is ignored."""
    rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0], client_subdivision=True),)))
    for salt in ("one", "two", "one"):
        await rig.chat({**HI, "cache_salt": salt})
    salts = [received.json["cache_salt"] for received in [*rig.a.requests, *rig.b.requests]]
    assert len(set(salts)) == 2
    assert {"one", "two"}.isdisjoint(salts)
    odds: list[Any] = [[], 7, "", "x" * 129]
    for odd in odds:
        assert (await rig.chat({**HI, "cache_salt": odd})).error["param"] == "cache_salt"


async def test_with_sharing_none_no_two_requests_have_one_salt(rig: Rig) -> None:
    rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0], sharing="none"),)))
    await rig.chat()
    await rig.chat()
    first, second = (received.json["cache_salt"] for received in [*rig.a.requests, *rig.b.requests])
    assert first != second


@pytest.mark.parametrize("material", [None, KeyMaterial(version=1, wrapped=b"x" * 60)])
async def test_without_a_tenant_key_nothing_leaves(rig: Rig, material: KeyMaterial | None) -> None:
    rig.publish(bumped(rig.acme, key_material=material))
    reply = await rig.chat()
    assert (reply.status, reply.error["code"]) == (503, "isolation_unavailable")
    assert rig.served() == 0
    assert (await rig.chat(key=KEY_B)).status == 200


async def test_a_body_that_lost_its_salt_on_the_way_is_not_sent(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bodies._join
    monkeypatch.setattr(bodies, "_join", lambda members: whole((name, value) for name, value in members if name != "cache_salt"))
    reply = await rig.chat()
    assert (reply.status, reply.error["code"]) == (503, "isolation_unavailable")
    assert rig.served() == 0
    rig.assert_nothing_held()


@pytest.mark.parametrize("mode", ["audited", "dedicated"])
async def test_an_unproved_replica_serves_only_the_namespace_assigned_to_it(rig: Rig, mode: Any) -> None:
    pool = msgspec.structs.replace(rig.acme.pools[0], isolation=mode)
    rig.publish(bumped(rig.acme, pools=(pool,)))
    refused = await rig.chat()
    assert (refused.status, refused.error["code"]) == (503, "isolation_unavailable")
    assert {one.refusal for one in rig.records()[0].candidates} == {"isolation"}
    own = rig.namespace().public_id
    replicas = (replica_entry(rig.a), replica_entry(rig.b, dedicated_namespace=own))
    rig.publish(bumped(rig.acme, pools=(msgspec.structs.replace(pool, replicas=replicas),)))
    for _ in range(20):
        assert (await rig.chat()).status == 200
    assert (len(rig.a.requests), len(rig.b.requests)) == (0, 20)
    assert (await rig.chat(headers={"X-Saltroute-Scope": "support"})).error["code"] == "isolation_unavailable"


async def test_an_engine_without_salts_serves_one_namespace_even_in_a_declared_pool(rig: Rig) -> None:
    replicas = (replica_entry(rig.a, engine="llamacpp", dedicated_namespace="ns-0"), replica_entry(rig.b, engine="llamacpp"))
    pool = msgspec.structs.replace(rig.acme.pools[0], replicas=replicas)
    one = endpoint(pool, engine="llamacpp")
    rig.publish(bumped(rig.acme, pools=(pool,), endpoints=(one,)))
    assert (await rig.chat()).error["code"] == "isolation_unavailable"
    own = rig.namespace().public_id
    assigned = (replica_entry(rig.a, engine="llamacpp", dedicated_namespace=own),)
    rig.publish(bumped(rig.acme, pools=(msgspec.structs.replace(pool, replicas=assigned),)))
    assert (await rig.chat({**HI, "cache_salt": "evil"})).status == 200
    assert "cache_salt" not in rig.received()


async def test_sglangs_other_key_is_forced_to_null(rig: Rig) -> None:
    pool = msgspec.structs.replace(rig.acme.pools[0], replicas=(replica_entry(rig.a, engine="sglang"),))
    rig.publish(bumped(rig.acme, pools=(pool,), endpoints=(endpoint(pool, engine="sglang"),)))
    await rig.chat({**HI, "extra_key": "evil"})
    assert rig.received()["extra_key"] is None
    assert rig.received()["cache_salt"] == rig.namespace().salt


async def test_one_clients_request_id_cannot_touch_anothers_request(rig: Rig) -> None:
    gate = asyncio.Event()
    rig.a.script = rig.b.script = Script(hold=gate, body={"choices": []})
    calls = [asyncio.create_task(rig.chat({**HI, "request_id": "id"}, key=key, headers={"X-Request-Id": "id"})) for key in (KEY_A, KEY_B)]
    await until(lambda: rig.served() == 2)
    calls[0].cancel()
    gate.set()
    assert (await calls[1]).status == 200
    ids = [received.headers["x-request-id"] for received in [*rig.a.requests, *rig.b.requests]]
    assert len({*ids, "id"}) == 3
    assert all("request_id" not in received.json for received in [*rig.a.requests, *rig.b.requests])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/reset_prefix_cache"),
        ("POST", "/sleep"),
        ("POST", "/invocations"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/tokenize"),
        ("POST", "/flush_cache"),
        ("GET", "/server_info"),
        ("GET", "/metrics"),
        ("GET", "/status"),
        ("POST", "/v1/chat/completions/../../sleep"),
        ("POST", "/v1/%2e%2e/sleep"),
        ("POST", "/v1/chat%2fcompletions%2f..%2f..%2fsleep"),
        ("POST", "/v1/embeddings"),
    ],
)
async def test_an_engines_other_doors_do_not_exist_here(rig: Rig, method: str, path: str) -> None:
    answer = await rig.raw(
        f"{method} {path} HTTP/1.1\r\nHost: r\r\nConnection: close\r\nAuthorization: Bearer {KEY_A}\r\nContent-Length: 0\r\n\r\n".encode()
    )
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b'"code":"unknown_url"' in answer
    assert rig.served() == 0
    checks = {("GET", asked) for asked in ("/health", "/metrics", "/version", "/v1/models")}  # the router's own, whenever they come
    assert {(received.method, received.path) for received in [*rig.a.probes, *rig.b.probes]} <= checks


async def test_another_namespaces_history_neither_draws_nor_shows(rig: Rig) -> None:
    prefer_a(rig)
    shared = {"model": "m-7b", "messages": [{"role": "system", "content": "P" * 4000}]}
    for _ in range(5):
        await rig.chat(shared)
    chosen = []
    for number in range(40):
        messages = [{"role": "system", "content": "P" * 4000}, {"role": "user", "content": f"unique {number}"}]
        await rig.chat({"model": "m-7b", "messages": messages}, key=KEY_B, headers={"X-Saltroute-Scope": "support"} if number % 2 else {})
        chosen.append(rig.records()[-1])
    first_of_each = chosen[:2]
    assert [one.matched_tokens for record in first_of_each for one in record.candidates] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "parent",
    [
        ["x"],
        ["00-00000000000000000000000000000000-0000000000000000-01"],
        ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01,00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
        ["ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
        ["00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"],
        ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
    ],
)
async def test_engines_get_a_well_formed_trace_parent_whatever_the_client_sent(rig: Rig, parent: list[str]) -> None:
    reply = await rig.chat(headers={"traceparent": parent[0], "tracestate": "a=1", "X-Request-Id": "customer_request_42"})
    assert reply.status == 200
    (received,) = [*rig.a.requests, *rig.b.requests]
    sent = received.headers["traceparent"]
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", sent)
    assert "tracestate" not in received.headers
    assert ("4bf92f3577b34da6a3ce929d0e0e4736" in sent) == (parent[0] == "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    assert "00f067aa0ba902b7" not in sent
