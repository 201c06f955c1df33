"""Sign-in throttling, per account and per network peer, shared by all workers through PostgreSQL.

PostgreSQL and not Valkey: signing in needs PostgreSQL anyway (the user, the session), so counting there adds no way to fail. With Valkey
the console would either be closed to people whenever Valkey is away, just when they need it, or be open to guessing.

The peer is the address of the socket. No header is read, so none can move a caller into another bucket; behind a proxy all callers share the
proxy's bucket, which is why the peer's limit is the wider one.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db import connection
from django.utils.crypto import salted_hmac

WINDOW = timedelta(minutes=15)
ACCOUNT_ATTEMPTS = 10  # per window
CODE_ATTEMPTS = 5  # of a second factor, per person and window; a good password gives none back
RESET_ATTEMPTS = 5  # wishes for a new password, per address and window
PEER_ATTEMPTS = 60  # per window
_PURGED_AT_ONCE = 100  # rows
_SALT = "saltroute.console.throttle"

# One statement, so that parallel attempts cannot slip past the limit. The window is fixed: refused attempts do not prolong it.
_TAKE = """
INSERT INTO console_signinbucket AS bucket (key, attempts, window_started_at) VALUES (%(key)s, 1, %(now)s)
ON CONFLICT (key) DO UPDATE SET
  attempts = CASE WHEN bucket.window_started_at <= %(expired)s THEN 1 ELSE least(bucket.attempts + 1, 1000000) END,
  window_started_at = CASE WHEN bucket.window_started_at <= %(expired)s THEN %(now)s ELSE bucket.window_started_at END
RETURNING attempts, window_started_at
"""
_PURGE = """
DELETE FROM console_signinbucket WHERE key IN
  (SELECT key FROM console_signinbucket WHERE window_started_at <= %s LIMIT %s FOR UPDATE SKIP LOCKED)
"""


def take(*, email: str, peer_address: str, now: datetime) -> int:
    """Count an attempt before its password is looked at.

    Returns:
        0 when it may go on, else the seconds until the next attempt may. Known and unknown accounts are counted alike.
    """
    return _take_both(_account(email), ACCOUNT_ATTEMPTS, peer_address, now)


def take_code(*, user_id: UUID, peer_address: str, now: datetime) -> int:
    """The same for a code of a second factor."""
    return _take_both(_key("code", str(user_id)), CODE_ATTEMPTS, peer_address, now)


def take_reset(*, email: str, peer_address: str, now: datetime) -> int:
    """The same for the wish for a new password, so that nobody has us fill another's mailbox."""
    return _take_both(_key("reset", email.strip().lower()), RESET_ATTEMPTS, peer_address, now)


def forgive_code(*, user_id: UUID, peer_address: str) -> None:
    """After a good code: the person starts afresh and the peer gets this attempt back."""
    _forgive(_key("code", str(user_id)), peer_address)


def _take_both(key: bytes, limit: int, peer_address: str, now: datetime) -> int:
    waits = [_take(key, limit, now), _take(_peer(peer_address), PEER_ATTEMPTS, now)]
    with connection.cursor() as cursor:
        cursor.execute(_PURGE, [now - WINDOW, _PURGED_AT_ONCE])
    return max(waits)


def forgive(*, email: str, peer_address: str) -> None:
    """After a good password: the account starts afresh and the peer gets this attempt back."""
    _forgive(_account(email), peer_address)


def _forgive(key: bytes, peer_address: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM console_signinbucket WHERE key = %s", [key])
        cursor.execute("UPDATE console_signinbucket SET attempts = greatest(attempts - 1, 0) WHERE key = %s", [_peer(peer_address)])


def _take(key: bytes, limit: int, now: datetime) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_TAKE, {"key": key, "now": now, "expired": now - WINDOW})
        row: Sequence[object] | None = cursor.fetchone()
    if row is None:
        raise RuntimeError("the upsert returned no row")
    attempts, started_at = row
    if not isinstance(attempts, int) or not isinstance(started_at, datetime):
        raise TypeError("the upsert returned another shape")
    return 0 if attempts <= limit else max(1, math.ceil((started_at + WINDOW - now).total_seconds()))


def _key(kind: str, value: str) -> bytes:
    return salted_hmac(_SALT, f"{kind}\0{value}", algorithm="sha256").digest()


def _account(email: str) -> bytes:
    return _key("account", email.strip().lower())


def _peer(address: str) -> bytes:
    """IPv6 peers count by /64, which one subscriber holds whole. A Unix socket has no address: one bucket for all of it."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return _key("peer", "local")
    if isinstance(ip, ipaddress.IPv6Address):
        return _key("peer", str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False).network_address))
    return _key("peer", str(ip))
