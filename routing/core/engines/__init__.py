"""The register of engine adapters, by family."""

from __future__ import annotations

from routing.core.engine import Engine
from routing.core.engines import llamacpp, sglang, trtllm, vllm

ENGINES: dict[str, Engine] = {
    engine.family: engine
    for engine in (
        vllm.ENGINE,
        sglang.ENGINE,
        trtllm.ENGINE,
        llamacpp.ENGINE,
    )
}
