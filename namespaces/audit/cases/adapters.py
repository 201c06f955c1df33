"""Base model and adapters under one salt: the adapter must be part of the engine's key."""

from __future__ import annotations

from collections.abc import Sequence

from namespaces.audit.case import Case, Expect, Facts, Probe


def plan(facts: Facts) -> Sequence[Probe] | None:
    if not facts.adapters:
        return None
    probes = [Probe("base1", "A", 0, Expect.FRESH), Probe("base2", "A", 0, Expect.HIT)]
    for number, name in enumerate(facts.adapters[:2]):
        probes += [Probe(f"adapter{number}", "A", 0, Expect.APART, adapter=name), Probe(f"adapter{number} again", "A", 0, Expect.HIT, adapter=name)]
    return tuple(probes)


CASE = Case(name="adapters", title="base model, adapter, other adapter", rows=(8,), plan=plan)
