"""Read the few numbers that matter out of an engine's /metrics page (Prometheus text, tens of kilobytes), without parsing all of it.

Names are those of vLLM, seen on 0.32; SGLang's are from its specification. An unknown family tells nothing, and nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RankLoad:
    """The rows of one data-parallel rank."""

    number: int
    running: float
    waiting: float
    kv_used: float | None


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One scrape. ``capacity_tokens`` is the size of the KV cache; ``started_at`` is unix seconds; ``finished`` counts requests since then, whoever
    sent them; None is "not said"."""

    running: float | None = None
    waiting: float | None = None
    capacity_tokens: int | None = None
    started_at: float | None = None
    finished: float | None = None
    running_adapters: tuple[str, ...] | None = None  # LoRA adapters of requests that run, by name
    adapter_slots: int | None = None
    asleep: bool = False  # it says that it sleeps: it answers nothing, and its cache is gone
    kv_used: float | None = None  # share of the KV cache in use, [0, 1]; cached blocks that nobody uses count as free
    ranks: tuple[RankLoad, ...] | None = None  # by number; empty: what is said of them cannot be used


MAX_ROWS = 8192  # of one name
MAX_ROWS_BYTES = 1024 * 1024
_NUMBER = rb"([0-9.eE+-]+)\s*$"


@dataclass(frozen=True, slots=True)
class _Family:
    """The rows of one name."""

    name: bytes
    pattern: re.Pattern[bytes]

    def of(self, page: bytes) -> list[Any]:
        """Their values. Rows are looked for by name first: a pattern over megabytes that an engine chose would hold up requests. ``page`` begins with
        a newline."""
        rows: list[bytes] = []
        size, at = 0, page.find(b"\n" + self.name)
        while at >= 0 and len(rows) < MAX_ROWS:
            end = page.find(b"\n", at + 1)
            end = len(page) if end < 0 else end
            size += end - at
            if size > MAX_ROWS_BYTES:
                break
            rows.append(page[at + 1 : end])
            at = page.find(b"\n" + self.name, end)
        return self.pattern.findall(b"\n".join(rows))


def _gauge(name: bytes) -> _Family:
    return _Family(name, re.compile(rb"^" + name + rb"(?:\{[^}\n]*\})?[ \t]+" + _NUMBER, re.MULTILINE))


_RUNNING = {"vllm": _gauge(b"vllm:num_requests_running"), "sglang": _gauge(b"sglang:num_running_reqs")}
_WAITING = {"vllm": _gauge(b"vllm:num_requests_waiting"), "sglang": _gauge(b"sglang:num_queue_reqs")}
_FINISHED = {"vllm": _gauge(b"vllm:request_success_total")}
_KV_USED = {"vllm": _gauge(b"vllm:kv_cache_usage_perc")}


def _labelled(name: bytes) -> _Family:
    """Labels and value of each row. A label is looked for in what was found: beside the braces' ends a pattern would try every place for it with
    every end, and a row of 80 kB would take a second."""
    return _Family(name, re.compile(rb"^" + name + rb"\{([^}\n]*)\}[ \t]+" + _NUMBER, re.MULTILINE))


_RANKS_RUNNING, _RANKS_WAITING = _labelled(b"vllm:num_requests_running"), _labelled(b"vllm:num_requests_waiting")
_RANKS_SERVED = _labelled(b"vllm:prompt_tokens_total")
_RANKS_KV_USED = _labelled(b"vllm:kv_cache_usage_perc")
_RANK = re.compile(rb'(?:^|,)engine="(\d{1,4})"')
_SLEEP_STATE = _labelled(b"vllm:engine_sleep_state")
_IS_AWAKE = re.compile(rb'(?:^|,)sleep_state="awake"')
_STARTED = _gauge(b"process_start_time_seconds")
_CONFIG = _Family(b"vllm:cache_config_info", re.compile(rb"^vllm:cache_config_info\{([^\n]*)\}", re.MULTILINE))
_BLOCKS = re.compile(rb'num_gpu_blocks="(\d{1,12})"')
_BLOCK_SIZE = re.compile(rb'(?:^|,)block_size="(\d{1,6})"')
_ADAPTERS = _Family(b"vllm:lora_requests_info", re.compile(rb"^vllm:lora_requests_info\{([^\n]*)\}[ \t]+" + _NUMBER, re.MULTILINE))
_SLOTS = re.compile(rb'(?:^|,)max_lora="(\d{1,6})"')
_RUNNING_ADAPTERS = re.compile(rb'(?:^|,)running_lora_adapters="([^"\n]*)"')
MAX_ADAPTERS = 256  # of one row
_SGLANG_TOKENS = _gauge(b"sglang:max_total_num_tokens")


def _sum(family: _Family | None, page: bytes) -> float | None:
    """The sum over all label sets (one for each data-parallel engine), or None when the name is absent."""
    return None if family is None else _total(family.of(page))


def _total(texts: Iterable[bytes]) -> float | None:
    """The sum of those that are numbers, or None without one."""
    values = []
    for text in texts:
        try:
            value = float(text)
        except ValueError:
            continue
        if 0 <= value < 1e15:
            values.append(value)
    return sum(values) if values else None


def _mean_share(family: _Family | None, page: bytes) -> float | None:
    """The mean over all label sets, or None when the name is absent."""
    count = 0 if family is None else len(family.of(page))
    total = _sum(family, page)
    return None if total is None else min(1.0, total / count)


def _capacity_tokens(family: str, page: bytes) -> int | None:
    if family == "sglang":
        total = _sum(_SGLANG_TOKENS, page)
        return None if total is None else int(total)
    tokens = 0
    for labels in _CONFIG.of(page):
        blocks, size = _BLOCKS.search(labels), _BLOCK_SIZE.search(labels)
        if blocks and size:
            tokens += int(blocks[1]) * int(size[1])
    return tokens if 0 < tokens < 1e15 else None  # rows without end would make a number that no report can carry


def _adapters(family: str, page: bytes) -> tuple[tuple[str, ...] | None, int | None]:
    """Running adapters and slots. vLLM adds a row for every combination it was ever in and writes the time (unix s) as its value: the newest holds.
    Names are joined by commas there, so a name with a comma in it cannot be told."""
    newest, found = -1.0, None
    for labels, value in _ADAPTERS.of(page) if family == "vllm" else ():
        try:
            at = float(value)
        except ValueError:
            continue
        if newest < at < 1e15:
            newest, found = at, labels
    if found is None:
        return None, None
    slots, running = _SLOTS.search(found), _RUNNING_ADAPTERS.search(found)
    names = () if running is None else tuple(dict.fromkeys(name.strip() for name in running[1].decode("utf-8", "replace").split(",") if name.strip()))
    return names[:MAX_ADAPTERS], int(slots[1]) if slots and int(slots[1]) else None


def _numbers(family: _Family, page: bytes) -> dict[int, float] | None:
    """The value of each rank, or None where one is said twice: then it is not known which is meant."""
    found: dict[int, float] = {}
    for labels, text in family.of(page):
        rank = _RANK.search(labels)
        try:
            value = float(text)
        except ValueError:
            continue
        if rank is None:
            continue
        number = int(rank[1])
        if number in found:
            return None
        if 0 <= value < 1e15:
            found[number] = value
    return found


def _ranks(page: bytes) -> tuple[RankLoad, ...] | None:
    """The loads of data-parallel ranks, of an engine of one too; None where rows are not told apart by rank. A rank's gauges appear with its first
    request, its counters with the engine."""
    running, waiting = _numbers(_RANKS_RUNNING, page), _numbers(_RANKS_WAITING, page)
    served = _numbers(_RANKS_SERVED, page) or {}
    if running is None or waiting is None or waiting.keys() != running.keys():
        return ()
    used = _numbers(_RANKS_KV_USED, page) or {}
    numbers = sorted(running.keys() | served.keys())
    loads = [RankLoad(one, running.get(one, 0.0), waiting.get(one, 0.0), min(1.0, used[one]) if one in used else None) for one in numbers]
    return tuple(loads) if loads else None


def read_load(family: str, page: bytes) -> EngineLoad:
    """Pick the load, capacity and start time from a metrics page; whatever is missing or malformed is None."""
    page = b"\n" + page
    running_adapters, adapter_slots = _adapters(family, page)
    return EngineLoad(
        running=_sum(_RUNNING.get(family), page),
        waiting=_sum(_WAITING.get(family), page),
        capacity_tokens=_capacity_tokens(family, page),
        started_at=_sum(_STARTED, page),
        finished=_sum(_FINISHED.get(family), page),
        running_adapters=running_adapters,
        adapter_slots=adapter_slots,
        asleep=_total(value for labels, value in _SLEEP_STATE.of(page) if _IS_AWAKE.search(labels)) == 0,
        kv_used=_mean_share(_KV_USED.get(family), page),
        ranks=_ranks(page) if family == "vllm" else None,
    )
