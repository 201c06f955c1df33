"""An independent check of the cache identity vectors: standard library only, none of the product's code.

    python docs/identity_check.py tests/vectors/identity-v1.json

Recomputes encoding, salt, index seed and public id of each vector from its components and prints one line for each. Exit code 1 on any difference.
A second implementation can be checked the same way: see docs/identity.md.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
import sys


def cbor(value: object) -> bytes:
    """Deterministic CBOR (RFC 8949, 4.2.1) of the types that identities use. ``{"hex": ...}`` in a vector is a byte string."""
    if value is None:
        return b"\xf6"
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, int):
        return head(0, value) if value >= 0 else head(1, -1 - value)
    if isinstance(value, dict):
        raw = bytes.fromhex(value["hex"])
        return head(2, len(raw)) + raw
    if isinstance(value, str):
        raw = value.encode()
        return head(3, len(raw)) + raw
    if isinstance(value, list):
        return head(4, len(value)) + b"".join(cbor(item) for item in value)
    raise TypeError(type(value).__name__)


def head(major: int, number: int) -> bytes:
    """A CBOR head with the shortest form of ``number``."""
    if number < 24:
        return bytes([major << 5 | number])
    for code, layout in ((24, ">B"), (25, ">H"), (26, ">I"), (27, ">Q")):
        if number < 1 << 8 * struct.calcsize(layout):
            return bytes([major << 5 | code]) + struct.pack(layout, number)
    raise ValueError("number too large")


def expand(key: bytes, label: str, identity: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) with salt ``saltroute/v1`` and 32 bytes of output: one block, so one HMAC after the extraction."""
    extracted = hmac.digest(b"saltroute/v1", key, hashlib.sha256)
    info = head(4, 2) + cbor(label) + head(2, len(identity)) + identity
    return hmac.digest(extracted, info + b"\x01", hashlib.sha256)


def main(path: str) -> int:
    with open(path, encoding="utf-8") as file:
        vectors = json.load(file)
    wrong = 0
    for vector in vectors:
        key = bytes.fromhex(vector["tenant_key"])
        identity = cbor([vector["schema"], vector["components"]])
        got = {
            "encoding": identity.hex(),
            "salt": "sr1-" + base64.urlsafe_b64encode(expand(key, "engine-salt", identity)).rstrip(b"=").decode(),
            "index_seed": expand(key, "index-seed", identity).hex(),
            "public_id": "ns-" + expand(key, "namespace-id", identity)[:16].hex(),
        }
        differing = [name for name, value in got.items() if vector[name] != value]
        wrong += bool(differing)
        sys.stdout.write(f"{vector['name']}: {'DIFFERS in ' + ', '.join(differing) if differing else 'ok'}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the file of vectors: python docs/identity_check.py tests/vectors/identity-v1.json")
    sys.exit(main(sys.argv[1]))
