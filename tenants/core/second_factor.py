"""A person's second factor: time-based codes (RFC 6238) and what stands in for them when the device is lost.

The secret is kept sealed under the *sign-in key*, which the web holds and which opens nothing else: AES-256-GCM under a key derived from it
(HKDF-SHA256), bound to the person. Randomness and clock are arguments.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from uuid import UUID

import pyotp
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32
SECRET_BYTES = 20  # RFC 4226 recommends 160 bits
NONCE_BYTES = 12
STEP_S = 30
DRIFT_STEPS = 1  # either way, for clocks that differ
RECOVERY_CODES = 10
RECOVERY_BYTES = 10  # 80 bits each: a fast hash suffices
ISSUER = "Saltroute"
_ID_BYTES = 8
_LABEL = b"saltroute/second-factor/v1"
_CODE = re.compile(r"[0-9]{6}")
_RECOVERY = re.compile(r"[A-Z2-7]{16}")


class SealError(Exception):
    """A sealed secret opens under no key that is held. The text holds no secret."""


def key_id(key: bytes) -> bytes:
    """8 bytes by which a sign-in key is recognised; they tell nothing of it."""
    return _derived(key, b"id")[:_ID_BYTES]


def seal(key: bytes, secret: bytes, user_id: UUID, nonce: bytes) -> bytes:
    """Seal a secret for one person: key id (8 bytes), nonce (12), ciphertext and tag.

    Raises:
        ValueError: the key has not 32 bytes, or the nonce not 12.
    """
    if len(key) != KEY_BYTES or len(nonce) != NONCE_BYTES:
        raise ValueError("a sign-in key has 32 bytes and a nonce 12")
    return key_id(key) + nonce + AESGCM(_derived(key, b"seal")).encrypt(nonce, secret, user_id.bytes)


def unseal(keys: Sequence[bytes], sealed: bytes, user_id: UUID) -> bytes:
    """Open what :func:`seal` made, under whichever of ``keys`` it was sealed.

    Raises:
        SealError: none of them, another person's, or damaged.
    """
    wanted, nonce, body = sealed[:_ID_BYTES], sealed[_ID_BYTES : _ID_BYTES + NONCE_BYTES], sealed[_ID_BYTES + NONCE_BYTES :]
    for key in keys:
        if key_id(key) == wanted:
            try:
                return AESGCM(_derived(key, b"seal")).decrypt(nonce, body, user_id.bytes)
            except (InvalidTag, ValueError):
                break
    raise SealError("a second factor's secret opens under no sign-in key that is held")


def under(key: bytes, sealed: bytes) -> bool:
    """Whether it is sealed under this very key; when not, it is sealed anew at the next good code."""
    return sealed[:_ID_BYTES] == key_id(key)


def as_text(secret: bytes) -> str:
    """The secret as authenticators take it: base32 without padding."""
    return base64.b32encode(secret).decode().rstrip("=")


def uri(secret: bytes, email: str) -> str:
    """The ``otpauth://`` address that a QR code holds."""
    return pyotp.TOTP(as_text(secret), interval=STEP_S).provisioning_uri(name=email, issuer_name=ISSUER)


def step_of(secret: bytes, code: str, *, now_s: float, last_step: int | None) -> int | None:
    """The time step whose code this is, among the current one and its neighbours; None for a wrong code, and for one of a step already used.

    Every candidate is compared, in constant time each.
    """
    if not _CODE.fullmatch(code):
        return None
    totp, current, found = pyotp.TOTP(as_text(secret), interval=STEP_S), int(now_s // STEP_S), None
    for step in range(current - DRIFT_STEPS, current + DRIFT_STEPS + 1):
        fresh = last_step is None or step > last_step
        if hmac.compare_digest(totp.generate_otp(step), code) and fresh and found is None:
            found = step
    return found


def recovery_code(entropy: bytes) -> str:
    """A recovery code from 10 random bytes: four groups of four characters of base32.

    Raises:
        ValueError: not exactly 10 bytes.
    """
    if len(entropy) != RECOVERY_BYTES:
        raise ValueError("a recovery code needs exactly 10 random bytes")
    text = base64.b32encode(entropy).decode().lower()
    return "-".join(text[at : at + 4] for at in range(0, 16, 4))


def recovery_digest(user_id: UUID, typed: str) -> bytes | None:
    """SHA-256 of a recovery code as typed, bound to its person, 32 bytes; case, blanks and hyphens do not count. None: it is none."""
    text = re.sub(r"[\s-]", "", typed).upper()
    return hashlib.sha256(_LABEL + user_id.bytes + text.encode()).digest() if _RECOVERY.fullmatch(text) else None


def cleaned(typed: str) -> str:
    """A code as typed, without the blanks that authenticators show."""
    return re.sub(r"\s", "", typed)


def _derived(key: bytes, what: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=_LABEL, info=what).derive(key)
