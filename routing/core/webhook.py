"""What a webhook's receiver relies on: the signature, the message's headers, and when a failed message comes again.

The signature is HMAC-SHA256 under the webhook's secret over ``id "." timestamp "." body``, in hexadecimal after ``v1=``: a message can neither be
changed nor given another time, and its receiver refuses old ones and ids that it has seen.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

ID = "X-Saltroute-Delivery"
TIMESTAMP = "X-Saltroute-Timestamp"
SIGNATURE = "X-Saltroute-Signature"
EVENT = "X-Saltroute-Event"
TOLERANCE_S = 300
BACKOFF_S = (10, 30, 120, 600, 1800, 3600, 7200)  # after the first attempt, the second ...; then it is given up
MAX_ATTEMPTS = len(BACKOFF_S) + 1


def sign(secret: str, *, delivery_id: str, timestamp: int, body: bytes) -> str:
    """The value of the signature header. ``timestamp`` is unix seconds."""
    return "v1=" + hmac.new(secret.encode(), f"{delivery_id}.{timestamp}.".encode() + body, sha256).hexdigest()


def verify(secret: str, *, delivery_id: str, timestamp: int, body: bytes, signature: str, now_s: float) -> bool:
    """What a receiver does: whether the message is ours, unchanged and not older (or newer) than :data:`TOLERANCE_S`."""
    expected = sign(secret, delivery_id=delivery_id, timestamp=timestamp, body=body)
    return hmac.compare_digest(expected.encode(), signature.encode()) and abs(now_s - timestamp) <= TOLERANCE_S


def headers(secret: str, *, delivery_id: str, event: str, timestamp: int, body: bytes) -> dict[str, str]:
    """All headers of one attempt."""
    signature = sign(secret, delivery_id=delivery_id, timestamp=timestamp, body=body)
    return {
        "Content-Type": "application/json",
        "User-Agent": "Saltroute-Webhooks/1",
        ID: delivery_id,
        EVENT: event,
        TIMESTAMP: str(timestamp),
        SIGNATURE: signature,
    }


def again_s(attempts: int) -> int | None:
    """Seconds until the next attempt after so many failed ones; None: it is given up."""
    return BACKOFF_S[attempts - 1] if attempts < MAX_ATTEMPTS else None
