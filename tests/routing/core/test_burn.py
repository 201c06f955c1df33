"""Burn rates and the rules over two windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.burn import MIN_MISSES, RULES, Counts, fires, rate, threshold

FAST, SLOW = RULES
NOTHING = Counts()


def test_the_rate_is_the_share_of_misses_over_what_is_allowed() -> None:
    assert rate(Counts(100, 5), 0.95) == pytest.approx(1.0)
    assert rate(Counts(100, 100), 0.99) == pytest.approx(100.0)
    assert rate(NOTHING, 0.95) is None


def test_both_windows_must_burn_to_fire() -> None:
    hot, cold = Counts(100, 90), Counts(100, 1)
    assert fires(FAST, {3600: hot, 300: hot}, 0.95, held=False)
    assert not fires(FAST, {3600: hot, 300: cold}, 0.95, held=False)
    assert not fires(FAST, {3600: cold, 300: hot}, 0.95, held=False)
    assert not fires(FAST, {3600: hot, 300: NOTHING}, 0.95, held=False)


def test_few_misses_are_no_incident() -> None:
    few, enough = Counts(MIN_MISSES - 1, MIN_MISSES - 1), Counts(MIN_MISSES, MIN_MISSES)
    assert not fires(FAST, {3600: few, 300: few}, 0.99, held=False)
    assert fires(FAST, {3600: enough, 300: enough}, 0.99, held=False)


def test_between_half_and_the_whole_limit_it_neither_begins_nor_ends() -> None:
    hot, warm, cold = Counts(100, 90), Counts(100, 50), Counts(100, 30)  # burns of 18, 10 and 6; the limit is 14.4
    assert not fires(FAST, {3600: hot, 300: warm}, 0.95, held=False)
    assert fires(FAST, {3600: hot, 300: warm}, 0.95, held=True)
    assert not fires(FAST, {3600: hot, 300: cold}, 0.95, held=True)


@given(st.sampled_from(RULES), st.floats(0.01, 0.9999))
def test_where_everything_misses_every_rule_fires(rule: object, share: float) -> None:
    """However loose the objective: at 50 % the burn rate ends at 2, below the rules' own limits."""
    assert rule in RULES
    one = FAST if rule is FAST else SLOW
    everything = Counts(1000, 1000)
    assert fires(one, {one.long_s: everything, one.short_s: everything}, share, held=False)
    assert threshold(one, share) <= one.threshold


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.floats(0.5, 0.999))
def test_more_misses_never_end_an_alert(total: int, some: int, more: int, share: float) -> None:
    some, more = sorted((min(some, total), min(more, total)))
    fewer, worse = Counts(total, some), Counts(total, more)
    for held in (False, True):
        if fires(SLOW, {21_600: fewer, 3600: fewer}, share, held=held):
            assert fires(SLOW, {21_600: worse, 3600: worse}, share, held=held)
