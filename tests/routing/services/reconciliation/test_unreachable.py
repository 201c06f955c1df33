"""An engine in a process of its own dies under a real router and comes back: one finding with its history, one alert, two messages of a webhook."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.utils import timezone

from namespaces import roots
from namespaces.core import keyring
from routing import queries
from routing.core import findings
from routing.core.reconcile_facts import EngineWord
from routing.models import ReconciliationFinding
from routing.services import alerts, webhooks
from routing.services.reconciliation import reports, running
from tenants.scoping import tenant_scope
from tests.fakes.webhook import Receiver
from tests.routing.services.audits.conftest import world
from tests.routing.services.audits.rig import until
from tests.routing.services.rows import ACTOR, a_replica

if TYPE_CHECKING:
    from tests.routing.services.audits.world import World

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(120)]
__all__ = ["world"]  # the fixture
KIND = "replica_unreachable"
BOUND_S = 0.2
_READY = re.compile(r"ready replica=0 url=(http://127\.0\.0\.1:(\d+)) ")


class Process:
    """One simulated engine as an operating system's process, at one port for ever."""

    def __init__(self) -> None:
        self.url, self.port = "", "0"

    def start(self) -> None:
        command = [sys.executable, "-m", "routing.simulator", "--model", "sim-8b", "--no-kv-events", "--port", self.port]
        self.running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.running.stdout is not None
        found = _READY.match(self.running.stdout.readline())
        assert found is not None
        self.url, self.port = found.groups()

    def kill(self) -> None:
        self.running.kill()
        self.running.communicate()


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process()
    made.start()
    yield made
    made.kill()


@contextmanager
def hook(world: World, settings: Any) -> Iterator[Receiver]:
    """A registered receiver, and what the worker needs to send to it."""
    settings.WEBHOOK_RANGES, settings.WEBHOOKS_HTTP = ("127.0.0.0/8",), True
    settings.SEAL_PUBLIC_KEY = keyring.seal_public_key(roots.load(settings.ROOT).current)
    with Receiver() as receiver:
        with tenant_scope(world.tenant.id):
            webhooks.create(tenant_id=world.tenant.id, actor=ACTOR, name="ops", url=receiver.url, kinds=[KIND])
        yield receiver


def word(url: str) -> EngineWord | None:
    """What the router reports of an engine."""
    routers = reports.read(1.0).routers
    return routers[0].engines.get(url) if routers else None


def look(world: World, settings: Any) -> dict[str, str]:
    """What the worker does each minute: reconcile, settle alerts, send. Open findings about the replica that dies, by kind, and their words."""
    ended = running.run(world.tenant.id, trigger="beat")
    assert ended is not None
    with tenant_scope(world.tenant.id):
        alerts.evaluate(world.tenant.id, timezone.now())
    webhooks.send(world.tenant.id, roots.load(settings.ROOT))
    return {one.kind: one.explanation for one in ended.findings if one.subject == "gpu/mortal"}


def test_an_outage_is_told_once_and_its_end_once(world: World, process: Process, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(findings.KINDS, KIND, replace(findings.KINDS[KIND], patience_s=BOUND_S))
    with tenant_scope(world.tenant.id):
        pool = queries.own_pool(world.tenant.id, "gpu")
        replica = a_replica(pool, "mortal", process.url)
    world.publish()
    with hook(world, settings) as receiver:
        until(lambda: (said := word(process.url)) is not None and said.condition == "ok")
        assert KIND not in look(world, settings)
        assert receiver.got == []  # the control: the same look tells nothing of an engine that answers

        process.kill()
        until(lambda: (said := word(process.url)) is not None and said.away_for_s >= BOUND_S)
        for _ in range(3):
            found = look(world, settings)
            assert "No router reaches gpu/mortal since " in found[KIND]
        with tenant_scope(world.tenant.id):
            assert [(one.kind, one.severity) for one in alerts.firing(world.tenant.id)] == [(KIND, "critical")]  # and not as a contradiction too
        (began,) = [json.loads(got.body) for got in receiver.got]
        assert (began["event"], began["data"]["kind"], began["data"]["subject"]["name"]) == ("alert.firing", KIND, "gpu/mortal")

        process.start()
        until(lambda: (said := word(process.url)) is not None and said.away_since_s is None)
        for _ in range(3):
            assert KIND not in look(world, settings)
        ended = json.loads(receiver.got[-1].body)
        assert (ended["event"], ended["data"]["id"]) == ("alert.resolved", began["data"]["id"])
        assert len(receiver.got) == 2
    with tenant_scope(world.tenant.id):
        (row,) = ReconciliationFinding.objects.filter(tenant_id=world.tenant.id, kind=KIND)
        assert (row.state, row.subject_id, row.severity) == ("resolved", str(replica.id), "critical")
        assert row.resolved_at is not None
        assert alerts.firing(world.tenant.id) == []


def test_an_outage_of_moments_is_watched_in_the_next_run_and_named_by_the_command(world: World, process: Process) -> None:
    """As soon as a router cannot reach it, which pages show at once; the words "nothing contradicts anything" are not said then."""
    with tenant_scope(world.tenant.id):
        a_replica(queries.own_pool(world.tenant.id, "gpu"), "mortal", process.url)
    world.publish()
    until(lambda: (said := word(process.url)) is not None and said.condition == "ok")
    assert "gpu/mortal" not in told()
    process.kill()
    until(lambda: (said := word(process.url)) is not None and said.away_since_s is not None)
    said = told()
    assert re.search(r"^acorn: 0 open, [12] watched, ", said, re.MULTILINE), said
    assert re.search(rf"^  watched   {KIND} +gpu/mortal\n +No router reaches gpu/mortal since ", said, re.MULTILINE), said
    process.start()
    until(lambda: (said := word(process.url)) is not None and said.away_since_s is None)
    assert "gpu/mortal" not in told()


def told() -> str:
    """What ``manage.py reconcile`` prints; fails where it fails."""
    out = StringIO()
    call_command("reconcile", "--tenant", "acorn", stdout=out, stderr=out)
    return out.getvalue()
