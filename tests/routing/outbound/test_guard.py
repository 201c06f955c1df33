"""The check on the address that is really connected to."""

from __future__ import annotations

import socket

import pytest

from routing.outbound.addresses import parse_ranges
from routing.outbound.guard import AddressRefused, guarded_socket, was_refused


def _info(address: str, family: socket.AddressFamily = socket.AF_INET) -> tuple[int, int, int, str, tuple[object, ...]]:
    return (family, socket.SOCK_STREAM, 6, "", (address, 80))


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "0.0.0.0"])
def test_no_socket_is_made_for_an_inner_address(address: str) -> None:
    with pytest.raises(AddressRefused) as refused:
        guarded_socket(())(_info(address))
    assert address not in str(refused.value)


def test_no_socket_is_made_for_an_inner_address_with_a_zone() -> None:
    with pytest.raises(AddressRefused):
        guarded_socket(())(_info("fe80::1%lo", socket.AF_INET6))


def test_a_socket_is_made_for_what_the_operator_allows() -> None:
    made = guarded_socket(parse_ranges(["127.0.0.0/8"]))(_info("127.0.0.1"))
    made.close()
    guarded_socket(())(_info("8.8.8.8")).close()


def test_the_guard_is_recognised_behind_other_errors() -> None:
    wrapped = OSError("cannot connect")
    wrapped.__cause__ = AddressRefused()
    assert was_refused(wrapped)
    assert was_refused(ExceptionGroup("several", [OSError("x"), AddressRefused()]))
    assert not was_refused(OSError("refused by the peer"))
