"""Data-parallel ranks behind one URL: how many of them a request may name, if any.

An engine of several ranks has a KV cache for each and picks one for a request that names none. It can be named by number only where numbers mean the
same to the router and to the engine: they are 0, 1, ... without a gap. A part of a larger deployment shows some ranks of it by their numbers there
and counts those in a request's header from 0 on; of those nobody can be named, and the engine goes on choosing.
"""

from __future__ import annotations

from collections.abc import Collection

MAX_RANKS = 64
OTHER_RANK = "other_rank"  # why a candidate is not weighed: another rank of its engine does better


def addressable(rows: Collection[int] | None, sources: Collection[int]) -> int:
    """How many ranks requests may name; 0: none is named.

    ``rows`` are the ranks whose metrics the engine shows (None: it tells none apart), ``sources`` those that it says publish events. What both say
    must fit together.
    """
    numbers = sorted(sources if rows is None else rows)
    count = len(numbers)
    if not 2 <= count <= MAX_RANKS or numbers != list(range(count)) or any(one >= count for one in sources):
        return 0
    return count
