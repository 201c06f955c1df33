"""The snapshot: everything the data plane knows of one tenant, as one immutable, versioned, authenticated document.

Wire form: ``magic(4) version(8, big-endian) signature(64) sealed``. ``sealed`` is HPKE to the root's public half, so neither Valkey nor a backup
of it shows key digests or addresses; the Ed25519 signature over everything else says that the control plane wrote it. Unknown fields are ignored, so
an older router reads a newer document; an unknown value of an enum that bears on security is refused and the last good document stays.
"""

from __future__ import annotations

import struct
from typing import Any, Literal
from uuid import UUID

import cbor2
import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from namespaces.core import keyring
from namespaces.core.snapshot import KeyMaterial
from routing.core.quota import Of
from tenants.core.snapshot import KeyEntry, ScopeEntry

MAGIC = b"SRS1"
_HEAD = struct.Struct(">4sQ64s")

IsolationMode = Literal["audited", "declared", "dedicated"]
ReplicaState = Literal["active", "draining", "paused"]
ReplicaRole = Literal["both", "prefill", "decode"]
EngineFamily = Literal["vllm", "sglang", "trtllm", "llamacpp"]
SharingLevel = Literal["tenant", "scope", "key", "none"]
IsolationState = Literal["unverified", "isolated", "suspect", "quarantined"]


class SnapshotError(Exception):
    """A document is not ours, was changed, is another tenant's, or says something this router must not guess at."""


class ArtifactRef(msgspec.Struct, frozen=True):
    """A tokenizer or chat template: SHA-256 (32 bytes) where we hold the file, and its label."""

    digest: bytes | None = None
    revision: str | None = None


class AdapterEntry(msgspec.Struct, frozen=True):
    name: str
    revision: str
    generation: int = 1


class ModelEntry(msgspec.Struct, frozen=True):
    name: str
    revision: str
    tokenizer: ArtifactRef = ArtifactRef()
    chat_template: ArtifactRef = ArtifactRef()
    quantisation: str | None = None
    kv_dtype: str | None = None
    multimodal_processor: str | None = None
    context_window_tokens: int | None = None


class KvEvents(msgspec.Struct, frozen=True):
    """Where a replica publishes its KV events. Secret: the stream holds token ids and salts in clear."""

    endpoint: str
    replay: str | None = None
    topic: str = ""


class ReplicaEntry(msgspec.Struct, frozen=True):
    """A physical engine. ``url`` is normalised; it is the key under which routers hold load and residency."""

    id: UUID
    name: str
    url: str
    engine: EngineFamily
    state: ReplicaState = "active"
    credential: bytes | None = None  # sealed with keyring.credential_info(owner_tenant_id, id)
    kv_events: KvEvents | None = None
    dedicated_namespace: str | None = None  # public namespace id it serves, where isolation asks for one
    isolation: IsolationState = "unverified"  # what audits have found of the physical engine
    role: ReplicaRole = "both"  # prefill and decode: one half of a request each, the KV cache goes from the one to the other
    max_concurrency: int | None = None  # requests in flight that it is to be given at most


class PoolEntry(msgspec.Struct, frozen=True):
    """A set of replicas, owned by this tenant or granted by the platform."""

    id: UUID
    name: str
    owner_tenant_id: UUID
    isolation: IsolationMode
    replicas: tuple[ReplicaEntry, ...] = ()
    shared: bool = False  # other tenants use it too: their load is shown as one rounded wait only
    weight: float = 1.0  # of this tenant among those that share the pool; > 0, set by the platform


class PolicyEntry(msgspec.Struct, frozen=True):
    """A routing or SLO policy at one version: the checked document, compiled again by the router with the same code."""

    name: str
    version: int
    spec: dict[str, Any]


class CaptureEntry(msgspec.Struct, frozen=True):
    """A trace capture that runs: half of its key, and what is captured until when."""

    id: UUID
    seed: bytes  # 32 bytes; see namespaces.core.captures
    share: float  # of the conversations
    until: float  # unix s


class EndpointEntry(msgspec.Struct, frozen=True):
    """A model name that clients send, and where and under which identity it is served."""

    id: UUID
    name: str
    pool_id: UUID
    model: ModelEntry
    engine: EngineFamily
    served_model: str  # what the engine calls it; the adapter's name where there is one
    routing_policy: PolicyEntry
    slo: PolicyEntry | None = None
    spill_pool_id: UUID | None = None  # the pool that its SLO policy names for overload, where the tenant may use it
    candidate_policy: PolicyEntry | None = None  # on trial beside the live one
    canary_share: float = 0.0  # of the endpoint's prompts that the candidate places; 0: it decides in the shadow only
    adapter: AdapterEntry | None = None
    context: dict[str, str] = {}
    request_context: tuple[str, ...] = ()  # names a request may version by X-Saltroute-Context
    sharing: SharingLevel = "scope"
    epoch: int = 1
    data_class: str | None = None
    own_cache: bool = False
    client_subdivision: bool = False
    enabled: bool = True
    created_at: float = 0.0  # unix s, shown by /v1/models
    explain_until: float = 0.0  # unix s; until then every record holds its candidates
    capture: CaptureEntry | None = None  # None: nothing of its traffic is captured


class QuotaEntry(msgspec.Struct, frozen=True):
    """What the requests of ``of`` may use; None: no limit of that kind. ``name`` is the scope's path, the key's or the endpoint's name."""

    id: UUID
    of: Of
    name: str = ""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_month: int | None = None


class TenantSnapshot(msgspec.Struct, frozen=True):
    """One tenant. ``deleted`` is a tombstone: every key is unknown from then on."""

    tenant_id: UUID
    slug: str
    version: int
    published_at: float  # unix s
    epoch: int = 1
    suspended: bool = False
    deleted: bool = False
    key_material: KeyMaterial | None = None
    scopes: tuple[ScopeEntry, ...] = ()
    keys: tuple[KeyEntry, ...] = ()
    pools: tuple[PoolEntry, ...] = ()
    endpoints: tuple[EndpointEntry, ...] = ()
    quotas: tuple[QuotaEntry, ...] = ()


_decoder = msgspec.msgpack.Decoder(TenantSnapshot)


def _info(tenant_id: UUID, version: int) -> bytes:
    return cbor2.dumps(["snapshot", tenant_id.bytes, version], canonical=True)


def seal(snapshot: TenantSnapshot, *, seal_public_key: bytes, publish_key: bytes) -> bytes:
    """Encode, seal to the routers and sign. ``publish_key`` is the Ed25519 seed (32 bytes)."""
    info = _info(snapshot.tenant_id, snapshot.version)
    sealed = keyring.seal(seal_public_key, msgspec.msgpack.encode(snapshot), info=info)
    signature = Ed25519PrivateKey.from_private_bytes(publish_key).sign(info + sealed)
    return _HEAD.pack(MAGIC, snapshot.version, signature) + sealed


def version_of(document: bytes) -> int:
    """The version a sealed document claims, unverified: for compare-and-set only.

    Raises:
        SnapshotError: not a snapshot document.
    """
    if len(document) < _HEAD.size or document[:4] != MAGIC:
        raise SnapshotError("not a snapshot document")
    return int(_HEAD.unpack_from(document)[1])


def open_sealed(document: bytes, *, tenant_id: UUID, root: bytes | keyring.Roots, publish_public_key: bytes) -> TenantSnapshot:
    """Verify, unseal and decode the document of ``tenant_id``; ``root`` is one root key, or those accepted while a rotation goes on.

    Raises:
        SnapshotError: wrong signature, another tenant's or version's document, damage, or an unknown security-relevant value.
    """
    version = version_of(document)
    signature, sealed = _HEAD.unpack_from(document)[2], document[_HEAD.size :]
    info = _info(tenant_id, version)
    roots = root if isinstance(root, keyring.Roots) else keyring.Roots((root,))
    try:
        Ed25519PublicKey.from_public_bytes(publish_public_key).verify(signature, info + sealed)
        snapshot = _decoder.decode(roots.unseal(sealed, info=info))
    except InvalidSignature:
        raise SnapshotError("signature does not match") from None
    except keyring.KeyringError:
        raise SnapshotError("document does not open under this root key") from None
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise SnapshotError(f"document cannot be used: {error}") from None
    if snapshot.tenant_id != tenant_id or snapshot.version != version:
        raise SnapshotError("document names another tenant or version")
    return snapshot
