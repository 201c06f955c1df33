"""Every Django process sends its tasks to our broker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from deploy.local.options import REPOSITORY

_PROGRAM = "import django; django.setup(); from namespaces.tasks import keys_provision as task; print(task.app.main, task.app.conf.broker_url)"


def test_a_process_that_only_sets_django_up_has_our_application() -> None:
    env = {"PATH": "/usr/bin:/bin", "DJANGO_SETTINGS_MODULE": "settings.django", "VALKEY_URL": "unix://control@/run/valkey.sock?db=0"}
    shown = subprocess.run([sys.executable, "-c", _PROGRAM], cwd=REPOSITORY, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.split() == ["saltroute", "redis+socket://control@/run/valkey.sock?virtual_host=0"]


def _worker(queues: str) -> subprocess.CompletedProcess[str]:
    """A worker that is told of a root key; its broker is away, so one that starts goes on trying until it is stopped."""
    argv = [sys.executable, "-m", "celery", "-A", "settings.celery", "worker", "-Q", queues, "-P", "threads", "-c", "1", "--without-mingle"]
    env = {"PATH": "/usr/bin:/bin", "SALTROUTE_ROOT_KEY_FILE": "/nowhere/root.key", "VALKEY_URL": "redis://127.0.0.1:1/0"}
    return subprocess.run(argv, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_a_worker_of_another_queue_refuses_to_start_with_a_root_key() -> None:
    """Alone or beside the queue of keys."""
    for queues in ("publish", "keys,bulk"):
        done = _worker(queues)
        assert done.returncode == 1
        assert "may hold a root key" in done.stderr


def test_no_worker_starts_with_a_sign_in_key(tmp_path: Path) -> None:
    """Not even that of the keys: what opens second factors is the web's alone."""
    key = tmp_path / "signin.key"
    key.write_bytes(b"k" * 32)
    program = "from settings.celery import refuse_a_root_key as check; check(options={'queues': 'keys'})"
    env = {"PATH": "/usr/bin:/bin", "SALTROUTE_SIGN_IN_KEY_FILES": str(key)}
    shown = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert shown.returncode == 1
    assert "only the web may hold sign-in keys" in shown.stderr


def test_the_worker_of_keys_may_hold_one() -> None:
    """The same check lets it pass."""
    program = "from settings.celery import refuse_a_root_key as check; [check(options={'queues': q}) for q in ('keys', ['keys'])]; print('passed')"
    env = {"PATH": "/usr/bin:/bin", "SALTROUTE_ROOT_KEY_FILE": "/nowhere/root.key"}
    shown = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.split() == ["passed"]
