"""The metrics of one replica under vLLM's names, in a registry of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from routing.simulator.config import ReplicaConfig
from routing.simulator.submission import Output, Stats, StepResult

_LABELS = ("engine", "model_name")
_FROM_THE_START = ("process_start_time_seconds", "vllm:cache_config_info")
_COUNTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
_LATENCY_S = (*(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),)
_TOKEN_LATENCY_S = (*(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),)
_TTFT_S = (*(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),)
_STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
_HISTOGRAMS: dict[str, tuple[float, ...]] = {
    "request_prompt_tokens": _COUNTS,
    "request_generation_tokens": _COUNTS,
    "iteration_tokens_total": _STEP_TOKENS,
    "request_max_num_generation_tokens": _COUNTS,
    "request_params_n": (1.0, 2.0, 5.0, 10.0, 20.0),
    "request_params_max_tokens": _COUNTS,
    "time_to_first_token_seconds": _TTFT_S,
    "inter_token_latency_seconds": _TOKEN_LATENCY_S,
    "request_time_per_output_token_seconds": _TOKEN_LATENCY_S,
    "e2e_request_latency_seconds": _LATENCY_S,
    "request_queue_time_seconds": _LATENCY_S,
    "request_inference_time_seconds": _LATENCY_S,
    "request_prefill_time_seconds": _LATENCY_S,
    "request_decode_time_seconds": _LATENCY_S,
    "request_num_preemptions": (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
    "request_prefill_kv_computed_tokens": _COUNTS,
}
_COUNTERS = (
    "prefix_cache_queries",
    "prefix_cache_hits",
    "external_prefix_cache_queries",
    "external_prefix_cache_hits",
    "num_preemptions",
    "prompt_tokens",
    "prompt_tokens_cached",
    "generation_tokens",
)
_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


class ReplicaMetrics:
    """Counts what the engine reports at the end of each step. Gauges therefore lag by up to one step, as vLLM's do.

    An aborted request is counted nowhere but in the gauges. LoRA traffic is counted under the base model.
    """

    def __init__(self, config: ReplicaConfig, *, started_unix_s: float) -> None:
        self.registry = CollectorRegistry()
        self.stepped = False
        self._ids = {"engine": str(config.data_parallel_rank), "model_name": config.model}
        self._counters = {name: self._counter(name) for name in _COUNTERS}
        self._histograms = {name: self._histogram(name, bounds) for name, bounds in _HISTOGRAMS.items()}
        self._running = self._gauge("num_requests_running")
        self._waiting = self._gauge("num_requests_waiting")
        self._usage = self._gauge("kv_cache_usage_perc")
        by_reason = self._labelled_gauge("num_requests_waiting_by_reason", "reason")
        self._waiting_capacity = by_reason.labels(**self._ids, reason="capacity")
        by_reason.labels(**self._ids, reason="deferred").set(0)
        sleep = self._labelled_gauge("engine_sleep_state", "sleep_state")
        for state in ("awake", "weights_offloaded", "discard_all"):
            sleep.labels(**self._ids, sleep_state=state).set(state == "awake")
        success = Counter("vllm:request_success", "Count of processed requests.", (*_LABELS, "finished_reason"), registry=self.registry)
        self._success = {reason: success.labels(**self._ids, finished_reason=reason) for reason in _FINISH_REASONS}
        source = Counter("vllm:prompt_tokens_by_source", "Prompt tokens by source.", (*_LABELS, "source"), registry=self.registry)
        self._by_source = {name: source.labels(**self._ids, source=name) for name in _SOURCES}
        rejected = Counter("vllm:admission_rejections", "Refused requests.", ("model_name", "reason"), registry=self.registry)
        self._rejections = {
            reason: rejected.labels(model_name=config.model, reason=reason) for reason in ("max_num_queued_reqs", "max_num_queued_tokens")
        }
        Gauge("process_start_time_seconds", "Start time of the replica since unix epoch in seconds.", registry=self.registry).set(started_unix_s)
        self._describe_cache(config)
        self._expired: Counter | None = None
        if config.transfers is not None:
            self._expired = self._counter("nixl_num_kv_expired_reqs")
        self._adapters: Gauge | None = None
        self._slots = str(config.engine.adapter_slots or len(config.adapters))
        if config.adapters or config.runtime_adapters:
            names = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
            self._adapters = Gauge("vllm:lora_requests_info", "Running stats on lora requests.", names, registry=self.registry)
            self._show_adapters((), (), started_unix_s)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def expire(self) -> None:
        """A lease ended before anybody came for the blocks."""
        if self._expired is not None:
            self._expired.inc()

    def reject(self, reason: str) -> None:
        self._rejections[reason].inc()

    def show(self, stats: Stats) -> None:
        """Set the gauges."""
        self._running.set(stats.running)
        self._waiting.set(stats.waiting)
        self._waiting_capacity.set(stats.waiting)
        self._usage.set(stats.usage)
        self._show_adapters(stats.running_adapters, stats.waiting_adapters, time.time())

    def observe_step(self, result: StepResult, done_s: float) -> None:
        """Count a step that ended at ``done_s`` on the engine's clock."""
        self.stepped = True
        stats = result.stats
        self.show(stats)
        self._counters["prefix_cache_queries"].inc(stats.queried_tokens)
        self._counters["prefix_cache_hits"].inc(stats.hit_tokens)
        self._counters["num_preemptions"].inc(stats.preemptions)
        self._counters["generation_tokens"].inc(len(result.outputs))
        if stats.scheduled_tokens:
            self._observe("iteration_tokens_total", stats.scheduled_tokens)
        for output in result.outputs:
            self._observe_output(output, done_s)

    def observe_params(self, *, choices: int, max_tokens: int) -> None:
        self._observe("request_params_n", choices)
        self._observe("request_params_max_tokens", max_tokens)

    def _observe_output(self, output: Output, done_s: float) -> None:
        if output.index == 0:
            self._observe("time_to_first_token_seconds", done_s - output.arrived_s)
            self._counters["prompt_tokens"].inc(output.prompt_tokens)
            self._counters["prompt_tokens_cached"].inc(output.cached_tokens)
            self._by_source["local_compute"].inc(output.prompt_tokens - output.cached_tokens - output.fetched_tokens)
            self._by_source["local_cache_hit"].inc(output.cached_tokens)
            self._by_source["external_kv_transfer"].inc(output.fetched_tokens)
            self._counters["external_prefix_cache_hits"].inc(output.fetched_tokens)
        elif output.previous_token_s is not None:
            self._observe("inter_token_latency_seconds", done_s - output.previous_token_s)
        finished = output.finished
        if finished is None:
            return
        self._success[finished.reason].inc()
        decode_s = finished.finished_s - finished.first_token_s
        self._observe("request_prompt_tokens", finished.prompt_tokens)
        self._observe("request_generation_tokens", finished.output_tokens)
        self._observe("request_max_num_generation_tokens", finished.output_tokens)
        self._observe("request_prefill_kv_computed_tokens", finished.computed_prompt_tokens)
        self._observe("request_num_preemptions", finished.preemptions)
        self._observe("e2e_request_latency_seconds", finished.finished_s - finished.arrived_s)
        self._observe("request_queue_time_seconds", finished.scheduled_s - finished.arrived_s)
        self._observe("request_inference_time_seconds", finished.finished_s - finished.scheduled_s)
        self._observe("request_prefill_time_seconds", finished.first_token_s - finished.scheduled_s)
        self._observe("request_decode_time_seconds", decode_s)
        self._observe("request_time_per_output_token_seconds", decode_s / max(1, finished.output_tokens - 1))

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(max(0.0, value))

    def _counter(self, name: str) -> Counter:
        return Counter(f"vllm:{name}", f"{name}, as vLLM counts it.", _LABELS, registry=self.registry).labels(**self._ids)

    def _gauge(self, name: str) -> Gauge:
        return self._labelled_gauge(name).labels(**self._ids)

    def _labelled_gauge(self, name: str, *labels: str) -> Gauge:
        return Gauge(f"vllm:{name}", f"{name}, as vLLM measures it.", (*_LABELS, *labels), registry=self.registry)

    def _histogram(self, name: str, bounds: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"vllm:{name}", f"{name}, as vLLM measures it.", _LABELS, buckets=bounds, registry=self.registry)
        return histogram.labels(**self._ids)

    def _describe_cache(self, config: ReplicaConfig) -> None:
        engine = config.engine
        capacity_tokens = engine.blocks * engine.block_size_tokens
        facts = {
            "engine": str(config.data_parallel_rank),
            "block_size": str(engine.block_size_tokens),
            "cache_dtype": "auto",
            "effective_attention_block_size": str(engine.block_size_tokens),
            "enable_prefix_caching": "True",
            "hash_block_size": "None",
            "kv_cache_max_concurrency": str(round(capacity_tokens / engine.max_model_len_tokens, 4)),
            "kv_cache_size_tokens": str(capacity_tokens),
            "num_cpu_blocks": "None",
            "num_gpu_blocks": str(engine.blocks),
            "num_gpu_blocks_override": str(engine.blocks),
            "prefix_caching_hash_algo": engine.hash_algorithm,
            "sliding_window": "None",
        }
        gauge = Gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", tuple(facts), registry=self.registry)
        gauge.labels(**facts).set(1)

    def _show_adapters(self, running: tuple[str, ...], waiting: tuple[str, ...], unix_s: float) -> None:
        """A row for every combination there ever was; the latest time as value says which holds."""
        if self._adapters is not None:
            self._adapters.labels(self._slots, ",".join(running), ",".join(waiting)).set(unix_s)


class _Together(Collector):
    """The families of several ranks, each once; what a process says of itself is the first rank's. As with vLLM of several ranks, gauges of a rank
    appear with its first step."""

    def __init__(self, ranks: Sequence[ReplicaMetrics]) -> None:
        self._ranks = ranks

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for rank in self._ranks:
            for family in rank.registry.collect():
                if not rank.stepped and family.type == "gauge":
                    family.samples = [one for one in family.samples if one.name in _FROM_THE_START]
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples += [one for one in family.samples if "engine" in one.labels]
        yield from families.values()


def render(ranks: Sequence[ReplicaMetrics]) -> bytes:
    """The page of an engine of several data-parallel ranks: rows told apart by ``engine``."""
    if len(ranks) == 1:
        return ranks[0].render()
    together = CollectorRegistry()
    together.register(_Together(ranks))
    return generate_latest(together)
