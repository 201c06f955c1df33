"""From a host's name to one checked address, for protocols that connect by themselves and later than we look (ZMQ).

aiohttp asks the guard for every socket. ZMQ resolves and connects in a thread of its own, so it never gets a name: it gets the literal that was
checked here, is told not to reconnect, and whoever connects again comes through here again.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

import aiohttp

from routing.outbound.addresses import Network, address_allowed, literal
from routing.outbound.guard import AddressRefused


async def checked_literal(host: str, allowed_ranges: Sequence[Network], resolver: aiohttp.abc.AbstractResolver) -> str:
    """The first allowed address of ``host`` as it is written in a ZMQ endpoint (IPv6 in brackets).

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
