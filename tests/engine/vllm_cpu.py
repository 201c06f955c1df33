"""Start and stop real vLLM replicas on this machine's CPU.

    python -m tests.engine.vllm_cpu install    packages and model only (minutes, once)
    python -m tests.engine.vllm_cpu start      two replicas that stay up; prints their addresses as JSON
    python -m tests.engine.vllm_cpu stop       ends the replicas that `start` left, and nothing else

Tests use the ``replicas`` fixture (conftest.py) instead. Directory: SALTROUTE_VLLM_DIR, else ~/.cache/saltroute-vllm.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from tests.engine.installation import EngineUnavailableError, Installation, last_line

MODEL_NAME = "tiny"
BLOCK_TOKENS = 32  # the CPU attention of vLLM accepts multiples of 32 only
KV_BLOCKS = 400  # one of them is the engine's null block
CONTEXT_TOKENS = 4096
START_TIMEOUT_S = 600.0  # two replicas at once take about 70 s on two idle cores
STOP_TIMEOUT_S = 60.0
POLL_S = 0.25
PORTS = range(20_000, 32_768)  # below Linux's ephemeral range, so that no outgoing connection takes one meanwhile
PROXY_FREE = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Replica:
    """A running engine of ours. ``started_ticks`` tells its process from a later one that got the same pid."""

    name: str
    port: int
    events_port: int
    replay_port: int
    pid: int
    started_ticks: int
    log: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def events(self) -> str:
        return f"tcp://127.0.0.1:{self.events_port}"

    @property
    def replay(self) -> str:
        return f"tcp://127.0.0.1:{self.replay_port}"

    def alive(self) -> bool:
        return start_ticks(self.pid) == self.started_ticks

    def healthy(self) -> bool:
        try:
            with PROXY_FREE.open(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:  # refused, reset, timed out, or an HTTP error status
            return False

    def metric(self, name: str) -> float:
        """The sum over all labels of one of the engine's metrics."""
        with PROXY_FREE.open(f"{self.url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        found = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        if not found:
            raise LookupError(name)
        return sum(found)


@dataclass(frozen=True, slots=True)
class Connector:
    """An engine's end of transfers: what it does (vLLM's ``kv_role``), and where others ask it for blocks."""

    role: Literal["kv_producer", "kv_consumer", "kv_both"]
    port: int

    @property
    def flags(self) -> list[str]:
        config = {"kv_connector": "NixlConnector", "kv_role": self.role, "kv_buffer_device": "cpu"}
        return ["--kv-transfer-config", json.dumps(config)]

    @property
    def environment(self) -> dict[str, str]:
        return {"UCX_TLS": "tcp,shm,self", "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.port)}


def start_pair(installation: Installation, *, decode_context_tokens: int = CONTEXT_TOKENS) -> tuple[Replica, Replica]:
    """A prefill and a decode replica that hand KV caches over, healthy; the installation has what transfers need.

    Raises:
        EngineUnavailableError: as :func:`start`.
    """
    (installation.root / "run").mkdir(parents=True, exist_ok=True)
    ports = free_ports(8)
    ends = {"prefill": Connector("kv_producer", ports[3]), "decode": Connector("kv_consumer", ports[7])}
    started: list[Replica] = []
    try:
        for place, (name, connector) in enumerate(ends.items()):
            context_tokens = decode_context_tokens if name == "decode" else CONTEXT_TOKENS
            started.append(
                _spawn(installation, name, ports[4 * place : 4 * place + 3], KV_BLOCKS, connector=connector, context_tokens=context_tokens)
            )
        _wait_until_healthy(started)
    except BaseException:
        stop(started)
        raise
    return started[0], started[1]


def start(
    installation: Installation, names: Sequence[str], *, kv_blocks: int = KV_BLOCKS, adapters: Mapping[str, Path] | None = None, ranks: int = 1
) -> list[Replica]:
    """Start one replica for each name, each with a cache of ``kv_blocks`` (in each of its data-parallel ``ranks``) and a slot for one of the LoRA
    ``adapters`` (directories by name), and wait until all are healthy; if one fails, none is left running.

    Raises:
        EngineUnavailableError: a replica ended, or did not answer in time; the text ends with its log's last line.
    """
    run = installation.root / "run"
    run.mkdir(parents=True, exist_ok=True)
    ports = free_ports(3 * len(names), in_row=ranks)
    started: list[Replica] = []
    try:
        for position, name in enumerate(names):
            started.append(_spawn(installation, name, ports[3 * position : 3 * position + 3], kv_blocks, adapters=adapters, ranks=ranks))
        _wait_until_healthy(started)
    except BaseException:
        stop(started)
        raise
    return started


def restart(installation: Installation, replica: Replica, *, kv_blocks: int = KV_BLOCKS) -> Replica:
    """End a replica and start it again on the same ports, as a supervisor does; waits until it is healthy.

    Raises:
        EngineUnavailableError: it ended again, or did not answer in time.
    """
    stop([replica])
    again = _spawn(installation, replica.name, (replica.port, replica.events_port, replica.replay_port), kv_blocks)
    try:
        _wait_until_healthy([again])
    except BaseException:
        stop([again])
        raise
    return again


def stop(replicas: Sequence[Replica]) -> None:
    """End these replicas with all their workers. Processes that are not ours any more are left alone."""
    for replica in replicas:
        _signal(replica, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for replica in replicas:
        while _running(replica) and time.monotonic() < deadline:
            _reap(replica.pid)
            time.sleep(POLL_S)
        _signal(replica, signal.SIGKILL)
        _reap(replica.pid)


def free_ports(count: int, *, in_row: int = 1) -> list[int]:
    """Distinct TCP ports that nobody listens on now, on any interface. ``in_row``: so many from each on, as an engine counts its ranks' up."""
    found: list[int] = []
    starts = range(PORTS.start, PORTS.stop, in_row)
    candidates = random.sample(starts, len(starts))
    while len(found) < count:
        port = candidates.pop()
        if all(_is_free(port + offset) for offset in range(in_row)):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def command(
    installation: Installation, port: int, events_port: int, replay_port: int, kv_blocks: int = KV_BLOCKS, *, context_tokens: int = CONTEXT_TOKENS
) -> list[str]:
    """The engine's command line."""
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{events_port}",  # an address without a wildcard would make the engine connect, not bind
        "replay_endpoint": f"tcp://*:{replay_port}",
        "topic": f"kv@{MODEL_NAME}",
    }
    options = {
        "--served-model-name": MODEL_NAME,
        "--host": "127.0.0.1",
        "--port": str(port),
        "--dtype": "bfloat16",
        "--max-model-len": str(context_tokens),
        "--block-size": str(BLOCK_TOKENS),
        "--num-gpu-blocks-override": str(kv_blocks),
        "--max-num-seqs": "8",
        "--kv-events-config": json.dumps(events),
    }
    flags = ["--enforce-eager", "--enable-prompt-tokens-details"]
    vllm = str(installation.venv / "bin" / "vllm")
    return [vllm, "serve", str(installation.model), *flags, *(part for pair in options.items() for part in pair)]


def adapter_flags(adapters: Mapping[str, Path]) -> list[str]:
    """One slot, so that two adapters displace each other."""
    if not adapters:
        return []
    modules = [f"{name}={path}" for name, path in adapters.items()]
    return ["--enable-lora", "--max-loras", "1", "--max-lora-rank", "8", "--lora-modules", *modules]


def environment(installation: Installation) -> dict[str, str]:
    """The engine's environment: small, offline, one thread, quick to start."""
    inherited = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    return {
        **inherited,
        "PATH": f"{installation.venv / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; otherwise most of the machine's memory is reserved
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_CI_ENV": "1",  # no warm-up passes
        "OMP_NUM_THREADS": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


def start_ticks(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None if there is no such process or it only waits to be reaped.

    Source: proc(5), /proc/PID/stat fields 3 (state) and 22 (starttime); the name before them may hold spaces.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _spawn(
    installation: Installation,
    name: str,
    ports: Sequence[int],
    kv_blocks: int,
    *,
    connector: Connector | None = None,
    context_tokens: int = CONTEXT_TOKENS,
    adapters: Mapping[str, Path] | None = None,
    ranks: int = 1,
) -> Replica:
    log = installation.root / "run" / f"{name}.log"
    port, events_port, replay_port = ports
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(installation, port, events_port, replay_port, kv_blocks, context_tokens=context_tokens)
            + ([] if connector is None else connector.flags)
            + adapter_flags(adapters or {})
            + ([] if ranks == 1 else ["--data-parallel-size", str(ranks)]),
            env=environment(installation)
            | ({"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"} if adapters else {})
            | ({} if connector is None else connector.environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the engine's workers share its process group, so that all of them can be ended
        )
    ticks = start_ticks(process.pid)
    process.returncode = 0  # reaped by pid in stop(); keeps Popen from warning when it is collected
    return Replica(name, port, events_port, replay_port, pid=process.pid, started_ticks=ticks or 0, log=str(log))


def _wait_until_healthy(replicas: Sequence[Replica]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    for replica in replicas:
        while not replica.healthy():
            reason = f"replica {replica.name} ended" if not replica.alive() else f"replica {replica.name} gave no answer"
            if not replica.alive() or time.monotonic() > deadline:
                raise EngineUnavailableError(f"{reason}: {last_line(Path(replica.log))}; see {replica.log}")
            time.sleep(POLL_S)


def _running(replica: Replica) -> bool:
    """Whether any process of the replica's group is left; False when the pid was given to somebody else."""
    if start_ticks(replica.pid) not in (replica.started_ticks, None):
        return False
    try:
        os.killpg(replica.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _signal(replica: Replica, number: int) -> None:
    if _running(replica):
        os.killpg(replica.pid, number)


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # started by another process, or reaped already


def _state(installation: Installation) -> Path:
    return installation.root / "run" / "replicas.json"


def _left_running(installation: Installation) -> list[Replica]:
    try:
        stored = json.loads(_state(installation).read_text())
    except FileNotFoundError:
        return []
    return [Replica(**each) for each in stored]


def main(arguments: Sequence[str]) -> int:
    installation = Installation.default()
    match list(arguments):
        case ["install"]:
            installation.ensure()
        case ["start"]:
            installation.ensure()
            if any(replica.alive() for replica in _left_running(installation)):
                raise EngineUnavailableError("replicas of an earlier start are still running; stop them first")
            replicas = start(installation, ("a", "b"))
            _state(installation).write_text(json.dumps([asdict(replica) for replica in replicas]))
            addresses = [{"url": each.url, "kv_events": {"endpoint": each.events, "replay": each.replay}} for each in replicas]
            sys.stdout.write(json.dumps(addresses) + "\n")
        case ["stop"]:
            stop(_left_running(installation))
            _state(installation).unlink(missing_ok=True)
        case _:
            sys.stderr.write(__doc__ or "")
            return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except EngineUnavailableError as error:
        sys.exit(f"vllm_cpu: {error}")
