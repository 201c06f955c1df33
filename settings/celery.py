"""The Celery application. Its settings live in :mod:`settings.django` under ``CELERY_``."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import celeryd_init
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings.django")

app = Celery("saltroute")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["tenants", "namespaces", "routing"])

KEYS_QUEUE = "keys"


@celeryd_init.connect
def refuse_a_root_key(options: dict[str, Any], **_: Any) -> None:
    """A worker of any other queue must not hold a root key, and none a sign-in key: it does not start."""
    if settings.SIGN_IN_KEYS:
        raise SystemExit("SALTROUTE_SIGN_IN_KEY_FILES is set: only the web may hold sign-in keys")
    named = options.get("queues") or ()
    queues = {one.strip() for one in (named.split(",") if isinstance(named, str) else named)}
    if settings.ROOT and queues != {KEYS_QUEUE}:
        raise SystemExit("SALTROUTE_ROOT or SALTROUTE_ROOT_KEY_FILE is set: only a worker of the queue 'keys', and of no other, may hold a root key")
