"""Metrics of KV events and of what they are trusted for, read from the running state at scrape time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from routing.core.residency_state import State

if TYPE_CHECKING:
    from routing.dataplane.state import Plane


class EventCollector(Collector):
    """Label values are states and names of counters, closed sets of ours, and the replica as elsewhere."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[Metric]:
        plane = self._plane
        blocks = GaugeMetricFamily("saltroute_replica_event_blocks", "Blocks of ours that events show resident", labels=["replica"])
        found: Counter[str] = Counter()
        sizes = plane.events.sizes()
        for url in plane.engines:
            found[plane.residency.told(url).state] += 1
            held = [sizes[url, rank].ours for rank in plane.residency.ranks.get(url, ()) if (url, rank) in sizes]
            blocks.add_metric([url], float(sum(held)))
        states = GaugeMetricFamily("saltroute_replicas_by_residency", "Engines by how far their events can be trusted", labels=["state"])
        for state in get_args(State):
            states.add_metric([state], float(found[state]))
        changes = CounterMetricFamily("saltroute_residency_changes", "Changes of that state", labels=["before", "after"])
        for (before, after), count in plane.residency.counts.items():
            changes.add_metric([before, after], count)
        untold = CounterMetricFamily("saltroute_residency_changes_untold", "Changes beyond those of one engine that are told in a minute")
        untold.add_metric([], plane.residency.untold)
        events = CounterMetricFamily("saltroute_event_index", "What the event index did", labels=["what"])
        for what, count in plane.events.counters.items():
            events.add_metric([what], count)
        waiting = GaugeMetricFamily("saltroute_kv_waiting_bytes", "Bytes of KV events that were received and are not applied yet, over all engines")
        waiting.add_metric([], float(plane.kv_waiting.used_bytes))
        refused = CounterMetricFamily("saltroute_kv_waiting_refused", "Times that an engine's KV events were more than may wait")
        refused.add_metric([], plane.kv_waiting.refused)
        yield from (blocks, states, changes, untold, events, waiting, refused)
