"""What the alerts page and an endpoint's objectives show."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.utils import timezone

from console.reads.isolation import Page, page_of
from routing.core import burn
from routing.core.alerts import KINDS
from routing.models import Alert, Webhook, WebhookDelivery
from routing.services import alerts, slo

RESOLVED_ROWS = 20
OBJECTIVE_ROWS = 100  # on the page, those that burn fastest first
DELIVERY_ROWS = 30


@dataclass(frozen=True, slots=True)
class Window:
    """One window of an objective. ``burns``: faster than is allowed in the long run."""

    seconds: int
    counts: burn.Counts
    rate: float | None

    @property
    def burns(self) -> bool:
        return self.rate is not None and self.rate > 1


@dataclass(frozen=True, slots=True)
class Objective:
    """One objective of an endpoint over the windows, shortest first."""

    endpoint_id: UUID
    endpoint: str
    name: str
    target_s: float
    share: float
    windows: tuple[Window, ...]

    @property
    def worst_rate(self) -> float:
        """The fastest that any window burns."""
        return max((window.rate or 0.0 for window in self.windows), default=0.0)


@dataclass(frozen=True, slots=True)
class Told:
    """An alert with its kind in words."""

    row: Alert
    title: str


def objectives(tenant_id: UUID, endpoint_id: UUID | None = None) -> tuple[Objective, ...]:
    """Of all endpoints, or of one; inside the tenant scope."""
    return tuple(
        Objective(
            one.endpoint.id,
            one.endpoint.name,
            one.objective,
            one.target_s,
            one.share,
            tuple(Window(seconds, counts, burn.rate(counts, one.share)) for seconds, counts in one.windows.items()),
        )
        for one in slo.standings(tenant_id, timezone.now(), endpoint_id=endpoint_id)
    )


def firing(tenant_id: UUID) -> tuple[Told, ...]:
    """The gravest first."""
    return tuple(_told(row) for row in alerts.firing(tenant_id))


def resolved(tenant_id: UUID, cursor: str) -> tuple[tuple[Told, ...], str]:
    """One page of what is over, newest first, and the cursor of the next or an empty text."""
    page: Page[Alert] = page_of(Alert.objects.filter(tenant_id=tenant_id, state="resolved"), cursor, RESOLVED_ROWS)
    return tuple(_told(row) for row in page.rows), page.next


def webhooks(tenant_id: UUID) -> tuple[Webhook, ...]:
    return tuple(Webhook.objects.filter(tenant_id=tenant_id).order_by("name"))


def deliveries(tenant_id: UUID) -> tuple[WebhookDelivery, ...]:
    """The last messages, newest first."""
    rows = WebhookDelivery.objects.filter(tenant_id=tenant_id).select_related("webhook").order_by("-created_at", "-id")
    return tuple(rows[:DELIVERY_ROWS])


def _told(row: Alert) -> Told:
    return Told(row, KINDS[row.kind].title if row.kind in KINDS else row.kind)
