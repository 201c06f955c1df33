"""Pools and replicas: state, load and health, and taking a replica out of service and back."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from console.access import TenantPage
from console.reads import pools, routers, served
from routing import queries
from routing.services import replicas
from tenants.core.roles import Permission

# verb -> (state afterwards, what it means)
_VERBS = {
    "drain": ("draining", "It gets no new requests; those it runs are finished. Its cache stays until the engine is stopped."),
    "pause": ("paused", "It gets no new requests and is left out of every count until it is resumed; those it runs are finished."),
    "resume": ("active", "It takes requests again as soon as the routers have applied the change."),
}


class Pools(TenantPage):
    """Every pool the tenant may use."""

    tab = "pools"

    def get(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the port of a view
        found = routers.status(self.tenant_id)
        loads = routers.loads(found)
        listed = pools.listed(self.tenant_id)
        missing = served.missing(self.tenant_id, found, [replica for card in listed for replica in card.replicas])
        cards = [(card, [(replica, loads.get(replica.url), missing.get(replica.id, ())) for replica in card.replicas]) for card in listed]
        named = {replica.url: f"{card.pool.name}/{replica.name}" for card in listed for replica in card.replicas}
        return self.page("console/pools.html", {"cards": cards, "routers": found, "changes": routers.residency_changes(found, named)})


class ReplicaVerb(TenantPage):
    """Drain, pause or resume a replica: GET asks, POST does."""

    tab = "pools"
    needs = {"GET": Permission.OPERATE, "POST": Permission.OPERATE}

    def get(self, request: HttpRequest, replica_id: UUID, verb: str) -> HttpResponse:  # noqa: ARG002 - the port of a view
        if verb not in _VERBS:
            raise Http404
        state, meaning = _VERBS[verb]
        replica = queries.replica(self.tenant_id, str(replica_id))
        return self.page("console/replica_verb.html", {"replica": replica, "verb": verb, "state": state, "meaning": meaning})

    def post(self, request: HttpRequest, replica_id: UUID, verb: str) -> HttpResponse:
        if verb not in _VERBS:
            raise Http404
        state, _ = _VERBS[verb]
        reason = request.POST.get("reason", "").strip()
        replica = replicas.set_state(tenant_id=self.tenant_id, actor=self.actor, replica_id=replica_id, state=state, reason=reason)
        messages.success(request, f"Replica {replica.name} is {state}.")
        return HttpResponseRedirect(reverse("console:pools", args=[self.caller.seat.slug]))


class RemoveReplica(TenantPage):
    """Take a replica out of its pool: GET asks, POST does."""

    tab = "pools"
    needs = {"GET": Permission.CONFIGURE, "POST": Permission.CONFIGURE}

    def get(self, request: HttpRequest, replica_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        replica = queries.replica(self.tenant_id, str(replica_id))
        left = queries.replicas(self.tenant_id).filter(pool_id=replica.pool_id, state="active").exclude(id=replica.id).count()
        return self.page("console/replica_remove.html", {"replica": replica, "left": left})

    def post(self, request: HttpRequest, replica_id: UUID) -> HttpResponse:
        replica = queries.replica(self.tenant_id, str(replica_id))
        replicas.delete(tenant_id=self.tenant_id, actor=self.actor, replica_id=replica.id)
        messages.success(request, f"Replica {replica.name} is removed from pool {replica.pool.name}.")
        return HttpResponseRedirect(reverse("console:pools", args=[self.caller.seat.slug]))
