"""One request on two replicas: the prompt is computed on one (``p``), its KV cache is taken over by another (``d``), which decodes.

    T_remote = T_p + setup + (n - cached_d) / rate + T_d

with T_p the expected time to first token on ``p``, from what ``p`` holds; ``cached_d`` what ``d`` holds, which need not be moved; ``rate`` tokens
of KV cache a second from ``p`` to ``d`` (bytes per token over bandwidth, learned as one number, since no engine says its bytes per token); and T_d
what ``d`` needs to admit the request: the work ahead of it and one step. A prompt goes the long way only if it has :data:`MIN_PROMPT_TOKENS`,
``d`` would have to compute :data:`MIN_UNCACHED_TOKENS` of them, and T_remote < :data:`GAIN` of the local estimate.

The decode side is taken by free KV cache first (what is left after this request, in three classes: comfortable, enough, too little). Within the best
class the cheapest pair wins; near-ties go to the most free cache, then to the least disturbed decode, then to fixed orders.
Source: thresholds of llm-d's P/D decider; the form is our own, its constants are priors until answers have taught better ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from routing.core import ttft
from routing.core.types import Ask, Candidate, Decision, Replica
from routing.core.weighing import weighed

MIN_UNCACHED_TOKENS = 512
MIN_PROMPT_TOKENS = 1024
GAIN = 0.9
OUTPUT_TOKENS = 128.0  # expected of an answer, for the room that it takes
COMFORT = 0.1  # share of the cache that should stay free
TIE_SHARE = 0.02
TIE_S = 0.005


@dataclass(frozen=True, slots=True)
class Way:
    """From one engine to another: seconds before anything moves, and tokens of KV cache a second, > 0."""

    setup_s: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Room:
    """A decode replica. ``capacity_tokens`` is the size of its KV cache, ``free_tokens`` what of it nobody uses now; None: not known."""

    replica: Replica
    capacity_tokens: int | None = None
    free_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """One way to serve a request on two replicas, in seconds; the three add up to its time to first token."""

    prefill: Replica
    decode: Replica
    prefill_s: float
    transfer_s: float
    admit_s: float
    moved_tokens: float
    local_s: float = 0.0  # what it was compared with

    @property
    def ttft_s(self) -> float:
        return self.prefill_s + self.transfer_s + self.admit_s


def admit_s(replica: Replica) -> float:
    """Seconds until a decode replica that has the KV cache makes the first token: the work ahead of it, and one step."""
    return replica.network_s + ttft.wait_s(replica) + replica.fixed_s * ttft.interference(replica) + replica.adapter_s


def pair(ask: Ask, prefill: Replica, decode: Replica, way: Way) -> Pair:
    """What the request would take on these two."""
    moved = max(0.0, ask.prompt_tokens - ttft.expected_cached_tokens(ask, decode))
    return Pair(
        prefill=prefill,
        decode=decode,
        prefill_s=ttft.expected_ttft_s(ask, prefill),
        transfer_s=way.setup_s + moved / way.tokens_per_s,
        admit_s=admit_s(decode),
        moved_tokens=moved,
    )


def worth_a_look(ask: Ask, decodes: Sequence[Room]) -> bool:
    """Whether the request is long and cold enough for any of the decode replicas."""
    return ask.prompt_tokens >= MIN_PROMPT_TOKENS and any(_cold(ask, room.replica) for room in decodes)


def choose(ask: Ask, prefills: Sequence[Replica], decodes: Sequence[Room], way: Callable[[str, str], Way | None], *, local_s: float) -> Pair | None:
    """The best pair, or None: do it on one replica. ``way`` knows the way between two ids, None where there is none now; ``local_s`` is the expected
    time to first token of the best single replica.

    Only replicas without a refusal take part, on either side. The order of neither matters.
    """
    if not worth_a_look(ask, decodes):
        return None
    found = [
        (room, pair(ask, prefill, room.replica, known))
        for room in sorted(decodes, key=lambda one: one.replica.id)
        for prefill in sorted(prefills, key=lambda one: one.id)
        if room.replica.refusal is None
        and prefill.refusal is None
        and prefill.id != room.replica.id
        and _cold(ask, room.replica)
        and (known := way(prefill.id, room.replica.id)) is not None
    ]
    if not found:
        return None
    best_class = min(_class(ask, room) for room, _ in found)
    rivals = [(room, one) for room, one in found if _class(ask, room) == best_class]
    least_s = min(one.ttft_s for _, one in rivals)
    within_s = least_s + max(TIE_S, TIE_SHARE * least_s)
    _, chosen = min(((room, one) for room, one in rivals if one.ttft_s <= within_s), key=lambda each: _order(ask, *each))
    return replace(chosen, local_s=local_s) if chosen.ttft_s < GAIN * local_s else None


def _cold(ask: Ask, decode: Replica) -> bool:
    return ttft.uncached_tokens(ask, decode) >= MIN_UNCACHED_TOKENS


def _left(ask: Ask, room: Room) -> float:
    """Tokens of cache left after the request; unknown counts as plenty, or a fleet that says nothing could never take part."""
    if room.free_tokens is None:
        return math.inf
    return room.free_tokens - max(0.0, ask.prompt_tokens - ttft.expected_cached_tokens(ask, room.replica)) - OUTPUT_TOKENS


def _class(ask: Ask, room: Room) -> int:
    left = _left(ask, room)
    if left < 0:
        return 2
    return 0 if left >= COMFORT * (room.capacity_tokens or 0) else 1


def _order(ask: Ask, room: Room, one: Pair) -> tuple[object, ...]:
    return (-_left(ask, room), ttft.interference(room.replica), one.ttft_s, one.prefill.rank, one.prefill.id, one.decode.rank, one.decode.id)


def decided(ask: Ask, decision: Decision, chosen: Pair) -> Decision:
    """The decision with the pair in its decode replica's place.

    What is said of reuse and of the wait is the prefill replica's: there the prompt is computed, and its hits are what the decoder reports.
    """
    row = replace(
        weighed(ask, chosen.prefill, {}),
        replica_id=chosen.decode.id,
        replica_name=chosen.decode.name,
        expected_ttft_s=chosen.ttft_s,
        score_s=chosen.ttft_s,
        wait_s=ttft.wait_s(chosen.prefill) + ttft.wait_s(chosen.decode),
        in_flight=chosen.decode.in_flight,
        terms={"prefill": chosen.prefill_s, "transfer": chosen.transfer_s, "admit": chosen.admit_s},
    )
    attainable = ask.ttft_slo_s is None or chosen.ttft_s <= ask.ttft_slo_s
    return replace(decision, chosen=row, candidates=decision.candidates.led_by(row), attainable=attainable)


def sides(ask: Ask, chosen: Pair) -> tuple[Candidate, Candidate]:
    """What each of the two is charged with: the prefill replica with the prompt, the decode replica with the one token that it computes itself."""
    decode = replace(weighed(ask, chosen.decode, {}), uncached_tokens=1.0, expected_ttft_s=chosen.ttft_s)
    return weighed(ask, chosen.prefill, {}), decode
