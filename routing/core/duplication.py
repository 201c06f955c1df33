"""How much of what replicas hold other replicas hold too, from the index of events: exact for small caches, a sample of large ones.

A block that ``m`` holders have counts 1/m at each of them, so the shares of all holders add up to the number of distinct blocks. Blocks are told
apart by namespace and digest. Of a namespace too large for the sample its oldest and newest blocks are looked at: heads that many share, and tails.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

LOOKUPS = 50_000  # of one measurement, over all holders: some milliseconds
Holder = TypeVar("Holder", bound=Hashable)
Blocks = dict[bytes, object]  # by digest, oldest first
Holding = Mapping[bytes, Blocks]  # by namespace


@dataclass(frozen=True, slots=True)
class Held:
    """Blocks of one holder. ``distinct``: the holder's share of the distinct blocks."""

    resident: int
    distinct: float


def measure(holdings: Mapping[Holder, Holding], *, turn: int = 0, lookups: int = LOOKUPS) -> dict[Holder, Held]:
    """What each holder has, and its share of what is distinct. ``turn`` says which namespaces are looked at where not all of them can be."""
    each = max(2, lookups // max(1, len(holdings)) // max(1, len(holdings) - 1))
    return {holder: _held(holder, holdings, each, turn) for holder in holdings}


def _held(holder: Holder, holdings: Mapping[Holder, Holding], most: int, turn: int) -> Held:
    mine = [(namespace, blocks) for namespace, blocks in holdings[holder].items() if blocks]
    resident = sum(len(blocks) for _, blocks in mine)
    step = max(1, math.ceil(2 * len(mine) / most))
    looked_at = mine[turn % step :: step]
    share = min(1.0, most / max(1, sum(len(blocks) for _, blocks in looked_at)))
    distinct = seen = 0.0
    for namespace, blocks in looked_at:
        others = [other[namespace] for key, other in holdings.items() if key != holder and namespace in other]
        seen += len(blocks)
        if not others:
            distinct += len(blocks)
            continue
        count = max(2, int(len(blocks) * share))
        sample = list(blocks) if count >= len(blocks) else [*islice(blocks, (count + 1) // 2), *islice(reversed(blocks), count // 2)]
        distinct += len(blocks) * sum(1 / (1 + sum(digest in other for other in others)) for digest in sample) / len(sample)
    return Held(resident, distinct * resident / seen if seen else 0.0)
