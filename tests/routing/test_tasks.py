"""Doors of Celery: which queue each task goes to, and that none of them raises for what repairs itself."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from celery import current_app

from routing import tasks
from routing.services.audits import wake
from settings.celery import app

app.loader.import_default_modules()  # every application's tasks, as a worker finds them

QUEUES = {
    "routing.publish": "publish",
    "routing.sweep_publications": "publish",
    "routing.sweep_isolation": "publish",
    "routing.plan_audits": "bulk",
    "routing.note_key_use": "bulk",
    "routing.reconcile": "bulk",
    "routing.reconcile_tenant": "bulk",
    "routing.tend_records": "bulk",
    "routing.keep_partitions": "bulk",
    "routing.trace_job": "bulk",
    "routing.trace_jobs_sweep": "bulk",
    "routing.audit_run": "audit",
    "namespaces.keys_provision": "keys",
}


def queue_of(name: str) -> str:
    """Where the product's own routing sends a task of this name."""
    return str(app.amqp.router.route({}, name)["queue"].name)


@pytest.mark.parametrize(("name", "queue"), QUEUES.items())
def test_each_task_has_its_queue(name: str, queue: str) -> None:
    assert name in app.tasks
    assert queue_of(name) == queue


def test_nothing_that_publishes_shares_a_queue_with_audits() -> None:
    """A revocation waits behind no audit, however many are queued: the worker of its queue gets none of them."""
    audits = {name for name in app.tasks if queue_of(name) == "audit"}
    assert audits == {"routing.audit_run", "routing.audit_replica_check"}
    publishing = {name for name in app.tasks if name.startswith("routing.") and queue_of(name) == "publish"}
    assert publishing == {"routing.publish", "routing.sweep_publications", "routing.sweep_isolation"}


def test_every_beat_names_a_task_with_bounds() -> None:
    """A beat that a stopped worker left behind expires, and each task has its limits."""
    for entry in app.conf.beat_schedule.values():
        task = app.tasks[entry["task"]]
        assert 0 < (task.soft_time_limit or 0) < (task.time_limit or 0)
        if entry["task"].startswith("routing."):
            assert task.expires


def test_an_alarm_is_taken_before_the_days_audits() -> None:
    """The transport takes smaller numbers first, and has a list for each step."""
    steps = app.conf.broker_transport_options.get("priority_steps", [0, 3, 6, 9])
    assert set(wake.PRIORITIES.values()) <= set(steps)
    assert wake.PRIORITIES["alarm"] < min(value for name, value in wake.PRIORITIES.items() if name != "alarm")


@pytest.mark.django_db
def test_a_task_for_nothing_does_nothing() -> None:
    tasks.audit_run(str(uuid.uuid4()), str(uuid.uuid4()))
    tasks.plan_audits()
    tasks.note_key_use()
    tasks.reconcile()
    tasks.reconcile_tenant(str(uuid.uuid4()), str(uuid.uuid4()))
    tasks.trace_job(str(uuid.uuid4()), str(uuid.uuid4()))
    tasks.trace_jobs_sweep()


def test_key_use_is_noted_every_half_minute() -> None:
    assert {"task": "routing.note_key_use", "schedule": 30.0} in app.conf.beat_schedule.values()


@pytest.mark.django_db
def test_without_valkey_the_sweep_goes_on_next_time(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.VALKEY_URL = "unix:///nowhere/valkey.sock"
    tasks.sweep_isolation()
    assert "not acted on" in caplog.text


def test_an_order_goes_to_the_audit_queue_with_its_priority(valkey_url: str) -> None:
    """Through a real broker: the alarm's list is another than the day's."""
    import redis

    run = uuid.uuid4()
    wake.send(uuid.uuid4(), run, "alarm")
    wake.send(uuid.uuid4(), uuid.uuid4(), "daily")
    with redis.Redis.from_url(valkey_url) as client:
        lists = {name: client.llen(name) for name in client.keys("celery:audit*")}
        assert lists == {b"celery:audit": 1, b"celery:audit\x06\x169": 1}
        assert str(run).encode() in b"".join(client.lrange("celery:audit", 0, -1))
    assert current_app.main == "saltroute"
