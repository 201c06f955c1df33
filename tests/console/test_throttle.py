"""Sign-in throttling: counted in the database, so that it holds for all workers together."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from console import throttle
from console.models import SignInBucket

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def _takes(number: int, *, email: str = "a@example.com", peer: str = "203.0.113.7", now: datetime = NOW) -> list[int]:
    return [throttle.take(email=email, peer_address=peer, now=now) for _ in range(number)]


@pytest.mark.django_db
def test_an_account_is_open_up_to_its_limit_and_then_shut_for_the_window() -> None:
    waits = _takes(throttle.ACCOUNT_ATTEMPTS + 1)
    assert waits == [0] * throttle.ACCOUNT_ATTEMPTS + [900]
    # another peer does not help, nor does another spelling of the address
    assert _takes(1, peer="198.51.100.1", email=" A@Example.com ") == [900]
    # refused attempts do not prolong the window
    assert _takes(1, now=NOW + timedelta(minutes=14)) == [60]
    assert _takes(1, now=NOW + throttle.WINDOW) == [0]


@pytest.mark.django_db
def test_a_peer_that_tries_many_accounts_is_shut() -> None:
    waits = [_takes(1, email=f"{uuid.uuid4()}@example.com")[0] for _ in range(throttle.PEER_ATTEMPTS + 1)]
    assert waits == [0] * throttle.PEER_ATTEMPTS + [900]
    assert _takes(1, email="someone@example.com", peer="198.51.100.1") == [0]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:203.0.113.7", "203.0.113.7", True),
        ("", "not an address", True),
    ],
)
def test_peers_count_by_what_one_subscriber_holds(one: str, other: str, together: bool) -> None:
    for _ in range(throttle.PEER_ATTEMPTS):
        throttle.take(email=f"{uuid.uuid4()}@example.com", peer_address=one, now=NOW)
    assert (throttle.take(email="last@example.com", peer_address=other, now=NOW) > 0) is together


@pytest.mark.django_db
def test_a_good_password_clears_the_account() -> None:
    _takes(throttle.ACCOUNT_ATTEMPTS)
    throttle.forgive(email="a@example.com", peer_address="203.0.113.7")
    assert _takes(throttle.ACCOUNT_ATTEMPTS) == [0] * throttle.ACCOUNT_ATTEMPTS


@pytest.mark.django_db
def test_old_counters_are_removed_and_none_names_anybody() -> None:
    _takes(1)
    assert SignInBucket.objects.count() == 2
    assert all(b"example" not in bytes(bucket.key) for bucket in SignInBucket.objects.all())
    _takes(1, email="b@example.com", peer="198.51.100.1", now=NOW + throttle.WINDOW * 2)
    assert SignInBucket.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_parallel_attempts_cannot_slip_past_the_limit() -> None:
    """Thirty at once from eight connections: exactly as many go on as the limit says."""

    def attempt(_: int) -> int:
        try:
            return throttle.take(email="race@example.com", peer_address="203.0.113.9", now=NOW)
        finally:
            connection.close()

    with ThreadPoolExecutor(max_workers=8) as pool:
        waits = list(pool.map(attempt, range(30)))
    assert waits.count(0) == throttle.ACCOUNT_ATTEMPTS
