"""Django's registration of this app."""

from __future__ import annotations

from django.apps import AppConfig


class RoutingConfig(AppConfig):
    name = "routing"
    label = "routing"

    def ready(self) -> None:
        """Publish on commit whatever tenants.changes records, in every process that changes something."""
        from routing.services.publishing import publish_on_commit
        from tenants.changes import subscribe

        subscribe(publish_on_commit)
