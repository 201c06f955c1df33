"""Figures of a review in words."""

from __future__ import annotations

from console.reads.traces import _changes
from console.templatetags.console_text import UNKNOWN


def test_a_difference_of_shares_is_told_in_points_and_a_share_of_a_time_in_percent() -> None:
    """Hits that fall from 62 to 52 % fall by 10 points, not by 10 %; a mean that grows by a tenth grows by 10 %."""
    tenth = {"value": 0.1, "low": 0.05, "high": 0.15}
    found = {
        "mean_change": tenth,
        "hit_points": {"value": -0.1, "low": -0.12, "high": -0.08},
        "tokens_saved": {"value": -2000.0, "low": None, "high": None},
    }
    assert _changes(found) == [
        ("Time to first token, mean", "+10.0 %", "+5.0 % to +15.0 %"),
        ("Hit rate", "-10.0 points", "-12.0 points to -8.0 points"),
        ("Prompt tokens saved", UNKNOWN, "too little traffic"),
    ]
