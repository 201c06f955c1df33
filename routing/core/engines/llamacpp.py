"""llama.cpp: no salt at all; slots are reused by similarity, so a replica may serve one namespace only."""

from __future__ import annotations

from routing.core.engine import Engine
from routing.core.engines.common import INSIDE, STRIPPED

ENGINE = Engine(
    family="llamacpp",
    salt_field=None,
    stripped=STRIPPED,
    stripped_inside=INSIDE,
    forced={},
    proof="from specification and recordings, unproven",
)
