"""Two namespaces, one prompt, both directions: whatever component differs, the engine sees two different salts."""

from __future__ import annotations

from collections.abc import Sequence

from namespaces.audit.case import Case, Expect, Facts, Probe


def plan(_facts: Facts) -> Sequence[Probe]:
    return (
        Probe("A1", "A", 0, Expect.FRESH),
        Probe("A2", "A", 0, Expect.HIT),
        Probe("B1", "B", 0, Expect.APART),
        Probe("B2", "B", 1, Expect.FRESH),
        Probe("B3", "B", 1, Expect.HIT),
        Probe("A3", "A", 1, Expect.APART),
    )


CASE = Case(
    name="two_salts",
    title="same tokens under two identities, in both directions",
    rows=(1, 2, 3, 9, 10, 11, 12, 13, 16, 17, 21),
    plan=plan,
)
