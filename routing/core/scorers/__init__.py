"""The register of scorers. A new term is one file and one line here; ``routing.core.policy.SCORERS`` names the same ones, which a test holds."""

from __future__ import annotations

from routing.core.scorer import Scorer
from routing.core.scorers import adapter, external_price, prefill, pressure, slo_guard, tier, wait

REGISTER: tuple[Scorer, ...] = (
    wait.SCORER,
    prefill.SCORER,
    tier.SCORER,
    external_price.SCORER,
    pressure.SCORER,
    slo_guard.SCORER,
    adapter.SCORER,
)
