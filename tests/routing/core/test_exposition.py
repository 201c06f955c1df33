"""Numbers out of a real engine's metrics page, and out of nonsense."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.exposition import MAX_ROWS, MAX_ROWS_BYTES, EngineLoad, read_load

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
    assert read_load("vllm", PAGE) == EngineLoad(running=3.0, waiting=4.0, capacity_tokens=1280, started_at=1795972732.36, ranks=())


def test_an_unknown_family_tells_only_its_start() -> None:
    assert read_load("llamacpp", PAGE.replace(b"vllm:cache", b"x")) == EngineLoad(started_at=1795972732.36)


@pytest.mark.parametrize(
    "page", [b"", b"vllm:num_requests_running nan\n", b"vllm:num_requests_running{} -1\n", b"<html>", b"vllm:num_requests_running{ 1\n"]
)
def test_nonsense_is_nothing(page: bytes) -> None:
    assert read_load("vllm", page) == EngineLoad()


def test_rows_of_one_name_are_bounded() -> None:
    row = b'vllm:num_requests_running{engine="0"} 1\n'
    expected = EngineLoad(running=MAX_ROWS, waiting=4.0, capacity_tokens=1280, started_at=1795972732.36, ranks=())
    assert read_load("vllm", row * (MAX_ROWS + 9) + PAGE) == expected
    assert read_load("vllm", row + b"vllm:num_requests_running{" + b" " * MAX_ROWS_BYTES + b"} 1\n") == EngineLoad(running=1.0, ranks=())


READ_S = 20  # of processor time; hundreds of times what a reading takes that grows with the page, a tenth of one that grows with its square


def test_labels_said_thousands_of_times_in_a_row_cost_no_more_than_their_bytes(tmp_path: Path) -> None:
    """In a process that ends when it works for too long: nothing else interrupts a pattern."""
    ranks, states = b',engine="1"' * 80_000, b'sleep_state="awake"' * 50_000
    rows = [b"vllm:num_requests_running{" + ranks, b"vllm:num_requests_waiting{" + ranks + b"} x", b"vllm:engine_sleep_state{" + states]
    (tmp_path / "page").write_bytes(b"\n".join([*rows, PAGE]))
    code = f"""
import pathlib, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({READ_S}, {READ_S}))
from routing.core.exposition import read_load
print(read_load("vllm", pathlib.Path(sys.argv[1]).read_bytes()).running)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "page")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "3.0\n"), done.stderr


def test_a_size_that_no_report_can_carry_is_not_said() -> None:
    row = b'vllm:cache_config_info{block_size="999999",num_gpu_blocks="%d"} 1\n'
    assert read_load("vllm", row % 9 * 2).capacity_tokens == 2 * 9 * 999_999
    assert read_load("vllm", row % 999_999_999_999 * 20).capacity_tokens is None
    assert read_load("vllm", row % 0).capacity_tokens is None


@given(st.lists(st.sampled_from([*PAGE.splitlines(), b"", b"vllm:num_requests_running", b" vllm:num_requests_running 3", b"\r"]), max_size=12))
def test_looking_for_rows_by_name_first_changes_nothing(lines: list[bytes]) -> None:
    page = b"\n".join(lines)
    found = re.findall(rb"^vllm:num_requests_running(?:\{[^}\n]*\})?[ \t]+([0-9.eE+-]+)\s*$", page, re.MULTILINE)
    assert read_load("vllm", page).running == (sum(map(float, found)) if found else None)


@given(st.binary(max_size=200))
def test_any_bytes_are_survived(page: bytes) -> None:
    read_load("vllm", page + b"\nvllm:num_requests_running " + page)


def test_the_names_are_those_of_a_real_engine() -> None:
    recorded = msgspec.json.decode((Path(__file__).parents[2] / "vectors" / "vllm-0.32" / "metrics.json").read_bytes())
    labels = {metric["name"]: metric["series"][0] for metric in recorded}
    page = "".join(
        name + "{" + ",".join(f'{label}="{value}"' for label, value in labels[name].items()) + "} 1.0\n"
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:cache_config_info", "process_start_time_seconds")
    )
    load = read_load("vllm", page.encode())
    assert (load.running, load.waiting, load.started_at) == (1.0, 1.0, 1.0)
    blocks, size = (int(labels["vllm:cache_config_info"][name]) for name in ("num_gpu_blocks", "block_size"))
    assert load.capacity_tokens == blocks * size


def _row(slots: str, running: str, waiting: str, value: str) -> bytes:
    labels = f'max_lora="{slots}",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
    return f"vllm:lora_requests_info{{{labels}}} {value}\n".encode()


@pytest.mark.parametrize(
    ("rows", "running", "slots"),
    [
        (b"", None, None),
        (_row("2", "", "", "1.0"), (), 2),
        (_row("2", "ad1,ad2", "", "1.79597296e+09"), ("ad1", "ad2"), 2),
        (_row("2", "ad1", "", "5.0") + _row("2", "ad2", "ad1", "6.0") + _row("2", "", "", "4.0"), ("ad2",), 2),  # the newest row holds
        (_row("4", " ad1 ,,ad1", "ad3", "1"), ("ad1",), 4),
        (_row("x", "ad1", "", "1"), ("ad1",), None),
        (_row("2", "ad1", "", "1e400") + _row("2", "ad2", "", "nan") + _row("2", "ad3", "", "--"), None, None),
    ],
)
def test_the_newest_row_names_the_adapters_that_run(rows: bytes, running: tuple[str, ...] | None, slots: int | None) -> None:
    load = read_load("vllm", PAGE + rows)
    assert (load.running_adapters, load.adapter_slots) == (running, slots)
    assert load.running == 3.0
    assert read_load("sglang", rows).running_adapters is None


@pytest.mark.parametrize(("awake", "asleep"), [("1.0", False), ("0.0", True)])
def test_an_engine_that_sleeps_says_so(awake: str, asleep: bool) -> None:
    rows = f'vllm:engine_sleep_state{{engine="0",model_name="tiny",sleep_state="awake"}} {awake}\n'.encode()
    rows += b'vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="discard_all"} 0.0\n'
    assert read_load("vllm", PAGE + rows).asleep is asleep
