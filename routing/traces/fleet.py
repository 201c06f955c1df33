"""What a replay runs on, as data: replicas, their speeds and caches, what the router can know, and what goes wrong when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from routing.simulator.config import EngineConfig, TimeModel

Residency = Literal["events", "history"]


@dataclass(frozen=True, slots=True)
class Fault:
    """At ``at_s`` a replica runs at ``speed`` times its own from then on (1.0 ends it), or restarts: gone for ``down_s``, then empty."""

    at_s: float
    replica: int
    speed: float | None = None
    down_s: float | None = None


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """Replicas of one model. ``speeds`` has one factor for each replica, and ``cache_tokens`` is each one's KV cache.

    ``residency``: *events* is a router that hears every block stored and removed ``event_lag_s`` late (and counts on what it has just sent);
    *history* is one that only knows what it sent where. ``refresh_s`` is how long after a restart the router notices it.
    """

    speeds: tuple[float, ...] = (1.0,) * 8
    cache_tokens: int = 3_000_000
    block_tokens: int = 512
    max_model_len_tokens: int = 262_144
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 8192
    time: TimeModel = field(default_factory=TimeModel)
    network_s: float = 0.001  # one way between router and engine
    residency: Residency = "events"
    event_lag_s: float = 0.05
    refresh_s: float = 1.0
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        if not self.speeds or min(self.speeds) <= 0:
            raise ValueError("speeds must name at least one replica, each above 0")
        if self.cache_tokens < self.block_tokens or self.max_model_len_tokens < self.block_tokens:
            raise ValueError("cache_tokens and max_model_len_tokens must hold at least one block")
        if self.cache_tokens < self.max_model_len_tokens:
            raise ValueError("cache_tokens must hold the longest request, max_model_len_tokens")
        for fault in self.faults:
            if not 0 <= fault.replica < len(self.speeds):
                raise ValueError(f"fault at {fault.at_s} s names replica {fault.replica} of {len(self.speeds)}")
            if (fault.speed is None) == (fault.down_s is None):
                raise ValueError(f"fault at {fault.at_s} s must give either speed or down_s")

    def engine(self) -> EngineConfig:
        """Dimensions of one replica's engine, the null block included."""
        return EngineConfig(
            blocks=self.cache_tokens // self.block_tokens + 1,
            block_size_tokens=self.block_tokens,
            max_model_len_tokens=min(self.max_model_len_tokens, self.cache_tokens // self.block_tokens * self.block_tokens),
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            time=self.time,
        )

    def line(self) -> str:
        """One line that says it all, for reports."""
        speeds = ", ".join(f"{speed:g}" for speed in self.speeds) if len(set(self.speeds)) > 1 else f"{self.speeds[0]:g} each"
        faults = "".join(
            f"; at {one.at_s:g} s replica {one.replica} " + (f"runs at {one.speed:g}" if one.down_s is None else f"is away for {one.down_s:g} s")
            for one in self.faults
        )
        belief = f"KV events {self.event_lag_s * 1000:g} ms late" if self.residency == "events" else "history only"
        return f"{len(self.speeds)} replicas, speed {speeds}, {self.cache_tokens:,} tokens of cache each, {belief}{faults}"
