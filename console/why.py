"""Why a request was fast or slow, in one sentence. Pure: from the stored record and what its reader may see of it.

Names, waits and refusals come from the disclosed side, so that the sentence tells no more than the table below it.
"""

from __future__ import annotations

from console.templatetags.console_text import count, seconds, share
from routing.core.record import DecisionRecord
from routing.services.disclosure import WAIT_STEP_S, Disclosed

_NOTABLE_SHARE = 0.05  # of the prompt; less is not worth a word
_OFF_FACTOR = 1.5  # measured over expected, beyond which the estimate is called wrong
_OFF_S = 0.1
_NOTABLE_WAIT_S = 0.02


def tone(record: DecisionRecord) -> str:
    """How the request went, as a colour class: good, warn (slow, refused, left) or bad."""
    if record.outcome == "ok":
        return "warn" if record.slo_ttft_s is not None and (record.ttft_s or 0.0) > record.slo_ttft_s else "good"
    return "warn" if record.outcome in ("client_error", "client_cancelled", "refused") else "bad"


def sentence(record: DecisionRecord, seen: Disclosed) -> str:
    """One sentence (at times with a second clause) that answers "why was this slow, or fast?"."""
    if record.outcome == "refused":
        return _refused(record, seen)
    if record.outcome == "client_error":
        return f"The request was answered {record.status}{_code(record)}: the client has to change it, no replica is to blame."
    if record.outcome == "client_cancelled" and record.ttft_s is None:
        return f"The client left after {seconds(record.e2e_s)}, before the first token."
    if record.outcome in ("upstream_error", "timeout", "incomplete") and record.ttft_s is None:
        return _failed(record)
    return f"{_speed(record)}: {_cause(record, seen)}{_ending(record)}."


def _speed(record: DecisionRecord) -> str:
    ttft_s, target_s, expected_s = record.ttft_s, record.slo_ttft_s, record.expected_ttft_s
    if ttft_s is None:
        return f"Answered whole after {seconds(record.e2e_s)}, not streamed" if record.e2e_s is not None else "No time was measured"
    first = f"first token after {seconds(ttft_s)}"
    if target_s is not None:
        if ttft_s <= target_s:
            return f"Fast enough, {first} against a target of {seconds(target_s)}"
        hopeless = "" if record.slo_attainable else ", which no replica could meet"
        return f"Too slow, {first} against a target of {seconds(target_s)}{hopeless}"
    if expected_s is not None and ttft_s > max(expected_s * _OFF_FACTOR, expected_s + _OFF_S):
        return f"Slower than the {seconds(expected_s)} expected, {first}"
    return f"As expected, {first}"


def _cause(record: DecisionRecord, seen: Disclosed) -> str:
    if seen.cause is not None:  # then the split below says it, by the clock
        where = _reuse(record, record.prompt_tokens or record.estimated_prompt_tokens, _named(seen.replica))
        return f"{where}. {seen.cause.sentence.removesuffix('.')}"
    prompt = record.prompt_tokens or record.estimated_prompt_tokens
    parts = [_reuse(record, prompt, _named(seen.replica))]
    waited = _waited(seen)
    if waited:
        parts.append(f"most of the wait was others' work ahead of it, {waited}")
    failed = [attempt for attempt in record.attempts if attempt.error]
    if failed and len(record.attempts) > 1:
        lost_s = sum(attempt.duration_s for attempt in failed)
        parts.append(f"{seconds(lost_s)} went to {_many(len(failed), 'failed attempt')} before it")
    late_s = (record.ttft_s or 0.0) - (record.expected_ttft_s or 0.0)
    if record.expected_ttft_s is not None and not failed and late_s > max(record.expected_ttft_s * (_OFF_FACTOR - 1), _OFF_S):
        parts.append(f"{seconds(late_s)} came on top that the estimate did not foresee")
    return "; ".join(parts)


def _named(replica: str | None) -> str:
    if replica is None:
        return "the replica"
    return replica if replica.startswith("replica ") else f"replica {replica}"


def _waited(seen: Disclosed) -> str:
    """How long others' work took, where it was more than the request's own prefill. On a platform pool only an upper bound is known."""
    chosen = next((one for one in seen.candidates if one.chosen), None)
    if chosen is None:
        return ""
    prefill_s = chosen.terms.get("prefill", 0.0)
    wait_s = chosen.terms.get("wait")
    if wait_s is not None:
        return f"about {seconds(wait_s)}" if wait_s > max(_NOTABLE_WAIT_S, prefill_s) else ""
    shared_s = seen.pool_wait_s or 0.0
    return f"up to {seconds(shared_s)}" if shared_s - WAIT_STEP_S > prefill_s else ""


def _reuse(record: DecisionRecord, prompt: int, where: str) -> str:
    expected, cached = record.expected_cached_tokens, record.cached_tokens
    if prompt <= 0:
        return f"{where} took it"
    if cached is None:
        if expected > _NOTABLE_SHARE * prompt:
            return f"{where} was expected to hold {count(expected)} of {count(prompt)} prompt tokens and did not say how many it did"
        return f"{where} was expected to compute the whole prompt of {count(prompt)} tokens"
    if cached >= _NOTABLE_SHARE * prompt:
        rest = count(prompt - cached)
        return f"{where} held {count(cached)} of {count(prompt)} prompt tokens ({share(cached / prompt)}), so {rest} had to be computed"
    if expected > _NOTABLE_SHARE * prompt:
        believed = f"{where} was expected to hold {count(expected)} of {count(prompt)} prompt tokens"
        return f"{believed} but had {count(cached)}: they were evicted or never stored"
    best = max(record.candidates, key=lambda one: one.matched_tokens, default=None)
    known = record.best_matched_tokens if best is None else best.matched_tokens
    if known > _NOTABLE_SHARE * prompt:
        other = "another rank of its engine" if best is not None and best.replica_id == record.replica_id and best.refusal else "another replica"
        held = f"{other} held {count(known)} of {count(prompt)} prompt tokens"
        if best is not None and not any(one.terms for one in record.candidates):  # nobody weighed seconds here
            return f"{held}, but {record.policy} does not go by expected time, so {where} computed the prompt"
        return f"{held} but would have taken longer, so {where} computed the prompt"
    return f"nothing of the {count(prompt)} prompt tokens was cached anywhere, so {where} computed all of them"


def _ending(record: DecisionRecord) -> str:
    endings = {
        "client_cancelled": "; the client left before the end",
        "upstream_error": "; the replica failed before the end",
        "timeout": "; the replica went silent before the end",
        "incomplete": "; the answer broke off before the end",
    }
    return endings.get(record.outcome, "")


def _refused(record: DecisionRecord, seen: Disclosed) -> str:
    reasons: dict[str, int] = {}
    for one in seen.candidates:
        if one.refusal:
            reasons[one.refusal] = reasons.get(one.refusal, 0) + 1
    if reasons and all(one.refusal for one in seen.candidates):
        said = ", ".join(f"{number} {reason.replace('_', ' ')}" for reason, number in sorted(reasons.items()))
        return f"Refused with {record.status}{_code(record)}: no replica could take it ({said})."
    return f"Refused with {record.status}{_code(record)} before any replica was asked."


def _failed(record: DecisionRecord) -> str:
    tried = len(record.attempts)
    last = record.attempts[-1] if record.attempts else None
    said = f" ({(last.error or f'status {last.status}').replace('_', ' ')} after {seconds(last.duration_s)})" if last else ""
    what = {"timeout": "timed out", "incomplete": "broke off"}.get(record.outcome, "failed")
    tail = f": {_many(tried, 'attempt')}, the last one{said}" if last else ""
    return f"It {what} before the first token{_code(record)}{tail}."


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _code(record: DecisionRecord) -> str:
    return f" ({record.error_code})" if record.error_code else ""
