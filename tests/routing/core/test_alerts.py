"""From one look to the next: alerts begin, go on, are calm, and are over."""

from __future__ import annotations

from routing.core.alerts import KINDS, Cause, Change, Held, settle

KEY = ("slo_burn", "endpoint", "1", "ttft_p95 fast")
CAUSE = Cause(KEY, "critical", "chat", "It burns.")
CALM_S = KINDS["slo_burn"].calm_s


def test_a_cause_fires_once() -> None:
    assert settle({}, {KEY: CAUSE}, 0.0) == (Change(KEY, "fire", CAUSE),)
    assert settle({KEY: Held()}, {KEY: CAUSE}, 0.0) == (Change(KEY, "keep", CAUSE),)


def test_it_is_over_when_the_cause_has_been_away_long_enough() -> None:
    assert settle({KEY: Held()}, {}, 100.0) == (Change(KEY, "calm"),)
    assert settle({KEY: Held(100.0)}, {}, 99.0 + CALM_S) == (Change(KEY, "calm"),)
    assert settle({KEY: Held(100.0)}, {}, 100.0 + CALM_S) == (Change(KEY, "resolve"),)


def test_a_cause_that_comes_back_meanwhile_keeps_it() -> None:
    assert settle({KEY: Held(100.0)}, {KEY: CAUSE}, 100.0 + CALM_S) == (Change(KEY, "keep", CAUSE),)


def test_kinds_without_a_calm_time_and_unknown_ones_are_over_at_once() -> None:
    for kind in ("replica_quarantined", "of another release"):
        key = (kind, "replica", "1", "")
        assert settle({key: Held()}, {}, 5.0) == (Change(key, "resolve"),)


def test_an_empty_world_changes_nothing() -> None:
    assert settle({}, {}, 0.0) == ()
