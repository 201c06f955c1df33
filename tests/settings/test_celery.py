"""Every Django process sends its tasks to our broker."""

from __future__ import annotations

import subprocess
import sys

from deploy.local.options import REPOSITORY

_PROGRAM = "import django; django.setup(); from namespaces.tasks import keys_provision as task; print(task.app.main, task.app.conf.broker_url)"


def test_a_process_that_only_sets_django_up_has_our_application() -> None:
    env = {"PATH": "/usr/bin:/bin", "DJANGO_SETTINGS_MODULE": "settings.django", "VALKEY_URL": "unix://control@/run/valkey.sock?db=0"}
    shown = subprocess.run([sys.executable, "-c", _PROGRAM], cwd=REPOSITORY, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.split() == ["saltroute", "redis+socket://control@/run/valkey.sock?virtual_host=0"]
