"""Celery tasks of this app: doors to services."""

from __future__ import annotations

from django.utils import timezone

from settings.doors import door
from tenants.services import mail, sign_ins


@door("tenants.mail_sweep", soft_s=60, hard_s=90, expires_s=60)
def mail_sweep() -> None:
    """Send the mails that wait."""
    mail.sweep()


@door("tenants.sign_ins_sweep", soft_s=60, hard_s=90, expires_s=60)
def sign_ins_sweep() -> None:
    """Write what was counted of signing in, where its quarter of an hour is over."""
    sign_ins.sweep(timezone.now())
