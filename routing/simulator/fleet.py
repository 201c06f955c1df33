"""Several replicas in one process, each with its own cache, ports and metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from aiohttp import web

from routing.simulator.config import ReplicaConfig
from routing.simulator.language import KNOWN_WORDS
from routing.simulator.replica import Replica
from routing.simulator.server import build_app
from routing.simulator.tokenizer import Tokenizer, load_tokenizer

_SHUTDOWN_S = 0.2  # how long open answers may go on once a replica stops


class RunningReplica:
    """A replica, all its data-parallel ranks, and its HTTP server. After a stop or restart the ports stay the same. ``replica`` is the first rank."""

    def __init__(self, config: ReplicaConfig, tokenizer: Tokenizer) -> None:
        self.ranks = [Replica(one, tokenizer) for one in _rank_configs(config)]
        self.replica = self.ranks[0]
        self._host = config.host
        self._port = config.http_port
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    @property
    def kv_endpoint(self) -> str | None:
        return self._endpoint(self.replica.kv_ports[0])

    @property
    def replay_endpoint(self) -> str | None:
        return self._endpoint(self.replica.kv_ports[1])

    def _endpoint(self, port: int | None) -> str | None:
        return f"tcp://{self._host}:{port}" if port is not None else None

    async def start(self) -> None:
        """Listen. After a failure (a taken port) ``stop`` still cleans up."""
        self._runner = web.AppRunner(build_app(*self.ranks), handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        for rank in self.ranks:
            rank.start()
            if rank.transfers is not None:
                await rank.transfers.start()
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, reuse_address=True)
        await site.start()
        self._port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Die: the port closes, running streams end with the engine's error event. Safe to repeat."""
        runner, self._runner = self._runner, None
        if runner is not None:
            for site in list(runner.sites):
                await site.stop()
            for rank in self.ranks:
                await rank.stop()
            await runner.cleanup()

    async def restart(self) -> None:
        """Come back on the same ports with an empty cache, event sequence 0 and a new start time."""
        await self.stop()
        await self.start()


class Fleet:
    """The replicas, in order."""

    def __init__(self, configs: Sequence[ReplicaConfig]) -> None:
        loaded: dict[tuple[str | None, str | None], Tokenizer] = {}
        self.replicas: list[RunningReplica] = []
        for config in configs:
            files = (config.tokenizer_path, config.chat_template_path)
            tokenizer = loaded.setdefault(files, loaded.get(files) or load_tokenizer(*files, KNOWN_WORDS))
            self.replicas.append(RunningReplica(config, tokenizer))

    def __getitem__(self, number: int) -> RunningReplica:
        return self.replicas[number]

    async def start(self) -> None:
        for replica in self.replicas:
            await replica.start()

    async def stop(self) -> None:
        for replica in self.replicas:
            await replica.stop()


def _rank_configs(config: ReplicaConfig) -> list[ReplicaConfig]:
    """One for each rank, from the config's own on, on consecutive event ports; 0 gives each a free one."""
    ranks = range(config.data_parallel)
    return [
        replace(
            config,
            data_parallel_rank=config.data_parallel_rank + rank,
            kv_port=config.kv_port + rank if config.kv_port else config.kv_port,
            replay_port=config.replay_port + rank if config.replay_port else config.replay_port,
        )
        for rank in ranks
    ]


def fleet_configs(base: ReplicaConfig, replicas: int) -> list[ReplicaConfig]:
    """The same replica several times on consecutive ports, from the base's on; 0 gives each a free one, None none."""

    def nth(first: int | None, number: int) -> int | None:
        return first + number if first else first

    return [
        replace(
            base,
            http_port=nth(base.http_port, number) or 0,
            kv_port=nth(base.kv_port, number * base.data_parallel),
            replay_port=nth(base.replay_port, number * base.data_parallel),
        )
        for number in range(replicas)
    ]


@asynccontextmanager
async def running_fleet(base: ReplicaConfig | None = None, *, replicas: int = 1) -> AsyncIterator[Fleet]:
    """A fleet inside the current event loop, on free ports by default; for tests."""
    fleet = Fleet(fleet_configs(base or ReplicaConfig(), replicas))
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.stop()
