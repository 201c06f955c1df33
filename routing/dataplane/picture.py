"""A replica as the scheduler sees it, for one request at one moment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Literal
from uuid import UUID

from namespaces.core.salts import Namespace
from routing.core import filters, prefix
from routing.core.candidates import ramp
from routing.core.types import Replica
from routing.dataplane import evidence
from routing.dataplane.inflight import Prompt
from routing.dataplane.state import EndpointState, Engine, Plane
from routing.dataplane.view import EndpointView, ReplicaView

text = lru_cache(maxsize=4096)(UUID.__str__)  # ids of replicas, which each decision writes out


class Pictures:
    """Takes pictures of an endpoint's replicas for one request. What all of them have in common is worked out once.

    ``head`` ranks cold replicas; ``tried`` are replicas that failed the request; a ``pinned`` request goes where its audit says. ``tau_s`` is how
    fast beliefs fade, ``owner`` whose budget of the index the namespace's entries count against. ``now_s`` is monotonic.
    """

    __slots__ = (
        *("_covered_bytes", "_endpoint", "_head", "_key", "_namespace", "_now_s", "_owner", "_pinned"),
        *("_plane", "_pool_rate", "_prompt", "_state", "_tau_s", "_tried"),
    )

    def __init__(
        self,
        plane: Plane,
        endpoint: EndpointView,
        state: EndpointState,
        *,
        namespace: Namespace,
        prompt: Prompt,
        owner: bytes,
        head: Sequence[bytes],
        tau_s: float,
        tried: Collection[UUID],
        pinned: bool,
        now_s: float,
    ) -> None:
        self._plane, self._endpoint, self._state = plane, endpoint, state
        self._namespace, self._key, self._prompt, self._owner = namespace, namespace.key, prompt, owner
        self._covered_bytes = prefix.covered_bytes(len(prompt.digests))
        self._head = prefix.rank_stem(namespace.index_seed, head)
        self._pool_rate, self._tau_s = plane.pool_rate(endpoint), tau_s
        self._tried, self._pinned, self._now_s = tried, pinned, now_s

    def take(self, replica: ReplicaView, part: Literal["answer", "prefill"] = "answer") -> Replica:
        """One replica. Of one that may not be chosen nothing is worked out but why."""
        plane, endpoint, prompt, now_s = self._plane, self._endpoint, self._prompt, self._now_s
        entry = replica.entry
        url, engine = entry.url, plane.engine(entry.url)
        refusal = self._refusal(replica, engine, part)
        if refusal is not None:
            return Replica(id=text(entry.id), name=entry.name, refusal=refusal, in_flight=engine.in_flight)
        key, owner = self._key, self._owner
        belief = evidence.believe(plane, url, key, prompt, owner=owner, now_s=now_s, tau_s=self._tau_s)
        kappa = min(1.0, plane.trust.kappa((url, 0), owner, key, exact=belief.evidence == "event", now_s=now_s))
        queued_tokens, waiting = engine.ledger.queued(now_s)
        foreign_tokens, foreign_running = engine.foreign(now_s)
        shared = plane.siblings.load(url, now_s)
        adapter = engine.adapter_price(endpoint.entry.served_model, now_s, declared=endpoint.entry.adapter is not None)
        calibration = engine.calibration
        return Replica(
            id=text(entry.id),
            name=entry.name,
            queued_tokens=queued_tokens + shared.queued_tokens,
            foreign_tokens=foreign_tokens,
            active_decodes=max(0, engine.in_flight - waiting) + shared.decodes + foreign_running,
            in_flight=engine.in_flight + round(shared.in_flight),
            last_chosen=self._state.chosen.get(entry.id, 0),
            matched_tokens=belief.matched_tokens,
            confidence=belief.confidence * kappa,
            evidence=belief.evidence,
            evidence_age_s=belief.age_s,
            residency=belief.state,
            prefill_tokens_per_s=calibration.rate(self._pool_rate, now_s),
            fixed_s=calibration.fixed_s,
            network_s=calibration.network_s,
            decode_interference=calibration.gamma,
            working_set_blocks=engine.working_set.size(now_s),
            capacity_blocks=int((engine.capacity_tokens or 0) * prompt.bytes_per_token / prefix.WIDE_BYTES),
            reuse_share=calibration.reuse_share,
            kv_used=engine.kv_share(now_s),
            max_concurrency=entry.max_concurrency,
            ramp=ramp(now_s - engine.returned_at_s),
            lower_tokens=belief.lower_tokens * kappa,
            tier=belief.tier,
            tier_tokens_per_s=None if belief.tier is None else calibration.tier_rate(belief.tier),
            new_blocks=max(0, self._covered_bytes - belief.held_bytes) // prefix.WIDE_BYTES,
            adapter=None if adapter.slot == "none" else endpoint.entry.served_model,
            adapter_s=adapter.own_s,
            displaced_s=adapter.displaced_s,
            slot=adapter.slot,
            rank=prefix.rank(self._head, entry.id.bytes),
        )

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
        if self._pinned:
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
