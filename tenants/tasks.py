"""Celery tasks of this app: doors to services."""

from __future__ import annotations

from settings.doors import door
from tenants.services import mail


@door("tenants.mail_sweep", soft_s=60, hard_s=90, expires_s=60)
def mail_sweep() -> None:
    """Send the mails that wait."""
    mail.sweep()
