"""What the router notes of a request to say afterwards what its time went into; the split itself is :mod:`routing.core.cause`.

Before the dispatch a few numbers are kept; everything else is done when the answer has gone, so that no request waits for it.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from routing.core import cause, prefix
from routing.core.cause import Known, Times, Work
from routing.core.divergence import Compared, Turn, Turns, prints
from routing.core.record import CauseRecord
from routing.core.siblings import TRANSIT_S, Shared
from routing.core.trust import DEFAULT_BLOCK_TOKENS, engine_rule

if TYPE_CHECKING:
    from routing.core.types import Candidate, Replica
    from routing.dataplane.choice import Choice
    from routing.dataplane.inflight import Flight
    from routing.dataplane.state import Plane

PACE_WINDOW = 16
MIN_PACE_TOKENS = 8
MAX_PACES = 4096
_DIGEST = 16
_SOMEBODY = 0.1  # requests of others; what a scrape showed fades


@dataclass(frozen=True, slots=True)
class Others:
    """Who else was where the prompt is computed, as of the dispatch: requests of this router, what siblings had told, and requests that a scrape
    showed beyond both. ``mine_s`` and ``told_s`` are what the clocks of the first two said then, in seconds; ``place`` names the second."""

    mine: int
    mine_s: float
    told: Shared
    told_s: float
    foreign: float
    place: str


@dataclass(frozen=True, slots=True)
class Noted:
    """As of the dispatch: rates in tokens/s, times in seconds, ``at_s`` monotonic."""

    at_s: float
    rate: float
    pool_rate: float
    fixed_s: float
    learned: bool
    token_s: float | None
    others: Others
    mean_s: float  # the prompt of one request, as they are there
    replica_id: str  # where the prompt is computed
    attempts: int  # that had ended by then
    url: str
    answers_url: str  # of the replica that answers, where another one computes the prompt
    restarts: int
    block_tokens: int


@dataclass(slots=True)
class Causes:
    """What outlives a request: the last turns of conversations, and each engine's time per generated token. One event loop owns it."""

    turns: Turns = field(default_factory=Turns)
    token_s: dict[str, float] = field(default_factory=dict)  # by URL, seconds, a moving average over about PACE_WINDOW answers

    def observe_pace(self, url: str, generation_s: float, tokens: int) -> None:
        """Learn from a stream that took ``generation_s`` from its first token to its last."""
        if tokens < MIN_PACE_TOKENS:
            return
        sample_s = generation_s / (tokens - 1)
        known = self.token_s.get(url)
        self.token_s[url] = sample_s if known is None else known + (sample_s - known) / PACE_WINDOW
        if len(self.token_s) > MAX_PACES:
            del self.token_s[next(iter(self.token_s))]


def note(plane: Plane, flight: Flight, choice: Choice) -> Noted:
    """Note what is about to be forgotten: this answer will change what is learned."""
    now_s = time.monotonic()
    pool_rate = plane.pool_rate(flight.endpoint) if flight.endpoint is not None else None
    engine, place = choice.computes.engine, choice.computes.place
    rate = engine.calibration.rate(pool_rate, now_s)
    foreign_tokens, foreign_running = place.foreign(now_s)
    others = Others(
        mine=place.in_flight,
        mine_s=engine.work.read(now_s)[1],
        told=plane.siblings.load(place.key, now_s),
        told_s=plane.siblings.busy_s(place.key, now_s),
        foreign=foreign_tokens / max(1.0, engine.mean_uncached_tokens) + foreign_running,
        place=place.key,
    )
    return Noted(
        at_s=now_s,
        rate=rate,
        pool_rate=pool_rate or rate,
        fixed_s=engine.calibration.fixed_s,
        learned=pool_rate is not None or engine.calibration.own_rate is not None,
        token_s=plane.causes.token_s.get(choice.engine.url),
        others=others,
        mean_s=engine.mean_uncached_tokens / rate,
        replica_id=str(choice.computes.replica.entry.id),
        attempts=len(flight.attempts),
        url=engine.url,
        answers_url=choice.engine.url,
        restarts=engine.restarts,
        block_tokens=engine.facts.block_tokens or DEFAULT_BLOCK_TOKENS,
    )


def conclude(plane: Plane, flight: Flight, *, now_s: float) -> CauseRecord | None:
    """Split the time of a flight that has ended; None where it never asked for a replica."""
    if flight.prompt is None or flight.call is None:
        return None
    times = _times(plane, flight, now_s)
    noted, decision = flight.noted, flight.decision
    if noted is None or decision is None:
        parts = cause.split(times, Work(), {})
        return CauseRecord(parts_us=dict(parts), main=cause.main(parts, late=False))
    usage, prompt, chosen = flight.usage, flight.prompt, decision.chosen
    prompt_tokens = usage.prompt_tokens if usage.prompt_tokens is not None else prompt.tokens
    warm_tokens = engine_rule(prompt_tokens, noted.block_tokens)
    cached_tokens = usage.cached_tokens if usage.cached_tokens is not None else int(chosen.expected_cached_tokens)
    compared, former_blocks = _history(plane, flight, noted)
    scale = prompt_tokens / max(1, prompt.tokens)
    size_bytes = len(flight.call.prompt)
    density = prompt_tokens / max(1, size_bytes)  # tokens a byte
    diverged = compared is not None and compared.differs
    last_turn_tokens = 0 if compared is None else round(prefix.covered_bytes(compared.turn_blocks) * density)
    reach = "here" if compared is None else _reach(plane, flight, compared)
    known = Known(
        matched=round(chosen.matched_tokens * scale),
        pending=chosen.evidence == "pending",
        elsewhere=round(_elsewhere(decision.candidates.replicas, chosen) * scale),
        sent=0 if compared is None else round(prefix.covered_bytes(compared.common_blocks) * density),
        last_turn=last_turn_tokens if diverged else 0,
        lost=reach == "lost",
        apart=reach == "apart",
        former=round(prefix.covered_bytes(former_blocks) * density),
    )
    rounding_tokens = noted.block_tokens + round(prefix.widest_bytes(size_bytes) * density)
    misses = cause.missed(known, cached_tokens=cached_tokens, warm_tokens=warm_tokens, rounding_tokens=rounding_tokens)
    wait_s, behind_s, others_s = _waited(plane, flight, noted, chosen, now_s)
    work = Work(
        prompt_tokens=prompt_tokens,
        warm_tokens=warm_tokens,
        rate=noted.rate,
        pool_rate=noted.pool_rate,
        fixed_s=noted.fixed_s,
        wait_s=wait_s,
        behind_s=behind_s,
        others_s=others_s,
        completion_tokens=usage.completion_tokens or 0,
        token_s=noted.token_s,
        learned=noted.learned,
    )
    parts = cause.split(times, work, misses)
    slo_s = flight.slo_s
    late = slo_s is not None and times.first_token_s is not None and _until_first_token_s(times) > slo_s
    if times.first_token_s is not None and usage.completion_tokens and flight.outcome == "ok":
        plane.causes.observe_pace(noted.answers_url, times.serving_s - times.first_token_s, usage.completion_tokens)
    blind_id = cause.blind([(one.in_flight, one.id) for one in decision.candidates.replicas if one.refusal is None])
    blind = None if blind_id is None else decision.candidates.of(blind_id)
    return CauseRecord(
        parts_us=dict(parts),
        main=cause.main(parts, late=late),
        missed_tokens=dict(misses),
        warm_tokens=warm_tokens,
        diverged_tokens=known.sent if diverged else None,
        diverged_bytes=prefix.covered_bytes(compared.common_blocks) if compared is not None and diverged else None,
        last_turn_tokens=last_turn_tokens,
        own_pool=_own(flight),
        blind_replica_id=blind_id,
        blind_replica_name=None if blind is None else blind.replica_name,
        blind_ttft_s=None if blind is None else blind.expected_ttft_s,
    )


def _own(flight: Flight) -> bool:
    """Whether the pools of the endpoint are the asking tenant's own."""
    if flight.endpoint is None or flight.caller is None:
        return False
    pools = (flight.endpoint.pool, *(() if flight.endpoint.spill is None else (flight.endpoint.spill.pool,)))
    return all(pool.owner_tenant_id == flight.caller.grant.tenant.snapshot.tenant_id for pool in pools)


def _waited(plane: Plane, flight: Flight, noted: Noted, chosen: Candidate, now_s: float) -> tuple[float, float, float]:
    """Of others' work, in seconds: the wait that was expected, what could have come on top were each of them still at its prompt, and how long any of
    them was there at most; infinite, where nobody knows when they left.

    What a sibling told may be over when a request goes to the same place: the end is heard up to ``TRANSIT_S`` late. So it counts from then on, and
    where it is gone by then, it was not there.
    """
    others = noted.others
    told_s = max(0.0, plane.siblings.busy_s(others.place, now_s) - others.told_s - TRANSIT_S) if others.told.in_flight > 0 else 0.0
    wait_s, told = chosen.wait_s, others.told.in_flight
    if told_s == 0:
        queued_tokens = chosen.queued_tokens + chosen.foreign_tokens
        wait_s *= 1.0 - min(1.0, others.told.queued_tokens / queued_tokens) if queued_tokens > 0 else 1.0
        told = 0.0
    behind_s = (others.foreign + told) * noted.mean_s
    if others.foreign > _SOMEBODY:
        return wait_s, behind_s, math.inf
    return wait_s, behind_s, told_s + (_mine_s(plane, flight, noted, now_s) if others.mine else 0.0)


def _mine_s(plane: Plane, flight: Flight, noted: Noted, now_s: float) -> float:
    """Seconds in flight of this router's other requests at the engine since the dispatch, all together; this one has ended there."""
    engine = plane.engines.get(noted.url)
    own_s = sum(one.duration_s for one in flight.attempts[noted.attempts :] if one.replica_id == noted.replica_id)
    return 0.0 if engine is None else max(0.0, engine.work.read(now_s)[1] - noted.others.mine_s - own_s)


def _times(plane: Plane, flight: Flight, now_s: float) -> Times:
    total_s, queue_s = now_s - flight.started_s, flight.queue_s or 0.0
    if flight.noted is None or flight.decide_s is None or not flight.attempts:
        return Times(total_s=total_s, router_s=total_s - queue_s, queue_s=queue_s)
    before_s = flight.decide_s + queue_s
    streams = flight.call is not None and flight.call.stream and flight.first_byte_s is not None
    served = streams or flight.attempts[-1].error in (None, "client_error")
    dispatched_s = flight.noted.at_s if served else now_s
    return Times(
        total_s=total_s,
        router_s=flight.decide_s,
        queue_s=queue_s,
        retry_s=dispatched_s - flight.started_s - before_s,
        transfer_s=(flight.transfer.first_byte_s or 0.0) if flight.transfer is not None and flight.transfer.result == "ok" else 0.0,
        serving_s=now_s - dispatched_s,
        first_token_s=flight.first_byte_s - dispatched_s if streams and flight.first_byte_s is not None else None,
        silent_s=_silent_s(plane, flight, flight.noted, now_s) if served else 0.0,
    )


def _silent_s(plane: Plane, flight: Flight, noted: Noted, now_s: float) -> float:
    """For how long the replica had answered nothing when the request ended without an answer, or without the rest of one: neither the request nor the
    health checks since its last good one. 0 where it passed the latest."""
    since_s = noted.at_s if flight.first_byte_s is None else flight.unread_since_s
    if since_s is None or flight.outcome == "ok":
        return 0.0
    engines = [engine for url in {noted.url, noted.answers_url} if (engine := plane.engines.get(url)) is not None]
    lost = [engine.answered_s for engine in engines if engine.misses]
    return now_s - max(since_s, min(lost)) if lost else 0.0


def _until_first_token_s(times: Times) -> float:
    return times.total_s - times.serving_s + (times.first_token_s or 0.0)


def _elsewhere(replicas: Iterable[Replica], chosen: Candidate) -> int:
    return max((one.matched_tokens for one in replicas if one.refusal is None and one.id != chosen.replica_id), default=0)


def _reach(plane: Plane, flight: Flight, compared: Compared) -> Literal["here", "apart", "lost"]:
    """Whether the replica of the last turn could take this request; ``lost``: it is gone, out of service, or another process by now.

    ``apart`` is said only of a replica behind another endpoint of the same tenant: who else has one is nobody's to know.
    """
    engine = plane.engines.get(compared.target)
    if engine is None or engine.restarts != compared.generation or flight.endpoint is None or flight.decision is None or flight.caller is None:
        return "lost"
    ids = {str(replica.entry.id) for replica in flight.endpoint.replicas if replica.url == compared.target}
    if ids:
        refused = all(one.refusal is not None for one in flight.decision.candidates.replicas if one.id in ids)
        return "lost" if refused else "here"
    others = flight.caller.grant.tenant.endpoints.values()
    return "apart" if any(replica.url == compared.target for other in others for replica in other.reaches) else "lost"


def _history(plane: Plane, flight: Flight, noted: Noted) -> tuple[Compared | None, int]:
    """The prompt beside its conversation's last turn, and how many of its blocks were sent under the namespace before this one. Notes the turn."""
    namespace, prompt, call, endpoint = flight.namespace, flight.prompt, flight.call, flight.endpoint
    if namespace is None or prompt is None or call is None or endpoint is None or flight.caller is None:
        return None, 0
    if flight.probe is not None or endpoint.entry.sharing == "none" or call.sequences != 1:
        return None, 0
    turns, owner = plane.causes.turns, flight.owner
    key = namespace.key
    mine = prints(prompt.digests)
    conversation = _conversation(namespace.index_seed, flight)
    compared = turns.compare(key, conversation, mine, owner=owner)
    question = (endpoint.entry.id, flight.caller.grant.key.id, flight.caller.scope_path, call.subdivision)
    former = turns.follow(question, key, namespace.index_seed, owner=owner)
    former_blocks = 0
    if former is not None and compared is None:
        there = prints(prefix.chain(former.seed, call.prompt))
        before = turns.compare(former.namespace, _conversation(former.seed, flight), there, owner=owner)
        former_blocks = 0 if before is None else before.common_blocks
    if flight.first_byte_s is not None and flight.outcome in ("ok", "client_cancelled", "incomplete"):
        turns.note(key, conversation, Turn(mine, noted.url, noted.restarts), owner=owner)
    return compared, former_blocks


def _conversation(seed: bytes, flight: Flight) -> bytes:
    """Which conversation a prompt belongs to: the session that the client names, else how the user opened it, else how the prompt begins."""
    if flight.session is not None:
        named = b"session" + flight.session
    elif flight.call is not None and (opening := flight.call.opening):
        named = b"opening" + opening
    else:
        named = b"head" + (flight.call.prompt[: prefix.BLOCK_BYTES] if flight.call is not None else b"")
    return hashlib.sha256(seed + named).digest()[:_DIGEST]
