"""The internal door: an audit's probe is an ordinary request in a namespace that no client can reach, on the one replica that its token names."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from namespaces.core import probe
from namespaces.core.probe import Claims
from routing.core.snapshot import AdapterEntry
from routing.dataplane import errors, probes
from routing.dataplane.errors import ApiError
from routing.dataplane.probes import ProbeDoor
from routing.dataplane.routes import PROBE_ROUTES, Route
from tests.fakes.replica import Script, completion, usage
from tests.fakes.rig import HI, KEY_A, PUBLISH, SECRETS, Reply, Rig, bumped, endpoint, named, replica_entry
from tests.routing.dataplane.test_isolation import BODIES, EVIL, EVIL_HEADERS

RUN = UUID("aaaaaaaa-0000-4000-8000-000000000001")
_NONCES = iter(range(10**6))


def claims(rig: Rig, replica: str = "A", **more: Any) -> Claims:
    """Claims for acme's endpoint on a replica of its pool, good for half a minute, with a nonce of their own."""
    one = rig.acme.endpoints[0]
    usual: dict[str, Any] = {
        "tenant": rig.acme.tenant_id,
        "endpoint": one.id,
        "replica": named(f"replica {replica}"),
        "scope": "A",
        "run": RUN,
        "exp": time.time() + 30,
        "nonce": f"nonce-{next(_NONCES)}",
    }
    return Claims(**{**usual, **more})


async def send(rig: Rig, token: str | None, *, path: str = "/internal/probe/v1/chat/completions", json: Any = HI, **headers: str) -> Reply:
    """One probe as the audit worker sends it."""
    sent = {"Content-Type": "application/json", **headers}
    if token is not None:
        sent["Authorization"] = f"Probe {token}"
    async with rig.client.post(f"{rig.internal}{path}", data=msgspec.json.encode(json), headers=sent) as answer:
        return Reply(status=answer.status, headers=answer.headers, body=await answer.read())


async def ask(rig: Rig, json: Any = HI, **more: Any) -> Reply:
    return await send(rig, probe.sign(claims(rig, **more), PUBLISH), json=json)


@pytest.mark.parametrize("route", PROBE_ROUTES.values(), ids=lambda route: route.name)
async def test_probes_are_stripped_salted_and_recorded_as_clients_requests_are(rig: Rig, route: Route) -> None:
    """The contract of the route register, at the other door."""
    body = BODIES["chat_completions" if route.name == "probe:chat" else "completions"]
    token = probe.sign(claims(rig), PUBLISH)
    reply = await send(rig, token, path=route.path, json={**body, **EVIL}, **EVIL_HEADERS)
    assert reply.status == 200
    (received,) = rig.a.requests
    assert received.path == route.engine_path
    kept = {**body, "vllm_xargs": {"kept": 1}, "nvext": {"agent_hints": 1}, "extra_body": {"kept": 1}}
    salt = received.json["cache_salt"]
    assert received.json == {**kept, "cache_salt": salt}
    assert salt not in ("evil", rig.namespace().salt)
    assert set(received.headers) == {
        "host", "content-type", "accept", "accept-encoding", "user-agent", "x-request-id", "x-saltroute-hop", "traceparent", "content-length",
    }  # fmt: skip
    (record,) = rig.records()
    assert record.audit
    assert (record.route, record.outcome, record.key_id, record.scope_id) == (route.name, "ok", None, None)
    assert (record.tenant_id, record.endpoint_id, record.replica_name) == (rig.acme.tenant_id, rig.acme.endpoints[0].id, "A")
    assert record.namespace != rig.namespace().public_id
    rig.assert_nothing_held()


async def salts(rig: Rig, *variants: dict[str, Any]) -> list[str]:
    """The salts that the engine got, one for each set of claims."""
    seen = []
    for variant in variants:
        assert (await ask(rig, **variant)).status == 200
        seen.append(rig.a.requests[-1].json["cache_salt"])
    return seen


@pytest.mark.parametrize("sharing", ["tenant", "scope", "key", "none"])
async def test_one_audit_scope_has_one_salt_and_the_other_scope_and_run_have_others(rig: Rig, sharing: Any) -> None:
    rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0], sharing=sharing),)))
    other = UUID("aaaaaaaa-0000-4000-8000-000000000002")
    first, again, b, b_again, cold = await salts(rig, {"scope": "A"}, {"scope": "A"}, {"scope": "B"}, {"scope": "B"}, {"scope": "A", "run": other})
    assert (first, b) == (again, b_again)
    assert len({first, b, cold, rig.namespace().salt}) == 4


async def test_text_is_added_to_the_salt_and_the_adapter_named_without_changing_the_identity(rig: Rig) -> None:
    plain, joined, named_adapter = await salts(rig, {}, {"salt_prefix": "x-", "salt_suffix": "-y"}, {"adapter": "ada"})
    assert joined == f"x-{plain}-y"
    assert named_adapter == plain
    assert [received.json["model"] for received in rig.a.requests] == ["m-7b", "m-7b", "ada"]
    assert len({record.namespace for record in rig.records()}) == 1


async def test_an_adapter_of_the_endpoint_stays_in_the_identity(rig: Rig) -> None:
    (base,) = await salts(rig, {})
    with_adapter = msgspec.structs.replace(rig.acme.endpoints[0], adapter=AdapterEntry(name="ada", revision="1"))
    rig.publish(bumped(rig.acme, endpoints=(with_adapter,)))
    assert await salts(rig, {}) != [base]


@pytest.mark.parametrize("state", ["unverified", "isolated", "suspect", "quarantined"])
@pytest.mark.parametrize("mode", ["audited", "declared", "dedicated"])
async def test_a_probe_reaches_its_replica_whatever_state_that_is_in(rig: Rig, state: Any, mode: Any) -> None:
    replicas = (replica_entry(rig.a, isolation=state, state="paused", dedicated_namespace="ns-0"), replica_entry(rig.b))
    rig.publish(bumped(rig.acme, pools=(msgspec.structs.replace(rig.acme.pools[0], isolation=mode, replicas=replicas),)))
    engine = rig.router.plane.engine(rig.a.url)
    engine.misses = 99
    for _ in range(3):
        engine.breaker.failed(time.monotonic(), probe=False)
    assert (await ask(rig)).status == 200
    assert (len(rig.a.requests), len(rig.b.requests)) == (1, 0)
    assert engine.breaker.state(time.monotonic()) == "open"


async def test_a_probe_that_fails_goes_nowhere_else_and_costs_the_replica_nothing(rig: Rig) -> None:
    rig.a.script = Script(status=500, body={"error": {"message": "broken", "code": 500}})
    for _ in range(5):
        assert (await ask(rig)).status == 502
    assert (len(rig.a.requests), len(rig.b.requests)) == (5, 0)
    assert rig.router.plane.engine(rig.a.url).breaker.state(time.monotonic()) == "closed"
    rig.assert_nothing_held()


async def test_usage_is_always_in_a_probes_stream(rig: Rig) -> None:
    answered = await ask(rig, json={**HI, "stream": True})
    assert b'"prompt_tokens":12' in answered.body
    hidden = await rig.chat({**HI, "stream": True})
    assert b"prompt_tokens" not in hidden.body


async def test_probes_teach_the_router_nothing_and_are_no_usage(rig: Rig) -> None:
    rig.only_a()
    rig.a.script = Script(body=completion(usage=usage(900, 1, 500)))
    plane, one = rig.router.plane, rig.acme.endpoints[0]
    await rig.chat()

    def learned() -> tuple[object, ...]:
        engine = plane.engine(rig.a.url)
        return repr(plane.endpoint_state(one.id)), plane.trust.sizes(), engine.mean_uncached_tokens

    before = learned()
    tokens = [line for line in plane.metrics.page().decode().splitlines() if line.startswith("saltroute_tokens_total")]
    long = {**HI, "messages": [{"role": "user", "content": "n" * 4000}]}
    for _ in range(3):
        await ask(rig, json=long)
    assert learned() == before
    assert [line for line in plane.metrics.page().decode().splitlines() if line.startswith("saltroute_tokens_total")] == tokens


async def test_a_probe_leaves_no_residency_that_a_tenants_prompt_could_match(rig: Rig) -> None:
    long = {**HI, "messages": [{"role": "user", "content": "n" * 4000}]}
    await ask(rig, json=long)
    await ask(rig, json=long)
    assert [record.matched_tokens > 0 for record in rig.records()] == [False, True]
    await ask(rig, json=long, scope="B")
    await rig.chat(long)
    assert [one.matched_tokens for record in rig.records()[2:] for one in record.candidates] == [0, 0, 0]
    assert not [name for tenant in rig.router.plane.view.tenants.values() for name in tenant.namespaces if "audit-" in str(name)]


async def test_whatever_is_wrong_with_a_token_the_answer_is_one(rig: Rig) -> None:
    good = probe.sign(claims(rig), PUBLISH)
    assert (await send(rig, good)).status == 200
    forged = probe.sign(claims(rig), bytes(range(1, 33)))
    expired, eternal = (probe.sign(claims(rig, exp=time.time() + life_s), PUBLISH) for life_s in (-1, 3600))
    bad = [None, good, forged, expired, eternal, "", "x", "x.y", "\u00e9.\u00e9", good[:-1], f"{good} ", "a" * 3000]
    answers = [await send(rig, token) for token in bad]
    elsewhere = (f"Bearer {KEY_A}", f"Bearer {probe.sign(claims(rig), PUBLISH)}", probe.sign(claims(rig), PUBLISH), "Probe")
    answers.extend([await send(rig, None, Authorization=value) for value in elsewhere])
    assert {(answer.status, answer.body) for answer in answers} == {(401, answers[0].body)}
    own = ("x-saltroute-decision", "Date")
    assert len({frozenset((name, value) for name, value in answer.headers.items() if name not in own) for answer in answers}) == 1
    assert len(rig.a.requests) == 1


@pytest.mark.parametrize("unknown", ["tenant", "endpoint", "replica"])
async def test_an_authentic_token_that_names_what_is_not_here_is_told_so(rig: Rig, unknown: str) -> None:
    reply = await ask(rig, **{unknown: UUID(int=7)})
    assert (reply.status, reply.error["code"]) == (404, "unknown_probe_target")
    assert rig.served() == 0


async def test_one_tenants_token_reaches_no_replica_or_endpoint_of_another(rig: Rig) -> None:
    rig.only_a()
    assert (await ask(rig, replica="B")).status == 404
    assert (await ask(rig, endpoint=rig.globex.endpoints[0].id)).status == 404
    assert (await ask(rig, json={**HI, "model": "other"})).error["code"] == "model_not_found"
    assert rig.served() == 0


@pytest.mark.parametrize("path", sorted(PROBE_ROUTES))
async def test_the_public_port_has_no_such_door(rig: Rig, path: str) -> None:
    token = probe.sign(claims(rig), PUBLISH)
    for target in (path, f"/t/acme{path}", path.removeprefix("/internal/probe")):
        reply = await rig.call("POST", target, json=HI, key=None, headers={"Authorization": f"Probe {token}"})
        assert reply.error["code"] == ("invalid_api_key" if target.startswith("/v1/") else "unknown_url")
    assert (await rig.call("POST", path, json=HI)).status == 404
    assert rig.served() == 0
    assert (await send(rig, token)).status == 200


async def test_clients_keys_open_nothing_on_the_internal_port(rig: Rig) -> None:
    for path in ("/v1/chat/completions", "/internal/probe/v1/chat/completions"):
        assert (await send(rig, None, path=path, Authorization=f"Bearer {KEY_A}")).status in (401, 404)
    assert rig.served() == 0


def test_the_memory_of_nonces_is_bounded_and_forgets_what_has_expired(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "MAX_NONCES", 3)
    door, view, now = ProbeDoor(SECRETS.publish_public_key), rig.router.plane.view, time.time()

    def present(life_s: float, at: float) -> str | None:
        headers = {"Authorization": f"Probe {probe.sign(claims(rig, exp=now + life_s), PUBLISH)}"}
        try:
            door.caller(view, _headers(headers), now=at)
        except ApiError as error:
            return error.code
        return None

    assert [present(life_s, now) for life_s in (30, 10, 20)] == [None, None, None]
    assert present(40, now) == "overloaded"
    assert present(40, now + 11) is None
    assert present(50, now + 12) == "overloaded"
    assert len(door._used) == len(door._ends) == 3


def _headers(values: dict[str, str]) -> Any:
    return CIMultiDictProxy(CIMultiDict(values))


@given(st.text(max_size=200))
def test_no_text_is_a_token(text: str) -> None:
    with pytest.raises(ApiError) as refused:
        ProbeDoor(SECRETS.publish_public_key)._claims(_headers({"Authorization": f"Probe {text}"}), 0.0)
    assert refused.value.body() == errors.invalid_probe().body()
