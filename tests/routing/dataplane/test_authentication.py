"""One answer for every key that opens nothing; one tenant for every key that opens something."""

from __future__ import annotations

import time

import msgspec
import pytest

from tests.fakes.rig import HI, KEY_A, KEY_A_EMEA, KEY_B, Rig, bumped, endpoint

MODELS = "/v1/models"


def _without_id(headers: object) -> dict[str, str]:
    return {name: value for name, value in dict(headers).items() if name not in ("x-saltroute-decision", "Date")}  # type: ignore[call-overload] # a multidict


@pytest.mark.parametrize("value", [b"Bearer k\xe9y", "Bearer ключ".encode(), b"Bearer ", b"Bearer", b"Basic eA==", b"", b"Bearer " + b"x" * 4000])
@pytest.mark.parametrize("header", [b"Authorization", b"x-api-key"])
async def test_whatever_bytes_are_presented_the_answer_is_401(rig: Rig, header: bytes, value: bytes) -> None:
    answer = await rig.raw(b"GET /v1/models HTTP/1.1\r\nHost: r\r\nConnection: close\r\n" + header + b": " + value + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"WWW-Authenticate: Bearer" in answer
    assert b'"code":"invalid_api_key"' in answer


async def test_absent_unknown_revoked_expired_and_foreign_keys_are_one_answer(rig: Rig) -> None:
    (kept, second) = rig.acme.keys
    expired = msgspec.structs.replace(second, expires_at=time.time() - 1)
    rig.publish(bumped(rig.acme, keys=(kept, expired)))
    answers = [
        await rig.call("GET", MODELS, key=None),
        await rig.call("GET", MODELS, key="sk-sr-unknown-key-000000000000"),
        await rig.call("GET", MODELS, key=KEY_A_EMEA),
        await rig.call("GET", "/t/acme/v1/models", key=KEY_B),
        await rig.call("GET", "/t/nobody/v1/models", key=KEY_A),
    ]
    rig.publish(bumped(rig.acme, keys=()))
    answers.append(await rig.call("GET", MODELS, key=KEY_A))
    assert {(answer.status, answer.body) for answer in answers} == {(401, answers[0].body)}
    assert all(_without_id(answer.headers) == _without_id(answers[0].headers) for answer in answers)


async def test_a_control_token_is_no_inference_key(rig: Rig) -> None:
    assert (await rig.call("GET", MODELS, key="srct-some-control-token-000000000")).status == 401


async def test_the_tenants_own_path_takes_its_keys(rig: Rig) -> None:
    assert (await rig.call("GET", "/t/acme/v1/models", key=KEY_A)).status == 200
    assert (await rig.call("POST", "/t/acme/v1/chat/completions", json=HI)).status == 200
    assert (await rig.call("POST", "/t/globex/v1/chat/completions", json=HI)).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEY_A}", "x-api-key": "sk-foreign-000"},
        {"Authorization": "Bearer foreign-oauth-token", "x-api-key": KEY_A},
        {"x-api-key": KEY_A},
        {"Authorization": f"Bearer {KEY_A}", "x-api-key": KEY_A},
        {"authorization": f"bearer {KEY_A}"},
    ],
)
async def test_a_foreign_credential_beside_a_valid_key_is_ignored(rig: Rig, headers: dict[str, str]) -> None:
    assert (await rig.chat(key=None, headers=headers)).status == 200
    assert [record.tenant_id for record in rig.records()] == [rig.acme.tenant_id]
    (received,) = [*rig.a.requests, *rig.b.requests]
    assert "authorization" not in received.headers
    assert "x-api-key" not in received.headers


async def test_two_valid_keys_are_never_resolved_by_order(rig: Rig) -> None:
    reply = await rig.chat(key=KEY_B, headers={"x-api-key": KEY_A})
    assert (reply.status, reply.error["code"]) == (401, "conflicting_credentials")
    assert rig.served() == 0


async def test_azures_header_is_not_taken(rig: Rig) -> None:
    """POLICY: ``api-key`` is no credential here."""
    assert (await rig.chat(key=None, headers={"api-key": KEY_A})).status == 401


async def test_a_suspended_tenant_is_told_so_and_a_deleted_one_is_unknown(rig: Rig) -> None:
    rig.publish(bumped(rig.acme, suspended=True))
    assert (await rig.chat()).error["code"] == "tenant_suspended"
    rig.publish(bumped(rig.acme, suspended=False, deleted=True))
    assert (await rig.chat()).status == 401
    assert (await rig.chat(key=KEY_B)).status == 200


async def test_a_digest_that_two_tenants_claim_opens_neither(rig: Rig) -> None:
    rig.publish(bumped(rig.globex, keys=(*rig.globex.keys, rig.acme.keys[0])))
    assert (await rig.chat(key=KEY_A)).status == 401
    assert (await rig.chat(key=KEY_B)).status == 200


async def test_a_scope_below_the_keys_own_may_be_chosen(rig: Rig) -> None:
    await rig.chat(headers={"X-Saltroute-Scope": "support"})
    assert rig.received()["cache_salt"] == rig.namespace(scope_path="support").salt
    (received,) = [*rig.a.requests, *rig.b.requests]
    assert "x-saltroute-scope" not in received.headers


@pytest.mark.parametrize("scope", ["support", "", "nowhere", "support/emea/x", "support/eme", "../support", "globex"])
async def test_unknown_and_forbidden_scopes_are_one_answer(rig: Rig, scope: str) -> None:
    reply = await rig.chat(key=KEY_A_EMEA, headers={"X-Saltroute-Scope": scope})
    other = await rig.chat(key=KEY_A_EMEA, headers={"X-Saltroute-Scope": "some-other"})
    assert (reply.status, reply.error["code"], reply.body) == (403, "scope_not_allowed", other.body)
    assert rig.served() == 0


async def test_a_key_for_some_models_sees_no_others_in_any_spelling(rig: Rig) -> None:
    pool = rig.acme.pools[0]
    only = msgspec.structs.replace(rig.acme.keys[0], endpoints=("m-7b",))
    secret = (endpoint(pool, "m-secret"), endpoint(pool, "secret-alias", served_model="m-secret"), endpoint(pool, "off", enabled=False))
    rig.publish(bumped(rig.acme, keys=(only,), endpoints=(*rig.acme.endpoints, *secret)))
    for name in ("m-secret", "secret-alias", "vllm/m-secret", "M-SECRET", " m-secret", "off", "nope"):
        reply = await rig.chat({**HI, "model": name})
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")
        assert reply.error["message"].replace(name, "") == "The model '' does not exist or you do not have access to it."
    assert rig.served() == 0
    assert [entry["id"] for entry in (await rig.call("GET", MODELS)).json["data"]] == ["m-7b"]
    assert (await rig.call("GET", f"{MODELS}/m-secret")).status == 404


async def test_declared_context_enters_the_identity_and_nothing_else_may(rig: Rig) -> None:
    rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0], context={"repo": "old", "org": "v1"}, request_context=("repo",)),)))
    salts = []
    for value in (None, "repo=abc", "repo=def", "repo=abc"):
        assert (await rig.chat(headers={} if value is None else {"X-Saltroute-Context": value})).status == 200
    for received in sorted([*rig.a.requests, *rig.b.requests], key=lambda one: one.headers["x-request-id"]):
        salts.append(received.json["cache_salt"])
        assert "x-saltroute-context" not in received.headers
    assert len(set(salts)) == 3
    for value in ("org=v2", "repo", "repo=", "repo=a,repo=b", "repo=a b", "x=" + "y" * 3000, "repo=" + "y" * 200):
        reply = await rig.chat(headers={"X-Saltroute-Context": value})
        assert (reply.status, reply.error["code"]) == (400, "invalid_context")


async def test_the_decision_id_is_on_every_answer_and_never_twice(rig: Rig) -> None:
    replies = [
        await rig.chat(),
        await rig.chat({**HI, "stream": True}),
        await rig.chat(key="wrong"),
        await rig.chat({**HI, "model": "nope"}),
        await rig.call("GET", "/nowhere"),
        await rig.call("GET", MODELS),
        await rig.call("OPTIONS", MODELS),
        await rig.call("GET", "/healthz"),
    ]
    ids = [reply.headers["x-saltroute-decision"] for reply in replies]
    assert len(set(ids)) == len(ids)
    bad = await rig.raw(b"NOT HTTP\r\n\r\n")
    assert b"x-saltroute-decision: " in bad
    assert [str(record.id) for record in rig.records()] == [ids[0], ids[1], ids[3]]


@pytest.mark.parametrize("sent", ["customer_request_42", "x" * 128])
async def test_a_clients_request_id_is_echoed_and_recorded_only(rig: Rig, sent: str) -> None:
    reply = await rig.chat(headers={"X-Request-Id": sent})
    assert reply.headers["X-Request-Id"] == sent
    (received,) = [*rig.a.requests, *rig.b.requests]
    assert received.headers["x-request-id"] != sent
    assert rig.records()[0].request_id == sent


@pytest.mark.parametrize("sent", ["x" * 129, "x" * 8000, "müller", ""])
async def test_any_other_request_id_is_dropped(rig: Rig, sent: str) -> None:
    reply = await rig.chat(headers={"X-Request-Id": sent})
    assert reply.status == 200
    assert "X-Request-Id" not in reply.headers
    assert rig.records()[0].request_id is None


@pytest.mark.parametrize("forged", [b"X-Request-Id: a\rX-Evil: 1", b"X-Request-Id: a\x01b", b"X-Request-Id: a\n X-Evil: 1"])
async def test_header_injection_comes_to_nothing(rig: Rig, forged: bytes) -> None:
    answer = await rig.raw(b"GET /v1/models HTTP/1.1\r\nHost: r\r\nConnection: close\r\n" + forged + b"\r\n\r\n")
    assert b"X-Evil" not in answer.split(b"\r\n\r\n")[0]
    assert answer.split(b" ")[1] in (b"400", b"401")
