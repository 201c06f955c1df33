"""``manage.py reconcile``: runs now, prints in words or JSON, exits 1 while something critical is open and 2 where Valkey did not answer."""

from __future__ import annotations

import socket
from io import StringIO
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from django.core.management import CommandError, call_command

from tests.routing.services.reconciliation.conftest import place

if TYPE_CHECKING:
    from tests.routing.services.reconciliation.place import Place

pytestmark = pytest.mark.django_db
__all__ = ["place"]  # the fixture


def said(*arguments: str) -> str:
    out = StringIO()
    call_command("reconcile", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def test_a_run_and_what_it_found(place: Place) -> None:
    assert "no run yet" in said("--last")
    assert "acorn: 0 open, 0 watched, 0 opened, 0 resolved, 0 repaired; 1 router heard" in said("--tenant", "acorn")
    place.change(dedicated_namespace="ns-" + "0" * 32, isolation_state="isolated")
    shown = said()
    assert "1 open" in shown
    assert "info      assignment_void" in shown
    assert "done: took the assignment away" in shown
    (told,) = msgspec.json.decode(said("--last", "--json"))
    assert (told["tenant"], told["last_run"]["trigger"], told["findings"][0]["kind"]) == ("acorn", "command", "assignment_void")


def test_what_is_critical_fails_the_command(place: Place) -> None:
    place.valkey.hset("saltroute:versions", str(place.tenant.id), 99)
    with pytest.raises(CommandError, match="critical"):
        said("--tenant", "acorn")


def test_a_valkey_that_hangs_fails_the_command_in_its_own_way(place: Place, settings: Any) -> None:
    """It takes the connection and says nothing: nobody knows, which is not health. What is critical counts for more; once it answers all is well."""
    assert "1 router heard" in said("--tenant", "acorn")
    answering = settings.VALKEY_URL
    with socket.create_server(("127.0.0.1", 0)) as hung:
        settings.VALKEY_URL = f"redis://127.0.0.1:{hung.getsockname()[1]}/0"
        for options in ((), ("--json",), ("--last",)):
            with pytest.raises(CommandError, match="Valkey did not answer") as failed:
                said("--tenant", "acorn", *options)
            assert failed.value.returncode == 2
    settings.VALKEY_URL = answering
    assert "1 router heard" in said("--tenant", "acorn")
    place.report(refused={str(place.tenant.id): "rollback"})
    said("--tenant", "acorn")
    with place.later(10), pytest.raises(CommandError, match="critical"):
        said("--tenant", "acorn")
    settings.VALKEY_URL = "unix:///nowhere/valkey.sock"
    with pytest.raises(CommandError, match="critical") as failed:
        said("--tenant", "acorn")
    assert failed.value.returncode == 1


def test_a_tenant_that_does_not_exist(place: Place) -> None:
    with pytest.raises(CommandError, match="no tenant nobody"):
        said("--tenant", "nobody")
