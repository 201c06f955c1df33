"""The list of namespaces without a replica: bounded in every direction, oldest first, and no tenant crowds out another."""

from __future__ import annotations

from uuid import UUID

import pytest

from routing.dataplane import unserved
from routing.dataplane.unserved import KEPT_S, MAX_FOR_TENANT, MAX_NAMESPACES, Unserved

R1, R2 = UUID(int=1), UUID(int=2)
ACME, GLOBEX = UUID(int=101), UUID(int=102)


def test_the_oldest_is_first_and_repeats_keep_their_place() -> None:
    held = Unserved()
    for at_s, name in enumerate(["a", "b", "a", "c"]):
        held.note(R1, ACME, name, float(at_s))
    assert held.report(5.0) == {str(R1): ["a", "b", "c"]}


def test_what_is_not_asked_for_any_more_is_forgotten() -> None:
    held = Unserved()
    held.note(R1, ACME, "a", 0.0)
    held.note(R1, ACME, "b", 0.0)
    held.note(R1, ACME, "b", 20.0)
    assert held.report(KEPT_S) == {str(R1): ["b"]}
    assert held.report(20.0 + KEPT_S) == {}
    assert held.wishes == {}


def test_no_tenant_crowds_out_another() -> None:
    held = Unserved()
    for number in range(100):
        held.note(R1, ACME, f"acme {number}", 0.0)
    held.note(R1, GLOBEX, "globex", 1.0)
    assert held.report(2.0) == {str(R1): ["acme 0", "globex", "acme 1", "acme 2", "acme 3"]}


def test_every_list_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Unserved()
    for number in range(50):
        held.note(R1, UUID(int=number), f"ns {number:02d}", 0.0)
    assert held.report(1.0)[str(R1)] == [f"ns {number:02d}" for number in range(MAX_NAMESPACES)]
    assert MAX_FOR_TENANT < MAX_NAMESPACES
    monkeypatch.setattr(unserved, "MAX_REPLICAS", 1)
    held.note(R2, ACME, "late", 0.0)
    assert list(held.wishes) == [R1]


def test_expired_wishes_make_room_for_new_ones() -> None:
    held = Unserved()
    for number in range(MAX_FOR_TENANT):
        held.note(R1, ACME, f"old {number}", 0.0)
    held.note(R1, ACME, "new", KEPT_S)
    assert held.report(KEPT_S) == {str(R1): ["new"]}


def test_what_is_served_now_is_no_wish() -> None:
    held = Unserved()
    for replica in (R1, R2):
        held.note(replica, ACME, "a", 0.0)
    held.note(R1, ACME, "b", 0.0)
    held.served({"a"})
    assert held.report(0.0) == {str(R1): ["b"]}
