"""Histograms that can be added up: one fixed set of buckets for seconds and tokens alike, so any two merge exactly and in any order.

Bucket ``i`` > 0 holds values in ``(SMALLEST * GROWTH**(i - 1), SMALLEST * GROWTH**i]``; bucket 0 what is not above ``SMALLEST``, zeros above all.
A quantile is off by at most ``RELATIVE_ERROR`` of what an exact nearest-rank quantile would give, between ``SMALLEST`` and ``LARGEST``.

Source: C. Masson, J. E. Rim, H. K. Lee, DDSketch, VLDB 2019, section 2: buckets at powers of (1 + a) / (1 - a) have relative error a.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

RELATIVE_ERROR = 0.02
GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
SMALLEST = 1e-4  # 0.1 ms; below it is zero
LARGEST = 1e8
LAST_BUCKET = math.ceil(math.log(LARGEST / SMALLEST) / math.log(GROWTH))  # 691
_LOG_GROWTH = math.log(GROWTH)
_decoder = msgspec.msgpack.Decoder(tuple[int, ...])


class HistogramError(ValueError):
    """These bytes are no histogram."""


def bucket(value: float) -> int:
    """The bucket of ``value``; what is above ``LARGEST`` counts in the last one, what is no finite number in none.

    Raises:
        ValueError: NaN or infinite.
    """
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    if value <= SMALLEST:
        return 0
    return min(LAST_BUCKET, max(1, math.ceil(math.log(value / SMALLEST) / _LOG_GROWTH)))


def middle(index: int) -> float:
    """The value that stands for a bucket: the same relative distance from both of its ends."""
    return 0.0 if index <= 0 else float(2 * SMALLEST * GROWTH**index / (GROWTH + 1))


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by bucket. Buckets without a count are absent, so equal contents are equal values."""

    counts: Mapping[int, int]

    @classmethod
    def of(cls, values: Iterable[float]) -> Histogram:
        """Count ``values``; raises ValueError for what is no finite number."""
        counts: dict[int, int] = {}
        for value in values:
            index = bucket(value)
            counts[index] = counts.get(index, 0) + 1
        return cls(counts)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def plus(self, other: Histogram) -> Histogram:
        """Both together."""
        if not other.counts:
            return self
        counts = dict(self.counts)
        for index, count in other.counts.items():
            counts[index] = counts.get(index, 0) + count
        return Histogram(counts)

    def quantile(self, share: float) -> float | None:
        """The value that ``share`` of all values do not exceed (nearest rank); None where there are none."""
        total = self.total
        if not total:
            return None
        rank = min(total, max(1, math.ceil(share * total)))
        seen = 0
        for index in sorted(self.counts):
            seen += self.counts[index]
            if seen >= rank:
                return middle(index)
        return None  # unreachable: the counts add up to the total

    def encode(self) -> bytes:
        """Steps between buckets and their counts, as small numbers: about 3 bytes a bucket."""
        flat: list[int] = []
        before = 0
        for index in sorted(self.counts):
            flat += (index - before, self.counts[index])
            before = index
        return msgspec.msgpack.encode(flat)

    @classmethod
    def decode(cls, data: bytes) -> Histogram:
        """The histogram that :meth:`encode` wrote.

        Raises:
            HistogramError: nothing that it would write.
        """
        try:
            flat = _decoder.decode(data)
        except msgspec.MsgspecError:
            raise HistogramError("malformed") from None
        if len(flat) % 2:
            raise HistogramError("odd length")
        counts: dict[int, int] = {}
        index = 0
        for place in range(0, len(flat), 2):
            step, count = flat[place], flat[place + 1]
            index += step
            if count <= 0 or step < 0 or (step == 0 and place) or index > LAST_BUCKET:
                raise HistogramError("out of range")
            counts[index] = count
        return cls(counts)


EMPTY = Histogram({})
