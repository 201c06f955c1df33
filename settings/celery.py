"""The Celery application. Its settings live in :mod:`settings.django` under ``CELERY_``."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings.django")

app = Celery("saltroute")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["namespaces", "routing"])
