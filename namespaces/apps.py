"""Django's registration of this app."""

from __future__ import annotations

from django.apps import AppConfig


class NamespacesConfig(AppConfig):
    name = "namespaces"
    label = "namespaces"

    def ready(self) -> None:
        """Wake the ``keys`` worker for a new tenant and for an operation that was asked for, in whichever process that happens."""
        from namespaces import tasks
        from namespaces.services import operations
        from tenants.services import provisioning

        provisioning.subscribe(tasks.wake)
        operations.subscribe(tasks.wake_for_operation)
