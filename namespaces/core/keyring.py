"""Key material: the root key, the tenants' keys wrapped under it, and what may be sealed to it by those who cannot open it.

    root key (routers and the ``keys`` worker alone)
      |- tenant key, one per tenant and version   AES-256-GCM, associated data = tenant, version, purpose
      |- seal key pair (X25519)                   anybody with the public half seals; only a holder of the root opens
      `- state key                                AES-256-GCM for the routers' snapshot on disk

Nothing here reads a file or a clock. Nonces are arguments, except inside HPKE, which draws its own ephemeral key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

import cbor2
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32
NONCE_BYTES = 12
_HPKE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


class KeyringError(Exception):
    """A wrapped or sealed value does not open: wrong root, wrong tenant or version, or damage. Never says which."""


@dataclass(frozen=True, slots=True)
class TenantKey:
    """An opened tenant key. Not printable; held in memory only."""

    tenant_id: UUID
    version: int
    secret: bytes = field(repr=False)


def _derive(root: bytes, purpose: str) -> bytes:
    if len(root) != KEY_BYTES:
        raise KeyringError("the root key must be exactly 32 bytes")
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=b"saltroute/v1 root", info=purpose.encode()).derive(root)


def _associated(tenant_id: UUID, version: int) -> bytes:
    return cbor2.dumps([tenant_id.bytes, version, "tenant-key"], canonical=True)


def wrap_tenant_key(root: bytes, key: TenantKey, nonce: bytes) -> bytes:
    """Wrap a tenant key under the root: 12 bytes nonce + ciphertext + tag, bound to tenant and version."""
    return nonce + AESGCM(_derive(root, "wrap")).encrypt(nonce, key.secret, _associated(key.tenant_id, key.version))


def unwrap_tenant_key(root: bytes, tenant_id: UUID, version: int, wrapped: bytes) -> TenantKey:
    """Open a wrapped tenant key.

    Raises:
        KeyringError: it was wrapped under another root, or for another tenant or version, or is damaged.
    """
    nonce, ciphertext = wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:]
    try:
        secret = AESGCM(_derive(root, "wrap")).decrypt(nonce, ciphertext, _associated(tenant_id, version))
    except (InvalidTag, ValueError):
        raise KeyringError("tenant key does not open") from None
    return TenantKey(tenant_id=tenant_id, version=version, secret=secret)


def seal_public_key(root: bytes) -> bytes:
    """The public half (32 bytes) to which the control plane seals what only routers may open."""
    return X25519PrivateKey.from_private_bytes(_derive(root, "seal")).public_key().public_bytes_raw()


def seal(public_key: bytes, plaintext: bytes, *, info: bytes) -> bytes:
    """Seal to the root's holders (HPKE, RFC 9180, base mode). ``info`` binds purpose and owner; the sealer cannot open it again."""
    return bytes(_HPKE.encrypt(plaintext, X25519PublicKey.from_public_bytes(public_key), info))


def unseal(root: bytes, sealed: bytes, *, info: bytes) -> bytes:
    """Open what :func:`seal` made with the same ``info``.

    Raises:
        KeyringError: wrong root, wrong info, or damage.
    """
    try:
        return bytes(_HPKE.decrypt(sealed, X25519PrivateKey.from_private_bytes(_derive(root, "seal")), info))
    except (InvalidTag, ValueError):
        raise KeyringError("sealed value does not open") from None


def credential_info(tenant_id: UUID, replica_id: UUID) -> bytes:
    """The binding of a sealed replica credential: a ciphertext copied to another replica's row does not open."""
    return cbor2.dumps(["replica-credential", tenant_id.bytes, replica_id.bytes], canonical=True)


def lock_state(root: bytes, plaintext: bytes, nonce: bytes) -> bytes:
    """Encrypt a router's snapshot for its own disk."""
    return nonce + AESGCM(_derive(root, "state")).encrypt(nonce, plaintext, b"router-state")


def open_state(root: bytes, locked: bytes) -> bytes:
    """Open what :func:`lock_state` made.

    Raises:
        KeyringError: another root, or damage.
    """
    try:
        return AESGCM(_derive(root, "state")).decrypt(locked[:NONCE_BYTES], locked[NONCE_BYTES:], b"router-state")
    except (InvalidTag, ValueError):
        raise KeyringError("router state does not open") from None


def publish_public_key(seed: bytes) -> bytes:
    """The Ed25519 public key (32 bytes) by which routers know the publisher."""
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
