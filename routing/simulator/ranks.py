"""Data-parallel ranks behind one URL: which of them gets a request.

A request that names a rank in ``X-data-parallel-rank`` gets that one: 0-based, checked against the number of ranks, and what is no number is passed
over. Any other goes to the rank with the least ``4 * waiting + running``, by loads that are up to ``balance_s`` old and to which only what was sent
since is added, as waiting; the first of equals, from rank 0 on.

Source: vLLM 0.32.0 with two ranks on CPU for what a named rank does; vLLM's public sources (``DPLBAsyncMPClient``) for how it balances others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from routing.simulator.errors import ApiError, bad_request
from routing.simulator.replica import Replica

RANK_HEADER = "X-data-parallel-rank"
WAITING_WEIGHT = 4


class Ranks:
    """The ranks of one engine, at least one, in order."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = tuple(replicas)
        self._loads = [[0, 0] for _ in replicas]  # waiting and running, as last looked at, with what was sent since
        self._looked_s: float | None = None

    @property
    def first(self) -> Replica:
        return self.replicas[0]

    def of(self, headers: Mapping[str, str], now_s: float) -> Replica:
        """The rank that serves a request with these headers.

        Raises:
            ApiError: 400, there is no such rank.
        """
        named = self._named(headers)
        if named is None:
            return self.replicas[self._balanced(now_s)]
        if not 0 <= named < len(self.replicas):
            raise _out_of_range(named, len(self.replicas))
        return self.replicas[named]

    def _named(self, headers: Mapping[str, str]) -> int | None:
        try:
            return int(headers.get(RANK_HEADER, ""))
        except ValueError:
            return None

    def _balanced(self, now_s: float) -> int:
        if len(self.replicas) == 1:
            return 0
        balance_s = self.first.config.balance_s
        if balance_s is not None and (self._looked_s is None or now_s - self._looked_s >= balance_s):
            self._looked_s = now_s
            stats = [one.engine.stats() for one in self.replicas]
            self._loads = [[one.waiting, one.running] for one in stats]
        chosen = min(range(len(self._loads)), key=lambda rank: (self._loads[rank][0] * WAITING_WEIGHT + self._loads[rank][1], rank))
        self._loads[chosen][0] += 1
        return chosen


def _out_of_range(rank: int, ranks: int) -> ApiError:
    return bad_request(f"data_parallel_rank {rank} is out of range [0, {ranks}).")
