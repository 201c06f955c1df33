"""An engine that joins salt and adapter name as text, in either order: ("ab", "c") meets ("a", "bc")."""

from __future__ import annotations

from collections.abc import Sequence

from namespaces.audit.case import Case, Expect, Facts, Probe

MAX_NAME_CHARACTERS = 81  # what may be added to a salt
REFUSED_IN_SALTS = frozenset("@/\\\0")


def plan(facts: Facts) -> Sequence[Probe] | None:
    """The adapter under the plain salt first; then the base model under that salt with its name joined to it: the joined texts are equal."""
    name = next((one for one in facts.adapters if len(one) <= MAX_NAME_CHARACTERS and not REFUSED_IN_SALTS & set(one)), None)
    if name is None:
        return None
    return (
        Probe("adapter1", "A", 0, Expect.FRESH, adapter=name),
        Probe("adapter2", "A", 0, Expect.HIT, adapter=name),
        Probe("base, name after", "A", 0, Expect.APART, salt_suffix=name),
        Probe("base, name before", "A", 0, Expect.APART, salt_prefix=name),
    )


CASE = Case(name="joined_texts", title="salt joined with the adapter name", rows=(6, 7), plan=plan)
