"""An engine that reads only a part of the salt: it cuts the end or the beginning off, or does not tell capitals from small letters.

Two random salts would meet under such an engine once in millions of audits, so each pair here is equal but for the part in question. The salt that
the router derives has 47 characters; whoever keeps 47 or fewer from the left, or ``len(TAIL)`` or fewer from the right, is caught. A cut beyond
that cannot touch our salts. What no probe can tell is a collision inside the engine, such as an id of 64 bits in place of the salt.
"""

from __future__ import annotations

from collections.abc import Sequence

from namespaces.audit.case import Case, Expect, Facts, Probe

TAIL = "-" * 20 + "the same end in both scopes".replace(" ", "-") + "-" * 13  # 60 characters: longer than a salt


def plan(_facts: Facts) -> Sequence[Probe]:
    return (
        Probe("short1", "A", 0, Expect.FRESH),
        Probe("short2", "A", 0, Expect.HIT),
        Probe("longer by two", "A", 0, Expect.APART, salt_suffix="-x"),
        Probe("tail1", "A", 1, Expect.FRESH, salt_suffix=TAIL),
        Probe("tail2", "A", 1, Expect.HIT, salt_suffix=TAIL),
        Probe("other salt, same end", "B", 1, Expect.APART, salt_suffix=TAIL),
        Probe("small1", "A", 2, Expect.FRESH, salt_suffix="-q"),
        Probe("small2", "A", 2, Expect.HIT, salt_suffix="-q"),
        Probe("capital", "A", 2, Expect.APART, salt_suffix="-Q"),
    )


CASE = Case(name="part_of_salt", title="engine that ignores, refuses or reads only a part of the salt", rows=(23,), plan=plan)
