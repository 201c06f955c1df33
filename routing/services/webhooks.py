"""Webhooks: where a tenant's alerts go, and the queue of messages to them.

A message is queued in the transaction that it tells of, so none is lost or told of nothing; the worker of the queue ``keys`` sends it, since that one
alone can open the secret that signs it. A worker that dies in between lets its lease run out and the message goes again, under the same id.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from namespaces.core import keyring
from namespaces.core.keyring import KeyringError, Roots
from namespaces.services.sealed import Column, SealedValues, seal
from routing.core import webhook as wire
from routing.core.alerts import KINDS
from routing.models import Alert, Webhook, WebhookDelivery
from routing.outbound.addresses import UrlRefused, normalise_url, origins, parse_ranges
from routing.outbound.webhooks import TIMEOUT_S, Message, Outcome, check_webhook, send_all
from routing.services import support
from routing.services.audits import wake
from tenants import changes
from tenants.actor import Actor
from tenants.constraints import refuse_on
from tenants.core import names
from tenants.core.errors import Conflict, Invalid
from tenants.queries import all_tenants
from tenants.scoping import require_scope, tenant_scope
from tenants.services import locks

TASK = "routing.webhooks_send"
PRIORITY = 6
MAX_WEBHOOKS = 20
MAX_QUEUED = 1000  # messages of one tenant
MAX_LOG = 1000  # finished ones that are kept
LOG_FOR = timedelta(days=30)
BATCH = 24  # of one tenant at a time: three rounds of the sender
LEASE = timedelta(seconds=60)
SWEEP_S = 8.0
EVERY_S = 10.0  # as beat asks for it (settings.django)
SECRETS = SealedValues("webhook_secrets", Column(Webhook, "secret", keyring.webhook_info))
_NAME_TAKEN = "There is a webhook of this name already."
_REFUSED = {
    "https": "Use https: this installation sends webhooks over nothing else.",
    "address": "This address may not be used.",
}


# ---- configuration -----------------------------------------------------------------------------------------------------


def create(*, tenant_id: UUID, actor: Actor, name: str, url: str, kinds: list[str] | None = None, enabled: bool = True) -> tuple[Webhook, str]:
    """Register a webhook. Returns it with its secret, which is shown this once.

    Raises:
        Invalid: a malformed name, a URL that may not be sent to, an unknown kind of alert.
        Conflict: the name is taken.
        LimitReached: ``MAX_WEBHOOKS``.
    """
    locks.tenant(tenant_id)
    columns = _checked({"name": name, "url": url, "kinds": kinds or [], "enabled": enabled})
    support.within(Webhook.objects.filter(tenant_id=tenant_id).count(), MAX_WEBHOOKS, "webhooks per tenant")
    row_id, secret = uuid4(), _new_secret()
    with refuse_on(webhook_name_per_tenant=Conflict(_NAME_TAKEN, field="name")):
        row = Webhook.objects.create(id=row_id, tenant_id=tenant_id, secret=_sealed(tenant_id, row_id, secret), **columns)
    _record(row, actor, "webhook.create", after=_audit(row))
    return row, secret


def update(*, tenant_id: UUID, actor: Actor, webhook_id: UUID, **fields: Any) -> Webhook:
    """Change what is given of name, url, kinds and enabled.

    Raises:
        NotFound: no such webhook in this tenant.
        Invalid, Conflict: as :func:`create`.
    """
    locks.tenant(tenant_id)
    row = support.locked(Webhook, tenant_id=tenant_id, row_id=webhook_id)
    before = _audit(row)
    with refuse_on(webhook_name_per_tenant=Conflict(_NAME_TAKEN, field="name")):
        _, changed = support.apply_changes(row, _checked(fields))
    if changed:
        _record(row, actor, "webhook.update", before=before, after=_audit(row))
    return row


def rotate(*, tenant_id: UUID, actor: Actor, webhook_id: UUID) -> tuple[Webhook, str]:
    """Give it another secret, shown this once; the next attempt is signed with it.

    Raises:
        NotFound: no such webhook in this tenant.
    """
    locks.tenant(tenant_id)
    row = support.locked(Webhook, tenant_id=tenant_id, row_id=webhook_id)
    secret = _new_secret()
    row.secret = _sealed(tenant_id, row.id, secret)
    row.save(update_fields=["secret"])
    _record(row, actor, "webhook.rotate_secret")
    return row, secret


def delete(*, tenant_id: UUID, actor: Actor, webhook_id: UUID) -> None:
    """Delete it with its messages, sent or not.

    Raises:
        NotFound: no such webhook in this tenant.
    """
    locks.tenant(tenant_id)
    row = support.locked(Webhook, tenant_id=tenant_id, row_id=webhook_id)
    _record(row, actor, "webhook.delete", before=_audit(row))
    WebhookDelivery.objects.filter(tenant_id=tenant_id, webhook=row).delete()
    row.delete()


def send_test(*, tenant_id: UUID, actor: Actor, webhook_id: UUID) -> WebhookDelivery:
    """Queue a message that only says that it is one.

    Raises:
        NotFound: no such webhook in this tenant.
        Conflict: it is switched off, or as many messages wait as may.
    """
    changes.permit(actor, "webhook.test")
    locks.tenant(tenant_id)
    row = support.locked(Webhook, tenant_id=tenant_id, row_id=webhook_id)
    if not row.enabled:
        raise Conflict("This webhook is switched off.")
    if _queued(tenant_id) >= MAX_QUEUED:
        raise Conflict(f"{MAX_QUEUED} messages wait already.")
    made = _new(row, "test", None, {"requested_by": actor.label[:254]}, timezone.now())
    made.save()
    _wake(tenant_id)
    return made


def _checked(fields: dict[str, Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for field, value in fields.items():
        if field == "name":
            columns[field] = names.label(value, field=field, maximum=100)
        elif field == "url":
            columns[field] = _address(value)
        elif field == "kinds":
            columns[field] = sorted({support.one_of(kind, tuple(KINDS), field=field) for kind in value})
        elif field == "enabled":
            columns[field] = bool(value)
        else:
            raise Invalid("Unknown field.", field=field)
    return columns


def _address(url: object) -> str:
    try:
        checked = check_webhook(url, parse_ranges(settings.WEBHOOK_RANGES), http=settings.WEBHOOKS_HTTP)
    except UrlRefused as refused:
        raise Invalid(_REFUSED.get(refused.reason, "Give a URL without user name, query and fragment."), field="url") from None
    if _is_foreign_engine(checked):
        raise Invalid(_REFUSED["address"], field="url")
    return checked


def _is_foreign_engine(url: str) -> bool:
    """Whether another tenant registered an engine at this host and port: a path of this tenant's choice must not be called there."""
    with connection.cursor() as cursor:
        for origin in sorted(origins(normalise_url(url), lambda _: ())):
            cursor.execute("SELECT saltroute_url_is_foreign(%s)", [origin])
            if cursor.fetchone()[0]:
                return True
    return False


def _new_secret() -> str:
    return "srwh-" + secrets.token_urlsafe(32)


def _sealed(tenant_id: UUID, webhook_id: UUID, secret: str) -> bytes:
    return seal(secret, info=keyring.webhook_info(tenant_id, webhook_id))


def _audit(row: Webhook) -> dict[str, Any]:
    return {"name": row.name, "url": row.url, "kinds": row.kinds, "enabled": row.enabled}


def _record(row: Webhook, actor: Actor, action: str, **states: Any) -> None:
    changes.record(tenant_id=row.tenant_id, actor=actor, action=action, object_id=row.id, object_label=row.name, publishes=False, **states)


# ---- queue -------------------------------------------------------------------------------------------------------------


def queue(tenant_id: UUID, event: str, alerts: list[Alert], now: datetime) -> int:
    """Queue a message of each alert to each webhook that wants its kind; inside the transaction that changed them.

    What is beyond the bound is dropped and counted at its webhook.

    Returns:
        How many were queued.
    """
    require_scope(tenant_id)
    hooks = list(Webhook.objects.filter(tenant_id=tenant_id, enabled=True).order_by("name"))
    wanted = [(hook, alert) for alert in alerts for hook in hooks if not hook.kinds or alert.kind in hook.kinds]
    room = max(0, MAX_QUEUED - _queued(tenant_id)) if wanted else 0
    made = [_new(hook, event, alert.id, told(alert), now) for hook, alert in wanted[:room]]
    WebhookDelivery.objects.bulk_create(made, ignore_conflicts=True)
    for hook in hooks:
        lost = sum(one is hook for one, _ in wanted[room:])
        if lost:
            Webhook.objects.filter(tenant_id=tenant_id, id=hook.id).update(dropped=F("dropped") + lost)
    if made:
        _wake(tenant_id)
    return len(made)


def told(alert: Alert) -> dict[str, Any]:
    """An alert as messages tell of it."""
    return {
        "id": str(alert.id),
        "kind": alert.kind,
        "title": KINDS[alert.kind].title if alert.kind in KINDS else alert.kind,
        "severity": alert.severity,
        "state": alert.state,
        "subject": {"kind": alert.subject_kind, "id": alert.subject_id, "name": alert.subject},
        "explanation": alert.explanation,
        "began_at": alert.began_at.isoformat(),
        "resolved_at": alert.resolved_at.isoformat() if alert.resolved_at else None,
    }


def _new(hook: Webhook, event: str, alert_id: UUID | None, data: dict[str, Any], now: datetime) -> WebhookDelivery:
    body = {"event": event, "tenant_id": str(hook.tenant_id), "created_at": now.isoformat(), "data": data}
    return WebhookDelivery(tenant_id=hook.tenant_id, webhook=hook, event=event, alert_id=alert_id, body=body, next_at=now)


def _queued(tenant_id: UUID) -> int:
    return WebhookDelivery.objects.filter(tenant_id=tenant_id, state="queued").count()


def _wake(tenant_id: UUID) -> None:
    transaction.on_commit(lambda: wake.post(TASK, (str(tenant_id),), PRIORITY))


# ---- sending -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sent:
    delivery_id: UUID
    attempts: int
    outcome: Outcome


def send(tenant_id: UUID, roots: Roots, *, timeout_s: float = TIMEOUT_S) -> int:
    """Send what one tenant has due, a batch at most. No transaction is open while the network is waited for.

    Returns:
        How many messages were accepted.
    """
    now = timezone.now()
    with tenant_scope(tenant_id):
        leased = _lease(tenant_id, now)
        hooks = {row.webhook_id: row.webhook for row in leased}
        secret_of = {one: _open(roots, hook) for one, hook in hooks.items()}
        wrong = {one: "address" for one, hook in hooks.items() if _is_foreign_engine(hook.url)}
    if not leased:
        return 0
    wrong |= {one: "secret" for one, secret in secret_of.items() if secret is None}
    ready = [row for row in leased if row.webhook_id not in wrong]
    messages = [_message(row, secret_of[row.webhook_id] or "") for row in ready]
    ranges = parse_ranges(settings.WEBHOOK_RANGES)
    outcomes = asyncio.run(send_all(messages, ranges, http=settings.WEBHOOKS_HTTP, timeout_s=timeout_s))
    sent = [_Sent(row.id, row.attempts, outcome) for row, outcome in zip(ready, outcomes, strict=True)]
    sent += [_Sent(row.id, row.attempts, Outcome(None, wrong[row.webhook_id])) for row in leased if row.webhook_id in wrong]
    with tenant_scope(tenant_id):
        for one in sent:
            _note(tenant_id, one, timezone.now())
        _forget(tenant_id, timezone.now())
    return sum(not one.outcome.error for one in sent)


def sweep(roots: Roots, *, within_s: float = SWEEP_S) -> int:
    """Do so for every tenant, as far as time allows, in an order that changes with the clock so that nobody is always last."""
    began_s, accepted = time.monotonic(), 0
    for ref in support.in_turn(all_tenants(), time.time(), every_s=EVERY_S):
        if time.monotonic() - began_s > within_s:
            break
        accepted += send(ref.tenant_id, roots)
    return accepted


def _lease(tenant_id: UUID, now: datetime) -> list[WebhookDelivery]:
    """Take due messages of webhooks that are on, so that no other worker sends them meanwhile."""
    due = WebhookDelivery.objects.filter(tenant_id=tenant_id, state="queued", next_at__lte=now, webhook__enabled=True).order_by("next_at", "id")
    rows = list(due.select_for_update(skip_locked=True, of=("self",)).select_related("webhook")[:BATCH])
    for row in rows:
        row.attempts += 1
    ids = [row.id for row in rows]
    WebhookDelivery.objects.filter(tenant_id=tenant_id, id__in=ids).update(attempts=F("attempts") + 1, next_at=now + LEASE)
    return rows


def _open(roots: Roots, hook: Webhook) -> str | None:
    try:
        return roots.unseal(bytes(hook.secret), info=keyring.webhook_info(hook.tenant_id, hook.id)).decode()
    except KeyringError:
        return None


def _message(row: WebhookDelivery, secret: str) -> Message:
    body = json.dumps({"id": str(row.id), **row.body}, separators=(",", ":"), sort_keys=True).encode()
    headers = wire.headers(secret, delivery_id=str(row.id), event=row.event, timestamp=int(time.time()), body=body)
    return Message(row.webhook.url, headers, body)


def _note(tenant_id: UUID, sent: _Sent, now: datetime) -> None:
    """Write down what came of one attempt; of one whose lease another worker has taken over meanwhile, nothing."""
    outcome = sent.outcome
    columns: dict[str, Any] = {"status": outcome.status, "error": outcome.error}
    again_s = wire.again_s(sent.attempts)
    if not outcome.error:
        columns |= {"state": "delivered", "finished_at": now}
    elif again_s is None:
        columns |= {"state": "dead", "finished_at": now}
    else:
        columns |= {"next_at": now + timedelta(seconds=again_s)}
    rows = WebhookDelivery.objects.filter(tenant_id=tenant_id, id=sent.delivery_id, state="queued", attempts=sent.attempts)
    if not rows.update(**columns) or "state" not in columns:
        return
    hooks = Webhook.objects.filter(
        tenant_id=tenant_id, id__in=WebhookDelivery.objects.filter(tenant_id=tenant_id, id=sent.delivery_id).values("webhook_id")
    )
    if columns["state"] == "delivered":
        hooks.update(delivered_at=now)
    else:
        hooks.update(dead=F("dead") + 1)


def _forget(tenant_id: UUID, now: datetime) -> None:
    done = WebhookDelivery.objects.filter(tenant_id=tenant_id).exclude(state="queued")
    oldest = done.order_by("-created_at").values_list("created_at", flat=True)[MAX_LOG : MAX_LOG + 1].first()
    done.filter(created_at__lte=max(now - LOG_FOR, oldest or now - LOG_FOR)).delete()
