"""docs/residency.md says what to do about every word that the product says of residency."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import pytest

from routing.core import residency_state, trust
from routing.dataplane import tokens

PAGE = (Path(__file__).parents[3] / "docs" / "residency.md").read_text()


def _section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def _codes(section: str, column: int) -> set[str]:
    """The words in code font of one column of the section's table."""
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("|")]
    return {code for row in rows[2:] for code in re.findall(r"`([a-z_]+)`", row[column])}


@pytest.mark.parametrize(
    ("title", "column", "said"),
    [
        ("States and reasons", 0, get_args(residency_state.State)),
        ("States and reasons", 1, get_args(residency_state.Reason)),
        ("When promises are not kept", 0, get_args(trust.Cause)),
        ("When a prompt's tokens are not known", 0, [word for words in get_args(tokens.Inexact) for word in get_args(words)]),
    ],
    ids=["states", "reasons", "causes of mistrust", "inexact"],
)
def test_every_word_and_no_other_is_explained(title: str, column: int, said: Iterable[str]) -> None:
    assert _codes(_section(title), column) - {"inexact"} == set(said)
