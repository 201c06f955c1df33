"""The guard at connect time: the address that is about to be connected to, whatever name led there, is checked by the same rules.

DNS may answer differently a minute or a millisecond after registration; this is the only check that cannot be raced, and every outbound connection of
requests, health checks and metrics goes through it.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp

from routing.outbound.addresses import Network, address_allowed

AddrInfo = tuple[int, int, int, str, tuple[Any, ...]]


class AddressRefused(OSError):
    """A connection was about to go to an address that is not allowed. The text does not name the address."""

    def __init__(self) -> None:
        super().__init__("address not allowed")


def guarded_socket(allowed_ranges: Sequence[Network]) -> Callable[[Any], socket.socket]:
    """A socket factory for aiohttp's connector that refuses addresses outside the rules."""

    def make(info: AddrInfo) -> socket.socket:
        family, kind, protocol, _, sockaddr = info
        if not address_allowed(ipaddress.ip_address(str(sockaddr[0]).split("%")[0]), allowed_ranges):
            raise AddressRefused
        return socket.socket(family=family, type=kind, proto=protocol)

    return make


def connector(
    allowed_ranges: Sequence[Network], *, keepalive_s: float, pooled: bool = True, resolver: aiohttp.abc.AbstractResolver | None = None
) -> aiohttp.TCPConnector:
    """A connector without a pool limit (a stuck replica must not take another's slots) whose every socket is guarded."""
    if not pooled:
        return aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=guarded_socket(allowed_ranges), resolver=resolver, ttl_dns_cache=10)
    return aiohttp.TCPConnector(
        limit=0, keepalive_timeout=keepalive_s, socket_factory=guarded_socket(allowed_ranges), resolver=resolver, ttl_dns_cache=10
    )


def was_refused(error: BaseException) -> bool:
    """Whether the guard is behind a connection error."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, AddressRefused) or isinstance(getattr(seen, "os_error", None), AddressRefused):
            return True
        if isinstance(seen, BaseExceptionGroup) and any(was_refused(one) for one in seen.exceptions):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
