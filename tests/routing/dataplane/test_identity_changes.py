"""What happens to requests in flight when their identity changes, and to a router while the root key is rotated."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from namespaces.core import keyring
from namespaces.core.keyring import Roots, TenantKey
from namespaces.core.snapshot import KeyMaterial
from routing.core import snapshot
from routing.core.snapshot import TenantSnapshot
from routing.dataplane.config import Secrets
from routing.dataplane.feeds import state_file
from routing.dataplane.feeds.state_file import StateFile
from routing.dataplane.keys import KeyringError, Keys
from tests.fakes.replica import Script, chunk, usage_chunk
from tests.fakes.rig import HI, KEY_A, PUBLISH, ROOT, SECRETS, Rig, bumped
from tests.routing.dataplane.conftest import MakeRig

NEW_ROOT = b"n" * 32
BOTH = Secrets(root=NEW_ROOT, former_roots=(ROOT,), publish_public_key=SECRETS.publish_public_key, records_key=SECRETS.records_key)


def _new_epoch(document: TenantSnapshot) -> TenantSnapshot:
    return bumped(document, endpoints=tuple(msgspec.structs.replace(one, epoch=one.epoch + 1) for one in document.endpoints))


def _raised_scope(document: TenantSnapshot) -> TenantSnapshot:
    return bumped(document, scopes=tuple(msgspec.structs.replace(one, version=one.version + 1) for one in document.scopes))


def _rotated_key(document: TenantSnapshot) -> TenantSnapshot:
    key = TenantKey(tenant_id=document.tenant_id, version=2, secret=b"k" * 32)
    return bumped(document, key_material=KeyMaterial(version=2, wrapped=keyring.wrap_tenant_key(ROOT, key, b"n" * 12)))


def _new_weights(document: TenantSnapshot) -> TenantSnapshot:
    changed = [msgspec.structs.replace(one, model=msgspec.structs.replace(one.model, revision="r2")) for one in document.endpoints]
    return bumped(document, endpoints=tuple(changed))


@pytest.mark.parametrize("change", [_new_epoch, _raised_scope, _rotated_key, _new_weights])
async def test_a_request_in_flight_finishes_under_the_identity_it_began_with(make_rig: MakeRig, change: Any) -> None:
    """Published in the middle of a stream: the stream goes on to its end and is recorded under its namespace; the next request has another salt."""
    rig: Rig = await make_rig()
    rig.only_a()
    gate = asyncio.Event()
    rig.a.script = Script(sse=[chunk("hel"), chunk("lo"), chunk(finish="stop"), usage_chunk(), "[DONE]"], gates={1: gate})
    before = rig.namespace()
    stream = {**HI, "stream": True}
    headers = {"Authorization": f"Bearer {KEY_A}"}
    async with rig.client.post(f"{rig.url}/v1/chat/completions", json=stream, headers=headers) as answer:
        first = await answer.content.readany()
        assert b"hel" in first
        rig.publish(change(rig.acme))
        after = rig.namespace()
        assert after.salt != before.salt
        gate.set()
        rest = await answer.read()
    assert b"lo" in rest
    assert rest.rstrip().endswith(b"[DONE]")
    assert (await rig.chat(stream)).status == 200
    assert [request.json["cache_salt"] for request in rig.a.requests] == [before.salt, after.salt]
    await rig.settled()
    assert [record.namespace for record in rig.records()] == [before.public_id, after.public_id]
    rig.assert_nothing_held()


def _moved(document: TenantSnapshot) -> tuple[TenantSnapshot, bytes]:
    """A snapshot as a rotation of the root leaves it: the key wrapped again, the document sealed to the new root."""
    assert document.key_material is not None
    wrapped = Roots((NEW_ROOT, ROOT)).rewrap(document.tenant_id, 1, document.key_material.wrapped, b"m" * 12)
    assert wrapped is not None
    moved = bumped(document, key_material=KeyMaterial(version=1, wrapped=wrapped))
    return moved, snapshot.seal(moved, seal_public_key=keyring.seal_public_key(NEW_ROOT), publish_key=PUBLISH)


async def test_a_router_with_both_roots_takes_either_document_and_keeps_its_salts(make_rig: MakeRig) -> None:
    """The rotation passes while it serves: same salt, same namespace, nothing refused; it reports both roots, the current one first."""
    rig: Rig = await make_rig()
    rig.router.snapshots._keys = Keys(BOTH)  # as after its restart with the new root named first
    rig.only_a()
    await rig.chat()
    moved, document = _moved(rig.acme)
    assert rig.router.snapshots.apply({moved.tenant_id: document}) == 1
    await rig.chat()
    assert len({request.json["cache_salt"] for request in rig.a.requests}) == 1
    assert len(rig.a.requests) == 2
    assert rig.router.plane.feed.refused == {}
    report = msgspec.json.decode(rig.router.snapshots.status())
    assert report["roots"] == [keyring.root_id(keyring.seal_public_key(root)) for root in (NEW_ROOT, ROOT)]


async def test_a_router_without_the_new_root_keeps_the_last_good_document(make_rig: MakeRig) -> None:
    """It refuses what it cannot open, says so, and serves on."""
    rig: Rig = await make_rig()
    rig.only_a()
    moved, document = _moved(rig.acme)
    assert rig.router.snapshots.apply({moved.tenant_id: document}) == 0
    assert rig.router.plane.feed.refused == {moved.tenant_id: "invalid"}
    assert (await rig.chat()).status == 200


def test_the_state_file_opens_under_a_former_root_and_is_written_under_the_current(tmp_path: Path) -> None:
    """A restart in the middle of the rotation starts from disk; what it writes no longer needs the old root."""
    state = StateFile(contact_at=1.0, documents={}, marks={UUID(int=7): 7})
    state_file.save(tmp_path, Keys(SECRETS), state)
    assert state_file.load(tmp_path, Keys(BOTH)) == state
    state_file.save(tmp_path, Keys(BOTH), state)
    new_alone = Secrets(root=NEW_ROOT, publish_public_key=SECRETS.publish_public_key, records_key=SECRETS.records_key)
    assert state_file.load(tmp_path, Keys(new_alone)) == state
    with pytest.raises(KeyringError):
        state_file.load(tmp_path, Keys(SECRETS))
