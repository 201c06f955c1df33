"""What ZMQ may connect to: one literal, checked."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import aiohttp
import pytest

from routing.outbound.guard import AddressRefused
from routing.outbound.literal import checked_literal

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)


class Names(aiohttp.abc.AbstractResolver):
    """A resolver with fixed answers."""

    def __init__(self, **known: list[str]) -> None:
        self.known = known
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[Any]:
        self.asked.append(host)
        if host not in self.known:
            raise OSError("no such name")
        return [{"hostname": host, "host": one, "port": port, "family": family, "proto": 0, "flags": 0} for one in self.known[host]]

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", "127.0.0.1"), ("2130706433", "127.0.0.1"), ("8.8.8.8", "8.8.8.8"), ("2606:4700::1", "[2606:4700::1]")]
)
async def test_an_address_is_checked_without_asking_anybody(host: str, expected: str) -> None:
    names = Names()
    assert await checked_literal(host, LOOPBACK, names) == expected
    assert names.asked == []


@pytest.mark.parametrize("host", ["10.0.0.1", "169.254.169.254", "::1", "0x0a000001"])
async def test_an_address_outside_the_ranges_is_refused(host: str) -> None:
    with pytest.raises(AddressRefused):
        await checked_literal(host, LOOPBACK, Names())


async def test_a_name_gives_its_first_allowed_address_and_a_name_with_none_is_refused() -> None:
    names = Names(mixed=["10.0.0.1", "127.0.0.9"], inner=["10.0.0.1", "fe80::1%eth0"], empty=[])
    assert await checked_literal("mixed", LOOPBACK, names) == "127.0.0.9"
    with pytest.raises(AddressRefused):
        await checked_literal("inner", LOOPBACK, names)
    for host in ("empty", "absent", "1.2.3.4.5"):
        with pytest.raises(OSError, match=r"no (such name|such host|address)") as caught:
            await checked_literal(host, LOOPBACK, names)
        assert not isinstance(caught.value, AddressRefused)
