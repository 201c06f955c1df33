"""The tasks of the queue ``keys``, who may run them, and the wake-up that never costs a request."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import current_app
from django.utils import timezone

from namespaces import tasks
from namespaces.models import TenantKeyVersion
from namespaces.services import keys, operations
from settings.celery import app
from tenants.actor import system
from tenants.core.errors import Conflict
from tenants.models import Tenant
from tenants.scoping import current, tenant_scope
from tenants.services import provisioning

ROOT = b"r" * 32


def root_file(folder: Path) -> tuple[str, ...]:
    """A root key as the settings name it."""
    (folder / "root.key").write_bytes(ROOT)
    return (f"file:{folder / 'root.key'}",)


def _tenant(slug: str = "acorn") -> Tenant:
    return provisioning.create(actor=system("tests"), slug=slug, name=slug)


@pytest.mark.django_db
def test_without_the_root_key_every_task_on_keys_refuses(settings: Any) -> None:
    """Nothing is made, and the error names the variable."""
    settings.ROOT = ()
    tenant = _tenant()
    asked: list[tuple[Callable[..., None], list[str]]] = [
        (tasks.keys_provision, [str(tenant.id)]),
        (tasks.keys_provision_missing, []),
        (tasks.keys_operate, [str(tenant.id), str(tenant.id)]),
        (tasks.keys_operations, []),
    ]
    for task, arguments in asked:
        with pytest.raises(tasks.WrongWorker, match="SALTROUTE_ROOT_KEY_FILE"):
            task(*arguments)
    with tenant_scope(tenant.id):
        assert keys.material(tenant.id) is None


def test_a_process_without_the_variable_has_no_root_key() -> None:
    """The web and every other worker: their settings hold none (who is given the variable: tests/deploy/local/test_plan.py)."""
    env = {name: value for name, value in os.environ.items() if name not in ("SALTROUTE_ROOT_KEY_FILE", "SALTROUTE_ROOT")}
    code = "from settings import django; print(django.ROOT == (), django.PUBLISH_KEY is None)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.django_db
def test_the_task_makes_the_key_and_repeats_are_harmless(settings: Any, tmp_path: Path) -> None:
    """Delivered twice, one key; no scope is left open; a tenant that is gone is no error."""
    settings.ROOT = root_file(tmp_path)
    tenant = _tenant()
    for _ in range(2):
        tasks.keys_provision(str(tenant.id))
    tasks.keys_provision(str(uuid.uuid4()))
    assert current() is None
    with tenant_scope(tenant.id):
        held = keys.material(tenant.id)
    assert held is not None
    assert held.version == 1


@pytest.mark.django_db
def test_the_sweep_repairs_a_lost_wake_up(settings: Any, tmp_path: Path) -> None:
    """A tenant whose message never arrived gets its key by the next beat."""
    settings.ROOT = root_file(tmp_path)
    tenant = _tenant()
    tasks.keys_provision_missing()
    with tenant_scope(tenant.id):
        assert keys.material(tenant.id) is not None


def test_the_tasks_go_to_their_own_queue() -> None:
    """By name, so that no other worker takes them; beat sends the sweep."""
    sweeps = {"namespaces.keys_provision_missing", "namespaces.keys_operations", "namespaces.keys_destroy_expired"}
    for name in (tasks.PROVISION, tasks.OPERATE, *sweeps):
        assert app.amqp.router.route({}, name)["queue"].name == "keys"
    assert sweeps <= {entry["task"] for entry in app.conf.beat_schedule.values()}


@pytest.mark.django_db
def test_an_operation_is_done_by_its_task_and_by_the_sweep(settings: Any, tmp_path: Path) -> None:
    """Delivered twice it is done once; one whose message was lost is found; one that is gone is no error; no scope is left open."""
    settings.ROOT = root_file(tmp_path)
    tenants = [_tenant(slug) for slug in ("acorn", "birch")]
    rows = []
    for tenant in tenants:
        tasks.keys_provision(str(tenant.id))
        with tenant_scope(tenant.id):
            rows.append(operations.request_tenant_rotation(tenant_id=tenant.id, actor=system("tests"), reason="leak"))
    for _ in range(2):
        tasks.keys_operate(str(tenants[0].id), str(rows[0].id))
    tasks.keys_operations()
    tasks.keys_operate(str(tenants[0].id), str(uuid.uuid4()))
    assert current() is None
    for tenant in tenants:
        with tenant_scope(tenant.id):
            held = keys.material(tenant.id)
            assert held is not None
            assert held.version == 2


@pytest.mark.django_db
def test_destroying_needs_no_root_key(settings: Any, tmp_path: Path) -> None:
    """A tenant deleted long ago loses its key; one deleted just now keeps it."""
    settings.ROOT = root_file(tmp_path)
    old, fresh = _tenant("old"), _tenant("fresh")
    for tenant, days in ((old, 8), (fresh, 0)):
        tasks.keys_provision(str(tenant.id))
        with tenant_scope(tenant.id):
            provisioning.delete(tenant_id=tenant.id, actor=system("tests"), now=timezone.now() - timedelta(days=days))
    settings.ROOT = ()
    tasks.keys_destroy_expired()
    for tenant, kept in ((old, False), (fresh, True)):
        with tenant_scope(tenant.id):
            assert TenantKeyVersion.objects.exists() is kept


@pytest.mark.django_db
def test_creating_a_tenant_wakes_the_worker_on_commit(
    valkey_url: str, django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message for one tenant, sent when the transaction commits and not before; none when it rolls back."""
    sent: list[tuple[str, ...]] = []
    arrived = threading.Event()

    def note(**options: Any) -> None:
        sent.append(options["args"])
        arrived.set()

    monkeypatch.setattr(tasks.keys_provision, "apply_async", note)
    with django_capture_on_commit_callbacks(execute=True):
        tenant = _tenant()
        assert sent == []
    assert arrived.wait(timeout=10)
    assert sent == [(str(tenant.id),)]
    with django_capture_on_commit_callbacks(execute=True), pytest.raises(Conflict):
        _tenant("acorn")
    assert sent == [(str(tenant.id),)]


def test_the_message_reaches_the_queue(valkey_url: str) -> None:
    """By the real broker: the queue ``keys`` holds one message that names the task."""
    tasks.wake(uuid.uuid4())
    with current_app.connection_for_read() as broker, broker.SimpleQueue("keys") as queue:
        message = queue.get(timeout=20)
        assert message.headers["task"] == tasks.PROVISION
        message.ack()


@pytest.mark.parametrize("hangs", [False, True])
def test_a_broker_that_is_away_or_hangs_costs_no_request(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused or accepted and never answered: ``wake`` returns, raises nothing, and leaves a bounded number of threads."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        if not hangs:
            server.close()

        def send(**options: Any) -> None:
            from celery import Celery

            other = Celery(broker=url, broker_transport_options=app.conf.broker_transport_options)
            other.send_task(tasks.PROVISION, args=options["args"], retry=False)

        monkeypatch.setattr(tasks.keys_provision, "apply_async", send)
        monkeypatch.setattr(tasks, "WAKE_TIMEOUT_S", 0.05)
        for _ in range(3 * tasks.MAX_WAKES_IN_FLIGHT):
            tasks.wake(uuid.uuid4())
        assert len(_senders()) <= tasks.MAX_WAKES_IN_FLIGHT
    for sender in _senders():  # the server is gone: those that hung end too, and give their places back
        sender.join(timeout=30)
    assert _senders() == []


def _senders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "wake-keys"]
