"""Numbers out of a real engine's metrics page, and out of nonsense."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.exposition import EngineLoad, read_load

PAGE = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 2.0
vllm:num_requests_running{engine="1",model_name="tiny"} 1.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 9.0
vllm:cache_config_info{block_size="32",cache_dtype="auto",num_gpu_blocks="40",num_gpu_blocks_override="40"} 1.0
process_start_time_seconds 1.79597273236e+09
"""


def test_the_numbers_that_matter_are_read_and_summed_over_engines() -> None:
    assert read_load("vllm", PAGE) == EngineLoad(running=3.0, waiting=4.0, capacity_tokens=1280, started_at=1795972732.36)


def test_an_unknown_family_tells_only_its_start() -> None:
    assert read_load("llamacpp", PAGE.replace(b"vllm:cache", b"x")) == EngineLoad(started_at=1795972732.36)


@pytest.mark.parametrize("page", [b"", b"vllm:num_requests_running nan\n", b"vllm:num_requests_running{} -1\n", b"<html>", b"vllm:num_requests_running{ 1\n"])
def test_nonsense_is_nothing(page: bytes) -> None:
    assert read_load("vllm", page) == EngineLoad()


@given(st.binary(max_size=200))
def test_any_bytes_are_survived(page: bytes) -> None:
    read_load("vllm", page + b"\nvllm:num_requests_running " + page)


def test_a_captured_page_of_vllm_is_understood() -> None:
    captured = sorted(Path(__file__).parents[2].glob("vectors/vllm-*/metrics.txt"))
    for path in captured:
        load = read_load("vllm", path.read_bytes())
        assert load.running is not None
        assert load.waiting is not None
        assert load.capacity_tokens
        assert load.started_at
