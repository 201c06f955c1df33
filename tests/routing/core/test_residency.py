"""The history index agrees with a naive list of what was sent, and never knows more than that list."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from routing.core import residency
from routing.core.residency import HistoryIndex

NAMESPACES = (b"n" * 16, b"m" * 16)
REPLICAS = ("r1", "r2")
LONGEST = 4
WORDS = ["".join(letters) for length in range(1, LONGEST + 1) for letters in product("ab", repeat=length)]
words = st.sampled_from(WORDS)
namespaces = st.sampled_from(NAMESPACES)
replicas = st.sampled_from(REPLICAS)


def _chain(word: str) -> tuple[bytes, ...]:
    """One block for each letter; words that begin alike share their first blocks."""
    return tuple(word[: end + 1].encode().ljust(16, b".") for end in range(len(word)))


@dataclass
class Sent:
    """One dispatch, as the naive model remembers it."""

    namespace: bytes
    word: str
    replica: str
    ticket: int
    shown_at_s: float | None = None


class _Machine(RuleBasedStateMachine):
    """Dispatches, settlements, restarts and time, in any order."""

    capacity = 10_000

    def __init__(self) -> None:
        super().__init__()
        self.index = HistoryIndex(capacity_blocks=self.capacity)
        self.sent: list[Sent] = []
        self.in_flight: list[Sent] = []
        self.now_s = 0.0

    @rule(namespace=namespaces, word=words, replica=replicas)
    def dispatch(self, namespace: bytes, word: str, replica: str) -> None:
        one = Sent(namespace, word, replica, self.index.dispatched(namespace, _chain(word), replica))
        self.sent.append(one)
        self.in_flight.append(one)

    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        if self.in_flight:
            one = data.draw(st.sampled_from(self.in_flight))
            self.in_flight.remove(one)
            one.shown_at_s = self.now_s
            self.index.confirmed(one.namespace, _chain(one.word), one.replica, one.ticket, self.now_s)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.in_flight:
            one = data.draw(st.sampled_from(self.in_flight))
            self.in_flight.remove(one)
            self.sent = [each for each in self.sent if each is not one]
            self.index.dropped(one.namespace, _chain(one.word), one.replica, one.ticket)

    @rule(replica=replicas)
    def restart(self, replica: str) -> None:
        self.sent = [each for each in self.sent if each.replica != replica]  # what is in flight stays to be settled, late
        self.index.forget(replica)

    @rule(seconds=st.integers(1, 1000))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds

    def promised(self, namespace: bytes, block: bytes, replica: str) -> list[Sent]:
        """The dispatches that put this block there, by the naive model."""
        return [one for one in self.sent if one.namespace == namespace and one.replica == replica and block in _chain(one.word)]

    def probability(self, namespace: bytes, block: bytes, replica: str) -> float:
        """The most that any dispatch lets one expect."""
        best = 0.0
        for one in self.promised(namespace, block, replica):
            age_s = None if one.shown_at_s is None else self.now_s - one.shown_at_s
            best = max(best, residency.P_PENDING if age_s is None else residency.P_INFERRED * math.exp(-age_s / residency.AGE_CONSTANT_S))
        return best


class AmpleIndex(_Machine):
    """Nothing is evicted: the index and the model agree exactly."""

    @invariant()
    def agrees_with_the_model(self) -> None:
        for namespace, word, replica in product(NAMESPACES, WORDS, REPLICAS):
            if len(word) < LONGEST:
                continue
            held = [self.probability(namespace, block, replica) for block in _chain(word) if self.promised(namespace, block, replica)]
            found = self.index.match(namespace, _chain(word), replica, self.now_s)
            assert found.blocks == len(held)
            assert found.blocks * found.confidence == pytest.approx(sum(held))

    @invariant()
    def holds_no_more_than_was_promised(self) -> None:
        for replica, (size, evicted) in self.index.sizes().items():
            blocks = {(one.namespace, block) for one in self.sent if one.replica == replica for block in _chain(one.word)}
            assert size == len(blocks)
            assert evicted == 0


class TightIndex(_Machine):
    """Evictions at every turn: bounded, contiguous, and never more than the model."""

    @initialize(capacities=st.tuples(st.integers(1, 6), st.integers(1, 6)))
    def bound(self, capacities: tuple[int, int]) -> None:
        self.capacities = dict(zip(REPLICAS, capacities, strict=True))
        for replica, capacity in self.capacities.items():
            self.index.set_capacity(replica, capacity)

    @rule(replica=replicas, capacity=st.integers(1, 6))
    def resize(self, replica: str, capacity: int) -> None:
        self.capacities[replica] = capacity
        self.index.set_capacity(replica, capacity)

    @rule(replica=replicas)
    def restart(self, replica: str) -> None:
        super().restart(replica)
        self.index.set_capacity(replica, self.capacities[replica])  # a forgotten replica starts from the default bound

    @invariant()
    def is_bounded(self) -> None:
        for replica, (size, _) in self.index.sizes().items():
            assert size <= self.capacities[replica]

    @invariant()
    def matches_are_contiguous_and_were_promised(self) -> None:
        for namespace, word, replica in product(NAMESPACES, WORDS, REPLICAS):
            if len(word) < LONGEST:
                continue
            chain = _chain(word)
            found = self.index.match(namespace, chain, replica, self.now_s)
            assert all(self.promised(namespace, block, replica) for block in chain[: found.blocks])
            for cut in range(LONGEST + 1):
                assert self.index.match(namespace, chain[:cut], replica, self.now_s).blocks == min(cut, found.blocks)
            most = sum(self.probability(namespace, block, replica) for block in chain[: found.blocks])
            assert found.blocks * found.confidence <= most + 1e-9


TestAmpleIndex = AmpleIndex.TestCase
TestTightIndex = TightIndex.TestCase
TestAmpleIndex.settings = TestTightIndex.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@given(st.lists(st.tuples(words, replicas, st.booleans()), max_size=12), words, replicas)
def test_another_namespace_is_never_matched_nor_changes_a_match(sent: list[tuple[str, str, bool]], word: str, replica: str) -> None:
    mine, foreign = NAMESPACES
    index = HistoryIndex()
    index.dispatched(mine, _chain("ab"), replica)
    before = index.match(mine, _chain(word), replica, 1.0)
    for other_word, other_replica, shown in sent:
        ticket = index.dispatched(foreign, _chain(other_word), other_replica)
        if shown:
            index.confirmed(foreign, _chain(other_word), other_replica, ticket, 0.5)
    assert index.match(mine, _chain(word), replica, 1.0) == before
    third = b"3" * 16
    assert index.match(third, _chain(word), replica, 1.0) == residency.NO_MATCH


@given(st.lists(st.tuples(words, st.booleans()), max_size=6), words, words, st.booleans(), st.integers(0, 2000))
def test_sending_or_showing_more_never_lowers_what_is_expected(
    history: list[tuple[str, bool]], more: str, asked: str, shown: bool, later_s: int
) -> None:
    index = HistoryIndex()
    namespace = NAMESPACES[0]
    for word, was_shown in history:
        ticket = index.dispatched(namespace, _chain(word), "r1")
        if was_shown:
            index.confirmed(namespace, _chain(word), "r1", ticket, 0.0)
    before = index.match(namespace, _chain(asked), "r1", later_s)
    ticket = index.dispatched(namespace, _chain(more), "r1")
    if shown:
        index.confirmed(namespace, _chain(more), "r1", ticket, later_s)
    after = index.match(namespace, _chain(asked), "r1", later_s)
    assert after.blocks >= before.blocks
    assert after.blocks * after.confidence >= before.blocks * before.confidence - 1e-9


@given(st.integers(1, 200))
def test_a_conversation_of_many_turns_counts_at_least_its_weakest_block(turns: int) -> None:
    index = HistoryIndex()
    chain = tuple(number.to_bytes(16, "big") for number in range(turns))
    for turn in range(turns):
        ticket = index.dispatched(NAMESPACES[0], chain[: turns - turn], "r1")  # oldest evidence reaches deepest
        index.confirmed(NAMESPACES[0], chain[: turns - turn], "r1", ticket, float(turn))
    found = index.match(NAMESPACES[0], chain, "r1", float(turns))
    weakest = residency.P_INFERRED * math.exp(-turns / residency.AGE_CONSTANT_S)
    assert found.blocks == turns
    assert weakest - 1e-9 <= found.confidence <= residency.P_INFERRED


def test_evidence_is_that_of_the_last_matched_block() -> None:
    index = HistoryIndex()
    namespace, chain = NAMESPACES[0], _chain("abab")
    ticket = index.dispatched(namespace, chain[:2], "r1")
    index.confirmed(namespace, chain[:2], "r1", ticket, 10.0)
    shown = index.match(namespace, chain, "r1", 25.0)
    assert (shown.blocks, shown.source, shown.age_s) == (2, "inferred", 15.0)
    index.dispatched(namespace, chain, "r1")
    assert index.match(namespace, chain, "r1", 25.0).source == "pending"


def test_a_refused_repeat_takes_nothing_away_from_what_was_shown() -> None:
    index = HistoryIndex()
    namespace, chain = NAMESPACES[0], _chain("ab")
    index.confirmed(namespace, chain, "r1", index.dispatched(namespace, chain, "r1"), 0.0)
    index.dropped(namespace, chain, "r1", index.dispatched(namespace, chain, "r1"))
    assert index.match(namespace, chain, "r1", 0.0).confidence == residency.P_INFERRED


def test_a_settlement_that_comes_after_a_restart_leaves_newer_promises_alone() -> None:
    index = HistoryIndex()
    namespace, chain = NAMESPACES[0], _chain("ab")
    before = index.dispatched(namespace, chain, "r1")
    index.forget("r1")
    index.dispatched(namespace, chain, "r1")
    index.dropped(namespace, chain, "r1", before)
    assert index.match(namespace, chain, "r1", 0.0).blocks == 2


def test_a_clock_that_steps_back_makes_nothing_younger_than_now() -> None:
    index = HistoryIndex()
    ticket = index.dispatched(NAMESPACES[0], _chain("a"), "r1")
    index.confirmed(NAMESPACES[0], _chain("a"), "r1", ticket, 100.0)
    found = index.match(NAMESPACES[0], _chain("a"), "r1", 50.0)
    assert (found.age_s, found.confidence) == (0.0, residency.P_INFERRED)
