"""From an identity to the names that depend on it: engine salt, router index seed and public namespace id.

    PRK  = HKDF-Extract(salt = "saltroute/v1", IKM = tenant key)
    name = HKDF-Expand(PRK, info = CBOR([label, identity bytes]), 32)

Three labels give three independent values: who sees an engine's salt learns nothing of the index, and the public id tells nothing of either.
Source: RFC 5869.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass, field
from hashlib import sha256

import cbor2
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from namespaces.core.identity import encode
from namespaces.core.keyring import TenantKey
from namespaces.core.subject import Subject
from tenants.core.names import SALT_PREFIX


@dataclass(frozen=True, slots=True)
class Namespace:
    """The names of one identity. ``salt`` goes to engines, ``index_seed`` stays in routers, ``public_id`` may be shown and logged."""

    public_id: str  # "ns-" + 32 hexadecimal digits
    salt: str = field(repr=False)  # "sr1-" + 43 characters base64url, 47 in all
    index_seed: bytes = field(repr=False)  # 32 bytes

    @property
    def key(self) -> bytes:
        """The public id as 16 bytes: what everything that a router caches for the namespace is keyed by."""
        return bytes.fromhex(self.public_id.removeprefix("ns-"))


def derive(key: TenantKey, subject: Subject) -> Namespace:
    """Derive all names of ``subject`` under its tenant's key (about 30 us; callers keep the result).

    Raises:
        ValueError: the key is another tenant's, or the subject contradicts itself.
    """
    if key.tenant_id != subject.tenant_id:
        raise ValueError("tenant key and subject belong to different tenants")
    identity = encode(subject)
    extracted = hmac.digest(b"saltroute/v1", key.secret, sha256)

    def expand(label: str) -> bytes:
        info = cbor2.dumps([label, identity], canonical=True)
        return HKDFExpand(hashes.SHA256(), 32, info).derive(extracted)

    return Namespace(
        public_id="ns-" + expand("namespace-id")[:16].hex(),
        salt=SALT_PREFIX + base64.urlsafe_b64encode(expand("engine-salt")).rstrip(b"=").decode(),
        index_seed=expand("index-seed"),
    )
