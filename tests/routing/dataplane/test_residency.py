"""The book of residency states: what is told of a change, and what an engine of several ranks is."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.dataplane.residency import MAX_CHANGES, NO_EVENTS, TOLD, Book

A, A1, B = ("http://a:1", 0), ("http://a:1", 1), ("http://b:1", 0)


def test_an_engine_is_as_good_as_its_worst_rank() -> None:
    book = Book()
    assert book.of(A[0]) == NO_EVENTS
    for target in (A, A1):
        book.begin(target, 1.0)
        book.drop(target, "subscribing", now_s=2.0)
    assert book.of(A[0]).state == "exact"
    book.add(A1, "gap", 3.0)
    shown = book.of(A[0])
    assert (shown.state, shown.reason, shown.since_s) == ("degraded", "gap", 3.0)
    assert (book.of(*A).state, book.of(*A1).state, book.of(*B).state) == ("exact", "degraded", "history")
    book.end(A1)
    assert book.of(A[0]).state == "exact"
    book.end(A)
    assert book.of(A[0]) == NO_EVENTS


def test_a_change_of_state_is_logged_counted_and_reported_and_a_change_of_reason_is_not(caplog: pytest.LogCaptureFixture) -> None:
    book = Book()
    with caplog.at_level(logging.INFO, "saltroute.residency"):
        book.begin(A, 1.0)
        book.add(A, "late_join", 2.0)
        book.drop(A, "subscribing", now_s=3.0)
        book.drop(A, "late_join", now_s=4.0)
        book.restarted(A, 5.0)
    told = [(one["before"], one["after"], one["reason"]) for one in book.report()]
    assert told == [("history", "warming", "subscribing"), ("warming", "exact", "ok"), ("exact", "warming", "restart")]
    assert dict(book.counts) == {("history", "warming"): 1, ("warming", "exact"): 1, ("exact", "warming"): 1}
    assert [record.getMessage().split("; ")[1] for record in caplog.records] == ["reason: subscribing", "reason: ok", "reason: restart"]


def test_an_engine_that_changes_all_the_time_fills_neither_log_nor_report(caplog: pytest.LogCaptureFixture) -> None:
    """It could restart in every message. All is counted, and another engine's changes are told as before."""
    book = Book()
    with caplog.at_level(logging.INFO, "saltroute.residency"):
        book.begin(A, 1.0)
        for _ in range(500):
            book.drop(A, "subscribing", "restart", now_s=2.0)
            book.restarted(A, 3.0)
        book.begin(B, 4.0)
    assert len(book.report()) == TOLD + 1
    assert book.report()[-1]["replica"] == B[0]
    assert len(caplog.records) == TOLD + 2
    assert caplog.records[-2].levelno == logging.WARNING
    assert sum(book.counts.values()) == 1002 == TOLD + 1 + book.untold
    assert book.of(*A).state == "warming"


def test_when_a_state_began_is_told_in_unix_seconds_and_stays_until_it_changes() -> None:
    """That of the worst rank, as in the log of changes; another reason for the same state is no beginning."""
    book = Book()
    assert book.since_at(A[0]) is None
    for target in (A, A1):
        book.begin(target, 1.0)
        book.drop(target, "subscribing", now_s=2.0)
    book.add(A1, "gap", 3.0)
    began_at = book.changes[-1].at
    book.add(A1, "replay", 4.0)
    book.drop(A1, "gap", now_s=5.0)
    assert book.of(A[0]).reason == "replay"
    assert book.since_at(A[0]) == began_at == book.since[A1]
    assert book.since[A] == book.changes[1].at < began_at
    book.end(A1)
    assert book.since_at(A[0]) == book.since[A]
    book.end(A)
    assert book.since_at(A[0]) is None
    assert book.since == {}


STEPS = ("begin", "end", "gap", "no gap", "restarted", "subscribed", "no tokens", "parity", "tokens")


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from([A, A1, B])), max_size=20))
def test_what_was_said_of_an_engine_once_is_said_until_it_changes_and_no_longer(steps: list[tuple[str, tuple[str, int]]]) -> None:
    """After any history the book says what one says that was never asked before."""
    book = Book()
    for number, (step, target) in enumerate(steps):
        now_s = float(number)
        match step:
            case "begin":
                book.begin(target, now_s)
            case "end":
                book.end(target)
            case "gap":
                book.add(target, "gap", now_s)
            case "no gap":
                book.drop(target, "gap", now_s=now_s)
            case "restarted":
                book.restarted(target, now_s)
            case "no tokens":
                book.set_lacking({target[0]: "no_tokens"}, now_s)
            case "parity":
                book.set_lacking({target[0]: "parity"}, now_s)
            case "tokens":
                book.set_lacking({}, now_s)
            case _:
                book.drop(target, "subscribing", now_s=now_s)
        for url in (A[0], B[0]):
            assert book.of(url) == Book(ranks=book.ranks).of(url)
            assert book.told(url) == Book(ranks=book.ranks).told(url)
            lack, there = book.lacking.get(url), url in book.ranks
            assert (book.told(url).state, book.told(url).reason) == (
                ("history", lack) if lack and there else (book.of(url).state, book.of(url).reason)
            )
            assert book.of(url).targets == tuple((url, rank) for rank in book.ranks.get(url, ()))


def test_where_no_prompts_tokens_are_known_that_is_told_and_events_are_held_apart_from_it() -> None:
    """Of every rank, of one that is followed later too, and told as one change; an engine without events has none, which is graver."""
    book = Book()
    book.set_lacking({A[0]: "no_tokens", B[0]: "parity"}, 1.0)
    for target in (A, A1):
        book.begin(target, 1.0)
        book.drop(target, "subscribing", now_s=2.0)
    assert (book.told(A[0]).reason, book.told(A[0], 1).reason, book.of(A[0]).state, book.of(A[0], 1).state) == (
        "no_tokens",
        "no_tokens",
        "exact",
        "exact",
    )
    assert book.told(B[0]) == NO_EVENTS
    assert (book.report(), book.since_at(A[0]) is None) == ([], False)
    book.set_lacking({A[0]: "parity"}, 3.0)
    assert (book.told(A[0]).state, book.told(A[0]).reason, book.report()) == ("history", "parity", [])
    book.add(A1, "no_events", 4.0)
    book.add(A, "no_events", 4.0)
    assert (book.told(A[0]).reason, book.of(A[0]).reason) == ("no_events", "no_events")
    book.drop(A, "no_events", now_s=5.0)
    book.set_lacking({}, 6.0)
    assert (book.told(A[0], 0).state, book.told(A[0]).reason) == ("exact", "no_events")
    assert [(one["rank"], one["after"], one["reason"]) for one in book.report()] == [(0, "exact", "ok")]


def test_a_target_that_is_not_read_has_no_conditions() -> None:
    book = Book()
    book.add(A, "gap", 1.0)
    book.drop(A, "gap", now_s=1.0)
    book.restarted(A, 1.0)
    assert book.of(A[0]) == NO_EVENTS
    assert not book.overdue(A, 1e9)
    assert not book.report()


def test_a_long_silence_is_overdue_and_a_lost_gap_is_not() -> None:
    """What a gap made doubtful was forgotten when it was lost."""
    book = Book()
    book.begin(A, 0.0)
    book.add(A, "gap", 0.0)
    book.add(A, "stale", 10.0)
    assert not book.overdue(A, 39.0)
    assert book.overdue(A, 40.0)


def test_the_list_of_changes_is_bounded_and_keeps_the_newest() -> None:
    book = Book()
    for number in range(MAX_CHANGES):
        book.begin((A[0], number), 0.0)
    book.add(A, "stale", 1.0)
    book.begin(B, 1.0)
    book.drop(B, "subscribing", now_s=2.0)
    book.add(B, "stale", 3.0)
    assert len(book.report()) == MAX_CHANGES
    assert book.report()[-1]["reason"] == "stale"
    assert sum(book.counts.values()) > MAX_CHANGES
