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


def test_with_a_bound_on_age_only_fresh_answers_and_dispatches_in_flight_count() -> None:
    """An older answer says nothing any more where the engine itself would have told by now."""
    index = HistoryIndex()
    old, longer = _chain("ab"), _chain("abcd")
    index.confirmed(b"n", old, "r", index.dispatched(b"n", old, "r"), 100.0)
    assert index.match(b"n", longer, "r", 102.0, max_age_s=2.0).blocks == 2
    assert index.match(b"n", longer, "r", 102.5, max_age_s=2.0) == residency.NO_MATCH
    assert index.match(b"n", longer, "r", 102.5).blocks == 2
    ticket = index.dispatched(b"n", longer, "r")
    assert index.match(b"n", longer, "r", 200.0, max_age_s=2.0).blocks == 4
    index.confirmed(b"n", longer, "r", ticket, 200.0)
    assert index.match(b"n", longer, "r", 201.0, max_age_s=2.0).blocks == 4


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


@st.composite
def _traffic(draw: st.DrawFn) -> list[tuple[bytes, int, int]]:
    """(owner, which prompt of the owner's, blocks) of dispatches in order."""
    return draw(st.lists(st.tuples(st.sampled_from([b"t1", b"t2", b"t3"]), st.integers(0, 3), st.integers(1, 12)), max_size=30))


def _prompt(which: int, blocks: int) -> list[bytes]:
    return [which.to_bytes(1, "big") + number.to_bytes(15, "big") for number in range(blocks)]


def _held(index: HistoryIndex, owner: bytes) -> int:
    return len(index._replicas["r1"].held(owner)) if "r1" in index._replicas else 0


@given(_traffic(), st.integers(1, 24))
def test_no_owner_is_pushed_below_an_equal_share(traffic: list[tuple[bytes, int, int]], capacity: int) -> None:
    """Whatever the others send: who holds no more than a third keeps all of it."""
    index = HistoryIndex(capacity_blocks=capacity)
    for owner, which, blocks in traffic:
        before = {other: _held(index, other) for other in (b"t1", b"t2", b"t3") if other != owner}
        index.dispatched(owner, _prompt(which, blocks), "r1", owner=owner)
        for other, held in before.items():
            assert _held(index, other) >= min(held, capacity // 3)
        assert sum(_held(index, each) for each in (b"t1", b"t2", b"t3")) == index.sizes()["r1"][0] <= capacity


def test_the_one_over_its_share_pays_and_the_leaves_go_first() -> None:
    index = HistoryIndex(capacity_blocks=20)
    modest, greedy = _prompt(1, 8), _prompt(2, 12)
    index.dispatched(b"m", modest, "r1", owner=b"modest")
    index.dispatched(b"g", greedy, "r1", owner=b"greedy")
    index.dispatched(b"g", _prompt(3, 40), "r1", owner=b"greedy")
    assert index.match(b"m", modest, "r1", 0.0, owner=b"modest").blocks == 8
    assert index.match(b"g", greedy, "r1", 0.0, owner=b"greedy").blocks == 0
    assert index.match(b"g", _prompt(3, 40), "r1", 0.0, owner=b"greedy").blocks == 12


def test_a_newcomer_gets_its_share_from_whoever_holds_most() -> None:
    index = HistoryIndex(capacity_blocks=20)
    for number in range(5):
        index.dispatched(b"g", _prompt(number, 4), "r1", owner=b"greedy")
    index.dispatched(b"n", _prompt(9, 10), "r1", owner=b"new")
    assert (_held(index, b"greedy"), _held(index, b"new")) == (10, 10)


def test_look_ups_are_counted() -> None:
    index = HistoryIndex()
    index.dispatched(b"n" * 16, _chain("ab"), "r1")
    for namespace, replica in ((b"n" * 16, "r1"), (b"m" * 16, "r1"), (b"n" * 16, "r2")):
        index.match(namespace, _chain("ab"), replica, 0.0)
    assert (index.hits, index.misses) == (1, 2)


def test_one_owners_entries_are_not_anothers_even_in_one_namespace() -> None:
    index = HistoryIndex()
    index.dispatched(b"n" * 16, _chain("ab"), "r1", owner=b"t1")
    assert index.match(b"n" * 16, _chain("ab"), "r1", 0.0, owner=b"t2") == residency.NO_MATCH


def test_an_owner_that_is_gone_leaves_nothing_and_takes_nothing_of_others() -> None:
    """Also where one of its dispatches is settled afterwards."""
    index = HistoryIndex()
    ticket = index.dispatched(b"n" * 16, _chain("ab"), "r1", owner=b"t1")
    index.dispatched(b"m" * 16, _chain("abc"), "r1", owner=b"t2")
    index.forget_owner(b"t1")
    index.forget_owner(b"nobody")
    index.confirmed(b"n" * 16, _chain("ab"), "r1", ticket, 0.0, owner=b"t1")
    assert index.match(b"n" * 16, _chain("ab"), "r1", 0.0, owner=b"t1") == residency.NO_MATCH
    assert index.match(b"m" * 16, _chain("abc"), "r1", 0.0, owner=b"t2").blocks == 3
    assert index.sizes() == {"r1": (3, 0)}


class Explaining(RuleBasedStateMachine):
    """What the index says that others' dispatches explain, against the list of all dispatches; ages play no part."""

    def __init__(self) -> None:
        super().__init__()
        self.index = HistoryIndex()
        self.sent: list[tuple[bytes, str, int, str]] = []  # namespace, word, ticket, how it ended

    @rule(namespace=namespaces, word=words, end=st.sampled_from(["in flight", "shown", "dropped", "perhaps"]))
    def dispatch(self, namespace: bytes, word: str, end: str) -> None:
        ticket = self.index.dispatched(namespace, _chain(word), "r1")
        if end == "shown":
            self.index.confirmed(namespace, _chain(word), "r1", ticket, 0.0)
        elif end != "in flight":
            self.index.dropped(namespace, _chain(word), "r1", ticket, certain=end == "dropped")
        self.sent.append((namespace, word, ticket, end))

    @invariant()
    def agrees_with_the_list(self) -> None:
        for namespace, word, ticket, end in self.sent:
            if end == "dropped":
                continue
            gap = any(other == namespace and how == "perhaps" for other, _, _, how in self.sent)
            told = self.index.explained(namespace, _chain(word), "r1", ticket)
            others = [_chain(other) for ns, other, number, how in self.sent if ns == namespace and number != ticket and how in ("in flight", "shown")]
            least = max((sum(mine == theirs for mine, theirs in zip(_chain(word), chain, strict=False)) for chain in others), default=0)
            assert told is None if gap else told is not None and told >= least
            if not gap and all(how != "dropped" for _, _, _, how in self.sent):
                assert told == least


TestExplaining = Explaining.TestCase
TestExplaining.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)


def test_what_was_evicted_leaves_a_gap_until_the_replica_begins_anew() -> None:
    index = HistoryIndex(capacity_blocks=4)
    index.dispatched(b"n" * 16, _prompt(1, 4), "r1")
    index.dispatched(b"m" * 16, _prompt(1, 2), "r1")
    ticket = index.dispatched(b"k" * 16, _prompt(1, 1), "r1")
    assert index.explained(b"n" * 16, _prompt(1, 4), "r1", 1) is None
    assert index.explained(b"k" * 16, _prompt(1, 1), "r1", ticket) == 0
    index.forget("r1")
    ticket = index.dispatched(b"n" * 16, _prompt(1, 2), "r1")
    assert index.explained(b"n" * 16, _prompt(1, 2), "r1", ticket) == 0


def test_the_memory_of_gaps_is_bounded() -> None:
    index = HistoryIndex(capacity_blocks=1)
    for number in range(residency.MAX_GAPS + 10):
        index.dispatched(number.to_bytes(16, "big"), _prompt(1, 1), "r1", owner=b"t1")
    index.dispatched(b"o" * 16, _prompt(1, 1), "r1", owner=b"t2")
    assert index._replicas["r1"].gaps[b"t1"] is None
    assert index.explained(b"never seen", _prompt(1, 1), "r1", 0, owner=b"t1") is None
    assert index.explained(b"never seen", _prompt(1, 1), "r1", 0, owner=b"t2") == 0


def test_settled_is_what_an_answer_showed_and_no_promise_counts() -> None:
    index = HistoryIndex()
    chain = _chain("abab")
    ticket = index.dispatched(NAMESPACES[0], chain[:2], "r1")
    index.dispatched(NAMESPACES[0], chain, "r1")
    assert index.settled(NAMESPACES[0], chain, "r1") == 0
    index.confirmed(NAMESPACES[0], chain[:2], "r1", ticket, 1.0)
    assert index.settled(NAMESPACES[0], chain, "r1") == 2
    assert index.settled(NAMESPACES[1], chain, "r1") == index.settled(NAMESPACES[0], chain, "r2") == 0
