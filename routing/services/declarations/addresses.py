"""Why an address was refused, in full, for the platform operator's ``apply``. Tenants get one text for all reasons (``replicas.ADDRESS_REFUSED``)."""

from __future__ import annotations

from collections.abc import Sequence

from routing.services.replicas import ADDRESS_REFUSED, FOREIGN

_MALFORMED = {
    "format": "it holds characters, a query or a fragment that no base URL has, or is no URL",
    "scheme": "it begins with neither http:// nor https://",
    "credentials": "it holds a user name; what an engine asks for goes into credential",
    "host": "its host is neither a name nor an address",
    "port": "its port is below 1024 and neither 80 nor 443",
    "path": "its path holds dot segments or odd characters",
}


def why(reason: str, ranges: Sequence[str]) -> str:
    """What is wrong with an address and what to set or write instead; ``ranges`` are the operator's, as this process has them."""
    if reason in _MALFORMED:
        return f"This address cannot be used: {_MALFORMED[reason]}."
    if reason == "address":
        allowed = ",".join(ranges) or "not set"
        return (
            "This address is on loopback, private or otherwise inner, or its name leads to one that is, and SALTROUTE_ALLOWED_RANGES "
            f"(here: {allowed}) does not name its range. Set it for routers and control plane alike; make up takes it. "
            "Names in .internal are refused in any case: give the address."
        )
    if reason == FOREIGN:
        return "Another tenant, or the platform, has registered an engine at this host and port."
    return ADDRESS_REFUSED
