"""Key material: the root key, the tenants' keys wrapped under it, and what may be sealed to it by those who cannot open it.

    root key (routers and the ``keys`` worker alone)
      |- tenant key, one per tenant and version   AES-256-GCM, associated data = tenant, version, purpose
      |- seal key pair (X25519)                   anybody with the public half seals; only a holder of the root opens
      |- state key                                AES-256-GCM for the routers' snapshot on disk
      `- sibling key, one per router process      AES-256-GCM for what routers tell one another, nonce = the message's counter

Nothing here reads a file or a clock. Nonces are arguments, except inside HPKE, which draws its own ephemeral key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar
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
PROCESS_BYTES = 16
_HPKE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
T = TypeVar("T")


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


def webhook_info(tenant_id: UUID, webhook_id: UUID) -> bytes:
    """The binding of a sealed webhook secret, as :func:`credential_info`."""
    return cbor2.dumps(["webhook-secret", tenant_id.bytes, webhook_id.bytes], canonical=True)


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


class SiblingSeal:
    """Seals and opens the messages of one router process (16 random bytes name it). No two messages of a process may have one ``counter``."""

    __slots__ = ("_ciphers",)

    def __init__(self, roots: Sequence[bytes], process: bytes) -> None:
        if len(process) != PROCESS_BYTES:
            raise KeyringError("a router process has a name of 16 bytes")
        self._ciphers = tuple(AESGCM(_derive(root, "siblings " + process.hex())) for root in roots)

    def seal(self, counter: int, plaintext: bytes, associated: bytes) -> bytes:
        """Encrypt under the current root."""
        return self._ciphers[0].encrypt(counter.to_bytes(NONCE_BYTES, "big"), plaintext, associated)

    def open(self, counter: int, sealed: bytes, associated: bytes) -> bytes:
        """Open a message of this process.

        Raises:
            KeyringError: another process's, another counter's or another root's; or damage.
        """
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(counter.to_bytes(NONCE_BYTES, "big"), sealed, associated)
            except (InvalidTag, ValueError):
                continue
        raise KeyringError("sibling's message does not open")


def publish_public_key(seed: bytes) -> bytes:
    """The Ed25519 public key (32 bytes) by which routers know the publisher."""
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def root_id(seal_public: bytes) -> str:
    """The name of a root key (16 hexadecimal digits), from its public half: what may be shown, logged and compared."""
    return hashlib.sha256(b"saltroute/v1 root id" + seal_public).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Roots:
    """The root keys that a process accepts. The first is current: everything new is made under it, the others only open.

    Not printable and not picklable; what may be shown of it are the ids.

    Raises:
        KeyringError: none given, or one is not 32 bytes.
    """

    secrets: tuple[bytes, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.secrets or any(len(secret) != KEY_BYTES for secret in self.secrets):
            raise KeyringError("a root key must be exactly 32 bytes")

    def __reduce__(self) -> NoReturn:
        raise TypeError("root keys do not leave their process")

    @property
    def current(self) -> bytes:
        """The root key under which new values are made."""
        return self.secrets[0]

    @property
    def ids(self) -> tuple[str, ...]:
        """Their names, current first."""
        return tuple(root_id(seal_public_key(secret)) for secret in self.secrets)

    def unwrap(self, tenant_id: UUID, version: int, wrapped: bytes) -> TenantKey:
        """Open a tenant key under whichever root wrapped it.

        Raises:
            KeyringError: none of them did.
        """
        return self._first(lambda root: unwrap_tenant_key(root, tenant_id, version, wrapped))[0]

    def unseal(self, sealed: bytes, *, info: bytes) -> bytes:
        """Open a sealed value under whichever root it was sealed to.

        Raises:
            KeyringError: none of them.
        """
        return self._first(lambda root: unseal(root, sealed, info=info))[0]

    def open_state(self, locked: bytes) -> bytes:
        """Open a router's state.

        Raises:
            KeyringError: none of them locked it.
        """
        return self._first(lambda root: open_state(root, locked))[0]

    def sibling_seal(self, process: bytes) -> SiblingSeal:
        """The seal of one router process's messages."""
        return SiblingSeal(self.secrets, process)

    def rewrap(self, tenant_id: UUID, version: int, wrapped: bytes, nonce: bytes) -> bytes | None:
        """The same tenant key wrapped under the current root; None if it is already.

        Raises:
            KeyringError: it opens under none of the roots.
        """
        key, place = self._first(lambda root: unwrap_tenant_key(root, tenant_id, version, wrapped))
        return None if place == 0 else wrap_tenant_key(self.current, key, nonce)

    def reseal(self, sealed: bytes, *, info: bytes) -> bytes | None:
        """The same value sealed to the current root; None if it is already.

        Raises:
            KeyringError: it opens under none of the roots.
        """
        plaintext, place = self._first(lambda root: unseal(root, sealed, info=info))
        return None if place == 0 else seal(seal_public_key(self.current), plaintext, info=info)

    def _first(self, opens: Callable[[bytes], T]) -> tuple[T, int]:
        for place, root in enumerate(self.secrets):
            try:
                return opens(root), place
            except KeyringError:
                continue
        raise KeyringError("the value opens under none of the root keys")
