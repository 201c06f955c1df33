"""Whether an engine has fallen silent, so that what it was asked and has not begun to answer is given up and may go to another.

A busy engine answers a health check late, or sends tokens to others meanwhile; one that is stopped, or whose machine is gone, says nothing to
anybody. So a check without an answer counts only if nothing else came from the engine while it lasted, and if the router itself was free to hear it.
Several in a row are needed, of those that ended while the request waited.

An answer that does not stream may take minutes to its first byte; it is waited for as long as health checks are answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Meaning = Literal["spoke", "unsure", "silent"]
MEANINGS: Final[tuple[Meaning, ...]] = get_args(Meaning)
LATE_SHARE = 0.25  # of a check in which the router's event loop was held up, from which the check says nothing of the engine


@dataclass(frozen=True, slots=True)
class Check:
    """A health check that did not bring a good answer.

    ``answered``: with an error, or not to the end. ``words``: answers to requests, and pieces of such, that came from the engine meanwhile.
    ``asked``: False where the router could not ask, for want of a socket or of an address, or since it may not connect there. ``late_s`` are those of
    its ``lasted_s`` in which the router's event loop was held up.
    """

    answered: bool
    words: int
    asked: bool
    lasted_s: float
    late_s: float


def meaning(check: Check) -> Meaning:
    """What a check says of the engine; ``unsure`` neither counts nor begins anew."""
    if check.answered or check.words > 0:
        return "spoke"
    if not check.asked or check.late_s > LATE_SHARE * check.lasted_s:
        return "unsure"
    return "silent"


def in_a_row(before: int, now: Meaning) -> int:
    """Silent checks in a row, after one more."""
    return {"spoke": 0, "unsure": before, "silent": before + 1}[now]
