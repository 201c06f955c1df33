"""Bytes that wait: one bound for all, one for each source, and what nobody takes from an owner."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing.core.byte_budget import ByteBudget


def test_one_source_has_its_own_bound() -> None:
    budget = ByteBudget(whole_bytes=1000)
    account = budget.account("A")
    assert account.fits(250)
    assert not account.fits(251)
    account.set(250)
    assert account.fits(250)
    assert account.fits(10)  # less is always well
    assert (budget.used_bytes, budget.refused) == (250, 1)


def test_floods_of_some_leave_every_owner_its_floor() -> None:
    """Three flooders take what is common and their own floors; the fourth still has a floor, and it is theirs no more than once."""
    budget = ByteBudget(whole_bytes=1000)
    budget.owners = 4
    flooders = [budget.account(name) for name in "AABBCC"]
    for account in flooders:
        while account.fits(account.held_bytes + 25):
            account.set(account.held_bytes + 25)
    assert budget.used_bytes == 750  # half by the first comer, floors of the others
    quiet = budget.account("D")
    assert quiet.fits(125)
    assert not quiet.fits(126)
    quiet.set(125)
    assert not budget.account("D").fits(1)
    gone_bytes = flooders[0].held_bytes
    flooders[0].close()
    flooders[0].close()
    assert budget.used_bytes == 875 - gone_bytes < 875
    flooders[0].set(100)  # a socket that still closes may have something to say
    assert budget.used_bytes == 875 - gone_bytes


@given(steps=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 400)), max_size=80), owners=st.integers(4, 9))
def test_all_together_never_hold_more_than_the_whole(steps: list[tuple[int, int]], owners: int) -> None:
    budget = ByteBudget(whole_bytes=1000)
    budget.owners = owners
    accounts = [budget.account(number % 4) for number in range(8)]
    for number, wanted in steps:
        if accounts[number].fits(wanted):
            accounts[number].set(wanted)
        assert budget.used_bytes == sum(account.held_bytes for account in accounts) <= 1000
    for account in accounts:
        account.close()
    assert budget.used_bytes == 0
