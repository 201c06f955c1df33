"""Django's registration of this app."""

from __future__ import annotations

from django.apps import AppConfig


class RoutingConfig(AppConfig):
    name = "routing"
    label = "routing"

    def ready(self) -> None:
        """Publish on commit whatever tenants.changes records, in every process that changes something; take part in rotations of the root key."""
        from namespaces.services import rotation, sealed
        from routing.services.credentials import CREDENTIALS, routers_ready
        from routing.services.publishing import publish_on_commit
        from routing.services.webhooks import SECRETS
        from tenants.changes import subscribe

        subscribe(publish_on_commit)
        sealed.register(CREDENTIALS)
        sealed.register(SECRETS)
        rotation.require(routers_ready)
