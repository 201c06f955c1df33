"""Mail to people: queued by the web in the transaction it belongs to, written and sent by a worker of the queue ``bulk``.

Links are made when a mail is sent, so neither the queue in PostgreSQL nor the broker ever holds one. A wish to reset a password is queued for every
address alike; only the worker looks whether it has an account, so neither the answer nor its time tells.
"""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta
from smtplib import SMTPException
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth.tokens import default_token_generator
from django.core.mail import EmailMessage
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from tenants import queries
from tenants.models import Invitation, OutgoingMail, User
from tenants.scoping import tenant_scope
from tenants.services import invitation_tokens

RESET, INVITATION, CHANGED = "password_reset", "invitation", "account_changed"
KINDS = (RESET, INVITATION, CHANGED)
MAX_QUEUED = 2000
MAX_ATTEMPTS = 5
BATCH = 20
LEASE = timedelta(seconds=60)
SWEEP_S = 20.0
STALE = timedelta(hours=1)  # a mail that could not be sent for so long is not sent any more
_log = logging.getLogger(__name__)


def configured() -> bool:
    """Whether this installation sends mail at all."""
    return bool(settings.MAIL_IS_SET)


def queue(*, kind: str, address: str, invitation_digest: bytes | None = None) -> bool:
    """Queue a mail; a worker looks every few seconds. False, and a line in the log, where none is sent here or ``MAX_QUEUED`` wait."""
    if not configured():
        return False
    if OutgoingMail.objects.count() >= MAX_QUEUED:
        _log.warning("mail dropped: %d wait (MAX_QUEUED)", MAX_QUEUED)
        return False
    OutgoingMail.objects.create(kind=kind, address=address, invitation_digest=invitation_digest, next_at=timezone.now())
    return True


def sweep(*, within_s: float = SWEEP_S) -> int:
    """Send what is due, each mail leased so that no other worker sends it meanwhile. No transaction is open while a server is waited for.

    Returns:
        How many mails went out.
    """
    began_s, sent = time.monotonic(), 0
    while time.monotonic() - began_s < within_s:
        row = _lease(timezone.now())
        if row is None:
            return sent
        try:
            sent += _send(row)
        except (OSError, SMTPException) as error:
            _failed(row, type(error).__name__)
        else:
            OutgoingMail.objects.filter(id=row.id).delete()
    return sent


@transaction.atomic
def _lease(now: datetime) -> OutgoingMail | None:
    row = OutgoingMail.objects.select_for_update(skip_locked=True).filter(next_at__lte=now).order_by("next_at", "id").first()
    if row is not None:
        OutgoingMail.objects.filter(id=row.id).update(attempts=F("attempts") + 1, next_at=now + LEASE)
        row.attempts += 1
    return row


def _failed(row: OutgoingMail, why: str) -> None:
    _log.warning("a mail of kind %s was not sent (attempt %d): %s", row.kind, row.attempts, why)
    if row.attempts >= MAX_ATTEMPTS or timezone.now() - row.created_at > STALE:
        OutgoingMail.objects.filter(id=row.id).delete()
        _note_invitation(row, "failed")
    else:
        OutgoingMail.objects.filter(id=row.id).update(next_at=timezone.now() + timedelta(seconds=15 * 2**row.attempts))


def _send(row: OutgoingMail) -> int:
    message = {RESET: _reset, INVITATION: _invitation, CHANGED: _changed}[row.kind](row)
    if message is None:
        return 0
    message.send()
    _note_invitation(row, "sent")
    return 1


def _reset(row: OutgoingMail) -> EmailMessage | None:
    user = User.objects.filter(email=row.address, is_active=True).first()
    if user is None:
        return None
    named = {"u": urlsafe_base64_encode(force_bytes(user.pk)), "t": default_token_generator.make_token(user)}
    minutes = settings.PASSWORD_RESET_TIMEOUT // 60
    text = [
        "Somebody asked for a new password for your Saltroute account. If it was you, open this link:",
        _link("/reset", named),
        f"It is good for {minutes} minutes and for one use. If it was not you, do nothing: your password stays as it is.",
    ]
    return _message(row.address, "A new password for Saltroute", text)


def _invitation(row: OutgoingMail) -> EmailMessage | None:
    digest = bytes(row.invitation_digest or b"")
    found = queries.invitation_by_digest(digest)
    if found is None:
        return None
    tenant_id, invitation_id = found
    with tenant_scope(tenant_id):
        invitation = queries.invitation(tenant_id, str(invitation_id))
        tenant = queries.tenant(tenant_id)
        state = queries.invitation_state(invitation, timezone.now())
    token = invitation_tokens.token_of(invitation)
    if state != "open" or invitation_tokens.digest(token) != digest:  # another SECRET_KEY since then: the link would not open
        return None
    text = [
        f"{invitation.invited_by} invites you to the tenant {tenant.slug} of Saltroute, as {invitation.role}. Open this link to join:",
        invitation_link(token),
        f"It is good until {invitation.expires_at:%Y-%m-%d %H:%M} UTC and for one use. If you expected no invitation, do nothing.",
    ]
    return _message(row.address, "You are invited to Saltroute", text)


def _changed(row: OutgoingMail) -> EmailMessage:
    text = [
        "The password or the second factor of your Saltroute account was changed.",
        "If it was not you, ask for a new password at once, and tell an operator of your installation:",
        _link("/reset/ask", {}),
    ]
    return _message(row.address, "Your Saltroute sign-in was changed", text)


def invitation_link(token: str) -> str:
    """Where an invitation is accepted."""
    return _link("/invitation", {"t": token})


def _link(path: str, named: dict[str, str]) -> str:
    """A link into the console. Its host is a setting: a request's own Host header would let a stranger point the link elsewhere. What is secret
    stands in the query, which no access log of ours holds."""
    return f"{settings.CONSOLE_URL.rstrip('/')}{path}" + (f"?{urlencode(named)}" if named else "")


def _message(address: str, subject: str, paragraphs: list[str]) -> EmailMessage:
    return EmailMessage(subject=subject, body="\n\n".join(paragraphs) + "\n", from_email=settings.DEFAULT_FROM_EMAIL, to=[address])


def _note_invitation(row: OutgoingMail, state: str) -> None:
    found = queries.invitation_by_digest(bytes(row.invitation_digest)) if row.invitation_digest else None
    if found is not None:
        with tenant_scope(found[0]):
            Invitation.objects.filter(tenant_id=found[0], id=found[1]).update(mail=state)
