"""Namespaces beyond as many as an owner may have: what comes back after it was forgotten is known in part, and says so."""

from __future__ import annotations

import pytest

from routing.core import event_index
from routing.core.event_index import EventIndex
from routing.core.kv_events import Cleared, Event
from tests.routing.core.kv_stream import URL, batch, chain, ns_key, salt, seed, stored

HERE, THERE = (URL, 0), (URL, 1)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> EventIndex:
    """An owner ``o`` has two namespaces at most."""
    monkeypatch.setattr(event_index, "MAX_CLAIMS", 2)
    index = EventIndex()
    for target in (HERE, THERE):
        index.set_generation(target, 1, 0.0)
    return index


def _claim(index: EventIndex, *names: str, owner: bytes = b"o") -> None:
    for name in names:
        index.claim(salt(name), ns_key=ns_key(name), owner=owner, seed=seed(name))


def _say(index: EventIndex, *events: Event, groups: int = 1) -> None:
    for target in (HERE, THERE):
        for group in range(groups):
            index.apply(target, batch(*events, stored([900], "z", keys=[salt("Z")], group=group)), 0.0)


def _match(index: EventIndex, name: str, target: tuple[str, int] = HERE) -> tuple[int, bool]:
    found = index.match(ns_key(name), chain(name, "ab"), target, 0.0)
    return found.blocks, found.partial


@pytest.mark.parametrize("groups", [1, 2])
def test_a_namespace_that_comes_back_is_known_in_part_until_its_target_is_empty(index: EventIndex, groups: int) -> None:
    _claim(index, "A")
    _say(index, stored([1, 2], "ab", keys=[salt("A")]), groups=groups)
    assert _match(index, "A")[1] is False
    _claim(index, "B", "C")
    assert index.counters["claims_dropped"] == 1
    assert [_match(index, name) for name in "BC"] == [(0, False), (0, False)]  # nobody had forgotten anything before them
    _claim(index, "A")
    assert _match(index, "A") == (0, True)
    index.apply(HERE, batch(stored([1, 2], "ab", keys=[salt("A")])), 0.0)
    assert _match(index, "A")[1] is True
    index.apply(HERE, batch(Cleared(), stored([1, 2], "ab", keys=[salt("A")])), 0.0)
    assert [_match(index, "A"), _match(index, "A", THERE)] == [(2, False), (0, True)]
    index.set_generation(THERE, 2, 0.0)
    _say(index)
    assert _match(index, "A", THERE) == (0, False)


def test_a_target_that_was_empty_before_the_namespace_came_back_is_known_in_part_too(index: EventIndex) -> None:
    """What it stored in between was parked, or passed over where the pool was full."""
    _claim(index, "A", "B", "C")
    _say(index, Cleared())
    _claim(index, "A")
    assert _match(index, "A") == (0, True)


def test_others_have_nothing_to_do_with_it(index: EventIndex) -> None:
    _claim(index, "A", "B", "C", "A")
    _claim(index, "P", "Q", owner=b"other")
    _say(index, stored([1, 2], "ab", keys=[salt("P")]))
    assert [_match(index, name) for name in "APQN"] == [(0, True), (2, False), (0, False), (0, False)]


def test_what_an_owner_forgot_is_gone_with_it(index: EventIndex) -> None:
    _claim(index, "A", "B", "C", "A")
    _say(index)
    assert _match(index, "A") == (0, True)
    index.forget_owner(b"o")
    _claim(index, "A")
    assert (_match(index, "A"), len(index._contents.by_key)) == ((0, False), 1)


def test_a_thousand_namespaces_that_come_and_go_leave_nothing_behind(index: EventIndex) -> None:
    for number in range(1000):
        _claim(index, f"n{number}")
    contents = index._contents
    assert index.counters["claims_dropped"] == 998
    assert [len(held) for held in (contents.names, contents.by_key, contents.owners[b"o"].salts)] == [2, 2, 2]
