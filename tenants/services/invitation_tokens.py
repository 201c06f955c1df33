"""The token in an invitation's link: derived from the row's nonce under the installation's secret, so that web and worker make the same one and
nothing stored opens it."""

from __future__ import annotations

import base64
import hashlib

from django.utils.crypto import salted_hmac

from tenants.models import Invitation

TOKEN_CHARACTERS = 43
_SALT = "saltroute.invitation"


def token_of(row: Invitation) -> str:
    """43 characters base64url, 256 bits."""
    made = salted_hmac(_SALT, f"{row.id}\0{bytes(row.nonce).hex()}", algorithm="sha256").digest()
    return base64.urlsafe_b64encode(made).rstrip(b"=").decode()


def digest(token: str) -> bytes:
    """What is stored of a token: its SHA-256, 32 bytes."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
