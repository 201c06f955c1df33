"""A real Celery worker of the queue ``bulk``, killed in mid-job: the job is taken up from its checkpoint by another one, and ends once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.db import connection
from django.utils import timezone

from deploy.local.options import REPOSITORY
from routing.models import TraceJob
from routing.services.traces import jobs, running
from tenants.scoping import tenant_scope
from tests.routing.services.made import Made, make
from tests.routing.services.traces.made import ACTOR, a_file, a_replay, again, found, mooncake, run
from tests.services import Services

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]
PATIENCE_S = 120.0
POLL_S = 0.05


def until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(POLL_S)


@contextmanager
def worker(services: Services, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker as the product starts one, on this test's database, as the app's role."""
    url = urlsplit(services.role_url("saltroute_app"))
    database = urlunsplit(url._replace(path=f"/{connection.settings_dict['NAME']}"))
    withheld = ("ROOT", "SIGN_IN", "PYTEST")
    kept = {name: value for name, value in os.environ.items() if not any(part in name for part in withheld)}
    env = {**kept, "DATABASE_URL": database, "VALKEY_URL": services.valkey_url("worker")}
    argv = [sys.executable, "-m", "celery", "-A", "settings.celery", "worker", "-Q", "bulk", "-P", "threads", "-c", "2", "-l", "INFO"]
    argv += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    with output.open("wb") as sink:
        process = subprocess.Popen(argv, cwd=REPOSITORY, env=env, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] + [
        int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split() if task.name != str(pid)
    ]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def acorn(transactional_db: None, valkey_url: str) -> Made:
    return make("acorn")


def test_a_worker_killed_in_mid_job(acorn: Made, services: Services, tmp_path: Path) -> None:
    """Its process goes with it; nobody takes the job while the lease runs; then the rest is done, not the whole, and the outcome is the same."""
    file = a_file(acorn, content=mooncake(3000, per_s=20.0))
    wanted = [{"policy": "ettft"}, {"policy": "least_outstanding"}, {"policy": "round_robin"}]
    whole = run(acorn, a_replay(acorn, file, *wanted, speeds=[1.0] * 4, cache_tokens=100_000))
    with worker(services, tmp_path / "first") as first:
        row = a_replay(acorn, file, *wanted, speeds=[1.0] * 4, cache_tokens=100_000)
        until("a checkpoint", lambda: again(acorn, row).checkpoint is not None or again(acorn, row).state == "done")
        begun = again(acorn, row)
        assert begun.state == "running"
        assert begun.total == 9000
        held = children(first.pid)
        assert held
        first.send_signal(signal.SIGKILL)
        first.wait()
        until("the end of its process", lambda: all(is_gone(pid) for pid in held))
    dead = again(acorn, row)
    assert (dead.state, dead.attempts) == ("running", 1)
    assert running.run(acorn.id, row.id) is None
    with tenant_scope(acorn.id):
        TraceJob.objects.filter(id=row.id).update(lease_until=timezone.now())
    with worker(services, tmp_path / "second"):
        assert running.sweep() == 1
        until("the end of the job", lambda: again(acorn, row).state == "done")
    done = again(acorn, row)
    assert (done.attempts, done.done, done.total) == (2, 9000, 9000)
    assert done.attempt_done >= 3000  # at least one policy was not replayed again
    assert found(done) == found(whole)


def test_a_job_that_is_cancelled_ends_its_process(acorn: Made, services: Services, tmp_path: Path) -> None:
    """And the worker goes on with the next job."""
    file = a_file(acorn, content=mooncake(3000, per_s=20.0))
    with worker(services, tmp_path / "output") as process:
        row = a_replay(acorn, file, *[{"policy": "ettft"}] * 8)
        until("progress", lambda: again(acorn, row).done > 0)
        held = children(process.pid)
        with tenant_scope(acorn.id):
            jobs.cancel(tenant_id=acorn.id, actor=ACTOR, job_id=row.id)
        until("the end of its process", lambda: all(is_gone(pid) for pid in held))
        small = a_file(acorn, "small", mooncake(20))
        second = a_replay(acorn, small)
        running.sweep()
        until("the next job", lambda: again(acorn, second).state == "done")
    assert (again(acorn, row).state, again(acorn, row).result) == ("cancelled", None)
    log = (tmp_path / "output").read_text()
    assert "Traceback" not in log
