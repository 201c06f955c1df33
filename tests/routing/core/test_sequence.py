"""Numbered batches put in order, against a publisher that drops, restarts and replays what its buffer still has."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core import sequence
from routing.core.sequence import Action, Apply, AskReplay, CaughtUp, Gap, Restarted, Tracker


def _applied(actions: list[Action[str]]) -> list[int]:
    return [action.seq for action in actions if isinstance(action, Apply)]


def _tracker(**options: object) -> Tracker[str]:
    return Tracker(**options)  # type: ignore[arg-type]


def test_in_order_from_the_start() -> None:
    tracker = _tracker()
    assert tracker.live(0, "a", 0.0) == [Apply(0, "a", 0), CaughtUp(0)]
    assert tracker.live(1, "b", 0.0) == [Apply(1, "b", 0)]


def test_a_late_subscriber_asks_for_what_was_before() -> None:
    tracker = _tracker(generation=7)
    assert tracker.live(62, "live", 0.0) == [AskReplay(0, 1)]
    assert tracker.live(63, "more", 0.0) == []
    assert tracker.held == 2
    for seq in range(63):  # the replay overlaps the live ones
        assert tracker.replayed(1, seq, f"old{seq}", 0.0) == [Apply(seq, f"old{seq}", 7)]
    assert tracker.replay_end(1, 0.0) == [Apply(63, "more", 7), CaughtUp(63)]
    assert tracker.duplicates == 1
    assert tracker.live(64, "c", 0.0) == [Apply(64, "c", 7)]


def test_a_subscriber_of_a_silent_source_asks_at_once_and_learns_that_there_is_nothing() -> None:
    tracker = _tracker()
    assert tracker.subscribed(0.0) == [AskReplay(0, 1)]
    assert tracker.subscribed(0.0) == []
    assert tracker.replay_end(1, 0.0) == [CaughtUp(-1)]
    assert tracker.live(0, "a", 0.0) == [Apply(0, "a", 0)]
    assert tracker.subscribed(0.0) == []


def test_a_gap_is_filled_by_a_replay_and_live_ones_wait() -> None:
    tracker = _tracker()
    tracker.live(0, "a", 0.0)
    assert tracker.live(3, "d", 0.0) == [AskReplay(0, 1)]  # from the last one that was applied
    assert _applied([action for seq in range(3) for action in tracker.replayed(1, seq, "abc"[seq], 0.0)]) == [1, 2]
    assert tracker.replay_end(1, 0.0) == [Apply(3, "d", 0), CaughtUp(3)]


def test_an_answer_that_begins_later_than_asked_is_a_gap() -> None:
    """The buffer was shorter than the past, and no error tells."""
    tracker = _tracker()
    tracker.live(2105, "x", 0.0)
    assert tracker.replayed(1, 2005, "y", 0.0) == [Gap(0, 2004, "truncated"), Apply(2005, "y", 0)]


def test_a_hole_inside_an_answer_is_asked_for_again_and_lost_after_a_few_times() -> None:
    tracker = _tracker()
    tracker.live(9, "x", 0.0)
    tracker.replayed(1, 0, "a", 0.0)
    assert tracker.replayed(1, 5, "f", 0.0) == [AskReplay(0, 2)]
    assert tracker.replayed(1, 6, "g", 0.0) == []  # of the request that is over
    assert tracker.strays == 1
    assert _applied([*tracker.replayed(2, 0, "a", 0.0), *tracker.replayed(2, 1, "b", 0.0)]) == [1]
    assert tracker.replayed(2, 5, "f", 0.0) == [AskReplay(1, 3)]
    assert _applied([*tracker.replayed(3, 1, "b", 0.0), *tracker.replayed(3, 2, "c", 0.0)]) == [2]
    assert tracker.replayed(3, 5, "f", 0.0) == [Gap(3, 4, "replay_lost"), Apply(5, "f", 0)]


def test_a_replay_without_its_end_has_a_deadline() -> None:
    tracker = _tracker(deadline_s=5.0)
    tracker.live(4, "x", 0.0)
    tracker.replayed(1, 0, "a", 4.0)
    assert tracker.tick(8.9) == []  # it moved at 4
    assert tracker.tick(9.0) == [AskReplay(0, 2)]
    assert tracker.tick(14.0) == [AskReplay(0, 3)]
    assert tracker.tick(19.0) == [Gap(1, 3, "replay_lost"), Apply(4, "x", 0), CaughtUp(4)]
    assert tracker.tick(99.0) == []
    assert tracker.live(5, "y", 99.0) == [Apply(5, "y", 0)]
    assert tracker.live(7, "z", 99.0) == [AskReplay(5, 5)]  # a later gap has its own tries


def test_nobody_answers_and_nothing_is_known() -> None:
    tracker = _tracker(deadline_s=1.0)
    tracker.subscribed(0.0)
    tracker.tick(1.0)
    tracker.tick(2.0)
    assert tracker.tick(3.0) == [Gap(0, None, "replay_lost"), CaughtUp(-1)]


def test_a_request_that_fails_is_made_again() -> None:
    tracker = _tracker()
    tracker.subscribed(0.0)
    assert tracker.replay_failed(1, 0.0) == [AskReplay(0, 2)]
    assert tracker.replay_failed(1, 0.0) == []


def test_live_ones_lost_during_a_replay_are_asked_for_when_it_ends() -> None:
    tracker = _tracker()
    tracker.live(0, "a", 0.0)
    tracker.live(2, "c", 0.0)
    tracker.live(5, "f", 0.0)
    tracker.replayed(1, 0, "a", 0.0)
    tracker.replayed(1, 1, "b", 0.0)
    assert tracker.replay_end(1, 0.0) == [Apply(2, "c", 0), AskReplay(2, 2)]
    tracker.replayed(2, 2, "c", 0.0)
    tracker.replayed(2, 3, "d", 0.0)
    tracker.replayed(2, 4, "e", 0.0)
    assert tracker.replay_end(2, 0.0) == [Apply(5, "f", 0), CaughtUp(5)]


def test_without_a_replay_socket_a_gap_is_lost_at_once() -> None:
    tracker = _tracker(can_replay=False)
    assert tracker.subscribed(0.0) == []
    assert tracker.live(2, "c", 0.0) == [Gap(0, 1, "no_replay"), Apply(2, "c", 0), CaughtUp(2)]
    assert tracker.live(4, "e", 0.0) == [Gap(3, 3, "no_replay"), Apply(4, "e", 0)]


def test_numbers_that_go_back_are_a_restart() -> None:
    tracker = _tracker(generation=3)
    tracker.live(0, "a", 0.0)
    tracker.live(1, "b", 0.0)
    assert tracker.live(0, "new", 0.0) == [Restarted(4, "sequence"), Apply(0, "new", 4), CaughtUp(0)]
    tracker.live(1, "b", 0.0)
    assert tracker.live(1, "again", 0.0) == [Restarted(5, "sequence"), AskReplay(0, 3)]


def test_a_replay_that_ran_ahead_of_the_live_socket_is_no_restart() -> None:
    tracker = _tracker()
    tracker.subscribed(0.0)
    for seq in range(4):
        tracker.replayed(1, seq, "r", 0.0)
    tracker.replay_end(1, 0.0)
    assert tracker.live(2, "late", 0.0) == []  # published before the replay, read after it
    assert tracker.live(4, "e", 0.0) == [Apply(4, "e", 0)]
    assert tracker.duplicates == 1


def test_a_new_start_time_is_a_restart_even_if_numbers_go_on() -> None:
    tracker = _tracker()
    assert tracker.started(1000.0, 0.0) == []
    tracker.live(0, "a", 0.0)
    assert tracker.started(1000.4, 1.0) == []
    assert tracker.started(1060.0, 2.0) == [Restarted(1, "start_time"), AskReplay(0, 2)]
    assert tracker.live(1, "new process", 3.0) == []
    tracker.replayed(2, 0, "n", 3.0)
    assert tracker.replay_end(2, 3.0) == [Apply(1, "new process", 1), CaughtUp(1)]


@pytest.mark.parametrize(("later_s", "again"), [(10.0, False), (61.0, True)])
def test_both_signs_of_one_restart_count_once(later_s: float, again: bool) -> None:
    tracker = _tracker()
    tracker.started(1000.0, 0.0)
    tracker.live(0, "a", 0.0)
    tracker.live(0, "new", 1.0)
    assert bool(tracker.started(1060.0, 1.0 + later_s)) == again
    assert tracker.generation == (2 if again else 1)


def test_the_next_start_time_after_a_lost_connection_is_another_restart() -> None:
    """A crash loop: numbers showed the second process, whose start time nobody read; the third one's is no word on it."""
    tracker = _tracker(can_replay=False)
    tracker.started(1000.0, 0.0)
    for seq in range(3):
        tracker.live(seq, "first", 1.0)
    tracker.disconnected(2.0)
    tracker.subscribed(2.1)
    assert tracker.live(0, "second", 2.2)[0] == Restarted(1, "sequence")
    tracker.disconnected(3.0)
    assert tracker.started(1020.0, 4.0) == [Restarted(2, "start_time")]


def _away(tracker: Tracker[str], away_s: float = 1.0) -> list[Action[str]]:
    """Three batches, then a connection that is lost and made again."""
    for seq in range(3):
        tracker.live(seq, f"old{seq}", 0.0)
    tracker.disconnected(10.0)
    tracker.disconnected(10.0 + away_s)  # each attempt to connect says so
    return tracker.subscribed(10.0 + away_s)


def test_a_replay_after_a_lost_connection_begins_with_the_last_batch_applied_and_goes_on() -> None:
    tracker = _tracker()
    assert _away(tracker) == [AskReplay(2, 3)]
    assert tracker.replayed(3, 2, "old2", 11.0) == []
    assert tracker.replayed(3, 3, "missed", 11.0) == [Apply(3, "missed", 0)]
    assert tracker.replay_end(3, 11.0) == [CaughtUp(3)]
    assert tracker.generation == 0


@pytest.mark.parametrize("answer", [[], [(2, "new2"), (3, "new3")], [(3, "old2")]], ids=["said less", "said more", "does not keep it"])
def test_who_does_not_answer_with_the_last_batch_applied_is_another_process(answer: list[tuple[int, str]]) -> None:
    """No number went back, and no start time is known: what the old one said counts no longer, and all that the new one keeps is asked for."""
    tracker = _tracker()
    _away(tracker)
    actions = [action for seq, batch in answer[:1] for action in tracker.replayed(3, seq, batch, 11.0)] or tracker.replay_end(3, 11.0)
    assert actions == [Restarted(1, "replay"), AskReplay(0, 5)]
    assert tracker.replayed(3, 3, "new3", 11.0) == tracker.replay_end(3, 11.0) == []  # of the request that is over
    for seq in range(4):
        assert tracker.replayed(5, seq, f"new{seq}", 11.0) == [Apply(seq, f"new{seq}", 1)]
    assert tracker.replay_end(5, 11.0) == [CaughtUp(3)]
    tracker.started(2000.0, 12.0)
    assert tracker.started(3000.0, 20.0) == []  # the start time tells of the same restart


def test_a_buffer_that_begins_after_the_last_batch_and_more_is_a_gap_whoever_answers() -> None:
    tracker = _tracker()
    _away(tracker)
    assert tracker.replayed(3, 7, "x", 11.0) == [Gap(3, 6, "truncated"), Apply(7, "x", 0)]
    assert tracker.replay_end(3, 11.0) == [CaughtUp(7)]


def test_numbers_that_go_on_prove_nothing_while_no_replay_comes() -> None:
    """Whoever sends the next number may be another process that has said as much: without an answer all that was known is lost."""
    tracker = _tracker(deadline_s=1.0)
    assert _away(tracker) == [AskReplay(2, 3)]
    assert tracker.live(3, "next", 11.0) == []
    assert [*tracker.tick(12.0), *tracker.tick(13.0)] == [AskReplay(2, 4), AskReplay(2, 5)]
    assert tracker.tick(14.0) == [Gap(3, None, "replay_lost"), Apply(3, "next", 0), CaughtUp(3)]
    assert tracker.live(4, "y", 14.0) == [Apply(4, "y", 0)]


def test_what_a_lost_connection_brought_does_not_wait_for_the_next_ones_replay() -> None:
    """It may be of a process that is gone; if it is not, the replay brings it."""
    tracker = _tracker()
    tracker.live(0, "a", 0.0)
    tracker.live(5, "f", 0.0, cost_bytes=10)
    tracker.disconnected(1.0)
    assert (tracker.held, tracker.held_bytes) == (0, 0)
    assert tracker.subscribed(1.0) == [AskReplay(0, 3)]


@pytest.mark.parametrize(
    ("away_s", "start_s", "kept"),
    [
        pytest.param(sequence.BLIP_S - 0.1, None, True, id="a blip"),
        pytest.param(sequence.BLIP_S, None, False, id="long enough to start anew"),
        pytest.param(60.0, 1000.0, True, id="the process is known to be the same"),
    ],
)
def test_without_a_replay_socket_only_a_blip_or_the_same_start_time_keeps_what_was_known(away_s: float, start_s: float | None, kept: bool) -> None:
    tracker = _tracker(can_replay=False)
    tracker.started(1000.0, 0.0)
    for seq in range(3):
        tracker.live(seq, "old", 0.0)
    tracker.disconnected(10.0)
    tracker.disconnected(10.0 + away_s)
    if start_s is not None:
        tracker.started(start_s, 10.0 + away_s)
    assert tracker.subscribed(10.0 + away_s) == ([] if kept else [Gap(3, None, "no_replay"), CaughtUp(2)])
    assert tracker.live(3, "next", 80.0) == [Apply(3, "next", 0), *([CaughtUp(3)] if kept else [])]


def test_a_start_time_read_before_the_connection_was_made_is_no_word_on_who_is_there_now() -> None:
    tracker = _tracker(can_replay=False)
    tracker.started(1000.0, 0.0)
    tracker.live(0, "old", 0.0)
    tracker.disconnected(10.0)
    tracker.started(1000.0, 20.0)
    tracker.disconnected(70.0)
    assert tracker.subscribed(70.0) == [Gap(1, None, "no_replay"), CaughtUp(0)]


def test_a_source_learned_anew_is_still_known_by_its_start_time() -> None:
    tracker = _tracker()
    tracker.started(1000.0, 0.0)
    tracker.live(0, "a", 0.0)
    tracker.disconnected(1.0)
    tracker.anew()
    assert tracker.subscribed(40.0) == [AskReplay(0, 3)]
    assert tracker.replayed(3, 0, "a", 40.0) == [Apply(0, "a", 1)]
    tracker.replay_end(3, 40.0)
    assert tracker.started(2000.0, 50.0)[0] == Restarted(2, "start_time")


def test_what_an_old_process_still_answers_is_dropped() -> None:
    tracker = _tracker()
    tracker.live(5, "x", 0.0)
    tracker.live(0, "new", 0.0)
    assert tracker.replayed(1, 0, "old", 0.0) == tracker.replay_end(1, 0.0) == []
    assert tracker.generation == 1


@pytest.mark.parametrize(("count", "cost_bytes"), [(sequence.MAX_HELD + 1, 0), (3, sequence.MAX_HELD_BYTES // 2)])
def test_what_waits_is_bounded(count: int, cost_bytes: int) -> None:
    tracker = _tracker()
    actions = [action for seq in range(5, 5 + count) for action in tracker.live(seq, "x", 0.0, cost_bytes=cost_bytes)]
    assert actions[0] == AskReplay(0, 1)
    assert actions[1] == Gap(0, 4, "overflow")
    assert _applied(actions) == list(range(5, 5 + count))
    assert tracker.held == 0


@dataclass
class _Publisher:
    """Numbers messages and keeps the last of them, as vLLM's does."""

    kept: int
    sent: list[int] = field(default_factory=list)
    process: int = 0

    def publish(self) -> tuple[int, str]:
        self.sent.append(len(self.sent))
        return self.sent[-1], f"{self.process}:{self.sent[-1]}"

    def replay(self, first: int) -> list[tuple[int, str]]:
        return [(seq, f"{self.process}:{seq}") for seq in self.sent[-self.kept :] if seq >= first]


class _Source:
    """A tracker, its publisher and the way between them, which loses what the test says; and what the tracker told, by generation."""

    def __init__(self, kept: int) -> None:
        self.publisher = _Publisher(kept)
        self.tracker = _tracker(deadline_s=1.0)
        self.told: list[list[int]] = [[]]
        self.lost: list[int] = []
        self.asked: list[AskReplay] = []
        self.count_for: list[str] = []  # batches by which whoever applies them goes
        self.now_s = 0.0

    def take(self, actions: list[Action[str]]) -> None:
        for action in actions:
            if isinstance(action, Restarted):
                self.told.append([])
                self.count_for.clear()
            elif isinstance(action, Apply):
                self.count_for.append(action.batch)
                assert action.generation == self.tracker.generation
                assert action.batch == f"{self.publisher.process}:{action.seq}"
                self.told[-1].append(action.seq)
            elif isinstance(action, Gap):
                last = action.first - 1 if action.last is None else action.last  # None: the next batch will show how many
                self.told[-1].extend(range(action.first, last + 1))
                self.lost.extend(range(action.first, last + 1))
                if action.first > 0:
                    self.count_for.clear()
            elif isinstance(action, AskReplay):
                self.asked.append(action)
            else:
                assert {batch.split(":")[0] for batch in self.count_for} <= {str(self.publisher.process)}

    def send(self, _number: int) -> None:
        self.take(self.tracker.live(*self.publisher.publish(), self.now_s))

    def drop(self, _number: int) -> None:
        self.publisher.publish()

    def restart(self, _number: int) -> None:
        self.publisher.sent.clear()
        self.publisher.process += 1
        self.take(self.tracker.started(1000.0 + 60 * self.publisher.process, self.now_s))

    def reconnect(self, number: int) -> None:
        """The connection is lost and made again; a few messages are sent in between."""
        self.asked.clear()
        self.tracker.disconnected(self.now_s)
        for _ in range(number):
            self.publisher.publish()
        self.now_s += number
        self.take(self.tracker.subscribed(self.now_s))

    def restart_unseen(self, number: int) -> None:
        """Another process is there when the connection is made again, and nobody reads its start time."""
        self.publisher.sent.clear()
        self.publisher.process += 1
        self.reconnect(number)

    def answer(self, _number: int) -> None:
        self._answer(None, ends=True)

    def lose_answer(self, number: int) -> None:
        self._answer(number, ends=number % 2 == 1)

    def late(self, _number: int) -> None:
        self.now_s += 2.0
        self.take(self.tracker.tick(self.now_s))

    def _answer(self, lost: int | None, *, ends: bool) -> None:
        if not self.asked:
            return
        ask = self.asked.pop()
        answer = self.publisher.replay(ask.first)
        if lost is not None and answer:
            del answer[lost % len(answer)]
        for seq, one in answer:
            self.take(self.tracker.replayed(ask.request, seq, one, self.now_s))
        if ends:
            self.take(self.tracker.replay_end(ask.request, self.now_s))


STEPS = ("send", "send", "send", "drop", "restart", "restart_unseen", "reconnect", "answer", "lose_answer", "late")


@settings(max_examples=200)
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 6)), max_size=40), kept=st.integers(1, 50))
def test_every_batch_is_applied_once_in_order_or_reported(steps: list[tuple[str, int]], kept: int) -> None:
    """Whatever is lost where: within a generation, numbers applied and numbers reported lost are all numbers, in order, each once; and once caught
    up, nothing counts that a process said which is gone."""
    source = _Source(kept)
    source.tracker.started(1000.0, 0.0)
    for step, number in steps:
        source.now_s += 0.1
        getattr(source, step)(number)
        assert all(numbers == list(range(len(numbers))) for numbers in source.told)


@settings(max_examples=100)
@given(steps=st.lists(st.sampled_from(["send", "drop", "answer", "late"]), max_size=40))
def test_nothing_is_lost_while_the_buffer_reaches_back_and_answers_arrive(steps: list[str]) -> None:
    source = _Source(kept=1000)
    for step in steps:
        getattr(source, step)(0)
        if source.asked:
            source.answer(0)
    source.send(0)
    source.answer(0)
    assert source.told == [list(range(len(source.publisher.sent)))]
    assert source.lost == []


def test_a_replay_that_was_cut_goes_on_from_where_it_brought_us() -> None:
    """As long as it brings something; when it does not, it is given up, and none is asked for during a while."""
    tracker = _tracker()
    (asked,) = tracker.subscribed(0.0)
    assert isinstance(asked, AskReplay)
    assert _applied(tracker.replayed(asked.request, 0, "a", 0.0) + tracker.replayed(asked.request, 1, "b", 0.0)) == [0, 1]
    (again,) = tracker.replay_cut(asked.request, 1.0)
    assert isinstance(again, AskReplay)
    assert (again.first, again.request) == (1, asked.request + 1)
    assert tracker.replay_cut(asked.request, 1.0) == []  # that one is over
    assert tracker.replay_cut(again.request, 2.0) == [Gap(2, None, "overflow"), CaughtUp(1)]
    assert not tracker.replaying
    assert tracker.live(5, "f", 2.0 + sequence.REST_S - 1) == [Gap(2, 4, "replay_lost"), Apply(5, "f", 0)]
    (rested,) = tracker.live(9, "j", 2.0 + sequence.REST_S)
    assert rested == AskReplay(5, again.request + 2)


def test_a_replay_is_gone_on_with_a_bounded_number_of_times() -> None:
    tracker = _tracker()
    (asked,) = tracker.subscribed(0.0)
    cuts = 0
    while isinstance(asked, AskReplay):
        for seq in range(asked.first, tracker.next_seq + 1):
            tracker.replayed(asked.request, seq, "x", 0.0)
        asked, *_ = tracker.replay_cut(asked.request, 0.0)
        cuts += 1
    assert cuts == sequence.MAX_CUTS + 1
    assert asked == Gap(sequence.MAX_CUTS + 1, None, "overflow")


@pytest.mark.parametrize("held", [False, True])
def test_what_is_too_much_is_given_up_at_once_and_connecting_again_asks_for_nothing(held: bool) -> None:
    """A source that floods replays is followed live alone for a while, whatever else would make us ask."""
    tracker = _tracker()
    tracker.subscribed(0.0)
    if held:
        tracker.live(7, "h", 0.0, cost_bytes=100)
        assert tracker.held_bytes == 100
    actions = tracker.too_much(1.0)
    assert _applied(actions) == ([7] if held else [])
    assert tracker.held_bytes == 0
    assert tracker.too_much(1.0) == []
    tracker.disconnected(1.0)
    again = tracker.subscribed(2.0)
    assert not any(isinstance(action, AskReplay) for action in again)
    assert isinstance(again[-1], CaughtUp)
    assert tracker.relearn(3.0) == []
    tracker.started(100.0, 3.0)
    assert not any(isinstance(action, AskReplay) for action in tracker.started(200.0, 4.0))
    tracker.disconnected(5.0)
    assert any(isinstance(action, AskReplay) for action in tracker.subscribed(1.0 + sequence.REST_S))
