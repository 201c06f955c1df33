"""Bursts of one prompt: the first goes, and who would compute the same prefix elsewhere waits until it has left it somewhere, and then shares that.

Only followers of an identical burst are held: ``BURST`` arrivals within ``WINDOW_S`` that share at least ``MIN_TOKENS`` uncached tokens in one
namespace. Of them only those for whom waiting pays:

* who would join a replica where the prefix is being computed goes at once: an engine's queue is as good a place to wait as the router's, and in it
  a request is known to all who choose after it;
* who would go elsewhere waits if the leader is due within :func:`bound_s` and before the follower's own first token there. A hold that ends before
  the leader's first byte has bought nothing, and was paid in full.

They wait for the leader's first byte, or as long. A leader that is lost hands over to the follower that waited longest; when that one is due nobody
knows, so nobody else is held behind it. Nobody ever gets another's answer.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field

WINDOW_S = 0.05
BURST = 4
MIN_TOKENS = 2000
MAX_HOLD_S = 0.5
SLO_SHARE = 0.25
MAX_PREFIXES = 4096


@dataclass(slots=True)
class _Prefix:
    arrivals: deque[float] = field(default_factory=lambda: deque(maxlen=BURST))
    leader: int | None = None
    due_s: float = math.inf  # when the leader's first byte is expected
    followers: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def idle(self) -> bool:
        return self.leader is None and not self.followers


class Gate:
    """The bursts under way. ``prefix`` is a key that holds the namespace; ``request`` is any id, unique while it runs. ``now_s`` is monotonic."""

    def __init__(self, *, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._prefixes: OrderedDict[bytes, _Prefix] = OrderedDict()
        self.held = 0  # followers so far

    def arrive(
        self, prefix: bytes, request: int, *, uncached_tokens: float, expected_ttft_s: float, joins: bool, bound_s: float, now_s: float
    ) -> float | None:
        """For how long the request should wait behind the leader of its burst, in seconds; None: it goes, and leads where nobody does.

        ``expected_ttft_s`` is its own if it goes now; ``joins``: to where the prefix is being computed.
        """
        if uncached_tokens < MIN_TOKENS:
            return None
        state = self._prefixes.get(prefix)
        if state is None:
            state = self._prefixes[prefix] = _Prefix()
            self._trim()
        self._prefixes.move_to_end(prefix)
        state.arrivals.append(now_s)
        if state.leader is None:
            state.leader, state.due_s = request, now_s + expected_ttft_s
            return None
        if joins or len(state.arrivals) < BURST or now_s - state.arrivals[0] > self._window_s:
            return None
        hold_s = min(bound_s, expected_ttft_s)
        if state.due_s - now_s > hold_s:
            return None
        state.followers[request] = None
        self.held += 1
        return hold_s

    def opened(self, prefix: bytes, request: int) -> tuple[int, ...]:
        """The leader's first byte is there: all followers may go. Nothing if ``request`` does not lead."""
        state = self._prefixes.get(prefix)
        if state is None or state.leader != request:
            return ()
        freed = tuple(state.followers)
        state.followers.clear()
        state.leader = None
        return freed

    def lost(self, prefix: bytes, request: int) -> int | None:
        """A request ended without a first byte. If it led, the follower that waited longest leads now, and its id is returned."""
        state = self._prefixes.get(prefix)
        if state is None:
            return None
        state.followers.pop(request, None)
        if state.leader != request:
            return None
        state.leader, state.due_s = next(iter(state.followers), None), math.inf
        if state.leader is not None:
            del state.followers[state.leader]
        return state.leader

    def gave_up(self, prefix: bytes, request: int) -> None:
        """A follower waited as long as it may: it goes by itself."""
        state = self._prefixes.get(prefix)
        if state is not None:
            state.followers.pop(request, None)

    def __len__(self) -> int:
        return len(self._prefixes)

    def _trim(self) -> None:
        """Forget the prefixes seen longest ago; one with a burst under way stays, it is bounded by the requests in flight."""
        over = len(self._prefixes) - MAX_PREFIXES
        if over > 0:
            for prefix in [one for one, state in self._prefixes.items() if state.idle()][:over]:
                del self._prefixes[prefix]


def bound_s(ttft_slo_s: float | None) -> float:
    """How long a follower waits at most, in seconds: ``MAX_HOLD_S``, or a quarter of the objective."""
    return MAX_HOLD_S if ttft_slo_s is None else min(MAX_HOLD_S, SLO_SHARE * ttft_slo_s)
