"""Why a request was fast or slow, in a few sentences. Pure: from the stored record and what its reader may see of it.

For somebody who meets the product for the first time: what is no everyday word stands in the glossary (its group of words). Names, waits and refusals
come from the disclosed side, so that the answer tells no more than the table below it.
"""

from __future__ import annotations

from console.templatetags.console_text import count, seconds, share
from routing.core import cause_words, glossary
from routing.core.record import DecisionRecord
from routing.services.disclosure import WAIT_STEP_S, Disclosed

_NOTABLE_SHARE = 0.05  # of the prompt; less is not worth a word
_OFF_FACTOR = 1.5  # measured over expected, beyond which the estimate is called wrong
_OFF_S = 0.1
_NOTABLE_WAIT_S = 0.02
_SHORT_SHARE = 0.15  # of the prompt: expected in the cache and not found


def tone(record: DecisionRecord) -> str:
    """How the request went, as a colour class: good, warn (slow, refused, left) or bad."""
    if record.outcome == "ok":
        return "warn" if record.slo_ttft_s is not None and (record.ttft_s or 0.0) > record.slo_ttft_s else "good"
    return "warn" if record.outcome in ("client_error", "client_cancelled", "refused") else "bad"


def sentence(record: DecisionRecord, seen: Disclosed) -> str:
    """A few short sentences that answer "why was this slow, or fast?"."""
    if record.outcome == "refused":
        return _refused(record, seen)
    if record.outcome == "client_error":
        return f"The request was answered {record.status}{_code(record)}: the client has to change it, no replica is to blame."
    if record.outcome == "client_cancelled" and record.ttft_s is None:
        left = f"The client left after {seconds(record.e2e_s)}, before the first token."
        return left if seen.cause is None else f"{left} {seen.cause.sentence}"
    if record.outcome in ("upstream_error", "timeout", "incomplete") and record.ttft_s is None:
        return _failed(record)
    return " ".join([_speed(record), *_cause(record, seen), *_ending(record)])


def _speed(record: DecisionRecord) -> str:
    ttft_s, target_s, expected_s = record.ttft_s, record.slo_ttft_s, record.expected_ttft_s
    if ttft_s is None:
        return f"The whole answer came after {seconds(record.e2e_s)}; it was not streamed." if record.e2e_s is not None else "No time was measured."
    first = f"the first token came after {seconds(ttft_s)}"
    if target_s is not None:
        if ttft_s <= target_s:
            return f"Fast enough: {first}, and the target is {seconds(target_s)}."
        return f"Too slow: {first}, and the target is {seconds(target_s)}{_foreseen(record, target_s)}."
    if expected_s is not None and ttft_s > max(expected_s * _OFF_FACTOR, expected_s + _OFF_S):
        return f"Slower than expected: {first} instead of {seconds(expected_s)}."
    return f"As expected: {first}."


def left_s(record: DecisionRecord) -> float | None:
    """What was left of the target, in seconds >= 0, when the request went to the replica that served it; None where hardly any of it had passed."""
    if record.slo_ttft_s is None or record.decide_s is None:
        return None
    passed_s = record.decide_s + (record.queue_s or 0.0) + sum(one.duration_s for one in record.attempts[:-1])
    return max(0.0, record.slo_ttft_s - passed_s) if passed_s >= _NOTABLE_WAIT_S else None


def _foreseen(record: DecisionRecord, target_s: float) -> str:
    """That the choice did not expect to meet the target, by what it knew then. Others might have: not every policy goes by time alone."""
    if record.slo_attainable or record.expected_ttft_s is None:
        return ""
    left = left_s(record)
    if left is not None and left < target_s:
        return f", of which {seconds(left)} were left when a replica was chosen, and {seconds(record.expected_ttft_s)} were expected from there"
    return f", though {seconds(record.expected_ttft_s)} were expected when a replica was chosen"


def _cause(record: DecisionRecord, seen: Disclosed) -> list[str]:
    prompt = record.prompt_tokens or record.estimated_prompt_tokens
    told = [_begun(_reuse(record, prompt, _named(seen.replica), split=seen.cause is not None))]
    if seen.cause is not None:  # then the split below says it, by the clock
        return [*told, seen.cause.sentence]
    waited = "" if record.policy == "weighted" else _waited(seen)  # its terms are no plain seconds
    if waited:
        told.append(f"Most of the wait was for other requests ahead of it: {waited}.")
    failed = [attempt for attempt in record.attempts if attempt.error]
    if failed and len(record.attempts) > 1:
        lost_s = sum(attempt.duration_s for attempt in failed)
        told.append(f"{seconds(lost_s)} went to {_many(len(failed), 'attempt')} before it that failed.")
    late_s = (record.ttft_s or 0.0) - (record.expected_ttft_s or 0.0)
    if record.expected_ttft_s is not None and not failed and late_s > max(record.expected_ttft_s * (_OFF_FACTOR - 1), _OFF_S):
        told.append(f"{seconds(late_s)} came on top that the estimate did not foresee.")
    return told


def _begun(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


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


def _reuse(record: DecisionRecord, prompt: int, where: str, *, split: bool) -> str:
    """What of the prompt was cached. ``split``: why the rest was not is said by the cause, which knows more than the candidates."""
    expected, cached = record.expected_cached_tokens, record.cached_tokens
    if prompt <= 0:
        return f"{where} took it"
    if cached is None:
        if expected > _NOTABLE_SHARE * prompt:
            return f"{where} was expected to hold {count(expected)} of {count(prompt)} prompt tokens in its cache and did not say how many it did"
        return f"{where} was expected to compute all {count(prompt)} prompt tokens"
    if cached >= _NOTABLE_SHARE * prompt:
        rest = count(prompt - cached)
        if expected - cached > _SHORT_SHARE * prompt:
            believed = f"{where} was expected to hold {count(expected)} of {count(prompt)} prompt tokens in its cache"
            return f"{believed} and held {count(cached)} ({share(cached / prompt)}), so {rest} had to be computed"
        return f"{where} held {count(cached)} of {count(prompt)} prompt tokens ({share(cached / prompt)}) in its cache, so {rest} had to be computed"
    if expected > _NOTABLE_SHARE * prompt:
        believed = f"{where} was expected to hold {count(expected)} of {count(prompt)} prompt tokens in its cache"
        return f"{believed} but had {count(cached)}: they were evicted or never stored"
    best = max(record.candidates, key=lambda one: one.matched_tokens, default=None)
    known = record.best_matched_tokens if best is None else best.matched_tokens
    if known > _NOTABLE_SHARE * prompt:
        other = "another rank of its engine" if best is not None and best.replica_id == record.replica_id and best.refusal else "another replica"
        held = f"{other} held {count(known)} of {count(prompt)} prompt tokens in its cache"
        if best is not None and not any(one.terms for one in record.candidates):  # nobody weighed seconds here
            return f"{held}, but the policy {record.policy} does not go by expected time, so {where} computed the prompt"
        return f"{held} but would have taken longer, so {where} computed the prompt"
    had, rest = (count(cached), "the rest") if cached else ("none", "them all")
    if split:
        return f"{where} had {had} of the {count(prompt)} prompt tokens in its cache and computed {rest}"
    return f"{where} had {had} of the {count(prompt)} prompt tokens in its cache, and no other replica was known to have more, so it computed {rest}"


def _ending(record: DecisionRecord) -> list[str]:
    endings = {
        "client_cancelled": "The client left before the end.",
        "upstream_error": "The replica failed before the end.",
        "timeout": "The replica went silent before the end.",
        "incomplete": "The answer broke off before the end.",
    }
    return [endings[record.outcome]] if record.outcome in endings else []


def _refused(record: DecisionRecord, seen: Disclosed) -> str:
    return cause_words.refused(record.status, record.error_code, [one.refusal for one in seen.candidates])


def _failed(record: DecisionRecord) -> str:
    tried = len(record.attempts)
    last = record.attempts[-1] if record.attempts else None
    said = f" ({glossary.label('failure', last.error or f'status {last.status}')}, after {seconds(last.duration_s)})" if last else ""
    what = {"timeout": "timed out", "incomplete": "broke off"}.get(record.outcome, "failed")
    tail = f": {_many(tried, 'attempt')}, the last one{said}" if last else ""
    return f"It {what} before the first token{_code(record)}{tail}."


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _code(record: DecisionRecord) -> str:
    return f" ({record.error_code})" if record.error_code else ""
