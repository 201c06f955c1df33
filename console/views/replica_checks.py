"""Adding a replica: what it is, a test of it by a router, and the replica itself."""

from __future__ import annotations

from uuid import UUID

from django import forms
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from console.access import TenantPage
from console.reads import endpoints
from routing import queries
from routing.core.engines import ENGINES
from routing.core.replica_check import SALTS_IN_WORDS
from routing.services import pools, replica_checks, replicas
from tenants.core.errors import Conflict, Invalid, LimitReached, NotFound, Unavailable
from tenants.core.roles import Permission

MAX_POOLS = 200


class ReplicaForm(forms.Form):
    """A replica as it is written down. What is right is the services' question."""

    pool = forms.UUIDField(required=False)
    new_pool = forms.CharField(max_length=100, strip=True, required=False)
    name = forms.CharField(max_length=100, strip=True)
    url = forms.CharField(max_length=512, strip=True)
    engine = forms.ChoiceField(choices=[(one, one) for one in ENGINES])
    endpoint = forms.UUIDField(required=False)
    served_model = forms.CharField(max_length=200, strip=True, required=False)
    credential = forms.CharField(max_length=replicas.MAX_CREDENTIAL_CHARACTERS, required=False)


class NewReplica(TenantPage):
    """The form; it leads to a test, or adds the replica at once."""

    tab = "pools"
    needs = {"GET": Permission.CONFIGURE, "POST": Permission.CONFIGURE}

    def get(self, request: HttpRequest) -> HttpResponse:
        return self._form(ReplicaForm(initial={"pool": request.GET.get("pool", ""), "engine": "vllm"}))

    def post(self, request: HttpRequest) -> HttpResponse:
        form = ReplicaForm(request.POST)
        if not form.is_valid():
            return self._form(form, status=400)
        try:
            with transaction.atomic():
                return self._done(form, test=request.POST.get("do") != "add")
        except (Invalid, Conflict, LimitReached, Unavailable) as refusal:
            form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)
            return self._form(form, status=refusal.http_status)

    def _done(self, form: ReplicaForm, *, test: bool) -> HttpResponse:
        given = form.cleaned_data
        pool_id, name, url, engine = self._pool(form), given["name"], given["url"], given["engine"]
        slug = self.caller.seat.slug
        if test:
            row = replica_checks.order(
                tenant_id=self.tenant_id,
                actor=self.actor,
                pool_id=pool_id,
                name=name,
                url=url,
                engine=engine,
                served_model=given["served_model"],
                endpoint_id=given["endpoint"],
                credential=given["credential"] or None,
            )
            return HttpResponseRedirect(reverse("console:replica_check", args=[slug, row.id]))
        secret = {"credential": given["credential"]} if given["credential"] else {}
        made = replicas.create(tenant_id=self.tenant_id, actor=self.actor, pool_id=pool_id, name=name, url=url, engine=engine, **secret)
        messages.success(self.request, f"Replica {made.name} is added.")
        return HttpResponseRedirect(reverse("console:replica", args=[slug, made.id]))

    def _pool(self, form: ReplicaForm) -> UUID:
        """The pool that was chosen, or a new one of the name that was written."""
        chosen, fresh = form.cleaned_data["pool"], form.cleaned_data["new_pool"]
        if fresh:
            try:
                return pools.create(tenant_id=self.tenant_id, actor=self.actor, name=fresh).id
            except (Invalid, Conflict) as refusal:
                raise type(refusal)(refusal.message, field="new_pool") from None
        if chosen is None:
            raise Invalid("Choose a pool, or name a new one.", field="pool")
        try:
            return queries.own_pool(self.tenant_id, str(chosen)).id
        except NotFound:
            raise Invalid("Choose one of these.", field="pool") from None

    def _form(self, form: ReplicaForm, *, status: int = 200) -> HttpResponse:
        context = {
            "form": form,
            "pools": queries.own_pools(self.tenant_id).order_by("name")[:MAX_POOLS],
            "endpoints": endpoints.names(self.tenant_id),
            "engines": list(ENGINES),
        }
        return self.page("console/replica_new.html", context, status=status)


class CheckPage(TenantPage):
    """One test: under way, what was found, and adding the replica as it was tested."""

    tab = "pools"
    needs = {"GET": Permission.READ, "POST": Permission.CONFIGURE}

    def get(self, request: HttpRequest, check_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        row, now = replica_checks.check(self.tenant_id, check_id), timezone.now()
        found = replica_checks.report(row, now)
        context = {
            "check": row,
            "state": replica_checks.state(row, now),
            "error": replica_checks.error(row, now),
            "found": found,
            "pool": queries.own_pools(self.tenant_id).filter(id=row.pool_id).first(),
            "salts_in_words": SALTS_IN_WORDS[found.salts.verdict] if found else "",
            "salts_tone": {"honoured": "good", "ignored": "bad"}.get(found.salts.verdict, "warn") if found else "",
            "parity_tone": {"ok": "good", "different": "bad"}.get(found.parity.state, "") if found else "",
            "endpoint": endpoints.names(self.tenant_id).get(row.endpoint_id) if row.endpoint_id else None,
            "added": queries.replicas(self.tenant_id).filter(id=row.id).first(),
            "too_old": now - row.created_at > replica_checks.ADD_WITHIN,
        }
        return self.page("console/replica_check.html", context)

    def post(self, request: HttpRequest, check_id: UUID) -> HttpResponse:
        made = replica_checks.add(tenant_id=self.tenant_id, actor=self.actor, check_id=check_id)
        messages.success(request, f"Replica {made.name} is added. Workers audit it before it serves two identities, within about a minute.")
        return HttpResponseRedirect(reverse("console:replica", args=[self.caller.seat.slug, made.id]))
