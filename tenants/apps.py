"""Django's registration of this app."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "tenants"
    label = "tenants"

    def ready(self) -> None:
        """Make our Celery application the current one: without it a task is sent to the library's default broker, and lost."""
        import_module("settings.celery")
