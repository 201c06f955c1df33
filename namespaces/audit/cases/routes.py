"""The same prompt over every route and mode that reaches the engine: chat and completions, streamed and not."""

from __future__ import annotations

from collections.abc import Sequence

from namespaces.audit.case import Case, Expect, Facts, Probe


def plan(facts: Facts) -> Sequence[Probe]:
    probes: list[Probe] = []
    for number, (route, stream) in enumerate((route, stream) for route in facts.routes for stream in (False, True)):
        probes += [
            Probe(f"A1-{route}-{stream}", "A", number, Expect.FRESH, route=route),
            Probe(f"A2-{route}-{stream}", "A", number, Expect.HIT, route=route, stream=stream),
            Probe(f"B1-{route}-{stream}", "B", number, Expect.APART, route=route, stream=stream),
        ]
    return tuple(probes)


CASE = Case(name="routes", title="every route, streamed and not", rows=(20,), plan=plan)
