"""TensorRT-LLM: ``cache_salt`` becomes a 64-bit id that is part of the block key."""

from __future__ import annotations

from routing.core.engine import Engine
from routing.core.engines.common import INSIDE, STRIPPED

ENGINE = Engine(
    family="trtllm",
    salt_field="cache_salt",
    stripped=STRIPPED,
    stripped_inside=INSIDE,
    forced={},
    proof="from specification and recordings, unproven",
    events_path="/kv_cache_events",
)
