"""What a router that begins late takes over from a sibling: history by namespace, and what was learned of engines and endpoints.

The answer is bounded in entries and bytes; each owner gets an equal share of it first. Everything counts for less than what this router saw itself:
history as if it were ``WARM_AGE_S`` older, rates as if they had been silent for so long that they drift to the pool's median, ratios
as few samples. An engine whose process began at another moment than the sibling says holds none of what the sibling knows of it.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from routing.core.calibration import ENOUGH, SILENCE_S, ByteRatio, Calibration
from routing.core.peering import PeeringError, engine_id
from routing.core.prefix import DIGEST_BYTES
from routing.core.residency import HistoryIndex, Resident

WARM_AGE_S = 60.0
WARM_SAMPLES = 5
MAX_ENTRIES = 160_000  # in one answer, about 3.5 MB
MAX_HOLDING = 8192  # entries of one namespace at one engine
PART_BYTES = 512 * 1024
MAX_PARTS = 64
_NAMESPACE_BYTES = 16
Who = TypeVar("Who")
_ROOT = 0xFFFF  # in ``parents``: a block with none before it


class Known(msgspec.Struct, frozen=True, array_like=True):
    """What was learned of an engine: tokens/s, seconds, and when its process began (unix seconds)."""

    engine: bytes
    rate: float | None
    fixed_s: float | None
    mean_uncached_tokens: float
    started_at: float | None


class Ratio(msgspec.Struct, frozen=True, array_like=True):
    """Prompt bytes per token of an endpoint."""

    endpoint: bytes
    bytes_per_token: float
    samples: int


class Holding(msgspec.Struct, frozen=True, array_like=True):
    """Blocks of one namespace at one engine, least recently used first. ``parents`` are places in this list (2 bytes each, little-endian), ``ages``
    whole seconds."""

    engine: bytes
    owner: bytes
    namespace: bytes
    digests: bytes
    parents: bytes
    ages: bytes


class Part(msgspec.Struct, frozen=True, array_like=True):
    """One of the pieces in which an answer travels."""

    known: tuple[Known, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    holdings: tuple[Holding, ...] = ()


_decoder = msgspec.msgpack.Decoder(Part)


def encode(part: Part) -> bytes:
    return msgspec.msgpack.encode(part)


def decode(data: bytes) -> Part:
    """Read a part.

    Raises:
        PeeringError: malformed.
    """
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError:
        raise PeeringError("malformed") from None


def shares(sizes: Mapping[Who, int], total: int) -> dict[Who, int]:
    """Split ``total`` over those who want ``sizes``: to each what it wants, at most an equal part of what is left."""
    given: dict[Who, int] = {}
    for left, (name, size) in zip(range(len(sizes), 0, -1), sorted(sizes.items(), key=lambda item: (item[1], str(item[0]))), strict=True):
        given[name] = min(size, total // left)
        total -= given[name]
    return given


def holdings(index: HistoryIndex, urls: Sequence[str], owners: Container[bytes], now_s: float) -> Iterator[Holding]:
    """An index in pieces, namespace by namespace; tenants' alone, each within its share. The index may change between two pieces."""
    wanted: dict[tuple[str, bytes], int] = {(url, owner): size for url in urls for owner, size in index.owners(url).items() if owner in owners}
    for (url, owner), share in shares(wanted, MAX_ENTRIES).items():
        by_namespace: dict[bytes, list[Resident]] = {}
        for resident in index.recent(url, owner, share):
            by_namespace.setdefault(resident.key[:-DIGEST_BYTES], []).append(resident)
        for namespace, residents in by_namespace.items():
            yield _holding(url, owner, namespace, residents[-MAX_HOLDING:], now_s)


def _holding(url: str, owner: bytes, namespace: bytes, residents: Sequence[Resident], now_s: float) -> Holding:
    places = {resident.key: place for place, resident in enumerate(residents)}
    parents = [_ROOT if resident.parent is None else places[resident.parent] for resident in residents]
    ages = [min(0xFFFF, max(0, int(now_s - resident.inferred_at_s))) for resident in residents]
    digests = b"".join(resident.key[-DIGEST_BYTES:] for resident in residents)
    pack = struct.Struct(f"<{len(residents)}H").pack
    return Holding(engine_id(url), owner, namespace, digests, pack(*parents), pack(*ages))


def restore(index: HistoryIndex, holding: Holding, url: str, now_s: float) -> int:
    """Take in one piece; returns how many blocks.

    Raises:
        PeeringError: it is not what :func:`holdings` makes, and nothing of it was taken.
    """
    count = len(holding.digests) // DIGEST_BYTES
    if len(holding.namespace) != _NAMESPACE_BYTES or len(holding.owner) != 16 or len(holding.digests) != count * DIGEST_BYTES:
        raise PeeringError("names and digests must have 16 bytes")
    if count > MAX_HOLDING or len(holding.parents) != 2 * count or len(holding.ages) != 2 * count:
        raise PeeringError("a holding is out of bounds")
    unpack = struct.Struct(f"<{count}H").unpack
    keys = [holding.namespace + holding.digests[start : start + DIGEST_BYTES] for start in range(0, len(holding.digests), DIGEST_BYTES)]
    residents = []
    for place, (parent, age_s) in enumerate(zip(unpack(holding.parents), unpack(holding.ages), strict=True)):
        if parent != _ROOT and not place < parent < count:  # blocks come after those that continue them
            raise PeeringError("a block comes without those before it")
        residents.append(Resident(keys[place], None if parent == _ROOT else keys[parent], now_s - age_s - WARM_AGE_S))
    index.restore(residents, url, owner=holding.owner)
    return count


def parts(known: Sequence[Known], ratios: Sequence[Ratio], pieces: Iterator[Holding]) -> Iterator[Part]:
    """Cut an answer into parts of about ``PART_BYTES``; what is over ``MAX_PARTS`` of them is left out. ``pieces`` may be drawn slowly."""
    first = Part(known=tuple(known), ratios=tuple(ratios))
    yield first
    held: list[Holding] = []
    size = 0
    made = 1
    for piece in pieces:
        held.append(piece)
        size += len(piece.digests) + len(piece.parents) + len(piece.ages) + 64
        if size >= PART_BYTES:
            yield Part(holdings=tuple(held))
            held, size, made = [], 0, made + 1
            if made >= MAX_PARTS:
                return
    if held:
        yield Part(holdings=tuple(held))


def adopt_rate(calibration: Calibration, known: Known, now_s: float) -> None:
    """Begin with a sibling's rate and fixed cost, where nothing was measured here yet."""
    if calibration.own_rate is None and not calibration.rates and known.rate is not None and 0 < known.rate < 1e9:
        calibration.rates.extend([known.rate] * ENOUGH)
        calibration.own_rate = calibration.ceiling = known.rate
        calibration.rate_at_s = now_s - SILENCE_S
    if not calibration.fixed and known.fixed_s is not None and 0 <= known.fixed_s < 60:
        calibration.observe_fixed(known.fixed_s, ENOUGH)


def adopt_ratio(ratio: ByteRatio, told: Ratio) -> None:
    """Begin with a sibling's bytes per token, where no answer was seen here yet."""
    if ratio.samples == 0 and told.samples > 0 and 0.5 <= told.bytes_per_token <= 64:
        ratio.bytes_per_token, ratio.samples = told.bytes_per_token, min(told.samples, WARM_SAMPLES)
