"""``manage.py ingest`` stores captured requests too, beside decision records, with its role and ACL user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import redis
from django.db import connection
from django.utils import timezone
from psycopg.conninfo import make_conninfo

from routing.core import capture
from routing.core.record import authenticate
from routing.models import CapturedRequest
from routing.services.capture_ingest import STREAM
from routing.services.records import GROUP
from tenants.scoping import tenant_scope
from tests.routing.management.test_ingest import DEADLINE_S, until
from tests.routing.services.captured import record
from tests.routing.services.made import make
from tests.routing.services.rows import secret
from tests.services import Services

pytestmark = pytest.mark.django_db(transaction=True)
REPOSITORY = Path(__file__).parents[3]


def test_it_stores_captured_requests_and_ends_at_sigterm(transactional_db: None, services: Services, valkey_url: str) -> None:
    """Both threads end with the signal, and neither leaves a name in its group."""
    acorn = make("acorn")
    env = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": make_conninfo(services.role_url("saltroute_ingest"), dbname=connection.settings_dict["NAME"]),
        "VALKEY_URL": services.valkey_url("ingest"),
        "SALTROUTE_RECORDS_KEY_FILE": str(services.held.file("records.key")),
        "SALTROUTE_SECRET_KEY_FILE": str(services.held.file("django.key")),
    }
    argv = [sys.executable, "manage.py", "ingest"]
    process = subprocess.Popen(argv, cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        with redis.Redis.from_url(valkey_url) as client:
            until(lambda: client.exists(STREAM) == 1 and len(client.xinfo_groups(STREAM)) == 1, process)
            one = record(acorn.id, uuid.uuid4(), timezone.now())
            data = capture.encode(one)
            mac = authenticate(capture.stream_key(secret("RECORDS_KEY")), "r1", data)
            entry: dict[str, bytes | str] = {"r": "r1", "t": str(acorn.id), "d": data, "m": mac}
            client.xadd(STREAM, entry)

            def stored() -> bool:
                with tenant_scope(acorn.id):
                    return CapturedRequest.objects.filter(id=one.id).exists()

            until(stored, process)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, err
            assert out.startswith("captures: 1 stored\n")
            assert client.xinfo_consumers(STREAM, GROUP) == []
            assert client.xlen(STREAM) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
