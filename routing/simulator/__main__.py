"""``python -m routing.simulator``: a fleet of simulated replicas in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

import uvloop
import zmq

from routing.simulator.config import Adapter, EngineConfig, ReplicaConfig, TimeModel, TransferConfig
from routing.simulator.fleet import Fleet, RunningReplica, fleet_configs

_DEFAULT_MODEL_LEN_TOKENS = 8192


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; 0 then, 1 when a port could not be bound, 2 for impossible options."""
    options = _parser().parse_args(arguments)
    try:
        fleet = Fleet(fleet_configs(_config(options), options.replicas))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"simulator: {error}\n")
        return 2
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(fleet))


async def _serve(fleet: Fleet) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(stop_signal, stopped.set)
    try:
        await fleet.start()
        for number, replica in enumerate(fleet.replicas):
            sys.stdout.write(_ready_line(number, replica))
        sys.stdout.flush()
        await stopped.wait()
    except (OSError, zmq.ZMQError) as error:
        sys.stderr.write(f"simulator: {error}\n")
        return 1
    finally:
        await fleet.stop()
    return 0


def _ready_line(number: int, replica: RunningReplica) -> str:
    return f"ready replica={number} url={replica.url} kv={replica.kv_endpoint or '-'} replay={replica.replay_endpoint or '-'}\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m routing.simulator", description="A fleet of simulated vLLM replicas.")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--data-parallel", type=int, default=1, metavar="N", help="ranks behind each URL, each with a cache and events of its own")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9001, help="first HTTP port; 0 takes free ones")
    parser.add_argument("--kv-port", type=int, default=9101, help="first KV event port; 0 takes free ones")
    parser.add_argument("--replay-port", type=int, default=9201, help="first replay port; 0 takes free ones")
    parser.add_argument("--kv-buffer-steps", type=int, default=10_000, help="batches kept for replay; up to some 10 kB each")
    parser.add_argument("--no-kv-events", action="store_true")
    parser.add_argument("--model", default="sim-8b")
    parser.add_argument("--adapter", action="append", default=[], metavar="NAME=PATH", help="a LoRA adapter; may be repeated")
    parser.add_argument("--adapter-slots", type=int, default=None, metavar="N", help="adapters that can be loaded at once; by default all")
    parser.add_argument("--runtime-adapters", action="store_true", help="let adapters be loaded and unloaded over HTTP")
    parser.add_argument("--blocks", type=int, default=600, help="KV blocks, the null block included")
    parser.add_argument("--block-size", type=int, default=16, help="tokens per block")
    parser.add_argument("--max-model-len", type=int, default=None, help="tokens; by default 8192 or what the cache holds")
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--max-num-queued-reqs", type=int, default=None)
    parser.add_argument("--max-num-queued-tokens", type=int, default=None)
    parser.add_argument("--speed", type=float, default=1.0, help="divides every duration of the time model")
    parser.add_argument("--transfers", action="store_true", help="hand KV caches over, as vLLM with NixlConnector; side channels on free ports")
    parser.add_argument("--api-key", default=None)
    parser.add_argument("--tokenizer", default=None, metavar="FILE", help="a tokenizer.json; by default words")
    parser.add_argument("--chat-template", default=None, metavar="FILE", help="a Jinja chat template, with --tokenizer")
    return parser


def _config(options: argparse.Namespace) -> ReplicaConfig:
    """Raises ValueError for options that cannot be."""
    if options.replicas < 1:
        raise ValueError("--replicas must be at least 1")
    adapters = []
    for number, text in enumerate(options.adapter, 1):
        name, separator, path = text.partition("=")
        if not (name and separator and path):
            raise ValueError(f"--adapter {text}: NAME=PATH expected")
        adapters.append(Adapter(name, path, number))
    engine = EngineConfig(
        blocks=options.blocks,
        block_size_tokens=options.block_size,
        max_model_len_tokens=options.max_model_len or min(_DEFAULT_MODEL_LEN_TOKENS, (options.blocks - 1) * options.block_size),
        max_num_seqs=options.max_num_seqs,
        adapter_slots=options.adapter_slots,
        max_num_batched_tokens=options.max_num_batched_tokens,
        time=TimeModel(speed=options.speed),
    )
    return ReplicaConfig(
        engine=engine,
        model=options.model,
        data_parallel=options.data_parallel,
        adapters=tuple(adapters),
        runtime_adapters=options.runtime_adapters,
        host=options.host,
        http_port=options.port,
        kv_port=None if options.no_kv_events else options.kv_port,
        replay_port=None if options.no_kv_events else options.replay_port,
        kv_buffer_steps=options.kv_buffer_steps,
        api_key=options.api_key,
        transfers=TransferConfig() if options.transfers else None,
        max_num_queued_reqs=options.max_num_queued_reqs,
        max_num_queued_tokens=options.max_num_queued_tokens,
        tokenizer_path=options.tokenizer,
        chat_template_path=options.chat_template,
    )


if __name__ == "__main__":
    sys.exit(main())
