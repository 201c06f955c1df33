"""SGLang: ``cache_salt`` from 0.5.18 on is a field of its own; ``extra_key`` is joined to adapter ids in older versions, so it is forced to null."""

from __future__ import annotations

from routing.core.engine import Engine
from routing.core.engines.common import INSIDE, STRIPPED

ENGINE = Engine(
    family="sglang",
    salt_field="cache_salt",
    stripped=STRIPPED,
    stripped_inside=INSIDE,
    forced={"extra_key": "null"},
    proof="from specification and recordings, unproven",
)
