"""The queue of a pool: fair in tokens between tenants and keys, by class and deadline inside a key, bounded, and never lossy."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core.fair_queue import FLOOR_QUANTA, QUANTUM_TOKENS, FairQueue, Waiter, retry_after_s

A, B, C = b"tenant a", b"tenant b", b"tenant c"


def waiter(number: int, tenant: bytes = A, key: bytes = b"k", *, cost: float = 1000.0, deadline_s: float = 10.0, priority: int = 0) -> Waiter:
    return Waiter(id=number, tenant=tenant, key=key, cost_tokens=cost, deadline_s=deadline_s, priority=priority)


def queue_of(*waiters: Waiter, max_waiters: int = 10_000) -> FairQueue:
    queue = FairQueue(max_waiters=max_waiters)
    for one in waiters:
        assert queue.add(one)
    return queue


def drain(queue: FairQueue, count: int | None = None) -> list[Waiter]:
    order: list[Waiter] = []
    while (count is None or len(order) < count) and (turn := queue.peek()) is not None:
        order.append(queue.take(turn.id))
    return order


def test_an_empty_queue_has_no_turn() -> None:
    assert FairQueue(max_waiters=1).peek() is None


def test_a_hog_and_a_small_tenant_share_by_tokens_not_by_requests() -> None:
    """A sends requests ten times as long: in tokens both get the same."""
    hog = [waiter(number, A, cost=10_000) for number in range(40)]
    small = [waiter(100 + number, B, cost=1_000) for number in range(400)]
    tokens: Counter[bytes] = Counter()
    for one in drain(queue_of(*hog, *small), 200):
        tokens[one.tenant] += int(one.cost_tokens)
    assert abs(tokens[A] - tokens[B]) <= 10_000 + 2 * QUANTUM_TOKENS


def test_a_tenant_of_twice_the_weight_gets_twice_the_tokens() -> None:
    queue = FairQueue(max_waiters=1000)
    for number in range(300):
        queue.add(waiter(number, A), tenant_weight=2.0)
        queue.add(waiter(1000 + number, B), tenant_weight=1.0)
    shares = Counter(one.tenant for one in drain(queue, 240))
    assert shares[A] == pytest.approx(160, abs=9)


def test_inside_a_tenant_keys_take_turns_while_another_tenant_keeps_its_share() -> None:
    """Ten keys do not make a tenant ten times as heavy."""
    many = [waiter(number, A, key=b"key %d" % (number % 10)) for number in range(200)]
    one = [waiter(1000 + number, B) for number in range(200)]
    order = drain(queue_of(*many, *one), 100)
    assert Counter(one.tenant for one in order)[A] == pytest.approx(50, abs=5)
    keys = Counter(one.key for one in order if one.tenant == A)
    assert len(keys) == 10
    assert max(keys.values()) - min(keys.values()) <= 5  # one quantum is four of these requests


def test_the_better_class_goes_first_in_its_own_tenant_and_moves_nobody_elses_turn() -> None:
    batch = [waiter(number, A, key=b"batch", priority=2) for number in range(8)]
    chat = [waiter(10 + number, A, key=b"chat", priority=0) for number in range(4)]
    other = [waiter(100 + number, B, priority=9) for number in range(12)]
    order = drain(queue_of(*batch, *chat, *other))
    own = [one.id for one in order if one.tenant == A]
    assert own[:4] == [10, 11, 12, 13]
    assert Counter(one.tenant for one in order[:12])[B] == pytest.approx(6, abs=4)


def test_inside_a_key_the_earliest_deadline_goes_first() -> None:
    queue = queue_of(waiter(1, deadline_s=9), waiter(2, deadline_s=3), waiter(3, deadline_s=6))
    assert [one.id for one in drain(queue)] == [2, 3, 1]


def test_who_cannot_start_in_time_is_taken_out_and_never_started() -> None:
    queue = queue_of(waiter(1, deadline_s=1), waiter(2, deadline_s=5))
    assert [one.id for one in queue.expired(2.0)] == [1]
    assert [one.id for one in drain(queue)] == [2]


def test_a_full_tenant_is_refused_and_another_is_not() -> None:
    queue = queue_of(waiter(1), waiter(2), max_waiters=2)
    assert not queue.add(waiter(3))
    assert queue.add(waiter(4, B))
    assert queue.waiting_of(A) == (2, 2000.0)
    assert len(queue) == 3


def test_a_request_that_cost_more_than_expected_is_paid_for_later() -> None:
    """Both say 1,000 tokens; those of A turn out to cost 5,000. In the end B started about five times as many."""
    queue = queue_of(*(waiter(number, A) for number in range(200)), *(waiter(1000 + number, B) for number in range(200)))
    started: Counter[bytes] = Counter()
    while sum(started.values()) < 180 and (turn := queue.peek()) is not None:
        taken = queue.take(turn.id)
        queue.settle(taken, 5_000 if taken.tenant == A else 1_000)
        started[taken.tenant] += 1
    assert 3.5 <= started[B] / started[A] <= 6.5


def test_debt_has_a_floor_and_silence_earns_no_credit() -> None:
    queue = queue_of(waiter(1, A))
    queue.settle(queue.take(1), 10_000_000)  # one mistake of a million does not lock a tenant out
    for number in range(100):
        queue.add(waiter(10 + number, B))
    queue.add(waiter(2, A))
    before = [one.tenant for one in drain(queue)].index(A)
    assert before * 1000 <= (FLOOR_QUANTA + 2) * QUANTUM_TOKENS
    assert before > 0
    quiet = queue_of(*(waiter(number, B) for number in range(20)))
    drain(quiet, 10)
    for number in range(10):
        quiet.add(waiter(100 + number, A))
    assert Counter(one.tenant for one in drain(quiet, 8))[A] <= 6  # no burst for having been silent


def test_who_leaves_takes_no_credit_along() -> None:
    queue = queue_of(waiter(1, C, cost=500_000), waiter(2, A, cost=500_000))
    assert queue.peek() is not None  # both were granted what the first of them needs
    queue.remove(1)
    queue.remove(2)
    for number in range(100):
        queue.add(waiter(10 + number, A))
        queue.add(waiter(200 + number, B))
    assert Counter(one.tenant for one in drain(queue, 40))[B] == pytest.approx(20, abs=5)


def test_alone_a_debtor_is_served_at_once() -> None:
    queue = queue_of(waiter(1, A))
    queue.settle(queue.take(1), 1_000_000)
    queue.add(waiter(2, A))
    assert queue.peek() is not None


Act = tuple[str, int, int, int]
ACTS = st.lists(
    st.tuples(st.sampled_from(["add", "take", "remove", "expire"]), st.integers(0, 2), st.integers(1, 60_000), st.integers(0, 20)), max_size=60
)


@given(ACTS)
@settings(max_examples=150, deadline=None)
def test_nobody_is_lost_and_nobody_is_started_twice(acts: list[Act]) -> None:
    queue = FairQueue(max_waiters=1000)
    waiting: set[int] = set()
    for number, (act, who, cost, when) in enumerate(acts):
        if act == "add":
            queue.add(waiter(number, (A, B, C)[who], b"key %d" % (when % 2), cost=cost, deadline_s=float(when), priority=when % 3))
            waiting.add(number)
        elif act == "take" and (turn := queue.peek()) is not None:
            assert turn.id in waiting
            waiting.remove(queue.take(turn.id).id)
        elif act == "remove":
            queue.remove(cost % (number + 1))
            waiting.discard(cost % (number + 1))
        elif act == "expire":
            waiting -= {one.id for one in queue.expired(float(when))}
    assert len(queue) == len(waiting)
    assert {one.id for one in drain(queue)} == waiting
    assert [queue.waiting_of(one) for one in (A, B, C)] == [(0, 0.0)] * 3
    assert not list(queue.tenants())


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4096)), min_size=60, max_size=200))
@settings(max_examples=100, deadline=None)
def test_while_all_want_more_no_tenant_is_two_quanta_ahead_of_another(loads: list[tuple[int, int]]) -> None:
    queue = FairQueue(max_waiters=1000)
    waiting: Counter[bytes] = Counter()
    for number, (who, cost) in enumerate(loads):
        queue.add(waiter(number, (A, B, C)[who], cost=cost))
        waiting[(A, B, C)[who]] += 1
    served = dict.fromkeys(waiting, 0.0)
    while (turn := queue.peek()) is not None and all(waiting.values()):
        taken = queue.take(turn.id)
        served[taken.tenant] += taken.cost_tokens
        waiting[taken.tenant] -= 1
        assert max(served.values()) - min(served.values()) <= 2 * QUANTUM_TOKENS


@pytest.mark.parametrize(
    ("tokens", "rate", "seconds"), [(0, 1000, 1), (1500, 1000, 2), (4000, 1000, 5), (9000, 1000, 10), (11_000, 1000, 30), (1e9, 0, 30)]
)
def test_retry_after_is_one_of_five_numbers(tokens: float, rate: float, seconds: int) -> None:
    assert retry_after_s(tokens, rate) == seconds
