"""Signatures of webhooks, and when a failed message comes again."""

from __future__ import annotations

import hmac
from hashlib import sha256

import pytest

from routing.core.webhook import BACKOFF_S, MAX_ATTEMPTS, TOLERANCE_S, again_s, headers, sign, verify


def test_the_signature_is_what_the_documentation_says() -> None:
    expected = "v1=" + hmac.new(b"secret", b'd1.1000.{"a":1}', sha256).hexdigest()
    assert sign("secret", delivery_id="d1", timestamp=1000, body=b'{"a":1}') == expected
    sent = headers("secret", event="test", delivery_id="d1", timestamp=1000, body=b'{"a":1}')
    assert sent["X-Saltroute-Signature"] == expected
    assert (sent["X-Saltroute-Delivery"], sent["X-Saltroute-Timestamp"], sent["X-Saltroute-Event"]) == ("d1", "1000", "test")


def test_a_receiver_accepts_ours() -> None:
    signature = sign("secret", delivery_id="d1", timestamp=1000, body=b'{"a":1}')
    assert verify("secret", delivery_id="d1", timestamp=1000, body=b'{"a":1}', signature=signature, now_s=1000.0 + TOLERANCE_S)


@pytest.mark.parametrize(
    ("secret", "delivery_id", "timestamp", "body", "now_s"),
    [
        ("other", "d1", 1000, b'{"a":1}', 1000.0),
        ("secret", "d2", 1000, b'{"a":1}', 1000.0),
        ("secret", "d1", 1001, b'{"a":1}', 1000.0),
        ("secret", "d1", 1000, b'{"a":2}', 1000.0),
        ("secret", "d1", 1000, b'{"a":1}', 1001.0 + TOLERANCE_S),
    ],
)
def test_and_nothing_else(secret: str, delivery_id: str, timestamp: int, body: bytes, now_s: float) -> None:
    signature = sign("secret", delivery_id="d1", timestamp=1000, body=b'{"a":1}')
    assert not verify(secret, delivery_id=delivery_id, timestamp=timestamp, body=body, signature=signature, now_s=now_s)


def test_attempts_come_ever_later_and_end() -> None:
    waits = [again_s(attempts) for attempts in range(1, MAX_ATTEMPTS + 1)]
    assert waits == [*BACKOFF_S, None]
    assert list(BACKOFF_S) == sorted(BACKOFF_S)
