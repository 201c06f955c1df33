"""What a router saw of a replica in some seconds: how long it had work, what it evicted, how much of what it holds others hold too.

Each router tells of every replica that it knows, every few seconds, through the stream that carries records. All figures are whole numbers that add
up over time; shares and rates are quotients of sums, so a lost or repeated state changes none of them.

Several routers share a replica. Each counts the work that it sent, so a replica was busy for at least the longest and at most the sum of what they
say; :func:`utilisation` takes their work as independent. What an engine says of itself (events, its metrics) all routers say alike.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

import msgspec

from routing.core.record import RecordError, router_key

MAX_OBSERVED_US = 3_600_000_000
MAX_BLOCKS = 2**40
MAX_REQUESTS = 100_000  # in flight at once
KIND = b"replica"  # of a stream entry
_DOMAIN = b"replica state\x00"  # so that a state is no record and a record no state, whatever their bytes


class ReplicaState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One observation. ``tenant_id`` owns the replica's pool; ``request_us`` is the time in flight of all requests together.

    ``event_us``: of the observed time, while the engine's KV events were read; ``evicted_blocks`` are removals that they told of. ``kv_used_ppm``: of
    its KV cache, by the latest scrape. Blocks are those that events show; ``distinct_blocks`` counts each for the share of it that is this replica's
    (a half where one other replica holds it too), so resident over distinct, both summed over replicas, is how often a block is held.
    """

    id: UUID
    tenant_id: UUID
    replica_id: UUID
    router_id: str
    started_at: float  # unix s, when the observation began
    observed_us: int
    busy_us: int = 0
    request_us: int = 0
    event_us: int = 0
    evicted_blocks: int = 0
    kv_used_ppm: int | None = None
    resident_blocks: int | None = None
    distinct_blocks: int = 0


_decoder = msgspec.msgpack.Decoder(ReplicaState)


class Sums(NamedTuple):
    """States added up. ``kv_used_ppm`` and blocks are sums over their samples."""

    observed_us: int = 0
    busy_us: int = 0
    request_us: int = 0
    event_us: int = 0
    evicted_blocks: int = 0
    kv_samples: int = 0
    kv_used_ppm: int = 0
    block_samples: int = 0
    resident_blocks: int = 0
    distinct_blocks: int = 0

    def plus(self, other: Sums) -> Sums:
        """Both together."""
        return Sums(*(one + two for one, two in zip(self, other, strict=True)))

    @property
    def busy_share(self) -> float | None:
        """The share of the observed time with work of this router."""
        return min(1.0, self.busy_us / self.observed_us) if self.observed_us else None

    @property
    def evicted_per_s(self) -> float | None:
        """Blocks evicted a second, while events were read; None: they were not."""
        return self.evicted_blocks / (self.event_us / 1e6) if self.event_us else None

    @property
    def kv_used(self) -> float | None:
        """The mean share of the KV cache in use."""
        return self.kv_used_ppm / self.kv_samples / 1e6 if self.kv_samples else None

    @property
    def resident(self) -> float | None:
        """The mean number of resident blocks."""
        return self.resident_blocks / self.block_samples if self.block_samples else None

    @property
    def duplication(self) -> float | None:
        """How often a resident block is held, over the replicas that are summed."""
        return self.resident_blocks / self.distinct_blocks if self.distinct_blocks else None


def sums(state: ReplicaState) -> Sums:
    """One observation as sums."""
    kv, resident = state.kv_used_ppm, state.resident_blocks
    return Sums(
        state.observed_us,
        state.busy_us,
        state.request_us,
        state.event_us,
        state.evicted_blocks,
        int(kv is not None),
        kv or 0,
        int(resident is not None),
        resident or 0,
        state.distinct_blocks if resident is not None else 0,
    )


def utilisation(by_router: Iterable[Sums]) -> float | None:
    """The share of time with work of any router, taking them as independent; exact for one router. None: nobody observed it."""
    shares = [share for one in by_router if (share := one.busy_share) is not None]
    if not shares:
        return None
    idle = 1.0
    for share in shares:
        idle *= 1.0 - share
    return 1.0 - idle


def encode(state: ReplicaState) -> bytes:
    return msgspec.msgpack.encode(state)


def decode(data: bytes) -> ReplicaState:
    """Decode a state.

    Raises:
        RecordError: malformed, or numbers that nobody could have observed.
    """
    try:
        state = _decoder.decode(data)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise RecordError(str(error)) from None
    if not 0 < state.observed_us <= MAX_OBSERVED_US or not 0 <= state.busy_us <= state.observed_us or not 0 <= state.event_us <= state.observed_us:
        raise RecordError("times out of range")
    if not 0 <= state.request_us <= MAX_REQUESTS * state.observed_us or not 0 <= (state.kv_used_ppm or 0) <= 1_000_000:
        raise RecordError("load out of range")
    if not all(0 <= count <= MAX_BLOCKS for count in (state.evicted_blocks, state.resident_blocks or 0, state.distinct_blocks)):
        raise RecordError("blocks out of range")
    return state


def authenticate(records_key: bytes, router_id: str, data: bytes) -> bytes:
    """The MAC of a state's stream entry (32 bytes), under the router's own key as a record's, in a domain of its own."""
    return hmac.digest(router_key(records_key, router_id), _DOMAIN + data, "sha256")


def verify(records_key: bytes, router_id: str, data: bytes, mac: bytes) -> None:
    """Check it.

    Raises:
        RecordError: it does not match.
    """
    if not hmac.compare_digest(authenticate(records_key, router_id, data), mac):
        raise RecordError("stream entry is not authentic")
