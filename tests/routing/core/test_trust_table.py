"""The table of trust: bounded, fair between tenants, and nobody's answers decide for another who has enough of his own."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.last_block import SURE
from routing.core.trust import DWELL, ENOUGH, RETRY_S, Answer
from routing.core.trust_table import FULL_REPORT_EVERY, FULL_REPORT_GAP_S, REFRESH_ANSWERS, Moved, TrustTable
from tests.routing.core.test_trust import answer, answers

T, U = ("http://10.0.0.1:8000", 0), ("http://10.0.0.1:8000", 1)
ACME, GLOBEX = b"acme", b"globex"
ONE, TWO = b"1" * 16, b"2" * 16


def fill(table: TrustTable, good: bool, count: int, *, target: tuple[str, int] = T, owner: bytes = ACME, namespace: bytes = ONE) -> None:
    for number in range(count):
        blocks = 100 + number % 7
        table.observe(target, owner, namespace, answer(blocks * 16, blocks * 16 if good else 0), 0.0)


def kappa(table: TrustTable, *, target: tuple[str, int] = T, owner: bytes = ACME, namespace: bytes = ONE, exact: bool = True) -> float:
    return table.kappa(target, owner, namespace, exact=exact, now_s=0.0)


def test_a_namespace_speaks_for_itself_then_its_tenant_then_everybody() -> None:
    table = TrustTable()
    assert kappa(table) == 1.0
    fill(table, good=False, count=REFRESH_ANSWERS * 2)
    low = kappa(table)
    assert low < 0.4
    assert kappa(table, namespace=TWO) == low  # the tenant's
    assert kappa(table, owner=GLOBEX, namespace=TWO) < 0.4  # everybody's
    assert kappa(table, exact=False) == 1.0  # history's predictions are another matter
    assert kappa(table, target=U) == 1.0
    fill(table, good=True, count=ENOUGH, owner=GLOBEX, namespace=TWO)
    assert kappa(table, owner=GLOBEX, namespace=TWO) > 0.95
    assert kappa(table) == low


def test_of_three_tenants_the_odd_one_decides_nothing_for_a_stranger() -> None:
    table = TrustTable()
    fill(table, good=False, count=5 * REFRESH_ANSWERS)
    for owner in (b"b", b"c"):
        fill(table, good=True, count=REFRESH_ANSWERS, owner=owner)
    assert kappa(table, owner=b"stranger") > 0.95


@given(st.lists(st.tuples(st.sampled_from([b"b", b"c"]), st.sampled_from([ONE, TWO]), answers), max_size=60))
def test_others_answers_never_change_what_a_tenant_with_enough_of_its_own_is_told(others: list[tuple[bytes, bytes, Answer]]) -> None:
    table = TrustTable()
    fill(table, good=True, count=ENOUGH)
    before = kappa(table), kappa(table, namespace=TWO), table.believes_events(T, ACME, ONE), table.withholds(T, ACME)
    for owner, namespace, one in others:
        table.observe(T, owner, namespace, one, 0.0)
        assert (kappa(table), kappa(table, namespace=TWO), table.believes_events(T, ACME, ONE), table.withholds(T, ACME)) == before


def test_whether_the_last_block_is_computed_anew_a_tenant_says_for_itself_then_most_tenants() -> None:
    table = TrustTable()
    for _ in range(SURE):
        table.observe(T, GLOBEX, TWO, answer(1600, 1584), 0.0)
    assert (table.withholds(T, GLOBEX), table.withholds(T, ACME), table.withholds(U, ACME)) == (True, True, False)
    assert table.report(T, 0.0).withholds
    fill(table, good=True, count=SURE - 1)
    assert table.withholds(T, ACME)  # not enough of its own
    fill(table, good=True, count=1)
    assert (table.withholds(T, GLOBEX), table.withholds(T, ACME)) == (True, False)
    fill(table, good=True, count=REFRESH_ANSWERS)
    assert (table.withholds(T, b"stranger"), table.report(T, 0.0).withholds) == (False, False)  # one of two is not most
    table.forget(T)
    assert not table.withholds(T, GLOBEX)


@pytest.mark.parametrize("block_tokens", [16, 64, 128])
@pytest.mark.parametrize("drops", [False, True], ids=["control", "speculates"])
def test_predictions_come_true_to_the_block_at_an_engine_that_computes_the_last_one_anew(block_tokens: int, drops: bool) -> None:
    """However large its blocks are: events are never left for that."""
    table, seen = TrustTable(), random.Random(1)
    moved: list[Moved] = []
    for _ in range(400):
        held_tokens = seen.randrange(4, 40) * block_tokens
        withheld = table.withholds(T, ACME)
        promised = held_tokens - (block_tokens if withheld else 0)
        cached = held_tokens - (block_tokens if drops else 0)
        one = answer(promised, cached, history_tokens=cached - seen.randrange(20), block_tokens=block_tokens, withheld=withheld)
        moved += table.observe(T, ACME, ONE, one, 0.0)
    assert not moved
    assert table.report(T, 0.0).share_exact == 1.0
    assert kappa(table) > 0.99


@given(st.lists(st.tuples(st.sampled_from([T, U]), st.integers(0, 5), st.integers(0, 40)), max_size=200))
def test_the_table_is_bounded_and_counts_what_it_gives_up(seen: list[tuple[tuple[str, int], int, int]]) -> None:
    table = TrustTable(max_namespaces=12, max_owners=3)
    for target, owner, namespace in seen:
        table.observe(target, bytes([owner]), bytes([owner, namespace]), answer(160, 160), 0.0)
        namespaces, owners = table.sizes()
        assert namespaces <= 12
        assert owners <= 2 * 3
    if table.sizes()[0] < len({(target, owner, namespace) for target, owner, namespace in seen}):
        assert table.dropped > 0


def test_a_tenant_of_many_namespaces_takes_no_others_accounts() -> None:
    table = TrustTable(max_namespaces=20)
    for number in range(5):
        fill(table, good=False, count=ENOUGH, owner=GLOBEX, namespace=bytes([number]))
    for number in range(200):
        fill(table, good=True, count=1, namespace=bytes([7, number]))
    assert table.sizes()[0] == 20
    fill(table, good=False, count=ENOUGH, namespace=ONE)  # the oldest give way, not the newest
    assert kappa(table) < 0.7 < kappa(table, namespace=TWO)
    fill(table, good=True, count=300, owner=GLOBEX, namespace=TWO)  # its tenant's account is good again
    assert all(kappa(table, owner=GLOBEX, namespace=bytes([number])) < 0.7 for number in range(5))


def test_a_changed_verdict_is_told_of_the_namespace_and_of_the_target() -> None:
    table = TrustTable()
    moved: list[Moved] = []
    for number in range(2 * DWELL):
        blocks = 100 + number % 7
        moved += table.observe(T, ACME, ONE, answer(blocks * 16, 0), 0.0)
    assert [(one.namespace, one.change.after) for one in moved] == [(ONE, "relearn"), (None, "relearn"), (ONE, "demote"), (None, "demote")]
    assert not table.believes_events(T, ACME, ONE)
    assert not table.believes_events(T, ACME, TWO)
    assert table.believes_events(T, GLOBEX, ONE)
    assert table.believes_events(U, ACME, ONE)
    assert table.report(T, 0.0).verdict == "demote"
    assert table.retry(RETRY_S - 1) == ()
    assert [(one.namespace, one.change.after) for one in table.retry(RETRY_S)] == [(ONE, "relearn"), (None, "relearn")]


def test_with_a_second_tenant_who_is_content_the_target_is_not_demoted() -> None:
    table = TrustTable()
    fill(table, good=True, count=ENOUGH, owner=GLOBEX)
    fill(table, good=False, count=2 * DWELL)
    assert not table.believes_events(T, ACME, ONE)
    assert table.believes_events(T, GLOBEX, ONE)
    assert table.report(T, 0.0).verdict == "fine"


def test_full_reports_are_asked_for_seldom_and_only_while_relearning() -> None:
    table = TrustTable()
    fill(table, good=True, count=DWELL)
    assert not any(table.takes_full_report(T, ACME, ONE, float(number)) for number in range(50))
    table = TrustTable()
    fill(table, good=False, count=DWELL)
    taken = [table.takes_full_report(T, ACME, ONE, float(number)) for number in range(10 * FULL_REPORT_EVERY)]
    assert sum(taken) == 10
    at_once = [table.takes_full_report(T, ACME, ONE, 1000.0 + FULL_REPORT_GAP_S * number / 1000) for number in range(100)]
    assert sum(at_once) == 1
    assert not table.takes_full_report(T, GLOBEX, TWO, 1e6)


def test_a_new_process_starts_with_a_clean_sheet() -> None:
    table = TrustTable()
    for target in (T, U):
        fill(table, good=False, count=2 * DWELL, target=target)
    table.forget_engine("http://10.0.0.2:8000")
    assert not table.believes_events(T, ACME, ONE)
    table.forget(T)
    assert table.believes_events(T, ACME, ONE)
    assert kappa(table) == 1.0
    assert not table.believes_events(U, ACME, ONE)
    assert table.sizes() == (1, 1)
    table.forget_engine(U[0])
    assert table.sizes() == (0, 0)
    assert table.believes_events(U, ACME, ONE)
