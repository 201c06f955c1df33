"""Configuration through a real Valkey: applied at once, never rolled back, kept on disk, reported back; and life without Valkey."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from redis.asyncio import Redis

from namespaces.core import keyring
from routing.core import record, snapshot
from routing.core.snapshot import PolicyEntry, TenantSnapshot
from routing.dataplane.feeds import state_file
from routing.dataplane.feeds.snapshots import CHANNEL, SNAPSHOT, VERSIONS
from routing.dataplane.feeds.state_file import StateFile
from routing.dataplane.keys import Keys
from routing.dataplane.telemetry import STREAM
from tests.fakes.rig import KEY_A, KEY_A_EMEA, KEY_B, PUBLISH, ROOT, SECRETS, Rig, bumped, named, sealed, until
from tests.routing.dataplane.conftest import MakeRig
from tests.services import Services

NOWHERE = "redis://127.0.0.1:1/0"  # port 1: nothing listens there


@pytest.fixture
async def valkey(valkey_url: str) -> AsyncIterator[Redis]:
    """The control plane's hand on Valkey."""
    async with Redis.from_url(valkey_url) as client:
        yield client


async def publish(valkey: Redis, document: TenantSnapshot, *, announce: bool = True, bytes_: bytes | None = None) -> None:
    """What the control plane does after a commit."""
    await valkey.set(SNAPSHOT.format(document.tenant_id), sealed(document) if bytes_ is None else bytes_)
    await valkey.hset(VERSIONS, str(document.tenant_id), str(document.version))
    if announce:
        await valkey.publish(CHANNEL, f"{document.tenant_id} {document.version}")


async def live(make_rig: MakeRig, services: Services, valkey: Redis, **settings: object) -> Rig:
    """A rig that reads Valkey with a router's rights, acme and globex published before the router looks."""
    rig = await make_rig(valkey_url=services.valkey_url("router"), deliver=False, **settings)
    await publish(valkey, rig.acme)
    await publish(valkey, rig.globex)
    await until(lambda: len(rig.router.plane.view.tenants) == 2)
    return rig


def version(rig: Rig) -> int:
    return rig.router.plane.view.tenants[rig.acme.tenant_id].snapshot.version


async def test_an_announced_change_is_in_force_at_once(make_rig: MakeRig, services: Services, valkey: Redis) -> None:
    rig = await live(make_rig, services, valkey, poll_s=60.0)
    assert (await rig.chat()).status == 200
    await publish(valkey, bumped(rig.acme, keys=rig.acme.keys[1:]))
    await until(lambda: version(rig) == 2)  # gives up long before the next poll
    assert (await rig.chat(key=KEY_A)).status == 401
    assert (await rig.chat(key=KEY_A_EMEA)).status == 200


async def test_a_lost_announcement_is_found_by_the_next_poll(make_rig: MakeRig, services: Services, valkey: Redis) -> None:
    rig = await live(make_rig, services, valkey, poll_s=0.05)
    await publish(valkey, bumped(rig.acme, suspended=True), announce=False)
    await until(lambda: version(rig) == 2)
    assert (await rig.chat()).error["code"] == "tenant_suspended"


async def test_an_older_version_is_refused_and_shown(make_rig: MakeRig, services: Services, valkey: Redis) -> None:
    rig = await live(make_rig, services, valkey, poll_s=0.05)
    second = bumped(rig.acme, keys=())
    await publish(valkey, second)
    await until(lambda: version(rig) == 2)
    await publish(valkey, rig.acme)  # a rollback: validly signed, with the revoked key in it
    await until(lambda: rig.router.plane.feed.refused.get(rig.acme.tenant_id) == "rollback")
    assert (await rig.chat()).status == 401
    assert version(rig) == 2
    await publish(valkey, bumped(second, keys=rig.acme.keys))
    await until(lambda: version(rig) == 3)
    assert rig.router.plane.feed.refused == {}
    assert (await rig.chat()).status == 200


async def test_a_bad_document_leaves_the_good_one_and_a_later_one_heals(make_rig: MakeRig, services: Services, valkey: Redis) -> None:
    rig = await live(make_rig, services, valkey, poll_s=0.05)
    second = bumped(rig.acme)
    broken = bytearray(sealed(second))
    broken[-1] ^= 1
    await publish(valkey, second, bytes_=bytes(broken))
    await until(lambda: rig.router.plane.feed.refused.get(rig.acme.tenant_id) == "invalid")
    assert (await rig.chat()).status == 200
    await publish(valkey, second)
    await until(lambda: version(rig) == 2)
    assert rig.router.plane.feed.refused == {}


@pytest.mark.parametrize("forgery", ["another tenant's", "another signer's", "no document", "unknown enum", "bad policy"])
async def test_what_is_not_a_document_of_this_tenant_is_refused(rig: Rig, forgery: str) -> None:
    other = bumped(rig.globex)
    bad_policy = tuple(
        msgspec.structs.replace(one, routing_policy=PolicyEntry(name="x", version=1, spec={"policy": "nope"})) for one in rig.acme.endpoints
    )
    pools = (msgspec.structs.replace(rig.acme.pools[0], isolation="anything"),)
    documents = {
        "another tenant's": sealed(other),
        "another signer's": snapshot.seal(bumped(rig.acme), seal_public_key=b"\x09" + bytes(31), publish_key=b"x" * 32),
        "no document": b"garbage",
        "unknown enum": sealed(bumped(rig.acme, pools=pools)),
        "bad policy": sealed(bumped(rig.acme, endpoints=bad_policy)),
    }
    assert rig.router.snapshots.apply({rig.acme.tenant_id: documents[forgery]}) == 0
    assert version(rig) == 1
    assert (await rig.chat()).status == 200
    assert rig.router.plane.feed.refused == {rig.acme.tenant_id: "invalid"}


async def test_fields_from_a_newer_control_plane_are_ignored(rig: Rig) -> None:
    newer = bumped(rig.acme)
    fields = {**msgspec.to_builtins(newer, builtin_types=(bytes,)), "section_of_tomorrow": {"x": 1}}
    info = snapshot._info(newer.tenant_id, newer.version)
    body = keyring.seal(keyring.seal_public_key(ROOT), msgspec.msgpack.encode(fields), info=info)
    document = snapshot._HEAD.pack(snapshot.MAGIC, newer.version, Ed25519PrivateKey.from_private_bytes(PUBLISH).sign(info + body)) + body
    assert rig.router.snapshots.apply({newer.tenant_id: document}) == 1


async def test_the_router_reports_what_is_in_force(make_rig: MakeRig, services: Services, valkey: Redis) -> None:
    rig = await live(make_rig, services, valkey, poll_s=60.0)
    key = f"saltroute:router:{rig.router.config.router_id}"

    async def reported() -> int:
        async with asyncio.timeout(2):
            while True:
                raw = await valkey.get(key)
                report = msgspec.json.decode(raw) if raw else {"versions": {}}
                if report["versions"].get(str(rig.acme.tenant_id)) == version(rig):
                    assert (report["router_id"], report["state"]) == (rig.router.config.router_id, "ready")
                    assert set(report["replicas"]) == {rig.a.url, rig.b.url}
                    return int(report["versions"][str(rig.acme.tenant_id)])
                await asyncio.sleep(0.01)

    assert await reported() == 1
    await publish(valkey, bumped(rig.acme))
    await until(lambda: version(rig) == 2)
    assert await reported() == 2
    assert 0 < await valkey.ttl(key) <= 10


async def test_records_reach_the_stream_with_a_mac_of_this_router(make_rig: MakeRig, services: Services, valkey: Redis) -> None:
    rig = await live(make_rig, services, valkey)
    reply = await rig.chat()
    await until(lambda: rig.router.plane.telemetry.queued() == 0)
    ((_, fields),) = cast("list[tuple[bytes, dict[bytes, bytes]]]", await valkey.xrange(STREAM))
    assert fields[b"t"].decode() == str(rig.acme.tenant_id)
    record.verify(SECRETS.records_key, fields[b"r"].decode(), fields[b"d"], fields[b"m"])
    with pytest.raises(record.RecordError):
        record.verify(SECRETS.records_key, "another-router", fields[b"d"], fields[b"m"])
    assert str(record.decode(fields[b"d"]).id) == reply.headers["x-saltroute-decision"]


async def test_without_valkey_requests_go_on_and_records_wait(make_rig: MakeRig) -> None:
    rig = await make_rig(valkey_url=NOWHERE)
    for _ in range(5):
        assert (await rig.chat()).status == 200
    assert len(rig.records()) == 5


async def test_a_router_restarted_without_valkey_serves_from_disk(make_rig: MakeRig, services: Services, valkey: Redis, tmp_path: Path) -> None:
    state = tmp_path / "kept"
    first = await live(make_rig, services, valkey, state_dir=state)
    await publish(valkey, bumped(first.acme, keys=first.acme.keys[:1]))
    await until(lambda: version(first) == 2)
    await first.router.stop()
    (file,) = state.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert b"acme" not in file.read_bytes()
    second = await make_rig(valkey_url=NOWHERE, deliver=False, state_dir=state, fakes=(first.a, first.b), stale_s=0.001)
    assert (await second.chat()).status == 200
    assert (await second.chat(key=KEY_A_EMEA)).status == 401  # revoked before
    assert (await second.chat(key="sk-sr-unknown-000000000000000")).status == 401
    assert (await second.call("GET", "/readyz", key=None)).json["status"] == "stale"
    assert second.namespace().salt == first.namespace().salt
    # The high-water mark survives too: an old document with the revoked key in it stays refused.
    assert second.router.snapshots.apply({first.acme.tenant_id: sealed(first.acme)}) == 0
    assert second.router.plane.feed.refused == {first.acme.tenant_id: "rollback"}


async def test_a_mark_counts_although_its_document_is_gone(make_rig: MakeRig, tmp_path: Path) -> None:
    """What a router once saw stays refused below that, also where it can no longer open what it saw."""
    state, acme = tmp_path / "kept", named("tenant acme")
    state_file.save(state, Keys(SECRETS), StateFile(marks={acme: 9}))
    rig = await make_rig(state_dir=state, deliver=False)
    assert rig.router.snapshots.apply({acme: sealed(msgspec.structs.replace(rig.acme, version=8))}) == 0
    assert rig.router.plane.feed.refused == {acme: "rollback"}
    assert rig.router.snapshots.apply({acme: sealed(msgspec.structs.replace(rig.acme, version=9))}) == 1


async def test_a_state_file_of_another_root_or_a_damaged_one_is_not_used(make_rig: MakeRig, tmp_path: Path) -> None:
    state = tmp_path / "kept"
    first = await make_rig(state_dir=state)
    await first.router.snapshots.save()
    file = state / "state.bin"
    content = bytearray(file.read_bytes())
    content[20] ^= 1
    file.write_bytes(content)
    second = await make_rig(state_dir=state, deliver=False, fakes=(first.a, first.b))
    assert (await second.chat()).error["code"] == "configuration_unavailable"


async def test_a_router_catches_up_by_itself_when_valkey_comes_back(make_rig: MakeRig, services: Services, valkey: Redis) -> None:
    rig = await live(make_rig, services, valkey, poll_s=0.05)
    for _ in range(3):
        await valkey.client_kill_filter(_type="pubsub")
        await valkey.client_kill_filter(_type="normal", skipme=True)
    await publish(valkey, bumped(rig.acme, suspended=True), announce=False)
    await until(lambda: version(rig) == 2)
    assert (await rig.chat(key=KEY_B)).status == 200


async def test_a_tenant_that_vanishes_from_valkey_keeps_its_last_snapshot(make_rig: MakeRig, services: Services, valkey: Redis) -> None:
    rig = await live(make_rig, services, valkey, poll_s=0.05)
    await valkey.flushdb()
    polled = rig.router.plane.feed.contact_at or 0.0
    await until(lambda: (rig.router.plane.feed.contact_at or 0.0) > polled + 0.1)
    assert (await rig.chat()).status == 200


async def test_an_empty_valkey_is_a_configuration_without_tenants(make_rig: MakeRig, services: Services, valkey: Redis) -> None:
    rig = await make_rig(valkey_url=services.valkey_url("router"), deliver=False)
    await until(lambda: rig.router.plane.feed.loaded)
    assert (await rig.chat()).status == 401
    assert (await rig.call("GET", "/readyz", key=None)).status == 200
    assert time.time() - (rig.router.plane.feed.contact_at or 0.0) < 5


async def test_a_deleted_tenants_prefixes_are_forgotten_and_nobody_elses(rig: Rig) -> None:
    """With the tombstone, not when they would have faded."""
    prompt = {"messages": [{"role": "user", "content": "x" * 4000}]}
    assert (await rig.chat({"model": "m-7b", **prompt})).status == 200
    assert (await rig.chat({"model": "m-7b", **prompt}, key=KEY_B)).status == 200

    def blocks() -> int:
        return sum(held for held, _ in rig.router.plane.index.sizes().values())

    both = blocks()
    rig.publish(bumped(rig.acme, deleted=True, endpoints=(), keys=(), pools=(), scopes=()))
    assert 0 < blocks() == both // 2
    assert (await rig.chat({"model": "m-7b", **prompt})).status == 401
