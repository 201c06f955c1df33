"""From a request to a replica: measure the prompt, take a frozen picture of the pool, let the scheduler decide."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from uuid import UUID

from namespaces.core.salts import Namespace
from routing.core import filters, pairs, prefix, scheduler, transfer
from routing.core.candidates import is_full
from routing.core.types import Ask, Candidate, Decision, NoReplica, Replica
from routing.dataplane import errors, learn
from routing.dataplane.choice import LOOP_DIGESTS, MAX_DIGESTS, Choice, Prompt
from routing.dataplane.holdings import OFF_LOOP_BYTES
from routing.dataplane.inflight import Flight
from routing.dataplane.openai import Call
from routing.dataplane.picture import Pictures, text
from routing.dataplane.state import EndpointState, Plane
from routing.dataplane.tokens import NOTHING_FOUND, Found
from routing.dataplane.view import EndpointView, ReplicaView

_SPLITTING = frozenset({"ettft", "weighted"})  # policies in seconds


def work_bytes(call: Call, found: Found, block_sizes: Collection[int]) -> int:
    """How much work it is to measure a prompt, as bytes of one: tokens and blocks may be as small as a byte."""
    digests = sum([len(found.ids) // block_tokens for block_tokens in block_sizes]) if found.ids is not None else 0
    return max(len(call.prompt), digests * (OFF_LOOP_BYTES // LOOP_DIGESTS))


def measure(call: Call, namespace: Namespace, bytes_per_token: float, found: Found = NOTHING_FOUND, block_sizes: Collection[int] = ()) -> Prompt:
    """The prompt's chain under the namespace, and its size in tokens: exactly where all of them were found, else by the endpoint's learned ratio.

    A prompt shorter than one block has no chain; then the whole of it ranks the cold replicas, so that short prompts spread. Chains of the exact
    tokens are made here for the block sizes of the endpoint's engines, since here a long prompt is off the event loop; no more than ``MAX_DIGESTS``
    in all, the widest blocks first. An engine may show blocks of a token each.
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
    left = MAX_DIGESTS
    for block_tokens in sorted(block_sizes, reverse=True) if found.ids is not None else ():
        left -= len(prompt.chain(block_tokens, left))
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
        ttft_slo_s=_objective_s(flight, endpoint, now_s),
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
    pictures = Pictures(
        plane,
        endpoint,
        state,
        ask,
        namespace=namespace,
        prompt=prompt,
        owner=owner,
        head=head,
        tau_s=state.age(learn.workload_of(call)).tau_s,
        tried=tried,
        pinned=None if flight.probe is None else flight.probe.run.int,
        now_s=now_s,
    )
    candidates = [pictures.take(replica) for replica in endpoint.replicas]
    candidates += pictures.others
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
    pair = None if again or flight.probe is not None else _pair(plane, flight, ask, decision, candidates=candidates, pictures=pictures)
    if pair is not None:
        decision = pairs.decided(ask, decision, pair)
    if flight.probe is None:
        _note_chosen(state, endpoint, UUID(decision.chosen.replica_id))
    chosen = _view(endpoint, decision.chosen.replica_id)
    if pair is None:
        return _to(plane, decision, chosen, decision.chosen)
    first, second = pairs.sides(ask, pair)
    computes = _view(endpoint, pair.prefill.id)
    prefill = replace(_to(plane, decision, computes, first), side=first)
    return replace(_to(plane, decision, chosen, second), side=second, prefill=prefill, pair=pair)


def _to(plane: Plane, decision: Decision, replica: ReplicaView, taken: Candidate) -> Choice:
    """The choice of a replica, and of the rank of it that was weighed."""
    engine = plane.engine(replica.url)
    return Choice(decision=decision, replica=replica, engine=engine, rank=None if taken.dp_rank is None else engine.ranks[taken.dp_rank])


def _pair(plane: Plane, flight: Flight, ask: Ask, decision: Decision, *, candidates: Sequence[Replica], pictures: Pictures) -> pairs.Pair | None:
    """The two replicas that would share the request sooner than the chosen one alone would answer it, if there are such. Policies that do not weigh
    seconds are what they are called: they do not split."""
    endpoint, call = flight.endpoint, flight.call
    if endpoint is None or call is None or decision.policy not in _SPLITTING:
        return None
    splits = {text(replica.entry.id) for replica in endpoint.replicas if replica.entry.role == "decode" and replica.engine.transfer_field}
    if not splits:
        return None
    now_s = time.monotonic()
    urls = {text(replica.entry.id): replica.url for replica in endpoint.replicas}
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
    prefills = [pictures.take(replica, part="prefill") for replica in endpoint.replicas if replica.entry.role == "prefill"]
    prefills = [one for one in prefills if not is_full(one)]
    return pairs.choose(ask, prefills, rooms, lambda p, d: plane.links.way(urls[p], urls[d], now_s), local_s=decision.chosen.expected_ttft_s)


def _objective_s(flight: Flight, endpoint: EndpointView, now_s: float) -> float | None:
    """What is left of the time in which the first token is due: the objective is the request's, however long it waited here."""
    if endpoint.slo is None or endpoint.slo.ttft_s is None:
        return None
    return max(0.0, endpoint.slo.ttft_s - max(0.0, now_s - flight.started_s))


def _view(endpoint: EndpointView, replica_id: str) -> ReplicaView:
    return next(replica for replica in endpoint.replicas if text(replica.entry.id) == replica_id)


def _note_chosen(state: EndpointState, endpoint: EndpointView, replica_id: UUID) -> None:
    """Note when the replica was chosen last, and forget those that are gone."""
    state.chosen[replica_id] = state.sequence
    if len(state.chosen) > len(endpoint.replicas):
        here = {replica.entry.id for replica in endpoint.replicas}
        state.chosen = {one: when for one, when in state.chosen.items() if one in here}


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
