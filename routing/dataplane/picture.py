"""A replica as the scheduler sees it, for one request at one moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Literal
from uuid import UUID

from namespaces.core.salts import Namespace
from routing.core import filters, prefix, scheduler
from routing.core.candidates import ramp
from routing.core.ranks import OTHER_RANK
from routing.core.types import Ask, Replica
from routing.dataplane import evidence
from routing.dataplane.choice import Prompt
from routing.dataplane.engine import Engine
from routing.dataplane.ranks import Rank
from routing.dataplane.state import EndpointState, Plane
from routing.dataplane.view import EndpointView, ReplicaView

text = lru_cache(maxsize=4096)(UUID.__str__)  # ids of replicas, which each decision writes out


class Pictures:
    """Takes pictures of an endpoint's replicas for one request. What all of them have in common is worked out once.

    ``head`` ranks cold replicas; ``tried`` are replicas that failed the request. A ``pinned`` request goes where its audit says, and there to the
    rank that the audit's number falls on: all probes of one audit meet one cache. ``tau_s`` is how fast beliefs fade, ``owner`` whose budget of the
    index the namespace's entries count against. ``now_s`` is monotonic. ``others`` are ranks that did worse than the one their replica is pictured
    by.
    """

    __slots__ = (
        *("_ask", "_covered_bytes", "_endpoint", "_head", "_key", "_namespace", "_now_s", "_owner", "_pinned"),
        *("_plane", "_pool_rate", "_prompt", "_state", "_tau_s", "_tried", "others"),
    )

    def __init__(
        self,
        plane: Plane,
        endpoint: EndpointView,
        state: EndpointState,
        ask: Ask,
        *,
        namespace: Namespace,
        prompt: Prompt,
        owner: bytes,
        head: Sequence[bytes],
        tau_s: float,
        tried: Collection[UUID],
        pinned: int | None,
        now_s: float,
    ) -> None:
        self._plane, self._endpoint, self._state = plane, endpoint, state
        self._namespace, self._key, self._prompt, self._owner = namespace, namespace.key, prompt, owner
        self._covered_bytes = prefix.covered_bytes(len(prompt.digests))
        self._head = prefix.rank_stem(namespace.index_seed, head)
        self._pool_rate, self._tau_s = plane.pool_rate(endpoint), tau_s
        self._tried, self._pinned, self._now_s, self._ask = tried, pinned, now_s, ask
        self.others: list[Replica] = []

    def take(self, replica: ReplicaView, part: Literal["answer", "prefill"] = "answer", rank: Rank | None = None) -> Replica:
        """One replica, or one ``rank`` of it. Of one that may not be chosen nothing is worked out but why. A replica of several ranks is as good as
        the best of them."""
        plane, endpoint, prompt, now_s = self._plane, self._endpoint, self._prompt, self._now_s
        entry = replica.entry
        url, engine = entry.url, plane.engine(entry.url)
        refusal = self._refusal(replica, engine, part)
        if refusal is not None:
            return Replica(id=text(entry.id), name=entry.name, refusal=refusal, in_flight=engine.in_flight)
        if rank is None and engine.ranks:
            return self._best_rank(replica, engine, part)
        key, owner = self._key, self._owner
        place, name, target = (engine, url, (url, 0)) if rank is None else (rank, rank.key, rank.target)
        belief = evidence.believe(plane, url, key, prompt, owner=owner, now_s=now_s, tau_s=self._tau_s, rank=rank)
        kappa = min(1.0, plane.trust.kappa(target, owner, key, exact=belief.evidence == "event", now_s=now_s))
        queued_tokens, waiting = place.ledger.queued(now_s)
        foreign_tokens, foreign_running = place.foreign(now_s)
        shared = plane.siblings.load(name, now_s)
        adapter = engine.adapter_price(endpoint.entry.served_model, now_s, declared=endpoint.entry.adapter is not None)
        calibration = engine.calibration
        seen = Replica(text(entry.id), entry.name)  # to hand so many values over by name would take seven times as long as to write them
        seen.queued_tokens = queued_tokens + shared.queued_tokens
        seen.foreign_tokens = foreign_tokens
        seen.active_decodes = max(0, place.in_flight + place.more_answers - waiting) + shared.decodes + foreign_running
        seen.in_flight = place.in_flight + round(shared.in_flight)
        seen.last_chosen = self._state.chosen.get(entry.id, 0)
        seen.matched_tokens = belief.matched_tokens
        seen.confidence = belief.confidence * kappa
        seen.evidence = belief.evidence
        seen.evidence_age_s = belief.age_s
        seen.residency = belief.state
        seen.prefill_tokens_per_s = calibration.rate(self._pool_rate, now_s)
        seen.fixed_s = calibration.fixed_s
        seen.network_s = calibration.network_s
        seen.decode_interference = calibration.gamma
        seen.working_set_blocks = place.working_set.size(now_s)
        seen.capacity_blocks = int((place.capacity_tokens or 0) * prompt.bytes_per_token / prefix.WIDE_BYTES)
        seen.reuse_share = calibration.reuse_share
        seen.kv_used = place.kv_share(now_s)
        seen.max_concurrency = entry.max_concurrency
        seen.ramp = ramp(now_s - engine.returned_at_s)
        seen.lower_tokens = belief.lower_tokens * kappa
        seen.tier = belief.tier
        seen.tier_tokens_per_s = None if belief.tier is None else calibration.tier_rate(belief.tier)
        seen.new_blocks = max(0, self._covered_bytes - belief.held_bytes) // prefix.WIDE_BYTES
        seen.adapter = None if adapter.slot == "none" else endpoint.entry.served_model
        seen.adapter_s = adapter.own_s
        seen.displaced_s = adapter.displaced_s
        seen.slot = adapter.slot
        seen.rank = prefix.rank(self._head, entry.id.bytes if rank is None else entry.id.bytes + bytes((rank.number,)))
        seen.dp_rank = None if rank is None else rank.number
        return seen

    def _best_rank(self, replica: ReplicaView, engine: Engine, part: Literal["answer", "prefill"]) -> Replica:
        """The replica as its best rank: cache and queue are that rank's, requests in flight are all, since those a declaration bounds."""
        ranks = [self.take(replica, part, rank) for rank in engine.ranks]
        pinned, policy = self._pinned, self._endpoint.policy
        best = scheduler.best_rank(self._ask, ranks, policy) if pinned is None else ranks[pinned % len(ranks)]
        self.others += [dataclasses.replace(one, refusal=OTHER_RANK) for one in ranks if one is not best]
        in_flight = engine.in_flight + round(self._plane.shared(engine, self._now_s).in_flight)
        return dataclasses.replace(best, in_flight=in_flight, rank=prefix.rank(self._head, replica.entry.id.bytes))

    def _refusal(self, replica: ReplicaView, engine: Engine, part: Literal["answer", "prefill"]) -> str | None:
        endpoint, entry, now_s = self._endpoint, replica.entry, self._now_s
        condition = filters.Condition(
            reachable=engine.reachable(),
            blocked=engine.health == "blocked",
            breaker_allows=engine.breaker.allows(now_s),
            credential_opens=replica.credential_opens,
            tried=entry.id in self._tried,
            serves=not replica.engine.checks_model or engine.serves(endpoint.entry.served_model, now_s),
        )
        if self._pinned is not None:
            return filters.refusal_of_pinned(condition)
        return filters.refusal(
            entry,
            replica.engine,
            condition,
            mode=endpoint.pool.isolation,
            family=endpoint.entry.engine,
            namespace_id=self._namespace.public_id,
            part=part,
        )
