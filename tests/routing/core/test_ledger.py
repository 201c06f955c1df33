"""What is added is released, by its owner or by its own end, and nothing else changes the count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing.core.ledger import Ledger


def test_tokens_count_until_released_or_over() -> None:
    ledger = Ledger()
    first, second = ledger.add(100, until_s=10), ledger.add(50, until_s=5)
    assert ledger.queued(0) == (150, 2)
    assert ledger.queued(5) == (100, 1)
    ledger.release(first)
    ledger.release(first)
    ledger.release(second)
    assert ledger.queued(0) == (0, 0)


@given(st.lists(st.floats(0, 1e6)), st.randoms())
def test_after_any_order_of_releases_it_is_exactly_empty(amounts: list[float], order: object) -> None:
    ledger = Ledger()
    entries = [ledger.add(amount, until_s=1e9) for amount in amounts]
    order.shuffle(entries)  # type: ignore[attr-defined] # hypothesis' random
    for entry in entries:
        ledger.release(entry)
    assert ledger.entries == {}
    assert ledger.queued(0) == (0.0, 0)
