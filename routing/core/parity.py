"""Parity: what a comparison of our tokens with an engine's found, and how it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

REPORTED = 100  # pairs that do not agree, in a report
State = Literal["ok", "different", "inexact", "unavailable"]
Pair = tuple[UUID, UUID]  # endpoint, replica


@dataclass(frozen=True, slots=True)
class Parity:
    """What the latest comparison of an endpoint with a replica found. ``position`` is that of the first token that differs.

    ``inexact``: the engine has tokens of ``sample`` and this router has none, whatever other samples say; ``why`` as a prompt's record says it.
    """

    state: State
    at: float  # unix s
    sample: str | None = None
    position: int | None = None
    compared: int = 0
    why: str | None = None  # of unavailable and inexact

    def row(self) -> dict[str, object]:
        return {
            "state": self.state,
            "at": round(self.at, 3),
            "sample": self.sample,
            "position": self.position,
            "compared": self.compared,
            "why": self.why,
        }


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The position of the first token that differs, or that only one of the two has; None for equal ones."""
    if list(ours) == list(theirs):
        return None
    return next((place for place, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), min(len(ours), len(theirs)))


def report(parity: Mapping[Pair, Parity]) -> dict[str, object]:
    """For the router's report: how many pairs are in each state, and those that do not agree."""
    counts: dict[str, int] = {}
    for one in parity.values():
        counts[one.state] = counts.get(one.state, 0) + 1
    others = [(pair, one) for pair, one in parity.items() if one.state != "ok"]
    others.sort(key=lambda item: item[1].state)  # those that differ come first
    shown = [{"endpoint": str(endpoint), "replica": str(replica), **one.row()} for (endpoint, replica), one in others[:REPORTED]]
    return {"states": counts, "others": shown}
