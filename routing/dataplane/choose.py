"""From a request to a replica: measure the prompt, take a frozen picture of the pool, let the scheduler decide."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from typing import Literal
from uuid import UUID

from namespaces.core.salts import Namespace
from routing.core import filters, pairs, prefix, scheduler, transfer
from routing.core.candidates import is_full, ramp
from routing.core.types import Ask, Candidate, Decision, NoReplica, Replica
from routing.dataplane import errors, evidence, learn
from routing.dataplane.inflight import Choice, Flight, Prompt
from routing.dataplane.openai import Call
from routing.dataplane.state import EndpointState, Plane
from routing.dataplane.tokens import NOTHING_FOUND, Found
from routing.dataplane.view import EndpointView, ReplicaView

_text = lru_cache(maxsize=4096)(UUID.__str__)  # ids of replicas, which each decision writes out
_SPLITTING = frozenset({"ettft", "weighted"})  # policies in seconds


def measure(call: Call, namespace: Namespace, bytes_per_token: float, found: Found = NOTHING_FOUND, block_sizes: Collection[int] = ()) -> Prompt:
    """The prompt's chain under the namespace, and its size in tokens: exactly where all of them were found, else by the endpoint's learned ratio.

    A prompt shorter than one block has no chain; then the whole of it ranks the cold replicas, so that short prompts spread. Chains of the exact
    tokens are made here for the block sizes of the endpoint's engines, since here a long prompt is off the event loop.
    """
    tokens = len(found.ids) if found.ids is not None and found.whole else 0
    ratio = len(call.prompt) / tokens if tokens and call.prompt else call.token_bytes or bytes_per_token
    digests = prefix.chain(namespace.index_seed, call.prompt)
    head = digests[:2] or (hashlib.sha256(namespace.index_seed + call.prompt).digest()[:16],)
    prompt = Prompt(
        digests=digests,
        head=head,
        tokens=tokens or max(1, round(len(call.prompt) / ratio), 0 if found.ids is None else len(found.ids)),
        bytes_per_token=ratio,
        seed=namespace.index_seed,
        token_ids=found.ids,
    )
    for block_tokens in block_sizes if found.ids is not None else ():
        prompt.chain(block_tokens)
    return prompt


def choose(plane: Plane, flight: Flight, *, tried: Collection[UUID], now_s: float) -> Choice:
    """Pick a replica for the flight.

    Raises:
        ApiError: 503 ``isolation_unavailable`` if isolation is all that speaks against some replica, else 503 ``no_ready_replica``. The flight
        keeps the
            candidates and their reasons.
    """
    endpoint, namespace, prompt, call = flight.endpoint, flight.namespace, flight.prompt, flight.call
    if endpoint is None or namespace is None or prompt is None or call is None:
        raise RuntimeError("nothing to choose for")
    state = plane.endpoint_state(endpoint.entry.id)
    ask = Ask(
        prompt_tokens=prompt.tokens,
        prefix_key=b"".join(prompt.head),
        ttft_slo_s=endpoint.slo.ttft_s if endpoint.slo else None,
        sequence=state.sequence,
        session_key=flight.session,
        lot=call.opening if endpoint.candidate is not None else b"",
    )
    again = bool(tried) or flight.alone
    if not again and flight.probe is None:
        state.sequence += 1
    owner = flight.owner
    head = (flight.session,) if endpoint.policy.policy == "session" and flight.session is not None else prompt.head
    _claim(plane, endpoint, namespace, owner)
    pool_rate = plane.pool_rate(endpoint)
    picture = partial(
        _picture,
        plane,
        endpoint,
        namespace=namespace,
        prompt=prompt,
        pool_rate=pool_rate,
        tau_s=state.age(learn.workload_of(call)).tau_s,
        key=namespace.key,
        tried=tried,
        now_s=now_s,
        pinned=flight.probe is not None,
        owner=owner,
        state=state,
        head=head,
    )
    candidates = [picture(replica) for replica in endpoint.replicas]
    if endpoint.candidate is None or flight.probe is not None:
        decision, flight.trial = scheduler.decide(ask, candidates, endpoint.policy), None
    else:
        share = endpoint.entry.canary_share
        decision, flight.trial = scheduler.decide_on_trial(ask, candidates, endpoint.policy, endpoint.candidate, share)
    if isinstance(decision, NoReplica):
        flight.candidates = flight.candidates if again else decision.candidates
        missing = [candidate for candidate in decision.candidates if candidate.refusal == filters.MODEL_NOT_SERVED]
        isolated = any(candidate.refusal in (filters.ISOLATION, filters.QUARANTINED) for candidate in decision.candidates)
        if not isolated or again:
            _list_again(plane, endpoint, missing, now_s)
            raise errors.model_not_served() if missing else errors.no_ready_replica()
        _wish(plane, flight, decision, now_s)
        raise errors.isolation_unavailable()
    pair = None if again or flight.probe is not None else _pair(plane, flight, ask, decision, (candidates, picture))
    if pair is not None:
        decision = pairs.decided(ask, decision, pair)
    if flight.probe is None:
        here = {replica.entry.id for replica in endpoint.replicas}
        state.chosen = {**{one: when for one, when in state.chosen.items() if one in here}, UUID(decision.chosen.replica_id): state.sequence}
    views = {_text(replica.entry.id): replica for replica in endpoint.replicas}
    chosen = views[decision.chosen.replica_id]
    if pair is None:
        return Choice(decision=decision, replica=chosen, engine=plane.engine(chosen.url))
    first, second = pairs.sides(ask, pair)
    computes = views[pair.prefill.id]
    prefill = Choice(decision=decision, replica=computes, engine=plane.engine(computes.url), side=first)
    return Choice(decision=decision, replica=chosen, engine=plane.engine(chosen.url), side=second, prefill=prefill, pair=pair)


def _pair(plane: Plane, flight: Flight, ask: Ask, decision: Decision, seen: tuple[Sequence[Replica], Callable[..., Replica]]) -> pairs.Pair | None:
    """The two replicas that would share the request sooner than the chosen one alone would answer it, if there are such. ``seen``: the candidates,
    and how to look at one more. Policies that do not weigh seconds are what they are called: they do not split."""
    (candidates, picture), endpoint, call = seen, flight.endpoint, flight.call
    if endpoint is None or call is None or decision.policy not in _SPLITTING:
        return None
    splits = {str(replica.entry.id) for replica in endpoint.replicas if replica.entry.role == "decode" and replica.engine.transfer_field}
    now_s = time.monotonic()
    urls = {str(replica.entry.id): replica.url for replica in endpoint.replicas}
    engines = {one: plane.engine(url) for one, url in urls.items()}
    rooms = [
        pairs.Room(one, engines[one.id].capacity_tokens, engines[one.id].free_tokens(now_s))
        for one in candidates
        if one.id in splits and one.refusal is None and not is_full(one)
    ]
    if not pairs.worth_a_look(ask, rooms) or not transfer.can_go(
        call.body.value, answers=call.sequences, reads_cache=learn.reads_cache(call.body.value)
    ):
        return None
    prefills = [picture(replica, part="prefill") for replica in endpoint.replicas if replica.entry.role == "prefill"]
    prefills = [one for one in prefills if not is_full(one)]
    return pairs.choose(ask, prefills, rooms, lambda p, d: plane.links.way(urls[p], urls[d], now_s), local_s=decision.chosen.expected_ttft_s)


def _claim(plane: Plane, endpoint: EndpointView, namespace: Namespace, owner: bytes) -> None:
    """Tell the event index whose blocks carry this salt. A namespace that never comes back has none to find."""
    if endpoint.entry.sharing != "none":
        key = namespace.key
        plane.events.claim(namespace.salt, ns_key=key, owner=owner, seed=namespace.index_seed)


def _list_again(plane: Plane, endpoint: EndpointView, missing: Sequence[Candidate], now_s: float) -> None:
    """Somebody was refused because of these replicas' lists of models: read them again soon."""
    ids = {candidate.replica_id for candidate in missing}
    for replica in endpoint.replicas:
        if str(replica.entry.id) in ids:
            plane.engine(replica.url).list_again(now_s)


def _wish(plane: Plane, flight: Flight, refused: NoReplica, now_s: float) -> None:
    """Note for the report which replicas could serve the namespace if the control plane assigned them. A request that shares with nobody has no
    namespace that could come back."""
    endpoint, namespace, caller = flight.endpoint, flight.namespace, flight.caller
    if endpoint is None or namespace is None or caller is None or endpoint.entry.sharing == "none":
        return
    for candidate in refused.candidates:
        if candidate.refusal == filters.ISOLATION:
            plane.unserved.note(UUID(candidate.replica_id), caller.grant.tenant.snapshot.tenant_id, namespace.public_id, now_s)


def _picture(
    plane: Plane,
    endpoint: EndpointView,
    replica: ReplicaView,
    *,
    namespace: Namespace,
    prompt: Prompt,
    pool_rate: float | None,
    tau_s: float,
    key: bytes,
    tried: Collection[UUID],
    now_s: float,
    pinned: bool,
    owner: bytes,
    state: EndpointState,
    head: tuple[bytes, ...],
    part: Literal["answer", "prefill"] = "answer",
) -> Replica:
    """One candidate as the scheduler sees it."""
    entry, engine = replica.entry, plane.engine(replica.url)
    condition = filters.Condition(
        reachable=engine.reachable(),
        blocked=engine.health == "blocked",
        breaker_allows=engine.breaker.allows(now_s),
        credential_opens=replica.credential_opens,
        tried=entry.id in tried,
        serves=not replica.engine.checks_model or engine.serves(endpoint.entry.served_model, now_s),
    )
    mode, family = endpoint.pool.isolation, endpoint.entry.engine
    refusal = (
        filters.refusal_of_pinned(condition)
        if pinned
        else filters.refusal(entry, replica.engine, condition, mode=mode, family=family, namespace_id=namespace.public_id, part=part)
    )
    if refusal is not None:
        return Replica(id=_text(entry.id), name=entry.name, refusal=refusal, in_flight=engine.in_flight)
    belief = evidence.believe(plane, replica.url, key, prompt, owner=owner, now_s=now_s, tau_s=tau_s)
    kappa = plane.trust.kappa((replica.url, 0), owner, key, exact=belief.evidence == "event", now_s=now_s)
    queued_tokens, waiting = engine.ledger.queued(now_s)
    foreign_tokens, foreign_running = engine.foreign(now_s)
    shared = plane.siblings.load(replica.url, now_s)
    adapter = engine.adapter_price(endpoint.entry.served_model, now_s, declared=endpoint.entry.adapter is not None)
    capacity = 0 if engine.capacity_tokens is None else int(engine.capacity_tokens * prompt.bytes_per_token / prefix.BLOCK_BYTES)
    return Replica(
        id=_text(entry.id),
        name=entry.name,
        queued_tokens=queued_tokens + shared.queued_tokens,
        foreign_tokens=foreign_tokens,
        active_decodes=max(0, engine.in_flight - waiting) + shared.decodes + foreign_running,
        in_flight=engine.in_flight + round(shared.in_flight),
        last_chosen=state.chosen.get(entry.id, 0),
        matched_tokens=belief.matched_tokens,
        confidence=belief.confidence * min(1.0, kappa),
        evidence=belief.evidence,
        evidence_age_s=belief.age_s,
        residency=belief.state,
        prefill_tokens_per_s=engine.calibration.rate(pool_rate, now_s),
        fixed_s=engine.calibration.fixed_s,
        network_s=engine.calibration.network_s,
        decode_interference=engine.calibration.gamma,
        working_set_blocks=engine.working_set.size(now_s),
        capacity_blocks=capacity,
        kv_used=engine.kv_share(now_s),
        max_concurrency=entry.max_concurrency,
        ramp=ramp(now_s - engine.returned_at_s),
        lower_tokens=belief.lower_tokens * min(1.0, kappa),
        tier=belief.tier,
        tier_tokens_per_s=None if belief.tier is None else engine.calibration.tier_rate(belief.tier),
        new_blocks=max(0, len(prompt.digests) - belief.held_blocks),
        adapter=None if adapter.slot == "none" else endpoint.entry.served_model,
        adapter_s=adapter.own_s,
        displaced_s=adapter.displaced_s,
        slot=adapter.slot,
        rank=prefix.rendezvous(namespace.index_seed, head, entry.id.bytes),
    )
