"""``manage.py ingest`` as a process of its own, with the role and the ACL user that it has in the product."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from django.db import connection
from psycopg.conninfo import make_conninfo

from routing.core.record import DecisionRecord, authenticate, encode
from routing.models import DecisionRow
from routing.services.records import GROUP, STREAM
from tenants.scoping import tenant_scope
from tests.routing.services.made import make
from tests.routing.services.rows import secret
from tests.services import Services

pytestmark = pytest.mark.django_db(transaction=True)
REPOSITORY = Path(__file__).parents[3]
DEADLINE_S = 60.0


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Look again until it holds; fail when the process has died or the deadline has passed."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)  # between two looks; nothing depends on its length


def test_it_stores_what_comes_and_ends_at_sigterm(transactional_db: None, services: Services, valkey_url: str) -> None:
    """Ready when its group exists; stores; ends with 0 after the batch in hand, and leaves no name in the group."""
    acorn = make("acorn")
    conninfo = make_conninfo(services.role_url("saltroute_ingest"), dbname=connection.settings_dict["NAME"])
    env = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": conninfo,
        "VALKEY_URL": services.valkey_url("ingest"),
        "SALTROUTE_RECORDS_KEY_FILE": str(services.held.file("records.key")),
        "SALTROUTE_SECRET_KEY_FILE": str(services.held.file("django.key")),
    }
    process = subprocess.Popen(
        [sys.executable, "manage.py", "ingest"], cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        with redis.Redis.from_url(valkey_url) as client:
            until(lambda: client.exists(STREAM) == 1 and len(client.xinfo_groups(STREAM)) == 1, process)
            one = DecisionRecord(
                id=uuid.uuid4(),
                tenant_id=acorn.id,
                started_at=1_790_000_000.0,
                route="chat",
                outcome="ok",
                status=200,
                router_id="r1",
                config_version=1,
            )
            data = encode(one)
            entry: dict[str, bytes | str] = {"r": "r1", "t": str(acorn.id), "d": data, "m": authenticate(secret("RECORDS_KEY"), "r1", data)}
            client.xadd(STREAM, entry)

            def stored() -> bool:
                with tenant_scope(acorn.id):
                    return DecisionRow.objects.filter(id=one.id).exists()

            until(stored, process)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=DEADLINE_S)
            first, _, steps = out.partition("\n")
            assert (process.returncode, first) == (0, "1 stored"), err
            assert steps.startswith("time: read ")
            assert client.xinfo_consumers(STREAM, GROUP) == []
            assert client.xlen(STREAM) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_it_refuses_to_run_without_the_records_key(services: Services) -> None:
    """Without it a forged record could not be told from a true one."""
    env = {"PATH": os.environ["PATH"], "DATABASE_URL": services.role_url("saltroute_ingest")}
    argv = [sys.executable, "manage.py", "ingest"]
    done = subprocess.run(argv, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1
    assert "SALTROUTE_RECORDS_KEY_FILE is not set" in done.stderr
