"""Cache namespaces: those that requests had lately, and one with its components, what ended it, where its blocks were found, and its audits."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from console.access import TenantPage
from console.reads import decisions, endpoints, isolation, keys, namespaces, routers
from console.reads.namespaces import At
from tenants.models import Scope

MAX_KEYS = 10  # named on the page of one namespace


class Namespaces(TenantPage):
    """The namespaces with the newest requests; ``endpoint`` narrows them to those of one endpoint."""

    tab = "isolation"

    def get(self, request: HttpRequest) -> HttpResponse:
        endpoint_id = decisions.as_uuid(request.GET.get("endpoint", ""))
        since, rows = namespaces.listed(self.tenant_id, now=timezone.now(), endpoint_id=endpoint_id)
        scopes = {one for row in rows or () for one in row.scopes}
        context = {
            "since": since,
            "rows": rows,
            "most": namespaces.LIST_ROWS,
            "endpoint_id": endpoint_id,
            "endpoint_names": endpoints.names(self.tenant_id),
            "scopes": dict(Scope.objects.filter(tenant_id=self.tenant_id, id__in=scopes).values_list("id", "path")),
        }
        return self.page("console/namespaces.html", context)


class NamespacePage(TenantPage):
    """One namespace by its public id. One that no request of the tenant had lately is absent, whosever it may be."""

    tab = "isolation"

    def get(self, request: HttpRequest, namespace: str) -> HttpResponse:  # noqa: ARG002 - the port of a view
        found = namespaces.found(self.tenant_id, namespace, now=timezone.now())
        if found is None:
            return self.page("console/namespace.html", {"namespace": namespace, "found": None})
        endpoints_of_it = {way.endpoint.id: way.endpoint for way in found.ways if way.endpoint is not None}
        explained = next((way for way in found.ways if way.endpoint is not None), None)
        names = keys.names(self.tenant_id, found.key_ids[:MAX_KEYS])
        key_names = [names.get(key_id, "a deleted key") for key_id in found.key_ids[:MAX_KEYS]]
        components = (
            namespaces.components(self.tenant_id, explained, tenant_slug=self.caller.seat.slug, key_names=key_names) if explained is not None else []
        )
        said = routers.status(self.tenant_id)
        loads = routers.loads(said)
        context = {
            "namespace": namespace,
            "found": found,
            "explained": explained,
            "components": components,
            "per_request": [one.part.name for one in components if one.part.per_request],
            "endpoints": endpoints_of_it,
            "rotatable": list({way.endpoint.id: way.endpoint for way in found.ways if way.endpoint is not None and way.lives}.values()),
            "replicas": [(one, _load(one, loads)) for one in found.replicas],
            "events": isolation.explained(self.tenant_id, found.events),
            "key_names": key_names,
            "more_keys": max(0, len(found.key_ids) - MAX_KEYS),
            "audits": namespaces.audits(self.tenant_id, list(endpoints_of_it)),
        }
        return self.page("console/namespace.html", context)


def _load(at: At, loads: dict[str, routers.Load]) -> routers.Load | None:
    return loads.get(at.replica.url) if at.replica is not None else None
