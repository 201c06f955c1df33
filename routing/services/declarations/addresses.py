"""Why an address was refused, in full, for the platform operator's ``apply``. Tenants are told what is wrong with its text, and else one text for all
reasons (``replicas.ADDRESS_REFUSED``)."""

from __future__ import annotations

from collections.abc import Sequence

from routing.services.replicas import FOREIGN, refusal


def why(reason: str, ranges: Sequence[str]) -> str:
    """What is wrong with an address and what to set or write instead; ``ranges`` are the operator's, as this process has them."""
    if reason == "address":
        allowed = ",".join(ranges) or "not set"
        return (
            "This address is on loopback, private or otherwise inner, or its name leads to one that is, and SALTROUTE_ALLOWED_RANGES "
            f"(here: {allowed}) does not name its range. Set it for routers and control plane alike; make up takes it. "
            "Names in .internal are refused in any case: give the address."
        )
    if reason == FOREIGN:
        return "Another tenant, or the platform, has registered an engine at this host and port."
    return refusal(reason)
