"""API keys: their text form, recognition prefix and digest. The key itself is shown once and never stored.

Two kinds that are never interchangeable: inference keys (``sk-sr-``) open the data plane, control tokens (``srct-``) open the control API.
"""

from __future__ import annotations

import base64
import hashlib
from enum import StrEnum

from tenants.core.errors import Invalid

SECRET_BYTES = 32
SHOWN_CHARACTERS = 12  # stored in clear so that a person can recognise a key in a list
MIN_CHARACTERS = 20
MAX_CHARACTERS = 256


class Kind(StrEnum):
    INFERENCE = "inference"
    CONTROL = "control"


_PREFIX = {Kind.INFERENCE: "sk-sr-", Kind.CONTROL: "srct-"}


def compose(kind: Kind, entropy: bytes) -> str:
    """Build the text of a key from 32 random bytes (the caller draws them): prefix + 43 characters base64url.

    Raises:
        ValueError: not exactly 32 bytes.
    """
    if len(entropy) != SECRET_BYTES:
        raise ValueError("a key needs exactly 32 random bytes")
    return _PREFIX[kind] + base64.urlsafe_b64encode(entropy).rstrip(b"=").decode()


def digest(key: str) -> bytes:
    """SHA-256 of the whole key, 32 bytes. A fast hash suffices: a key holds 256 bits of entropy, or is the operator's own choice by reference."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def shown(key: str) -> str:
    """The first characters, for recognition; at most a quarter of a key that a person chose."""
    return key[: min(SHOWN_CHARACTERS, len(key) // 4)]


def check_own(key: object, *, field: str) -> str:
    """Check a key that the operator brought (by reference in a declaration): 20 to 256 visible ASCII characters.

    Raises:
        Invalid: too short to be a secret, too long, or characters that no header can carry.
    """
    if not isinstance(key, str) or not MIN_CHARACTERS <= len(key) <= MAX_CHARACTERS:
        raise Invalid(f"A key has {MIN_CHARACTERS} to {MAX_CHARACTERS} characters.", field=field)
    if not all("!" <= character <= "~" for character in key):
        raise Invalid("A key has visible ASCII characters only, no spaces.", field=field)
    return key
