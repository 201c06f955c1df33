"""When a dead child is started again: later each time, and not for ever."""

from __future__ import annotations

from deploy.local.restarts import MOST_DEATHS, MOST_DELAY_S, RECENT_S, Restarts


def test_each_death_waits_longer_until_it_is_hopeless() -> None:
    restarts = Restarts()
    delays = []
    for number in range(MOST_DEATHS):
        delay_s = restarts.died("router", float(number))
        assert delay_s is not None
        assert restarts.waiting("router")
        assert not restarts.due("router", number + delay_s - 0.01)
        assert restarts.due("router", number + delay_s)
        assert not restarts.waiting("router")
        delays.append(delay_s)
    assert delays == sorted(delays)
    assert len(set(delays)) == len(delays)
    assert max(delays) <= MOST_DELAY_S
    assert restarts.died("router", float(MOST_DEATHS)) is None


def test_old_deaths_and_other_children_do_not_count() -> None:
    restarts = Restarts()
    for number in range(MOST_DEATHS):
        restarts.died("router", float(number))
    assert restarts.died("valkey", 1.0) == restarts.died("router", RECENT_S + MOST_DEATHS + 1)
