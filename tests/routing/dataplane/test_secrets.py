"""Credentials, addresses and keys stay where they belong: in no answer, no log line, no metric, no record, at any level."""

from __future__ import annotations

import logging
import socket
from typing import Any

import aiohttp
import msgspec
import pytest

from namespaces.core import keyring
from routing.dataplane.feeds import load
from tests.fakes.replica import Script
from tests.fakes.rig import HI, KEY_A, ROOT, Rig, bumped, named, replica_entry
from tests.routing.dataplane.conftest import MakeRig

SECRET = "be-secret-1234"


def sealed(secret: str, name: str, owner: str = "acme") -> bytes:
    info = keyring.credential_info(named(f"tenant {owner}"), named(f"replica {name}"))
    return keyring.seal(keyring.seal_public_key(ROOT), secret.encode(), info=info)


def with_replicas(rig: Rig, *replicas: Any) -> None:
    rig.publish(bumped(rig.acme, pools=(msgspec.structs.replace(rig.acme.pools[0], replicas=replicas),)))


async def test_each_replica_gets_its_own_credential_and_never_the_clients(rig: Rig) -> None:
    with_replicas(rig, replica_entry(rig.a), replica_entry(rig.b, credential=sealed(SECRET, "B")))
    for number in range(8):
        messages = [{"role": "user", "content": f"{number}"}]
        await rig.chat({"model": "m-7b", "messages": messages}, headers={"Cookie": "sessionid=abc", "Proxy-Authorization": "Basic eA=="})
    assert rig.a.requests
    assert rig.b.requests
    assert all("authorization" not in received.headers for received in rig.a.requests)
    assert {received.headers["authorization"] for received in rig.b.requests} == {f"Bearer {SECRET}"}
    for received in [*rig.a.requests, *rig.b.requests]:
        assert KEY_A not in str(received.raw_headers) + received.body.decode()


async def test_a_credential_sealed_for_another_replica_does_not_open(rig: Rig) -> None:
    with_replicas(rig, replica_entry(rig.a, credential=sealed(SECRET, "B")))
    assert (await rig.chat()).error["code"] == "no_ready_replica"
    assert rig.records()[0].candidates[0].refusal == "credential"
    assert rig.served() == 0


@pytest.mark.parametrize("secret", ["two\r\nX-Evil: 1", "", "schlüssel"])
async def test_a_credential_that_is_no_header_value_is_not_sent(rig: Rig, secret: str) -> None:
    with_replicas(rig, replica_entry(rig.a, credential=sealed(secret, "A")))
    assert (await rig.chat()).status == 503
    assert rig.served() == 0


async def test_no_secret_or_address_gets_into_answers_logs_metrics_or_records(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with_replicas(rig, replica_entry(rig.a, credential=sealed(SECRET, "A")), replica_entry(rig.b))
    leaking = [
        Script(status=401, body={"error": {"message": f"Incorrect API key provided: {SECRET}"}}),
        Script(status=400, body={"error": {"message": f"asked at 127.0.0.1:{rig.a.port} with {SECRET}", "type": "BadRequestError", "code": 400}}),
        Script(status=429, body={"error": {"message": f"{SECRET} is throttled"}}),
        Script(sse=[{"error": {"message": f"at {rig.a.url}", "code": 400}}]),
    ]
    bodies = []
    for script in leaking:
        rig.a.script = rig.b.script = script
        bodies.append((await rig.chat({**HI, "stream": True, "user": "prompt-word-xyzzy"})).body)
    rig.a.script = rig.b.script = Script(pieces=[], then="rst")
    bodies.append((await rig.chat()).body)
    bodies.append((await rig.call("GET", "/v1/models", key="tk-typo-abcdef")).body)
    bodies.append(await rig.raw(b"GET /v1/models HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer tk-typo-abcdef\x00\r\n\r\n"))
    everything = b"".join(bodies).decode() + caplog.text + str(rig.records())
    for secret in (SECRET, "tk-typo-abcdef", KEY_A, str(rig.a.port), "127.0.0.1", "xyzzy", rig.namespace().salt):
        assert secret not in everything, secret
    page = rig.router.plane.metrics.page().decode()
    for secret in (SECRET, "tk-typo-abcdef", KEY_A, "acme", "xyzzy"):
        assert secret not in page


async def test_a_mistake_of_ours_is_a_500_that_says_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def mistake(*_: Any) -> None:
        raise RuntimeError(f"quoting {KEY_A}")

    monkeypatch.setattr("routing.dataplane.request_path.measure", mistake)
    reply = await rig.chat()
    assert (reply.status, reply.error["code"]) == (500, "internal_error")
    assert "RuntimeError" in caplog.text
    assert KEY_A not in caplog.text + reply.body.decode()
    rig.assert_nothing_held()


class Rebinding(aiohttp.abc.AbstractResolver):
    """A name server that changes its mind: public when asked by the registrar, the metadata service when we connect."""

    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_INET) -> list[Any]:
        return [{"hostname": host, "host": "169.254.169.254", "port": port, "family": socket.AF_INET, "proto": 0, "flags": 0}]

    async def close(self) -> None:
        return None


async def test_what_a_name_means_is_checked_when_connecting(make_rig: MakeRig) -> None:
    rig = await make_rig(resolver=Rebinding())
    with_replicas(rig, replica_entry("http://reb.example:8000", "reb"))
    reply = await rig.chat()
    assert (reply.status, reply.error["code"]) == (503, "no_ready_replica")
    plane = rig.router.plane
    assert plane.engine_report(0.0)["http://reb.example:8000"]["condition"] == "blocked: address not allowed"
    engine = plane.engines["http://reb.example:8000"]
    engine.health = "unknown"
    await load.check(plane, plane.replicas["http://reb.example:8000"])
    assert plane.engine_report(0.0)["http://reb.example:8000"]["condition"] == "blocked: address not allowed"
    assert (await rig.chat()).status == 503
    assert rig.records()[-1].candidates[0].refusal == "address_not_allowed"


async def test_loopback_is_closed_unless_the_operator_opened_it(make_rig: MakeRig) -> None:
    rig = await make_rig(allowed_ranges=())
    assert (await rig.chat()).error["code"] == "no_ready_replica"
    assert rig.served() == 0
    assert rig.a.connections == rig.b.connections == 0
