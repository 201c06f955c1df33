"""What an answer teaches: bytes per token, speed, reuse; whether what was predicted of the engine's cache came true; and whether the answer reports
more cached tokens than its namespace's history explains."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from routing.core import age, alarm, prefix
from routing.core.trust import Answer
from routing.core.trust_table import Moved, Target
from routing.core.types import Candidate
from routing.dataplane.openai import Call

if TYPE_CHECKING:
    from routing.core.stream import Usage
    from routing.dataplane.attempt import Attempt
    from routing.dataplane.choice import Choice, Prompt
    from routing.dataplane.inflight import Flight
    from routing.dataplane.state import Plane
    from routing.dataplane.transfer import Transfer

MIN_KAPPA = 0.01  # below it, what was predicted before kappa is no longer told from the product
log = logging.getLogger("saltroute.trust")


@dataclass(frozen=True, slots=True)
class Prediction:
    """What was believed of the chosen target when the request was sent. ``namespace`` is the 16 bytes of its public id, ``owner`` its tenant's."""

    target: Target
    owner: bytes
    namespace: bytes
    matched_tokens: int
    tokens: float  # at the confidence of the match, before kappa
    exact: bool
    history_tokens: int | None  # what history alone says, where events decided
    settled: bool  # neither another request's to make true, nor the engine's to say
    age_s: float
    counted_tokens: int | None
    pressure: float
    full_report: bool
    withheld: bool  # the match leaves out a block that the engine holds and computes anew
    first_use: bool  # of the adapter: the request brings it in


def predict(plane: Plane, choice: Choice, prompt: Prompt, *, namespace: bytes, owner: bytes, probe: bool) -> Prediction:
    """Note the prediction at the moment of dispatch, before other answers change what is known."""
    target, chosen, now_s = choice.place.target, choice.taken, time.monotonic()
    by_events = chosen.evidence == "event"
    exact = chosen.residency == "exact" and prompt.exact and chosen.evidence in ("event", "none")
    kappa = min(1.0, plane.trust.kappa(target, owner, namespace, exact=by_events, now_s=now_s))
    history_tokens = None
    if exact:
        blocks = plane.index.known(namespace, prompt.digests, choice.place.key, owner=owner)
        history_tokens = min(prompt.tokens, int(prefix.covered_bytes(blocks) / prompt.bytes_per_token))
    full_report = not probe and choice.replica.engine.full_report is not None and plane.trust.takes_full_report(target, owner, namespace, now_s)
    if full_report:
        for rank in plane.residency.ranks.get(target[0], ()) if choice.rank is None else (target[1],):
            plane.events.use_set_semantics((target[0], rank))
    return Prediction(
        target=target,
        owner=owner,
        namespace=namespace,
        matched_tokens=chosen.matched_tokens,
        tokens=min(float(chosen.matched_tokens), chosen.expected_cached_tokens / max(MIN_KAPPA, kappa)),
        exact=exact,
        history_tokens=history_tokens,
        settled=exact or not (by_events or chosen.evidence == "pending" or (chosen.residency == "exact" and prompt.exact)),
        age_s=chosen.evidence_age_s,
        counted_tokens=prompt.exact_tokens if prompt.exact_tokens == prompt.tokens else None,
        pressure=_pressure(plane, choice, prompt),
        full_report=full_report,
        withheld=exact and plane.trust.withholds(target, owner),
        first_use=chosen.adapter is not None and choice.engine.adapters.dispatched(chosen.adapter, now_s),
    )


def _pressure(plane: Plane, choice: Choice, prompt: Prompt) -> float:
    """The share of the engine's cache that the router's history fills; 0 where its size is not known."""
    capacity_tokens = choice.place.capacity_tokens
    if not capacity_tokens:
        return 0.0
    return plane.index.size(choice.place.key) * prefix.BLOCK_BYTES / prompt.bytes_per_token / capacity_tokens


def first_byte(flight: Flight, attempt: Attempt, now_s: float) -> None:
    """Learn the engine's speed as soon as the prompt is computed, where the prediction is exact: no usage need be waited for.

    An answer may take a minute after its first token. An engine that was overrun would be found slow when its queue is over, and sent more meanwhile.
    """
    call, prediction, chosen = flight.call, attempt.prediction, attempt.choice.taken
    if call is None or flight.prompt is None or flight.probe is not None or flight.transfer is not None or not prediction.exact:
        return
    if call.stream and call.sequences == 1 and chosen.tier is None and not prediction.first_use and chosen.slot != "loading":
        _learn_speed(attempt, max(1.0, float(flight.prompt.tokens - chosen.matched_tokens)), now_s)
        attempt.speed_learned = True


def _learn_speed(attempt: Attempt, uncached_tokens: float, first_byte_s: float, *, tier_tokens: float = 0.0) -> None:
    chosen = attempt.choice.taken
    attempt.engine.calibration.observe_ttft(
        tokens_ahead=attempt.tokens_ahead,
        uncached_tokens=uncached_tokens,
        idle=attempt.was_idle,
        ttft_s=first_byte_s - attempt.started_s,
        expected_s=chosen.expected_ttft_s,
        now_s=time.monotonic(),
        decodes=chosen.decodes,
        tier=chosen.tier,
        tier_tokens=tier_tokens,
    )


def learn(flight: Flight) -> None:
    """Feed what the answer showed back into the estimates."""
    attempt, call, prompt, decision, usage = flight.attempt, flight.call, flight.prompt, flight.decision, flight.usage
    if attempt is None or call is None or prompt is None or decision is None or flight.endpoint is None or usage.prompt_tokens is None:
        return
    if flight.outcome != "ok" or flight.probe is not None:  # what audits send is like nobody's prompts
        return
    if flight.transfer is not None and flight.transfer.result == "ok":
        _learn_transfer(flight, flight.transfer, call, usage.prompt_tokens)
        return
    _compare(flight, attempt, call, usage.prompt_tokens, usage.cached_tokens)
    if call.learns:
        flight.plane.endpoint_state(flight.endpoint.entry.id).ratio.observe(len(call.prompt), usage.prompt_tokens)
    if usage.cached_tokens is not None:
        _judge(flight.plane, attempt, call, prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens)
    calibration, chosen = attempt.engine.calibration, decision.chosen
    if chosen.evidence == "inferred" and call.sequences == 1:
        fading = flight.plane.endpoint_state(flight.endpoint.entry.id).age(workload_of(call))
        fading.observe(age_s=chosen.evidence_age_s, predicted_tokens=chosen.matched_tokens, cached_tokens=usage.cached_tokens)
    cached = usage.cached_tokens if usage.cached_tokens is not None else chosen.expected_cached_tokens
    uncached = max(1.0, usage.prompt_tokens - cached)
    attempt.engine.mean_uncached_tokens += (uncached - attempt.engine.mean_uncached_tokens) / 32
    if usage.cached_tokens is not None:
        calibration.observe_reuse(prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens)
    if chosen.adapter is not None:
        attempt.engine.adapters.loaded(chosen.adapter)
    if attempt.prediction.first_use or chosen.slot == "loading":  # its time says little of the engine's speed
        if attempt.prediction.first_use and call.stream and flight.first_byte_s is not None:
            waited_s = flight.first_byte_s - attempt.started_s
            attempt.engine.adapters.observe_load(waited_s - (chosen.expected_ttft_s - chosen.adapter_s))
    elif call.stream and flight.first_byte_s is not None and not attempt.speed_learned:
        _learn_speed(attempt, uncached, flight.first_byte_s, tier_tokens=_from_tier(chosen, usage.cached_tokens))


def workload_of(call: Call) -> str:
    """The workload class of a request, by which ages are learned."""
    messages = call.body.value.get("messages")
    return age.workload(tuple(one.get("role") for one in messages if isinstance(one, dict)) if isinstance(messages, list) else ())


def _from_tier(chosen: Candidate, cached_tokens: int | None) -> float:
    """Tokens of an answer's hit that came out of a lower tier, where most of it did; else 0."""
    if chosen.tier is None or not cached_tokens:
        return 0.0
    above = max(0.0, chosen.matched_tokens - chosen.lower_tokens)
    lower = min(chosen.lower_tokens, cached_tokens - above)
    return lower if 2 * lower > cached_tokens else 0.0


def learn_prefill(flight: Flight, attempt: Attempt, usage: Usage, now_s: float) -> None:
    """Feed back what the answer of a prefill replica showed. The hits are its own: the decode replica reports them again as if they were its."""
    call, chosen = flight.call, attempt.choice.taken
    if call is None or usage.prompt_tokens is None:
        return
    _compare(flight, attempt, call, usage.prompt_tokens, usage.cached_tokens)
    if usage.cached_tokens is not None:
        _judge(flight.plane, attempt, call, prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens)
    cached = usage.cached_tokens if usage.cached_tokens is not None else chosen.expected_cached_tokens
    uncached = max(1.0, usage.prompt_tokens - cached)
    attempt.engine.mean_uncached_tokens += (uncached - attempt.engine.mean_uncached_tokens) / 32
    if usage.cached_tokens is not None:
        attempt.engine.calibration.observe_reuse(prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens)
    _learn_speed(attempt, uncached, now_s)


def _learn_transfer(flight: Flight, transfer: Transfer, call: Call, prompt_tokens: int) -> None:
    """What the second answer of a transfer tells: bytes per token, and the way's speed. Of the decode replica's cache it says nothing."""
    if call.learns and flight.endpoint is not None:
        flight.plane.endpoint_state(flight.endpoint.entry.id).ratio.observe(len(call.prompt), prompt_tokens)
    if transfer.first_byte_s is not None:
        link = flight.plane.links.take(transfer.prefill.replica.url, transfer.decode_url)
        link.observe(moved_tokens=transfer.pair.moved_tokens, seconds=transfer.first_byte_s - transfer.pair.admit_s)


def _judge(plane: Plane, attempt: Attempt, call: Call, *, prompt_tokens: int, cached_tokens: int) -> None:
    """Hold the answer against the prediction. Answers of which nothing was predicted for sure are left out: prompts with media, several prompts,
    prompts that do not read the cache, and beliefs that were not settled yet."""
    prediction = attempt.prediction
    if not prediction.settled or call.sequences != 1 or not (call.learns or call.token_bytes) or not reads_cache(call.body.value):
        return
    answer = Answer(
        matched_tokens=prediction.matched_tokens,
        predicted_tokens=prediction.tokens,
        cached_tokens=cached_tokens,
        prompt_tokens=prompt_tokens,
        exact=prediction.exact,
        history_tokens=prediction.history_tokens,
        block_tokens=attempt.engine.facts.block_tokens,
        counted_tokens=prediction.counted_tokens,
        age_s=prediction.age_s,
        pressure=prediction.pressure,
        gaps=plane.residency.losses[prediction.target[0]],
        withheld=prediction.withheld,
    )
    moved = plane.trust.observe(prediction.target, prediction.owner, prediction.namespace, answer, time.monotonic())
    act(plane, moved)


def reads_cache(body: Mapping[str, Any]) -> bool:
    """Whether the engine looks the whole prompt up in its cache. vLLM 0.32 computes prompts whose log-probabilities are asked for."""
    computed = body.get("prompt_logprobs") is not None or (body.get("echo") is True and body.get("logprobs") is not None)
    return not computed and body.get("truncate_prompt_tokens") is None


def act(plane: Plane, moved: tuple[Moved, ...]) -> None:
    """Say what changed. Namespaces are counted only; the log names targets alone."""
    for one in moved:
        scope = "replica" if one.namespace is None else "namespace"
        plane.metrics.trust_changes.labels(scope=scope, verdict=one.change.after, cause=one.change.cause or "none").inc()
        if one.namespace is None:
            if one.change.after == "relearn":
                plane.on_relearn(one.target[0])
            log.warning("trust in %s rank %d: %s, was %s; cause: %s", *one.target, one.change.after, one.change.before, one.change.cause or "none")


def _compare(flight: Flight, attempt: Attempt, call: Call, prompt_tokens: int, cached_tokens: int | None) -> None:
    """Raise an alarm if the engine reports more cached tokens than the namespace's own requests can have left there."""
    if cached_tokens is None or call.sequences != 1 or not (call.learns or call.token_bytes):
        return
    explained_blocks = attempt.explained_blocks()
    if explained_blocks is None:
        return
    flight.alarm = alarm.alarm(
        cached_tokens=cached_tokens,
        explained_blocks=explained_blocks,
        prompt_bytes=len(call.prompt),
        prompt_tokens=prompt_tokens,
        block_tokens=attempt.engine.facts.block_tokens,
    )
    if flight.alarm is not None:
        flight.plane.metrics.alarms.labels(kind=flight.alarm).inc()
