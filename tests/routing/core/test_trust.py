"""Trust: kappa makes predictions true on the mean, verdicts move one step at a time on new evidence, causes are named from the answers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.trust import (
    DWELL,
    HALF_LIFE_S,
    MAX_FAILURES,
    MAX_RETRY_S,
    MOST_RATIO,
    RETRY_S,
    SILENCE_S,
    WINDOW,
    Answer,
    Change,
    Ledger,
    Trust,
    Verdict,
    common_verdict,
    engine_rule,
    summary,
)
from routing.core.trust import cause as name_cause

BLOCK = 16
NEXT: dict[Verdict, set[Verdict]] = {"fine": {"relearn"}, "relearn": {"fine", "demote", "flag"}, "demote": {"relearn"}, "flag": {"relearn"}}


def answer(matched: int, cached: int, *, exact: bool = True, confidence: float = 0.97, prompt: int = 4000, **more: Any) -> Answer:
    values: dict[str, Any] = {"block_tokens": BLOCK, "counted_tokens": prompt, **more}
    return Answer(matched_tokens=matched, predicted_tokens=matched * confidence, cached_tokens=cached, prompt_tokens=prompt, exact=exact, **values)


answers = st.builds(
    answer,
    st.integers(0, 400).map(lambda blocks: blocks * BLOCK),
    st.integers(0, 10_000),
    exact=st.booleans(),
    confidence=st.floats(0, 0.97),
    age_s=st.floats(0, 1e6),
    pressure=st.floats(0, 3),
    gaps=st.integers(0, 3),
    block_tokens=st.sampled_from([None, 1, 16, 64]),
)


@given(st.integers(1, 100_000), st.integers(1, 512))
def test_the_engine_rule_is_the_most_whole_blocks_that_leave_a_token_to_compute(prompt: int, block: int) -> None:
    most = engine_rule(prompt, block)
    assert most % block == 0
    assert most < prompt <= most + block


@given(st.lists(answers, max_size=150), st.floats(0, 1e6))
def test_kappa_and_the_window_stay_within_their_bounds(seen: list[Answer], later_s: float) -> None:
    ledger = Ledger()
    for number, one in enumerate(seen):
        ledger.observe(one, float(number))
    assert 0 <= ledger.kappa(len(seen) + later_s) <= MOST_RATIO + 1e-9
    assert len(ledger.errors_tokens()) == min(len(seen), WINDOW)
    share = ledger.share_exact()
    assert share is None if not seen else share is not None and 0 <= share <= 1


@pytest.mark.parametrize("confidence", [0.97, 0.8, 0.3])
@pytest.mark.parametrize("come_true", [0.1, 0.5, 1.0])
def test_confidence_times_kappa_predicts_what_comes_true(confidence: float, come_true: float) -> None:
    """Where every answer's cached tokens are within what one answer may teach, the product has no bias, whatever the confidence was."""
    draw = random.Random(3)
    ledger = Ledger()
    for _ in range(400):
        matched = draw.randrange(10, 400) * BLOCK
        realised = matched * min(come_true, MOST_RATIO * confidence)
        ledger.observe(answer(matched, round(realised), exact=False, confidence=confidence), 0.0)
    assert ledger.kappa(0.0) * confidence == pytest.approx(min(come_true, MOST_RATIO * confidence), rel=0.02)


def test_kappa_falls_within_two_dozen_answers_when_what_was_held_is_evicted() -> None:
    ledger = Ledger()
    for _ in range(200):
        ledger.observe(answer(1600, 1600, exact=False, confidence=0.8), 0.0)
    assert ledger.kappa(0.0) > 1
    for _ in range(24):
        ledger.observe(answer(1600, 0, exact=False, confidence=0.8), 0.0)
    assert ledger.kappa(0.0) < 0.65


def test_a_first_answer_that_fails_does_not_condemn() -> None:
    ledger = Ledger()
    ledger.observe(answer(1600, 0), 0.0)
    assert 0.8 < ledger.kappa(0.0) < 0.95


@given(st.lists(answers, min_size=1, max_size=80), st.floats(0, 1e5), st.floats(0, 1e5))
def test_silence_moves_kappa_towards_one_and_never_past_it(seen: list[Answer], first_s: float, more_s: float) -> None:
    ledger = Ledger()
    for one in seen:
        ledger.observe(one, 0.0)
    now, later, much_later = ledger.kappa(0.0), ledger.kappa(SILENCE_S + first_s), ledger.kappa(SILENCE_S + first_s + more_s)
    assert abs(much_later - 1) <= abs(later - 1) <= abs(now - 1) + 1e-12
    assert (now - 1) * (later - 1) >= 0


def test_after_a_half_life_of_silence_half_of_the_doubt_is_left() -> None:
    ledger = Ledger()
    for _ in range(100):
        ledger.observe(answer(1600, 0), 0.0)
    doubt = 1 - ledger.kappa(0.0)
    assert doubt > 0.9
    assert 1 - ledger.kappa(SILENCE_S) == doubt
    assert 1 - ledger.kappa(SILENCE_S + HALF_LIFE_S) == pytest.approx(doubt / 2)


def test_the_window_forgets_the_oldest_answers() -> None:
    ledger = Ledger()
    for number in range(WINDOW + 10):
        ledger.observe(answer(1600, 0 if number < 10 else 1600), 0.0)
    assert len(ledger.errors_tokens()) == WINDOW
    assert ledger.share_exact() == 1.0


def test_what_was_not_predicted_says_nothing_of_kappa() -> None:
    ledger = Ledger()
    for _ in range(50):
        ledger.observe(answer(0, 3200), 0.0)
    assert ledger.kappa(0.0) == 1.0
    assert ledger.share_exact() == 0.0


# -- verdicts ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(answers, st.floats(0, 500)), max_size=300))
def test_verdicts_move_one_step_at_a_time_and_only_on_new_answers(seen: list[tuple[Answer, float]]) -> None:
    account, now_s, since = Trust(), 0.0, 0
    for one, wait_s in seen:
        now_s += wait_s
        before = account.verdict
        retried = account.retry(now_s)
        if retried is not None:
            assert before in ("demote", "flag")
            assert account.verdict == "relearn"
            since, before = 0, "relearn"
        since += one.exact
        change = account.observe(one, now_s)
        if change is None:
            assert account.verdict == before
            continue
        assert one.exact
        assert change.before == before
        assert account.verdict == change.after in NEXT[before]
        assert since >= DWELL
        assert (account.cause is None) == (account.verdict == "fine")
        since = 0


@given(st.lists(st.integers(0, 300).map(lambda blocks: blocks * BLOCK), max_size=200), st.lists(answers, max_size=100), st.randoms())
def test_events_that_come_true_are_never_doubted_whatever_history_does(true: list[int], other: list[Answer], draw: random.Random) -> None:
    seen = [answer(one, one) for one in true] + [one for one in other if not one.exact]
    draw.shuffle(seen)
    account = Trust()
    assert [account.observe(one, 0.0) for one in seen if one] == [None] * len(seen)
    assert account.believes_events()


def wrong(number: int, **more: Any) -> Answer:
    """A prediction from events of which nothing came true, for no reason that shows."""
    return answer(1600 + (number % 7) * BLOCK, 0, **more)


def changes(account: Trust, seen: Iterator[Answer], count: int, now_s: float = 0.0) -> list[Change]:
    return [change for _ in range(count) if (change := account.observe(next(seen), now_s)) is not None]


def always(make: object, **more: object) -> Iterator[Answer]:
    number = 0
    while True:
        number += 1
        yield make(number, **more)  # type: ignore[operator]


def test_from_doubt_to_demotion_and_back() -> None:
    account = Trust()
    bad = always(wrong)
    assert [(one.before, one.after) for one in changes(account, bad, 2 * DWELL)] == [("fine", "relearn"), ("relearn", "demote")]
    assert account.cause == "unknown"
    assert not account.believes_events()
    assert account.retry(RETRY_S - 1) is None
    assert account.retry(RETRY_S) == Change("demote", "relearn", "unknown")
    good = always(lambda number: answer(number * BLOCK, number * BLOCK))
    assert [one.after for one in changes(account, good, DWELL, RETRY_S)] == ["fine"]
    assert account.failures == 0


def test_relearning_in_vain_calls_for_somebody_and_is_tried_ever_more_seldom() -> None:
    account = Trust()
    bad = always(wrong)
    now_s, waits, verdicts = 0.0, [], []
    changes(account, bad, DWELL, now_s)
    for _ in range(MAX_FAILURES + 3):
        verdicts += [one.after for one in changes(account, bad, DWELL, now_s)]
        wait_s = 0.0
        while account.retry(now_s + wait_s) is None:
            wait_s += 10.0
        now_s += wait_s
        waits.append(wait_s)
    assert verdicts[: MAX_FAILURES - 1] == ["demote"] * (MAX_FAILURES - 1)
    assert set(verdicts[MAX_FAILURES - 1 :]) == {"flag"}
    assert all(after >= before for before, after in pairwise(waits))
    assert waits[0] >= RETRY_S
    assert waits[-1] == pytest.approx(MAX_RETRY_S, abs=10)


def test_predictions_that_fail_no_worse_than_historys_are_left_to_kappa() -> None:
    """Blocks that are evicted while requests wait: the events said the truth, and history knew no better."""
    account = Trust()
    assert changes(account, always(lambda number: wrong(number, history_tokens=1580)), 4 * DWELL) == []
    assert account.events.kappa(0.0) < 0.3
    worse = always(lambda number: wrong(number, history_tokens=400))
    assert [one.after for one in changes(account, worse, 2 * DWELL)] == ["relearn", "demote"]


def test_what_no_relearning_repairs_calls_for_somebody_at_the_second_failure() -> None:
    account = Trust()
    bad = always(lambda number: wrong(number, counted_tokens=3993))
    assert [one.after for one in changes(account, bad, 2 * DWELL)] == ["relearn", "demote"]
    assert account.retry(RETRY_S) is not None
    assert [(one.after, one.cause) for one in changes(account, bad, DWELL)] == [("flag", "template_mismatch")]


def test_where_nothing_was_promised_and_nothing_found_nothing_is_learned() -> None:
    account = Trust()
    changes(account, always(lambda _: answer(0, 0)), 100)
    assert account.events.answers == 0
    assert [one.after for one in changes(account, always(wrong), DWELL)] == ["relearn"]


def test_between_good_and_bad_nothing_moves() -> None:
    """A share exact between the two thresholds neither begins a doubt nor ends one."""
    account = Trust()
    mixed = always(lambda number: answer(1600, 1600 if number % 8 < 5 else 1600 - 2 * BLOCK))
    assert changes(account, mixed, 10 * DWELL) == []
    bad = always(wrong)
    while account.verdict == "fine":
        account.observe(next(bad), 0.0)
    assert changes(account, mixed, 10 * DWELL) == []
    assert account.verdict == "relearn"
    assert not account.relearns()


# -- causes ------------------------------------------------------------------------------------------------------------


def named(make: object, **more: object) -> str | None:
    """The cause that an account names after its first step."""
    account = Trust()
    changes(account, always(make, **more), WINDOW)
    return account.cause


def test_prompts_of_another_length_speak_of_the_template() -> None:
    assert named(lambda number: wrong(number, counted_tokens=3993)) == "template_mismatch"


def test_a_few_odd_lengths_do_not() -> None:
    assert named(lambda number: wrong(number, counted_tokens=3993 if number % 4 == 0 else 4000)) == "unknown"


def test_hits_in_multiples_of_another_size_speak_of_the_block_size() -> None:
    assert named(lambda number: answer(number * 96 + BLOCK, number * 96)) == "block_size"


def test_hits_that_are_no_multiples_at_all_speak_of_the_block_size_too() -> None:
    assert named(lambda number: answer(number * 96, number * 96 - 40 - number % 3)) == "block_size"


def test_one_prompt_repeated_says_nothing_of_the_block_size() -> None:
    assert named(lambda _: answer(1600, 960)) == "unknown"


def test_counted_gaps_speak_of_lost_events() -> None:
    assert named(lambda number: wrong(number, gaps=number)) == "events_lost"


def test_gaps_of_long_ago_do_not() -> None:
    assert named(lambda number: wrong(number, gaps=5)) == "unknown"


@pytest.mark.parametrize("measure", ["age_s", "pressure"])
def test_a_shortfall_that_grows_with_age_or_pressure_speaks_of_eviction(measure: str) -> None:
    def make(number: int) -> Answer:
        low = number % 2 == 0
        blocks = 100 + number % 5
        return answer(blocks * BLOCK, blocks * BLOCK - 2 * BLOCK if low else 3 * BLOCK, **dict[str, Any]({measure: 0.1 if low else 2.0}))

    assert named(make) == "eviction_faster_than_events"


@pytest.mark.parametrize(
    ("pressure", "history", "cause"),
    [(1.0, 256, "eviction_faster_than_events"), (0.5, 256, "unknown"), (1.0, 1024, "unknown"), (1.0, None, "unknown")],
)
def test_prompts_that_a_full_cache_has_pushed_out_of_history_too_speak_of_eviction(pressure: float, history: int | None, cause: str) -> None:
    """Under load a cache is full at every answer and events have no age, so neither grows. Where events are wrong, history disappoints too."""
    account = Trust()
    for number in range(4 * WINDOW):
        account.events.observe(answer(1600, 1584 if number % 3 == 0 else 272, history_tokens=history, pressure=pressure), 0.0)
    assert name_cause(account.events, block_tokens=BLOCK, gaps=0) == cause


def test_a_shortfall_whatever_the_age_does_not() -> None:
    assert named(lambda number: wrong(number, age_s=float(number % 9))) == "unknown"


def test_shortfalls_that_vary_at_one_age_do_not() -> None:
    assert named(lambda number: answer(1600 + number % 7 * BLOCK, 1568 if number % 3 == 0 else 0)) == "unknown"


# -- several tenants ---------------------------------------------------------------------------------------------------


def judged(verdict: Verdict, count: int = 40) -> Trust:
    account = Trust()
    for _ in range(count):
        account.events.observe(answer(1600, 1600), 0.0)
    account.verdict, account.cause = verdict, None if verdict == "fine" else "unknown"
    return account


def test_one_tenant_does_not_decide_for_a_target_that_others_use() -> None:
    assert common_verdict([judged("demote")]) == ("demote", "unknown")
    assert common_verdict([judged("demote"), judged("fine")]) == ("fine", None)
    assert common_verdict([judged("demote"), judged("flag"), judged("fine")]) == ("demote", "unknown")
    assert common_verdict([judged("demote"), judged("fine", count=3)]) == ("demote", "unknown")


def test_the_summary_says_what_was_seen() -> None:
    nothing = summary([], 0.0)
    assert (nothing.kappa, nothing.share_exact, nothing.median_error_tokens, nothing.verdict) == (1.0, None, None, "fine")
    account = Trust()
    for number in range(10):
        account.observe(answer(1600, 1600 if number < 6 else 1520), 0.0)
    seen = summary([account], 0.0)
    assert (seen.answers, seen.share_exact, seen.median_error_tokens) == (10, 0.6, 0.0)
    assert 0.95 < seen.kappa < 1.05
