"""Ports of the simulated replicas: the same at every start of one home, as long as they are free."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from deploy.local.places import free_run, port_is_free, write_private
from deploy.local.plan import USUAL_PORTS, FleetPorts

KINDS = ("http", "kv_events", "replay")
MOST_KEPT = 16  # runs that are remembered of each kind


def choose(file: Path, count: int, *, taken: Iterable[int]) -> FleetPorts:
    """The ports of the last start if all are free, else the usual ones or the next, beside those of every earlier start; ``file`` remembers.

    An address belongs to the tenant that registered it. Were ports to move by two because another program began or ended meanwhile, one tenant's
    replica would stand where another tenant's is registered, and the whole declaration would be refused.

    Raises:
        LaunchError: no run of so many ports is free.
    """
    kept, used, firsts = _kept(file), set(taken), {}
    for kind in KINDS:
        runs = kept[kind]
        last = range(runs[-1], runs[-1] + max(count, 1)) if runs else range(0)
        if last and not used.intersection(last) and all(map(port_is_free, last)):
            firsts[kind] = last.start
        else:
            before = {port for first in runs for port in range(first, first + max(count, 1))}
            firsts[kind] = free_run(getattr(USUAL_PORTS, kind), max(count, 1), avoid=frozenset(used | before))
        used.update(range(firsts[kind], firsts[kind] + count))
    if count:
        told = {kind: [*(first for first in kept[kind] if first != firsts[kind]), firsts[kind]][-MOST_KEPT:] for kind in KINDS}
        write_private(file, json.dumps(told))
    return FleetPorts(count=count, **firsts)


def _kept(file: Path) -> dict[str, list[int]]:
    """First ports of earlier starts by kind, the last one last; a file that is not there, or is not ours, tells of none."""
    try:
        said = json.loads(file.read_bytes())
        return {kind: [int(first) for first in said[kind] if 0 < int(first) < 65536] for kind in KINDS}
    except (OSError, ValueError, KeyError, TypeError):
        return {kind: [] for kind in KINDS}
