"""Messages go where they may and nowhere else; each refusal has beside it the address that is allowed."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import aiohttp
import pytest

from routing.outbound.addresses import UrlRefused
from routing.outbound.webhooks import Message, Outcome, check_webhook, send_all
from tests.fakes.webhook import Receiver

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)


class Names(aiohttp.abc.AbstractResolver):
    """A resolver that answers every name with one address: a name that was good when it was registered."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[Any]:
        return [{"hostname": host, "host": self._address, "port": port, "family": family, "proto": 0, "flags": 0}]

    async def close(self) -> None:
        return None


async def send(url: str, ranges: Any = LOOPBACK, **more: Any) -> Outcome:
    (outcome,) = await send_all([Message(url, {"X-A": "b"}, b"{}")], ranges, http=more.pop("http", True), **more)
    return outcome


async def test_an_allowed_address_gets_the_message() -> None:
    with Receiver() as receiver:
        assert await send(receiver.url) == Outcome(200, "")
        (got,) = receiver.got
        assert (got.path, got.headers["X-A"], got.body) == ("/hook", "b", b"{}")


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "localhost"])
async def test_an_inner_address_gets_nothing_however_it_is_spelled(host: str) -> None:
    with Receiver() as receiver:
        assert await send(f"http://{host}:{receiver.port}/hook", ()) == Outcome(None, "address")
        assert receiver.got == []
        assert (await send(receiver.url)).error == ""  # the control: the same receiver, allowed


async def test_a_name_that_turns_to_an_inner_address_after_registration_gets_nothing() -> None:
    with Receiver() as receiver:
        url = f"http://hooks.example.org:{receiver.port}/hook"
        assert check_webhook(url, (), http=True) == url
        assert await send(url, (), resolver=Names("127.0.0.1")) == Outcome(None, "address")
        assert receiver.got == []
        assert await send(url, LOOPBACK, resolver=Names("127.0.0.1")) == Outcome(200, "")


async def test_the_metadata_service_is_refused_even_inside_an_allowed_range() -> None:
    wide = (ipaddress.ip_network("169.254.0.0/16"),)
    assert await send("http://169.254.169.254/latest", wide) == Outcome(None, "address")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_a_failure_and_is_not_followed(status: int) -> None:
    with Receiver() as target, Receiver(status=status, location=target.url) as receiver:
        assert await send(receiver.url) == Outcome(status, "redirect")
        assert (len(receiver.got), target.got) == (1, [])


async def test_statuses_silence_and_nobody_there() -> None:
    with Receiver(status=500) as broken, Receiver(hang=True) as silent:
        assert await send(broken.url) == Outcome(500, "status")
        assert await send(silent.url, timeout_s=0.2) == Outcome(None, "timeout")
    assert await send(broken.url) == Outcome(None, "connect")


async def test_plain_http_only_where_the_operator_allows_it() -> None:
    with Receiver() as receiver:
        assert await send(receiver.url, http=False) == Outcome(None, "address")
        assert receiver.got == []


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://hooks.example.org/x", "https"),
        ("ftp://hooks.example.org/x", "scheme"),
        ("https://user:pass@hooks.example.org/x", "credentials"),
        ("https://hooks.example.org/x?token=1", "query"),
        ("https://10.0.0.1/x", "address"),
        ("https://hooks.example.org:22/x", "port"),
        (7, "format"),
    ],
)
def test_what_is_refused_at_registration(url: object, reason: str) -> None:
    with pytest.raises(UrlRefused) as refused:
        check_webhook(url, (), http=False)
    assert refused.value.reason == reason
    assert check_webhook("https://hooks.example.org/x/v1", (), http=False) == "https://hooks.example.org/x/v1"
