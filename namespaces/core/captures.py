"""The key of one trace capture: what block ids of captured requests are made under.

It is derived from the tenant's key and a random seed that is stored with the capture and nowhere else. Neither half gives the key: the control
plane holds the seed and cannot open the tenant's key, a router holds both only while the capture runs. Once the seed is deleted nobody can make
an id of that capture again, so ids left behind anywhere are random numbers. Two captures have two seeds: their ids cannot be joined.
Source: RFC 5869; the labels are apart from those of salts (``namespaces.core.salts``).
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from uuid import UUID

import cbor2
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from namespaces.core.keyring import KEY_BYTES, TenantKey

SEED_BYTES = 32


def capture_key(key: TenantKey, capture_id: UUID, seed: bytes) -> bytes:
    """The key (32 bytes) of a capture of ``key``'s tenant.

    Raises:
        ValueError: the seed is not ``SEED_BYTES`` long: a short one could be guessed.
    """
    if len(seed) != SEED_BYTES:
        raise ValueError(f"a capture's seed has {SEED_BYTES} bytes")
    extracted = hmac.digest(b"saltroute/v1 capture", key.secret, sha256)
    return HKDFExpand(hashes.SHA256(), KEY_BYTES, cbor2.dumps(["trace-capture", capture_id.bytes, seed], canonical=True)).derive(extracted)
