"""The sealed snapshot opens for its tenant's routers as it was written, and in no other way."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args
from uuid import UUID

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from namespaces.core import keyring
from namespaces.core.snapshot import KeyMaterial
from routing.core import snapshot as snapshots
from routing.core.snapshot import (
    AdapterEntry,
    ArtifactRef,
    EndpointEntry,
    EngineFamily,
    IsolationMode,
    KvEvents,
    ModelEntry,
    PolicyEntry,
    PoolEntry,
    ReplicaEntry,
    ReplicaState,
    SharingLevel,
    SnapshotError,
    TenantSnapshot,
)
from tenants.core.snapshot import KeyEntry, ScopeEntry

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
uuids = st.uuids()
digests = st.binary(min_size=32, max_size=32)
versions = st.integers(1, 2**63 - 1)
moments = st.floats(0, 1e12)
specs = st.dictionaries(texts, st.integers(-100, 100) | st.floats(allow_nan=False) | texts, max_size=2)
references = st.builds(ArtifactRef, digest=st.none() | digests, revision=st.none() | texts)
replica_entries = st.builds(
    ReplicaEntry,
    id=uuids,
    name=texts,
    url=texts,
    engine=st.sampled_from(get_args(EngineFamily)),
    state=st.sampled_from(get_args(ReplicaState)),
    credential=st.none() | st.binary(max_size=8),
    kv_events=st.none() | st.builds(KvEvents, endpoint=texts, replay=st.none() | texts, topic=texts),
    dedicated_namespace=st.none() | texts,
    role=st.sampled_from(["both", "prefill", "decode"]),
)
pool_entries = st.builds(
    PoolEntry,
    id=uuids,
    name=texts,
    owner_tenant_id=uuids,
    isolation=st.sampled_from(get_args(IsolationMode)),
    replicas=st.lists(replica_entries, max_size=2).map(tuple),
    shared=st.booleans(),
)
model_entries = st.builds(ModelEntry, name=texts, revision=texts, tokenizer=references, chat_template=references, quantisation=st.none() | texts)
policy_entries = st.builds(PolicyEntry, name=texts, version=versions, spec=specs)
endpoint_entries = st.builds(
    EndpointEntry,
    id=uuids,
    name=texts,
    pool_id=uuids,
    model=model_entries,
    engine=st.sampled_from(get_args(EngineFamily)),
    served_model=texts,
    routing_policy=policy_entries,
    slo=st.none() | policy_entries,
    adapter=st.none() | st.builds(AdapterEntry, name=texts, revision=texts, generation=versions),
    context=st.dictionaries(texts, texts, max_size=2),
    request_context=st.lists(texts, max_size=2).map(tuple),
    sharing=st.sampled_from(get_args(SharingLevel)),
    epoch=versions,
    data_class=st.none() | texts,
    own_cache=st.booleans(),
    client_subdivision=st.booleans(),
    enabled=st.booleans(),
    created_at=moments,
)
key_entries = st.builds(
    KeyEntry,
    id=uuids,
    name=texts,
    digest=digests,
    scope_id=uuids,
    expires_at=st.none() | moments,
    endpoints=st.none() | st.lists(texts, max_size=2).map(tuple),
)
tenant_snapshots = st.builds(
    TenantSnapshot,
    tenant_id=uuids,
    slug=texts,
    version=versions,
    published_at=moments,
    epoch=versions,
    suspended=st.booleans(),
    deleted=st.booleans(),
    key_material=st.none() | st.builds(KeyMaterial, version=versions, wrapped=st.binary(max_size=60)),
    scopes=st.lists(st.builds(ScopeEntry, id=uuids, path=texts, version=versions), max_size=2).map(tuple),
    keys=st.lists(key_entries, max_size=2).map(tuple),
    pools=st.lists(pool_entries, max_size=2).map(tuple),
    endpoints=st.lists(endpoint_entries, max_size=2).map(tuple),
)
ROOT, SEED = b"r" * 32, b"s" * 32
SMALL = TenantSnapshot(tenant_id=UUID(int=1), slug="acme", version=7, published_at=1.0)
HEAD_BYTES = 4 + 8 + 64


@dataclass(frozen=True, slots=True)
class Installation:
    """Who seals and who opens."""

    root: bytes = ROOT
    seed: bytes = SEED

    def seal(self, snapshot: TenantSnapshot) -> bytes:
        return snapshots.seal(snapshot, seal_public_key=keyring.seal_public_key(self.root), publish_key=self.seed)

    def open(self, document: bytes, tenant_id: UUID) -> TenantSnapshot:
        public = keyring.publish_public_key(self.seed)
        return snapshots.open_sealed(document, tenant_id=tenant_id, root=self.root, publish_public_key=public)


HERE = Installation()


@given(tenant_snapshots)
def test_what_is_sealed_opens_as_it_was(snapshot: TenantSnapshot) -> None:
    document = HERE.seal(snapshot)
    assert HERE.open(document, snapshot.tenant_id) == snapshot
    assert snapshots.version_of(document) == snapshot.version


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_a_flipped_bit_anywhere_is_refused(place: int, bit: int) -> None:
    document = bytearray(HERE.seal(SMALL))
    document[place % len(document)] ^= 1 << bit
    with pytest.raises(SnapshotError):
        HERE.open(bytes(document), SMALL.tenant_id)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=9))
def test_a_cut_or_lengthened_document_is_refused(place: int, more: bytes) -> None:
    document = HERE.seal(SMALL)
    for changed in (document[: place % len(document)], document + more):
        with pytest.raises(SnapshotError):
            HERE.open(changed, SMALL.tenant_id)


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda rest: b"SRS1" + rest))
def test_any_other_bytes_are_refused(garbage: bytes) -> None:
    with pytest.raises(SnapshotError):
        HERE.open(garbage, SMALL.tenant_id)


@given(uuids)
def test_a_document_of_another_tenant_is_refused(other: UUID) -> None:
    assume(other != SMALL.tenant_id)
    with pytest.raises(SnapshotError):
        HERE.open(HERE.seal(SMALL), other)


@pytest.mark.parametrize("stranger", [Installation(seed=b"x" * 32), Installation(root=b"x" * 32)], ids=["publisher", "root"])
def test_another_publisher_or_root_is_refused(stranger: Installation) -> None:
    with pytest.raises(SnapshotError):
        HERE.open(stranger.seal(SMALL), SMALL.tenant_id)


@given(st.integers(0, 2**64 - 1))
def test_an_old_document_cannot_be_given_a_newer_version(version: int) -> None:
    assume(version != SMALL.version)
    document = HERE.seal(SMALL)
    relabelled = document[:4] + struct.pack(">Q", version) + document[12:]
    assert snapshots.version_of(relabelled) == version
    with pytest.raises(SnapshotError):
        HERE.open(relabelled, SMALL.tenant_id)


def test_a_signature_does_not_move_to_another_document() -> None:
    one, other = HERE.seal(SMALL), HERE.seal(msgspec.structs.replace(SMALL, suspended=True))
    with pytest.raises(SnapshotError):
        HERE.open(one[:HEAD_BYTES] + other[HEAD_BYTES:], SMALL.tenant_id)


def test_nothing_of_the_content_shows() -> None:
    key = KeyEntry(id=UUID(int=3), name="a key's name", digest=b"d" * 32, scope_id=UUID(int=4))
    document = HERE.seal(msgspec.structs.replace(SMALL, slug="a-telling-slug", keys=(key,)))
    assert b"a-telling-slug" not in document
    assert b"a key's name" not in document
    assert b"d" * 32 not in document


# --- documents of another version of the product -------------------------------------------------------------------------


def _sealed_as_written(content: dict[str, Any]) -> bytes:
    """A document of ``SMALL``'s tenant and version whose content is another product version's."""
    info = snapshots._info(SMALL.tenant_id, SMALL.version)
    sealed = keyring.seal(keyring.seal_public_key(ROOT), msgspec.msgpack.encode(content), info=info)
    signature = keyring_sign(info + sealed)
    return snapshots._HEAD.pack(snapshots.MAGIC, SMALL.version, signature) + sealed


def keyring_sign(message: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(SEED).sign(message)


def _content(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    pool = PoolEntry(
        id=UUID(int=5),
        name="p",
        owner_tenant_id=SMALL.tenant_id,
        isolation="declared",
        replicas=(ReplicaEntry(id=UUID(int=6), name="r", url="http://r", engine="vllm"),),
    )
    content: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.structs.replace(SMALL, pools=(pool,))))
    change(content)
    return content


def test_unknown_members_of_a_newer_document_are_ignored() -> None:
    def newer(content: dict[str, Any]) -> None:
        content["a_new_member"] = {"x": 1}
        content["pools"][0]["another"] = 2

    opened = HERE.open(_sealed_as_written(_content(newer)), SMALL.tenant_id)
    assert opened.pools[0].replicas[0].name == "r"


@pytest.mark.parametrize("place", ["isolation", "engine", "state"])
def test_an_unknown_value_that_bears_on_security_is_refused(place: str) -> None:
    def unknown(content: dict[str, Any]) -> None:
        (content["pools"][0] if place == "isolation" else content["pools"][0]["replicas"][0])[place] = "relaxed"

    with pytest.raises(SnapshotError, match="cannot be used"):
        HERE.open(_sealed_as_written(_content(unknown)), SMALL.tenant_id)


def test_content_that_names_another_version_is_refused() -> None:
    def other_version(content: dict[str, Any]) -> None:
        content["version"] = SMALL.version + 1

    with pytest.raises(SnapshotError, match="another tenant or version"):
        HERE.open(_sealed_as_written(_content(other_version)), SMALL.tenant_id)


def test_content_that_names_another_tenant_opens_at_neither_place() -> None:
    """At the place it was sealed for it contradicts itself; at the place it names, seal and signature are another's."""
    other = UUID(int=SMALL.tenant_id.int + 1)

    def others(content: dict[str, Any]) -> None:
        content["tenant_id"] = str(other)

    document = _sealed_as_written(_content(others))
    with pytest.raises(SnapshotError, match="another tenant or version"):
        HERE.open(document, SMALL.tenant_id)
    with pytest.raises(SnapshotError, match="signature"):
        HERE.open(document, other)
