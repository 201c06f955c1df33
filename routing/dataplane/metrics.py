"""The router's metrics, for the internal port. Label values come from tables we own and are few: no tenant, key, namespace, model or request path.

What belongs to engines is read from the running state at scrape time, so an engine that is gone leaves no series behind.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from routing.core import conventions
from routing.core.cause import PARTS
from routing.core.parity import State

if TYPE_CHECKING:
    from routing.core.adapters import AdapterSlots
    from routing.dataplane.state import Plane

_TTFT_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40)
# An engine answers with whatever status it likes. These are told apart, the others by their hundred.
STATUSES = frozenset({"401", "403", "404", "408", "429", "500", "501", "502", "503", "504"})


def failure(code: str) -> str:
    """A failure by our code for it, as a label: of ``status_`` and any number, as records have it, one of a closed list."""
    status = code.removeprefix("status_")
    if status == code or status in STATUSES:
        return code
    return f"status_{status[0]}xx" if len(status) == 3 and status[0] in "345" else "status_other"


class _Remembering:
    """Finds a child by how it was asked for: prometheus_client sorts and copies the label names each time, and a request asks a dozen times.

    Bounded as the children are: label values are ours, and every call writes its names in one order. Nobody removes children.
    """

    _known: dict[tuple[tuple[str, object], ...], Any]

    def labels(self, **names: str) -> Any:
        """As prometheus_client's, by name alone."""
        key = tuple(names.items())
        try:
            return self._known[key]
        except AttributeError:
            self._known = {}
        except KeyError:
            pass
        child = self._known[key] = super().labels(**names)  # type: ignore[misc] # the metric's own, beside this one
        return child


class Counter(_Remembering, prometheus_client.Counter):  # type: ignore[misc] # labels by name alone
    """A counter that remembers its children."""


class Histogram(_Remembering, prometheus_client.Histogram):  # type: ignore[misc]
    """A histogram that remembers its children."""


class Metrics:
    """Counters that requests raise. One registry a router, so that tests can run several in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("saltroute_requests", "Requests by route and outcome", ["route", "outcome"], registry=self.registry)
        self.refused = Counter("saltroute_refused", "Answers that are not a success, by our code", ["code"], registry=self.registry)
        self.attempts_failed = Counter("saltroute_attempts_failed", "Dispatches that failed, by cause", ["cause"], registry=self.registry)
        self.checks_unanswered = Counter(
            "saltroute_health_checks_unanswered",
            "Health checks without an answer that say nothing (unsure) or that the engine is silent",
            ["meaning"],
            registry=self.registry,
        )
        self.tokens = Counter("saltroute_tokens", "Tokens as reported by engines", ["kind"], registry=self.registry)
        self.ttft = Histogram("saltroute_ttft_seconds", "Time to first token of streams", buckets=_TTFT_BUCKETS_S, registry=self.registry)
        self.decide = Histogram(
            "saltroute_decide_seconds",
            "From the parsed body to the choice",
            buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05),
            registry=self.registry,
        )
        self.snapshots_refused = Counter(
            "saltroute_snapshots_refused", "Snapshot documents not applied, by reason", ["reason"], registry=self.registry
        )
        self.snapshots_applied = Counter("saltroute_snapshots_applied", "Snapshot documents applied", registry=self.registry)
        self.config_ok = Gauge("saltroute_config_ok", "1 while every tenant's newest document is in force", registry=self.registry)
        self.state_unsaved = Gauge(
            "saltroute_state_unsaved", "1 while the newest configuration could not be written to the router's own disk", registry=self.registry
        )
        self._told()
        self.cause_seconds = Counter("saltroute_cause_seconds", "What requests' time went into", ["part"], registry=self.registry)
        self.cause_main = Counter("saltroute_cause_main", "Requests by what their time is mostly due to", ["part"], registry=self.registry)
        for part in PARTS:  # from the start, so that a rate over the first minute is one too
            self.cause_seconds.labels(part=part)
            self.cause_main.labels(part=part)
        self._inference()
        self.alarms = Counter("saltroute_alarms", "Answers that an audit should look into, by kind", ["kind"], registry=self.registry)
        self.tokenised = Counter(
            "saltroute_tokenised", "Prompts by exactness of their tokens, or why there are none", ["result"], registry=self.registry
        )
        self.tokenise = Histogram(
            "saltroute_tokenise_seconds",
            "The token step of a request",
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1),
            registry=self.registry,
        )
        self.artifacts_fetched = Counter("saltroute_artifacts_fetched", "Artifacts taken in, by source", ["source"], registry=self.registry)
        self.artifacts_refused = Counter("saltroute_artifacts_refused", "Artifacts not used, by reason", ["reason"], registry=self.registry)
        self.artifacts_dropped = Counter("saltroute_artifacts_dropped", "Artifacts over a bound, by where", ["where"], registry=self.registry)
        self.trust_changes = Counter(
            "saltroute_trust_changes", "Verdicts on predicted reuse that changed", ["scope", "verdict", "cause"], registry=self.registry
        )
        self.kv_messages = Counter(
            "saltroute_kv_messages", "Messages of KV events and what became of connections, by kind", ["kind"], registry=self.registry
        )
        self.transfers = Counter("saltroute_transfers", "Prompts computed on another replica, by result", ["result"], registry=self.registry)
        self.transfer_orphans = Counter(
            "saltroute_transfer_orphans", "Computed prompts nobody fetched: their blocks wait for the end of a lease", registry=self.registry
        )
        self.transfer = Histogram(
            "saltroute_transfer_seconds", "From the call of the decode replica to its first byte", buckets=_TTFT_BUCKETS_S, registry=self.registry
        )
        self.held = Counter("saltroute_held", "Requests that waited in the router, by what for", ["reason"], registry=self.registry)
        self.queue_refused = Counter(
            "saltroute_queue_refused", "Requests that the queue did not take or keep, by why", ["reason"], registry=self.registry
        )
        self.spilled = Counter(
            "saltroute_spilled", "Requests served by another pool or model because their own had no time", ["to"], registry=self.registry
        )
        self.quota_refused = Counter(
            "saltroute_quota_refused", "Requests that a quota had no room for, by which and why", ["quota", "why"], registry=self.registry
        )
        self.quota_exchanges = Counter(
            "saltroute_quota_exchanges", "Exchanges of what was used under quotas, by result", ["result"], registry=self.registry
        )
        self.queue = Histogram("saltroute_queue_seconds", "Time waited in the router", buckets=_TTFT_BUCKETS_S, registry=self.registry)
        self.parity_checks = Counter("saltroute_parity_checks", "Comparisons of tokens with engines, by result", ["result"], registry=self.registry)
        self.replica_checks = Counter(
            "saltroute_replica_checks", "Looks at engines before they are added, by what was found of salts", ["result"], registry=self.registry
        )
        self.hidden_usage = Counter("saltroute_usage_chunks_hidden", "Usage chunks that the client had not asked for", registry=self.registry)

    def _told(self) -> None:
        """What requests leave behind for ingest and for collectors, and what of it was lost here."""
        self.records_dropped = Counter("saltroute_records_dropped", "Decision records lost to a full queue", registry=self.registry)
        self.records_shortened = Counter(
            "saltroute_records_shortened",
            "Records whose candidates were left out for their number, by why they were wanted",
            ["why"],
            registry=self.registry,
        )
        self.records_sent = Counter("saltroute_records_sent", "Decision records written to the stream", registry=self.registry)
        self.captures_sent = Counter("saltroute_captures_sent", "Captured requests written to their stream", registry=self.registry)
        self.captures_dropped = Counter(
            "saltroute_captures_dropped", "Captured requests lost here, by which bound", ["reason"], registry=self.registry
        )
        self.spans_sent = Counter("saltroute_spans_sent", "Spans that the collector took", registry=self.registry)
        self.spans_dropped = Counter("saltroute_spans_dropped", "Spans lost, by why", ["reason"], registry=self.registry)

    def _inference(self) -> None:
        """The GenAI conventions' metrics of a client: each time an engine was asked. No exemplars: they would carry ids into every store."""
        labels, registry = ["gen_ai_operation_name", "gen_ai_provider_name"], self.registry
        prometheus = conventions.prometheus
        buckets = conventions.DURATION_BUCKETS_S
        self.inference_duration = Histogram(
            prometheus(conventions.DURATION, "seconds"), "One engine's answer, whole", [*labels, "error_type"], buckets=buckets, registry=registry
        )
        self.inference_first_chunk = Histogram(
            prometheus(conventions.FIRST_CHUNK, "seconds"), "To the first chunk of a stream", labels, buckets=buckets, registry=registry
        )
        self.inference_per_chunk = Histogram(
            prometheus(conventions.PER_CHUNK, "seconds"), "For each token after the first", labels, buckets=buckets, registry=registry
        )
        self.used_input = Counter(prometheus(conventions.USED_INPUT), "Prompt tokens, cached ones included", labels, registry=registry)
        self.used_output = Counter(prometheus(conventions.USED_OUTPUT), "Tokens generated", labels, registry=registry)
        self.used_cache = Counter(prometheus(conventions.USED_CACHE), "Prompt tokens from engines' caches", labels, registry=registry)

    def page(self) -> bytes:
        return generate_latest(self.registry)


class PlaneCollector(Collector):
    """Gauges computed from the running state."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[Metric]:
        """One family after the other; nothing is kept between scrapes."""
        plane, now_s = self._plane, time.monotonic()
        yield GaugeMetricFamily("saltroute_in_flight", "Requests in flight", value=plane.in_flight)
        yield GaugeMetricFamily("saltroute_waiting", "Requests waiting for a replica", value=len(plane.waiting))
        yield GaugeMetricFamily("saltroute_following", "Requests held behind the leader of their burst", value=len(plane.waiting.bursts))
        yield GaugeMetricFamily("saltroute_quota_meters", "Limits of quotas that are counted here", value=len(plane.quotas.meters))
        yield GaugeMetricFamily("saltroute_quota_routers", "Routers that share the limits of quotas", value=plane.quotas.routers)
        yield GaugeMetricFamily("saltroute_quota_lost", "1 while quotas are kept by this router's share alone", value=plane.quotas.lost)
        spoilt = sum(meter.spoilt for meter in plane.quotas.meters.values())
        yield GaugeMetricFamily("saltroute_quota_spoilt", "Limits kept so because Valkey holds something else under their keys", value=spoilt)
        yield GaugeMetricFamily("saltroute_records_queued", "Decision records not yet written", value=plane.telemetry.queued())
        contact_at = plane.feed.contact_at
        age_s = -1.0 if contact_at is None else time.time() - contact_at
        yield GaugeMetricFamily("saltroute_config_contact_age_seconds", "Since the last word from Valkey; -1: never", value=age_s)
        turns = plane.causes.turns
        yield GaugeMetricFamily("saltroute_spans_queued", "Spans not yet exported", value=plane.tracing.queued())
        yield GaugeMetricFamily("saltroute_turns_bytes", "Prints of conversations' last turns", value=turns.size_bytes)
        yield CounterMetricFamily("saltroute_turns_dropped", "Conversations given up to stay within their bound", value=turns.dropped)
        yield CounterMetricFamily("saltroute_trust_dropped", "Accounts of trust given up to stay within the bounds", value=plane.trust.dropped)
        lookups = CounterMetricFamily("saltroute_cache_lookups", "Look-ups in the router's own caches", labels=["cache", "result"])
        for cache, found in (("namespace", plane.names), ("residency", plane.index)):
            lookups.add_metric([cache, "hit"], found.hits)
            lookups.add_metric([cache, "miss"], found.misses)
        yield lookups
        parity = GaugeMetricFamily("saltroute_parity", "Endpoints and replicas by agreement of their tokens", labels=["state"])
        states = [one.state for one in plane.tokens.parity.values()]
        for state in get_args(State):
            parity.add_metric([state], float(states.count(state)))
        yield parity
        prompts = GaugeMetricFamily("saltroute_prompts", "The prompt service: its counters and gauges", labels=["name"])
        for name, value in plane.tokens.prompts.stats().items():
            prompts.add_metric([name], value)
        yield prompts
        yield from self._of_engines(now_s)

    def _of_engines(self, now_s: float) -> Iterator[Metric]:
        plane = self._plane
        families = {
            "in_flight": GaugeMetricFamily("saltroute_replica_in_flight", "Requests in flight", labels=["replica"]),
            "queued": GaugeMetricFamily("saltroute_replica_queued_tokens", "Uncached tokens sent, no first byte yet", labels=["replica"]),
            "open": GaugeMetricFamily("saltroute_replica_breaker_open", "1 while the breaker is not closed", labels=["replica"]),
            "up": GaugeMetricFamily("saltroute_replica_reachable", "1 while health checks are answered", labels=["replica"]),
            "away": GaugeMetricFamily(
                "saltroute_replica_away", "1 while health checks or requests fail there (routing.core.reach)", labels=["replica"]
            ),
            "rate": GaugeMetricFamily("saltroute_replica_prefill_tokens_per_second", "Learned prefill rate", labels=["replica"]),
            "kappa": GaugeMetricFamily("saltroute_replica_reuse_ratio", "Cached tokens reported over predicted", labels=["replica"]),
            "exact": GaugeMetricFamily(
                "saltroute_replica_predictions_exact", "Share of predictions of reuse that came true within a block; -1: none", labels=["replica"]
            ),
            "error": GaugeMetricFamily(
                "saltroute_replica_prediction_error_tokens", "Median error of predicted reuse; -1: no predictions", labels=["replica"]
            ),
            "blocks": GaugeMetricFamily("saltroute_replica_history_blocks", "Blocks believed resident", labels=["replica"]),
        }
        adapters = _Adapters()
        evicted = CounterMetricFamily("saltroute_replica_history_evicted", "Blocks dropped from the index by its bound", labels=["replica"])
        restarts = CounterMetricFamily("saltroute_replica_restarts", "Restarts seen", labels=["replica"])
        verdicts = GaugeMetricFamily("saltroute_replica_trust", "1 for the verdict in force", labels=["replica", "verdict", "cause"])
        sizes = plane.index.sizes()
        for url, engine in plane.engines.items():
            places = [sizes.get(key, (0, 0)) for key in engine.keys]
            held, gone = sum([blocks for blocks, _ in places]), sum([evicted for _, evicted in places])
            trust = plane.trust.report_of(engine.targets, now_s)
            values = {
                "in_flight": engine.in_flight,
                "queued": engine.queued(now_s)[0],
                "open": engine.breaker.state(now_s) != "closed",
                "up": engine.reachable(),
                "away": engine.away_since is not None,
                "rate": engine.calibration.rate(None, now_s),
                "kappa": trust.kappa,
                "exact": -1.0 if trust.share_exact is None else trust.share_exact,
                "error": -1.0 if trust.median_error_tokens is None else trust.median_error_tokens,
                "blocks": held,
            }
            for name, value in values.items():
                families[name].add_metric([url], float(value))
            evicted.add_metric([url], gone)
            restarts.add_metric([url], engine.restarts)
            verdicts.add_metric([url, trust.verdict, trust.cause or "none"], 1.0)
            adapters.add(url, engine.adapters, now_s)
        yield from families.values()
        yield evicted
        yield restarts
        yield verdicts
        yield from adapters.families


class _Adapters:
    """What is believed of engines' LoRA slots, for those engines of which anything is: the others have no rows."""

    def __init__(self) -> None:
        label = ["replica"]
        self._active = GaugeMetricFamily(
            "saltroute_replica_adapters", "Adapters believed in a slot, those that are being loaded among them", labels=label
        )
        self._loading = GaugeMetricFamily("saltroute_replica_adapters_loading", "Those that are believed to be on their way in", labels=label)
        self._slots = GaugeMetricFamily("saltroute_replica_adapter_slots", "Slots, where the engine says how many", labels=label)
        self._load = GaugeMetricFamily("saltroute_replica_adapter_load_seconds", "What bringing one in takes, as learned", labels=label)
        self._began = CounterMetricFamily("saltroute_replica_adapter_loads", "Requests that brought their adapter in", labels=label)
        self._waited = CounterMetricFamily("saltroute_replica_adapter_waits", "Requests sent while their adapter was being loaded", labels=label)
        self._displaced = CounterMetricFamily("saltroute_replica_adapters_displaced", "Adapters believed to have left for others", labels=label)

    def add(self, url: str, adapters: AdapterSlots, now_s: float) -> None:
        if adapters.slots is None and not adapters.used and not adapters.loads:
            return
        active, loading = adapters.held(now_s)
        self._active.add_metric([url], active)
        self._loading.add_metric([url], loading)
        if adapters.slots is not None:
            self._slots.add_metric([url], adapters.slots)
        self._load.add_metric([url], adapters.load_s)
        self._began.add_metric([url], adapters.loads)
        self._waited.add_metric([url], adapters.waits)
        self._displaced.add_metric([url], adapters.dropped)

    @property
    def families(self) -> tuple[Metric, ...]:
        return self._active, self._loading, self._slots, self._load, self._began, self._waited, self._displaced
