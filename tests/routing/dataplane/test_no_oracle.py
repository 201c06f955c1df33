"""The router's own caches, ties, waits, refusals and words tell one tenant nothing of another."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, get_args

import msgspec
import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from routing.core.policy import PolicyName
from routing.core.snapshot import PolicyEntry
from routing.dataplane import view
from routing.dataplane.authenticate import authenticate
from routing.dataplane.errors import ApiError
from routing.dataplane.request_path import find_endpoint
from tests.fakes.replica import Script, completion, usage
from tests.fakes.rig import HI, KEY_A, KEY_A_EMEA, KEY_B, Rig, bumped, endpoint, named
from tests.routing.dataplane.conftest import MakeRig

SECRET = {**HI, "messages": [{"role": "user", "content": "a secret that both tenants happen to send " * 60}]}


def lookups(rig: Rig) -> dict[str, float]:
    """The counters of the router's caches, as operators read them."""
    lines = [line for line in rig.router.plane.metrics.page().decode().splitlines() if line.startswith("saltroute_cache_lookups_total")]
    return {line.split("{")[1].split("}")[0].replace('"', ""): float(line.rsplit(" ", 1)[1]) for line in lines}


def hits(rig: Rig) -> dict[str, float]:
    return {name: value for name, value in lookups(rig).items() if "result=hit" in name}


@pytest.mark.parametrize(
    "stranger", [{"key": KEY_B}, {"headers": {"X-Saltroute-Scope": "support"}}, {"key": KEY_B, "headers": {"X-Saltroute-Scope": "support/emea"}}]
)
async def test_anothers_first_prompt_misses_every_cache(rig: Rig, stranger: dict[str, Any]) -> None:
    await rig.chat(SECRET)
    await rig.chat(SECRET)
    before = lookups(rig)
    assert before == {
        "cache=namespace,result=hit": 1.0,
        "cache=namespace,result=miss": 1.0,
        "cache=residency,result=hit": 1.0,
        "cache=residency,result=miss": 3.0,  # two replicas, and the one that was not chosen
    }
    await rig.chat(SECRET, **stranger)
    after = lookups(rig)
    assert after == {**before, "cache=namespace,result=miss": 2.0, "cache=residency,result=miss": 5.0}
    assert [one.matched_tokens for one in rig.records()[-1].candidates] == [0, 0]
    await rig.chat(SECRET, **stranger)
    assert hits(rig) == {"cache=namespace,result=hit": 2.0, "cache=residency,result=hit": 2.0}


async def test_one_tenants_namespaces_and_prompts_evict_none_of_anothers(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "MAX_NAMESPACES", 3)
    rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0], client_subdivision=True),)))
    await rig.chat(SECRET, key=KEY_B)
    for url in (rig.a.url, rig.b.url):
        rig.router.plane.index.set_capacity(url, 50)
    for number in range(12):
        await rig.chat({**SECRET, "cache_salt": f"mine {number}"})
    before = hits(rig)
    await rig.chat(SECRET, key=KEY_B)
    assert hits(rig) == {name: value + 1 for name, value in before.items()}
    assert {len(tenant.namespaces) for tenant in rig.router.plane.view.tenants.values()} == {1, 3}
    assert all(held <= 50 for held, _ in rig.router.plane.index.sizes().values())
    assert sum(evicted for _, evicted in rig.router.plane.index.sizes().values()) > 0


async def test_bytes_per_token_are_learned_for_each_tenant_alone(rig: Rig) -> None:
    rig.a.script = rig.b.script = Script(body=completion(usage=usage(2000, 1)))
    for _ in range(5):
        await rig.chat(SECRET)
    await rig.chat(SECRET, key=KEY_B)
    learned, fresh = (record.estimated_prompt_tokens for record in rig.records()[-2:])
    assert (learned > 1500, fresh < 700) == (True, True)


async def _choices(rig: Rig, policy: str, *, noise: bool) -> list[str | None]:
    """Where acme's requests go, one after the other; with ``noise``, globex sends the same prompts in between."""
    for document in (rig.acme, rig.globex):
        spec = PolicyEntry(name="p", version=1, spec={"policy": policy, **({"weights": {"wait": 1, "prefill": 1}} if policy == "weighted" else {})})
        rig.publish(bumped(document, endpoints=(msgspec.structs.replace(document.endpoints[0], routing_policy=spec),)))
    for number in range(16):
        body = {**HI, "messages": [{"role": "user", "content": f"conversation {number % 5} " * 80}]}
        await rig.chat(body)
        for _ in range(number % 3 if noise else 0):
            await rig.chat(body, key=KEY_B)
    return [record.replica_name for record in rig.records() if record.tenant_id == rig.acme.tenant_id]


@pytest.mark.parametrize("policy", get_args(PolicyName))
async def test_what_another_has_sent_breaks_no_tie(make_rig: MakeRig, policy: str) -> None:
    alone = await _choices(await make_rig(), policy, noise=False)
    assert await _choices(await make_rig(), policy, noise=True) == alone
    assert set(alone) == {"A", "B"}


@pytest.mark.parametrize("pool", [{"shared": True}, {"owner_tenant_id": named("tenant platform")}])
async def test_how_busy_a_shared_engine_is_stays_with_the_router(rig: Rig, pool: dict[str, Any]) -> None:
    rig.publish(bumped(rig.acme, pools=(msgspec.structs.replace(rig.acme.pools[0], **pool),)))
    answers = []
    for waiting in (3, 31337):
        body = {"error": {"message": f"{waiting} requests are waiting", "type": "rate_limit", "param": None, "code": 429}}
        rig.a.script = rig.b.script = Script(status=429, headers={"Retry-After": str(waiting)}, body=body)
        answers.append(await rig.chat())
    assert {(answer.status, answer.headers["Retry-After"], answer.body) for answer in answers} == {(429, "2", answers[0].body)}


def _work(refused: Callable[[], object]) -> list[str]:
    """The functions called until ``refused`` raised, in order: the same work for each refusal, whatever the machine's clock says."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name)

    gc.collect()
    gc.disable()  # whose callbacks, where a library set one, are no work of ours
    sys.setprofile(note)
    try:
        refused()
    except ApiError:
        return called
    finally:
        sys.setprofile(None)
        gc.enable()
    raise AssertionError("not refused")


def _headers(**values: str) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict({name.replace("_", "-"): value for name, value in values.items()}))


async def test_refusals_of_what_is_anothers_and_of_what_is_nobodys_do_the_same_work(rig: Rig) -> None:
    held, now = rig.router.plane.view, time.time()
    secret = (*rig.globex.endpoints, endpoint(rig.globex.pools[0], "globex-model"))
    rig.publish(bumped(rig.globex, endpoints=secret))

    def path(slug: str) -> list[str]:
        return _work(lambda: authenticate(held, _headers(Authorization=f"Bearer {KEY_A}"), tenant_slug=slug, now=now))

    def scope(asked: str) -> list[str]:
        headers = _headers(Authorization=f"Bearer {KEY_A_EMEA}", X_Saltroute_Scope=asked)
        return _work(lambda: authenticate(held, headers, tenant_slug=None, now=now))

    def model(asked: str) -> list[str]:
        caller = authenticate(held, _headers(Authorization=f"Bearer {KEY_A}"), tenant_slug=None, now=now)
        return _work(lambda: find_endpoint(caller, asked))

    assert path("globex") == path("nobody")
    assert scope("support") == scope("nowhere") == scope("")
    assert model("globex-model") == model("nobodys-model")


async def test_refusals_leave_no_trace_in_any_cache_and_reach_no_engine(rig: Rig) -> None:
    before, connections = lookups(rig), (rig.a.connections, rig.b.connections)
    for call in (
        rig.chat({**SECRET, "model": "globex-model"}),
        rig.chat(SECRET, headers={"X-Saltroute-Scope": "nowhere"}),
        rig.call("POST", "/t/globex/v1/chat/completions", json=SECRET),
        rig.chat(SECRET, key="sk-sr-unknown-key-000000000000"),
    ):
        assert (await call).status in (401, 403, 404)
    assert lookups(rig) == before
    assert (rig.a.connections, rig.b.connections) == connections
    assert rig.router.plane.index.sizes() == {}


async def test_no_answer_names_anything_of_another_tenant(rig: Rig) -> None:
    await rig.chat(SECRET)
    own = [
        await rig.chat(SECRET, key=KEY_B),
        await rig.chat({**HI, "stream": True}, key=KEY_B),
        await rig.call("GET", "/v1/models", key=KEY_B),
        await rig.chat({**HI, "model": "nope"}, key=KEY_B),
        await rig.chat(key=KEY_B, headers={"X-Saltroute-Scope": "nowhere"}),
        await rig.call("POST", "/t/acme/v1/chat/completions", json=HI, key=KEY_B),
    ]
    rig.a.script = rig.b.script = Script(status=500, body={"error": {"message": "acme", "code": 500}})
    own.append(await rig.chat(SECRET, key=KEY_B))
    rig.publish(bumped(rig.globex, pools=(msgspec.structs.replace(rig.globex.pools[0], isolation="audited"),)))
    own.append(await rig.chat(SECRET, key=KEY_B))
    assert [answer.status for answer in own] == [200, 200, 200, 404, 403, 401, 502, 503]
    said = "".join(str(dict(answer.headers)) + answer.body.decode() for answer in own)
    others = [rig.acme.tenant_id, rig.acme.pools[0].id, rig.acme.endpoints[0].id, rig.acme.keys[0].id, *(scope.id for scope in rig.acme.scopes)]
    namespace = rig.namespace()
    for foreign in ("acme", KEY_A, namespace.salt, namespace.public_id, *(text for one in others for text in (str(one), one.hex))):
        assert foreign not in said, foreign


@pytest.mark.parametrize(
    "salt",
    [b'"' + b"x" * 129 + b'"', b'["x"]', b'{"x":"y"}', b'""', b"7", b"true", b'"one","cache_salt":"two"'],
    ids=["129 characters", "list", "nested", "empty", "number", "true", "named twice"],
)
@pytest.mark.parametrize("divides", [False, True])
async def test_a_malformed_salt_of_a_clients_is_refused_and_nothing_shared(rig: Rig, salt: bytes, divides: bool) -> None:
    rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0], client_subdivision=divides),)))
    reply = await rig.chat(body=b'{"model":"m-7b","messages":[{"role":"user","content":"hi"}],"cache_salt":' + salt + b"}")
    assert (reply.status, reply.error["param"]) == (400, "cache_salt")
    assert rig.served() == 0
    assert set(lookups(rig).values()) == {0.0}


async def test_a_salt_that_looks_like_ours_only_divides_the_clients_own_namespace(rig: Rig) -> None:
    rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0], client_subdivision=True),)))
    stolen = rig.namespace(KEY_B).salt
    await rig.chat({**HI, "cache_salt": stolen})
    assert rig.received()["cache_salt"] not in (stolen, rig.namespace().salt)


_ODD_PATHS = ["caf\u00e9", "cafe\u0301", "support\u200b", "\uff53upport", "SUPPORT", "support/", "/support", "support//emea", "support\\emea"]


@pytest.mark.parametrize("path", _ODD_PATHS)
async def test_a_scope_is_named_exactly_or_not_at_all(rig: Rig, path: str) -> None:
    reply = await rig.chat(headers={"X-Saltroute-Scope": path})
    assert (reply.status, reply.error["code"]) == (403, "scope_not_allowed")
    assert rig.served() == 0


@pytest.mark.parametrize("model", ["sr1-" + "A" * 43, "m-7b\u200b", "\uff4d-7b", "m-7b ", "../m-7b", "m-7b\u0000", named("endpoint x").hex])
async def test_a_model_is_named_exactly_or_not_at_all(rig: Rig, model: str) -> None:
    reply = await rig.chat({**HI, "model": model})
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert rig.served() == 0


async def test_nothing_a_client_can_send_names_another_tenant(rig: Rig) -> None:
    """The tenant is the key's: ids elsewhere are the client's own text, or refused."""
    tenant_id = str(rig.globex.tenant_id)
    for value in (tenant_id, "globex"):
        await rig.chat(
            {**HI, "user": value, "tenant": value, "metadata": {"tenant_id": value}},
            headers={"x-tenant-id": value, "X-Saltroute-Tenant": value, "OpenAI-Organization": value},
        )
        assert (await rig.call("POST", f"/t/{value}/v1/chat/completions", json=HI)).status == 401
    assert {record.tenant_id for record in rig.records()} == {rig.acme.tenant_id}
    assert {received.json["cache_salt"] for received in [*rig.a.requests, *rig.b.requests]} == {rig.namespace().salt}
