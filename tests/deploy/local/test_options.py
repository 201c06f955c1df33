"""What a person may set: defaults, and one clear line for what cannot be."""

from __future__ import annotations

import pytest

from deploy.local.options import REPOSITORY, Options
from deploy.local.process import LaunchError


def test_defaults() -> None:
    options = Options.read({})
    assert (options.router_port, options.router_internal_port, options.control_port, options.fleet) == (8080, 8081, 8000, 4)
    assert options.home == REPOSITORY / ".saltroute"
    assert (options.router_url, options.control_url) == ("http://127.0.0.1:8080", "http://127.0.0.1:8000")


def test_the_internal_door_moves_with_the_router() -> None:
    assert Options.read({"ROUTER_PORT": "9000"}).router_internal_port == 9001


def test_one_port_for_two_doors_is_refused() -> None:
    with pytest.raises(LaunchError, match="CONTROL_PORT and ROUTER_PORT are both 8080"):
        Options.read({"CONTROL_PORT": "8080"}).check_ports()


def test_each_router_has_an_internal_door() -> None:
    options = Options.read({"ROUTERS": "3", "ROUTER_PORT": "31900"})
    assert list(options.router_internal_ports) == [31901, 31902, 31903]
    with pytest.raises(LaunchError, match="ROUTER_INTERNAL_PORT and CONTROL_PORT are both 31903"):
        Options.read({"ROUTERS": "3", "ROUTER_PORT": "31900", "CONTROL_PORT": "31903"}).check_ports()
    with pytest.raises(LaunchError, match="ROUTERS"):
        Options.read({"ROUTERS": "0"})


def test_a_wildcard_address_is_shown_as_this_machine() -> None:
    assert Options.read({"CONTROL_HOST": "0.0.0.0"}).control_url == "http://127.0.0.1:8000"
    assert Options.read({"ROUTER_HOST": "::1"}).router_url == "http://[::1]:8080"
