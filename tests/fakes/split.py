"""Fakes of prefill and decode replicas, on a rig whose tenant acme has one of each.

The prefill fake answers the first call of a transfer as vLLM 0.32 with NixlConnector does; a test may make it say something else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from routing.core.snapshot import ReplicaEntry
from tests.fakes.replica import FakeReplica, Received, Script, completion, usage
from tests.fakes.rig import Rig, bumped, replica_entry

LONG = "It was a dark and stormy night; the rain fell in torrents. " * 200  # about 3,000 tokens
ASKED: dict[str, Any] = {"model": "m-7b", "messages": [{"role": "user", "content": LONG}]}
Handing = Callable[[Received], Any]


def handed(received: Received, **changes: Any) -> dict[str, Any]:
    """What a prefill engine hands over for a request."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1, 2, 3]],
        "remote_engine_id": "915884a1-65f9-4a56-b363-65ccf78b5ace",
        "remote_request_id": f"chatcmpl-{received.headers['x-request-id']}-81bc3cf5",
        "remote_host": "127.0.0.1",
        "remote_port": 5821,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 3000,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": 0,
        **changes,
    }


class PrefillFake(FakeReplica):
    """Hands over what ``handing`` says, for every request that asks for it; ``cached`` tokens are reported as its own hits."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.handing: Handing = handed
        self.cached = 0

    def _behave(self, received: Received) -> Script:
        asked = received.json.get("kv_transfer_params")
        if not isinstance(asked, dict) or asked.get("do_remote_decode") is not True:
            return super()._behave(received)
        return Script(body=completion("x", usage=usage(3000, 1, self.cached), kv_transfer_params=self.handing(received)))


def split(rig: Rig, *more: ReplicaEntry, mode: str = "declared", **prefill: Any) -> None:
    """Make A a decode replica and B a prefill replica of acme's, with ``more`` beside them; A is slow at prefill, so that long prompts go to B."""
    replicas = (replica_entry(rig.a, role="decode", isolation="isolated"), replica_entry(rig.b, role="prefill", **prefill), *more)
    pool = msgspec.structs.replace(rig.acme.pools[0], replicas=replicas, isolation=mode)
    rig.publish(bumped(rig.acme, pools=(pool,)))
    speeds(rig)


def speeds(rig: Rig) -> None:
    """Prefill at B is eight times as fast as at every other replica."""
    for url, engine in rig.router.plane.engines.items():
        engine.calibration.own_rate = 8000.0 if url == rig.b.url else 1000.0
        engine.calibration.rate_at_s = time.monotonic()
