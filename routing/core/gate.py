"""Bursts of one prompt: the first goes, the others wait until it has left its prefix somewhere, and then share that.

Only followers of an identical burst are held: ``BURST`` arrivals within ``WINDOW_S`` that share at least ``MIN_TOKENS`` uncached tokens in one
namespace. They wait for the leader's first byte, at most min(expected TTFT of the leader, a quarter of the SLO, ``MAX_HOLD_S``). A leader that is
lost hands over to the follower that waited longest. Nobody ever gets another's answer.
"""

from __future__ import annotations

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
    followers: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def idle(self) -> bool:
        return self.leader is None and not self.followers


class Gate:
    """The bursts under way. ``prefix`` is a key that holds the namespace; ``request`` is any id, unique while it runs. ``now_s`` is monotonic."""

    def __init__(self, *, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._prefixes: OrderedDict[bytes, _Prefix] = OrderedDict()
        self.held = 0  # followers so far

    def arrive(self, prefix: bytes, request: int, *, uncached_tokens: float, now_s: float) -> bool:
        """Whether the request must follow: somebody of the same burst leads. Otherwise it may go, and leads."""
        if uncached_tokens < MIN_TOKENS:
            return False
        state = self._prefixes.get(prefix)
        if state is None:
            state = self._prefixes[prefix] = _Prefix()
            self._trim()
        self._prefixes.move_to_end(prefix)
        state.arrivals.append(now_s)
        if state.leader is None:
            state.leader = request
            return False
        if len(state.arrivals) < BURST or now_s - state.arrivals[0] > self._window_s:
            return False
        state.followers[request] = None
        self.held += 1
        return True

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
        state.leader = next(iter(state.followers), None)
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


def hold_s(*, leader_ttft_s: float, slo_s: float | None) -> float:
    """How long a follower waits at most, in seconds."""
    bounds = [leader_ttft_s, MAX_HOLD_S]
    if slo_s is not None:
        bounds.append(SLO_SHARE * slo_s)
    return max(0.0, min(bounds))
