"""What an engine itself says that it stored: its KV events, asked for again from its replay socket."""

from __future__ import annotations

from typing import Any

import msgspec
import zmq

from tests.engine.vllm_cpu import Replica

ANSWER_MS = 10_000


def _batches_since(replica: Replica, sequence: int) -> list[tuple[int, Any]]:
    """All batches from ``sequence`` on that the engine still holds, as (sequence, payload).

    Source: observed on vLLM 0.32: a DEALER sends an empty frame and the first sequence number; the answer ends with sequence -1.
    """
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.RCVHWM, 0)  # with a bound, batches are dropped without a word
        socket.setsockopt(zmq.RCVTIMEO, ANSWER_MS)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(replica.replay)
        socket.send_multipart([b"", sequence.to_bytes(8, "big")])
        batches: list[tuple[int, Any]] = []
        while True:
            _, _, number, payload = socket.recv_multipart()
            if number == b"\xff" * 8:
                return batches
            batches.append((int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)))


def last_sequence(replica: Replica) -> int:
    """The number of the newest batch; -1 before the first."""
    return max((number for number, _ in _batches_since(replica, 0)), default=-1)


def salts_since(replica: Replica, sequence: int) -> set[str]:
    """The salts under which new prefixes were stored after batch ``sequence``. A salt stands in the extra keys of a prefix's first block."""
    salts: set[str] = set()
    for _, (_, events, _) in _batches_since(replica, sequence + 1):
        for event in events:
            if event["type"] == "BlockStored" and event["parent_block_hash"] is None:
                salts.update(event["extra_keys"][0] or ())
    return salts
