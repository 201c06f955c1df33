"""Ports of the simulated replicas stay with their home."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.local import fleet_ports
from deploy.local.places import FIRST_EPHEMERAL_PORT, free_run
from deploy.local.plan import FleetPorts


def _listen(stack: ExitStack, *ports: int) -> None:
    for port in ports:
        stack.enter_context(socket.create_server(("127.0.0.1", port)))


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> FleetPorts:
    """Ports of this test's own: others of this machine begin at the usual ones."""
    first = free_run(FIRST_EPHEMERAL_PORT - 4000, 60)
    found = FleetPorts(count=4, http=first, kv_events=first + 20, replay=first + 40)
    monkeypatch.setattr(fleet_ports, "USUAL_PORTS", found)
    return found


def test_a_port_that_comes_free_moves_nobody(tmp_path: Path, usual: FleetPorts) -> None:
    """Two usual ports were another program's at the first start. When it is gone, replicas stay where they are registered; a home without a past
    takes the usual ports."""
    with ExitStack() as other:
        _listen(other, usual.http, usual.http + 1)
        began = fleet_ports.choose(tmp_path / "fleet.json", 4, taken=())
    assert (began.http, began.kv_events, began.replay) == (usual.http + 2, usual.kv_events, usual.replay)
    assert fleet_ports.choose(tmp_path / "fleet.json", 4, taken=()) == began
    assert fleet_ports.choose(tmp_path / "new.json", 4, taken=()) == usual


def test_who_has_to_move_moves_to_ports_that_were_nobodys(tmp_path: Path, usual: FleetPorts) -> None:
    """Where one of the ports is taken now, no replica comes to stand where another of this home was."""
    began = fleet_ports.choose(tmp_path / "fleet.json", 4, taken=())
    with ExitStack() as other:
        _listen(other, began.http)
        moved = fleet_ports.choose(tmp_path / "fleet.json", 4, taken=())
    assert moved.http == began.http + 4
    assert fleet_ports.choose(tmp_path / "fleet.json", 4, taken=()) == moved


def test_what_is_no_memory_of_ours_is_none(tmp_path: Path, usual: FleetPorts) -> None:
    (tmp_path / "fleet.json").write_text('{"http": "x"}')
    assert fleet_ports.choose(tmp_path / "fleet.json", 4, taken=()) == usual
    assert fleet_ports.choose(tmp_path / "fleet.json", 0, taken=()).count == 0
    assert fleet_ports.choose(tmp_path / "fleet.json", 4, taken=[usual.http]).http == usual.http + 4
