"""Django's registration of this app."""

from __future__ import annotations

from django.apps import AppConfig


class NamespacesConfig(AppConfig):
    name = "namespaces"
    label = "namespaces"

    def ready(self) -> None:
        """Ask for a key whenever a tenant is created, in whichever process that happens."""
        from namespaces.tasks import wake
        from tenants.services.provisioning import subscribe

        subscribe(wake)
