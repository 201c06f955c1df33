"""An engine that joins salt and adapter name as text: ("ab", "c") meets ("a", "bc")."""

from __future__ import annotations

from collections.abc import Sequence

from namespaces.audit.case import Case, Expect, Facts, Probe


def plan(facts: Facts) -> Sequence[Probe] | None:
    """The adapter under the plain salt first; then the base model under that salt with the adapter's name appended: the joined texts are equal."""
    if not facts.adapters:
        return None
    name = facts.adapters[0]
    return (
        Probe("adapter1", "A", 0, Expect.FRESH, adapter=name),
        Probe("adapter2", "A", 0, Expect.HIT, adapter=name),
        Probe("base joined", "A", 0, Expect.APART, salt_suffix=name),
    )


CASE = Case(name="joined_texts", title="salt joined with the adapter name", rows=(6, 7), plan=plan)
