"""A count of recent attempts, kept in Valkey so that every process counts together.

Counted before the attempt is judged: a burst cannot pass a check that none of it has recorded yet. Without Valkey nothing is counted, sign-in stays
possible, and that is logged; what then slows a guesser down is the password hash.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from functools import lru_cache

import redis
from django.conf import settings

TIMEOUT_S = 0.2
_PREFIX = "saltroute:attempts:"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bound:
    """At most ``limit`` attempts in ``window_s`` seconds by the same ``who``; the window begins with the first."""

    who: str
    limit: int
    window_s: int

    @property
    def key(self) -> str:
        """Where it is counted; holds a digest, not an e-mail address."""
        return _PREFIX + hashlib.sha256(self.who.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@lru_cache(maxsize=1)
def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=None)


def count(bounds: list[Bound]) -> int:
    """Count one attempt against each bound. Returns the seconds to wait: 0 when all hold."""
    try:
        pipeline = _client(settings.VALKEY_URL).pipeline(transaction=True)
        for bound in bounds:
            pipeline.set(bound.key, 0, ex=bound.window_s, nx=True)
            pipeline.incr(bound.key)
            pipeline.ttl(bound.key)
        answers = pipeline.execute()
    except redis.RedisError as error:
        _log.warning("attempts are not counted: %s", type(error).__name__)
        return 0
    waits = [max(1, int(ttl)) for bound, used, ttl in zip(bounds, answers[1::3], answers[2::3], strict=True) if used > bound.limit]
    return max(waits, default=0)


def forget(bounds: list[Bound]) -> None:
    """Forget the attempts of somebody who has proved who they are."""
    try:
        _client(settings.VALKEY_URL).delete(*(bound.key for bound in bounds))
    except redis.RedisError as error:
        _log.warning("attempts are not forgotten: %s", type(error).__name__)
