"""From a host's name to one checked address, for connections that are not aiohttp's (KV events).

aiohttp asks the guard for every socket. Whoever connects otherwise never gets a name: it gets the literal that was checked here, connects to it once,
and whoever connects again comes through here again.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

import aiohttp

from routing.outbound.addresses import Network, address_allowed, literal
from routing.outbound.guard import AddressRefused


async def checked_literal(host: str, allowed_ranges: Sequence[Network], resolver: aiohttp.abc.AbstractResolver) -> str:
    """The first allowed address of ``host`` as it is written before a port (IPv6 in brackets).

    Raises:
        AddressRefused: it has addresses and none is allowed.
        OSError: it has none now, or is no host at all.
    """
    try:
        address = literal(host)
    except ValueError:
        raise OSError("no such host") from None
    if address is not None:
        found = [address]
    else:
        found = [ipaddress.ip_address(row["host"].partition("%")[0]) for row in await resolver.resolve(host, 0, family=socket.AF_UNSPEC)]
    for one in found:
        if address_allowed(one, allowed_ranges):
            return f"[{one}]" if one.version == 6 else str(one)
    if found:
        raise AddressRefused
    raise OSError("no address")
