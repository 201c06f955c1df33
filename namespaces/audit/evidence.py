"""Evidence of an audit: canonical JSON without content, signed with Ed25519, so that a customer's auditor can check it without us.

Canonical: UTF-8, keys sorted by code point, no white space, whole numbers only (times in microseconds): any language's JSON library gives the same
bytes. Signed is ``saltroute/evidence/v1\\0`` followed by them. A report is ``{"evidence": ..., "signature": hex, "public_key": hex}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PURPOSE = b"saltroute/evidence/v1\0"
MAX_REPORT_BYTES = 4 * 1024 * 1024


class EvidenceError(Exception):
    """A report is malformed, was changed, or was signed with another key; the text says which."""


def canonical(value: Mapping[str, Any]) -> bytes:
    """The bytes that are signed.

    Raises:
        EvidenceError: it holds a fraction, or what JSON cannot.
    """
    _check(value)
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _check(value: object) -> None:
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise EvidenceError("a key is no text")
        for inner in value.values():
            _check(inner)
    elif isinstance(value, list):
        for inner in value:
            _check(inner)
    elif value is not None and not isinstance(value, str | int):  # a bool is an int
        raise EvidenceError("only texts, whole numbers, true, false and null have one spelling")


def sign(value: Mapping[str, Any], seed: bytes) -> tuple[bytes, bytes]:
    """The signature (64 bytes) and the public key (32 bytes). ``seed`` is the evidence key."""
    key = Ed25519PrivateKey.from_private_bytes(seed)
    return key.sign(PURPOSE + canonical(value)), key.public_key().public_bytes_raw()


def report(value: Mapping[str, Any], signature: bytes, public_key: bytes) -> bytes:
    """The file that is handed out: readable, and verified by its content, not its layout."""
    document = {"evidence": value, "public_key": public_key.hex(), "signature": signature.hex()}
    return json.dumps(document, ensure_ascii=False, sort_keys=True, indent=1).encode() + b"\n"


def verify(document: bytes, public_key: bytes | None = None) -> dict[str, Any]:
    """Check a report and return its evidence. Without ``public_key`` it is held against the key that it names itself, which proves only that it
    was not changed since: whose key that is must be learned elsewhere.

    Raises:
        EvidenceError: it does not hold.
    """
    if len(document) > MAX_REPORT_BYTES:
        raise EvidenceError("larger than any report")
    try:
        read = json.loads(document, object_pairs_hook=_no_twins)
        value, named, signature = read["evidence"], bytes.fromhex(read["public_key"]), bytes.fromhex(read["signature"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise EvidenceError("not a report") from None
    if not isinstance(value, dict):
        raise EvidenceError("not a report")
    if public_key is not None and public_key != named:
        raise EvidenceError(f"signed with another key, {named.hex()}, than the one it is held against, {public_key.hex()}")
    try:
        Ed25519PublicKey.from_public_bytes(named).verify(signature, PURPOSE + canonical(value))
    except (InvalidSignature, ValueError):
        raise EvidenceError("the signature does not match: the report was changed") from None
    return value


def named_key(document: bytes) -> bytes:
    """The public key that a verified report names, which is the one that signed it."""
    return bytes.fromhex(json.loads(document)["public_key"])


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two members of one name would be read differently by two readers."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate member")
    return found
