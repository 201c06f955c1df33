"""vLLM: ``cache_salt`` enters the hash of the first block and every later one through its parent. Observed on 0.32.0.

``X-data-parallel-rank`` pins a request to a rank of several behind one URL; seen on 0.32.0 with two ranks on CPU. A number outside the range is
refused with a 400, what is no number is passed over.
"""

from __future__ import annotations

from routing.core.engine import Engine
from routing.core.engines.common import INSIDE, STRIPPED

ENGINE = Engine(
    family="vllm",
    salt_field="cache_salt",
    stripped=STRIPPED,
    stripped_inside=INSIDE,
    forced={},
    proof="live engine",
    transfer_field="kv_transfer_params",
    checks_model=True,
    full_report=("vllm_xargs", "kv_cache_report_mode", '"full"'),
    rank_header="X-data-parallel-rank",
)
