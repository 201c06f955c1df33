"""Alerts, the webhooks that hear of them, and how endpoints keep their objectives."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from django.db.models import Q
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from routing import queries
from routing.core import burn
from routing.core.alerts import KINDS
from routing.models import Alert, Webhook, WebhookDelivery
from routing.services import alerts, slo, webhooks
from tenants.api.base import TenantView, describe
from tenants.api.bodies import Body, parse
from tenants.api.pagination import filtered, page
from tenants.api.schema import PAGING, changed, page_of
from tenants.api.shapes import given
from tenants.core.roles import Permission

TAG = "alerts"


class SubjectOut(msgspec.Struct, frozen=True, kw_only=True):
    """What an alert is about."""

    kind: str
    id: str
    name: str


class AlertOut(msgspec.Struct, frozen=True, kw_only=True):
    """Something that people should hear of. ``calm_since``: its cause has been away since then; it ends when that has lasted."""

    id: UUID
    kind: str
    title: str
    severity: str
    state: str
    subject: SubjectOut
    aspect: str
    explanation: str
    began_at: datetime
    last_seen_at: datetime
    calm_since: datetime | None
    resolved_at: datetime | None


class WebhookOut(msgspec.Struct, frozen=True, kw_only=True):
    """Where alerts are sent. ``kinds`` empty: all of them. ``dead``: messages given up; ``dropped``: never queued, because too many were."""

    id: UUID
    name: str
    url: str
    kinds: list[str]
    enabled: bool
    delivered_at: datetime | None
    waiting: int
    dead: int
    dropped: int
    created_at: datetime


class WebhookSecretOut(WebhookOut, frozen=True, kw_only=True):
    """A webhook with its secret, which is shown this once."""

    secret: str


class WebhookNew(Body):
    """A webhook to be. https, without user name, query and fragment."""

    name: str
    url: str
    kinds: list[str] = []
    enabled: bool = True


class WebhookChange(Body):
    """What is to change."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    url: str | msgspec.UnsetType = msgspec.UNSET
    kinds: list[str] | msgspec.UnsetType = msgspec.UNSET
    enabled: bool | msgspec.UnsetType = msgspec.UNSET


class DeliveryOut(msgspec.Struct, frozen=True, kw_only=True):
    """One message and what became of it. Its id is what the receiver can tell repeats by. Nothing of an answer is kept but its status."""

    id: UUID
    event: str
    alert_id: UUID | None
    state: str
    attempts: int
    status: int | None
    error: str
    created_at: datetime
    next_at: datetime | None
    finished_at: datetime | None


class WindowOut(msgspec.Struct, frozen=True, kw_only=True):
    """One window. ``burn_rate`` 1: as many misses as the objective allows; null without requests."""

    seconds: int
    requests: int
    missed: int
    burn_rate: float | None


class ObjectiveOut(msgspec.Struct, frozen=True, kw_only=True):
    """One objective of an endpoint over the windows."""

    objective: str
    target_s: float
    share: Annotated[float, msgspec.Meta(description="Of the requests, that must meet it.")]
    windows: list[WindowOut]


class EndpointSlo(msgspec.Struct, frozen=True, kw_only=True):
    """How an endpoint keeps its objectives, and what fires for it now."""

    endpoint: str
    objectives: list[ObjectiveOut]
    alerts: list[AlertOut]


def alert(row: Alert) -> AlertOut:
    return AlertOut(
        id=row.id,
        kind=row.kind,
        title=KINDS[row.kind].title if row.kind in KINDS else row.kind,
        severity=row.severity,
        state=row.state,
        subject=SubjectOut(kind=row.subject_kind, id=row.subject_id, name=row.subject),
        aspect=row.aspect,
        explanation=row.explanation,
        began_at=row.began_at,
        last_seen_at=row.last_seen_at,
        calm_since=row.calm_since,
        resolved_at=row.resolved_at,
    )


def _hook(row: Webhook) -> dict[str, Any]:
    waiting = WebhookDelivery.objects.filter(tenant_id=row.tenant_id, webhook=row, state="queued").count()
    names = ("id", "name", "url", "kinds", "enabled", "delivered_at", "dead", "dropped", "created_at")
    return {"waiting": waiting, **{name: getattr(row, name) for name in names}}


def _delivery(row: WebhookDelivery) -> DeliveryOut:
    names = ("id", "event", "alert_id", "state", "attempts", "status", "error", "created_at", "finished_at")
    return DeliveryOut(**{name: getattr(row, name) for name in names}, next_at=row.next_at if row.state == "queued" else None)


_STATE = OpenApiParameter("state", str, enum=["firing", "resolved"])
_KIND = OpenApiParameter("kind", str, enum=sorted(KINDS))


class AlertCollection(TenantView):
    """Alerts that fire, and those that are over."""

    permissions = {"GET": Permission.READ}

    @describe("alerts_list", "List alerts", answers=page_of(AlertOut), parameters=(*PAGING, _STATE, _KIND), tag=TAG)
    def get(self, request: Request) -> Response:
        """Newest first; those that are over are kept for thirty days."""
        found = Alert.objects.filter(tenant_id=self.tenant_id)
        return self.answer(page(request, filtered(request, found, (_STATE, _KIND))).render(alert))


class AlertItem(TenantView):
    """One alert."""

    permissions = {"GET": Permission.READ}

    @describe("alerts_read", "Read an alert", answers=AlertOut, tag=TAG)
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """By id."""
        return self.answer(alert(queries.one(Alert.objects.filter(tenant_id=self.tenant_id), reference, Q(pk__in=[]))))


class EndpointSloView(TenantView):
    """How one endpoint keeps its objectives."""

    permissions = {"GET": Permission.READ}

    @describe("endpoints_slo", "See how an endpoint keeps its objectives", answers=EndpointSlo, tag="endpoints")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Requests and misses of the last five minutes, hour and six hours, counted every minute; empty without targets."""
        row = queries.endpoint(self.tenant_id, reference)
        standings = slo.standings(self.tenant_id, timezone.now(), endpoint_id=row.id)
        fires = [one for one in alerts.firing(self.tenant_id) if (one.subject_kind, one.subject_id) == ("endpoint", str(row.id))]
        return self.answer(EndpointSlo(endpoint=row.name, objectives=[_objective(one) for one in standings], alerts=[alert(one) for one in fires]))


def _objective(standing: slo.Standing) -> ObjectiveOut:
    windows = [
        WindowOut(seconds=seconds, requests=counts.total, missed=counts.bad, burn_rate=burn.rate(counts, standing.share))
        for seconds, counts in standing.windows.items()
    ]
    return ObjectiveOut(objective=standing.objective, target_s=standing.target_s, share=standing.share, windows=windows)


class WebhookView(TenantView):
    """Base of what is done with webhooks. An address may be a secret of its own, so reading them takes the right to configure."""

    def hook(self, reference: str) -> Webhook:
        """By id or name."""
        return queries.one(Webhook.objects.filter(tenant_id=self.tenant_id), reference, queries.named(reference))


class WebhookCollection(WebhookView):
    """Where alerts are sent."""

    permissions = {"GET": Permission.CONFIGURE, "POST": Permission.CONFIGURE}

    @describe("webhooks_list", "List webhooks", answers=page_of(WebhookOut), parameters=PAGING, tag=TAG)
    def get(self, request: Request) -> Response:
        """By name, without their secrets, which nobody here can open."""
        found = Webhook.objects.filter(tenant_id=self.tenant_id)
        return self.answer(page(request, found, by="name").render(lambda row: WebhookOut(**_hook(row))))

    @describe("webhooks_create", "Register a webhook", body=WebhookNew, answers=changed(WebhookSecretOut), status=201, tag=TAG)
    def post(self, request: Request) -> Response:
        """Its secret is shown this once. The address is checked here, and again at every connect; redirects are not followed."""
        wanted = parse(request, WebhookNew)
        row, secret = webhooks.create(
            tenant_id=self.tenant_id, actor=self.actor, name=wanted.name, url=wanted.url, kinds=wanted.kinds, enabled=wanted.enabled
        )
        return self.changed(WebhookSecretOut(**_hook(row), secret=secret), status=201)


class WebhookItem(WebhookView):
    """One webhook, by id or name."""

    permissions = {"GET": Permission.CONFIGURE, "PATCH": Permission.CONFIGURE, "DELETE": Permission.CONFIGURE}

    @describe("webhooks_read", "Read a webhook", answers=WebhookOut, tag=TAG)
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Without its secret."""
        return self.answer(WebhookOut(**_hook(self.hook(reference))))

    @describe("webhooks_change", "Change a webhook", body=WebhookChange, answers=changed(WebhookOut), tag=TAG)
    def patch(self, request: Request, reference: str) -> Response:
        """What waits goes to the new address."""
        fields = given(parse(request, WebhookChange))
        row = webhooks.update(tenant_id=self.tenant_id, actor=self.actor, webhook_id=self.hook(reference).id, **fields)
        return self.changed(WebhookOut(**_hook(row)))

    @describe("webhooks_delete", "Delete a webhook", answers=changed(WebhookOut), tag=TAG)
    def delete(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """With its messages, sent or not."""
        row = self.hook(reference)
        shown = WebhookOut(**_hook(row))
        webhooks.delete(tenant_id=self.tenant_id, actor=self.actor, webhook_id=row.id)
        return self.changed(shown)


class WebhookRotate(WebhookView):
    """Another secret."""

    permissions = {"POST": Permission.CONFIGURE}

    @describe("webhooks_rotate", "Give a webhook another secret", answers=changed(WebhookSecretOut), tag=TAG)
    def post(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """Shown this once; the next attempt is signed with it."""
        row, secret = webhooks.rotate(tenant_id=self.tenant_id, actor=self.actor, webhook_id=self.hook(reference).id)
        return self.changed(WebhookSecretOut(**_hook(row), secret=secret))


class WebhookTest(WebhookView):
    """A message that only says that it is one."""

    permissions = {"POST": Permission.CONFIGURE}

    @describe("webhooks_test", "Send a test message", answers=DeliveryOut, status=202, tag=TAG)
    def post(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """A worker sends it at once; the webhook's deliveries say what came of it."""
        return self.answer(_delivery(webhooks.send_test(tenant_id=self.tenant_id, actor=self.actor, webhook_id=self.hook(reference).id)), status=202)


class WebhookDeliveries(WebhookView):
    """What was sent to a webhook."""

    permissions = {"GET": Permission.CONFIGURE}

    @describe("webhooks_deliveries_list", "List deliveries of a webhook", answers=page_of(DeliveryOut), parameters=PAGING, tag=TAG)
    def get(self, request: Request, reference: str) -> Response:
        """Newest first; kept for thirty days, a thousand at most."""
        found = WebhookDelivery.objects.filter(tenant_id=self.tenant_id, webhook=self.hook(reference))
        return self.answer(page(request, found).render(_delivery))
