"""What a comparison of tokens is told as."""

from __future__ import annotations

from uuid import UUID

import pytest

from routing.core.parity import REPORTED, Parity, first_difference, report


@pytest.mark.parametrize(
    ("ours", "theirs", "place"),
    [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([1], [1, 2], 1), ([5], [6, 1], 0), ([], [1], 0)],
)
def test_the_first_difference(ours: list[int], theirs: list[int], place: int | None) -> None:
    assert first_difference(ours, theirs) == place


def test_a_report_is_bounded_and_begins_with_what_differs() -> None:
    pairs = {(UUID(int=number), UUID(int=0)): Parity("unavailable", 1.0, why="none") for number in range(200)}
    pairs[UUID(int=999), UUID(int=1)] = Parity("different", 2.0, sample="tools", position=17, compared=5)
    pairs[UUID(int=998), UUID(int=1)] = Parity("ok", 2.0, compared=6)
    said = report(pairs)
    assert said["states"] == {"unavailable": 200, "different": 1, "ok": 1}
    others = said["others"]
    assert isinstance(others, list)
    assert len(others) == REPORTED
    assert (others[0]["endpoint"], others[0]["state"], others[0]["sample"], others[0]["position"]) == (str(UUID(int=999)), "different", "tools", 17)
