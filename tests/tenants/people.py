"""People for tests: with a second factor, the codes of their authenticator, and the links in their mail."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from urllib.parse import urlsplit

import pyotp
from django.core import mail as outbox
from django.utils import timezone

from tenants.actor import system
from tenants.models import User
from tenants.services import mail, second_factors

ACTOR = system("tests")


def code(text: str, *, steps: int = 0, now: datetime | None = None) -> str:
    """What an authenticator with this secret shows, ``steps`` from now."""
    return pyotp.TOTP(text.replace(" ", "")).at((now or timezone.now()) + timedelta(seconds=30 * steps))


def with_second_factor(user: User) -> tuple[str, list[str]]:
    """Give a person a second factor whose next code is unused. Returns its secret and the recovery codes."""
    enrolment = second_factors.enrol(user=user)
    text = enrolment.text
    # of the step before, so that the current one is still fresh
    earlier = timezone.now() - timedelta(seconds=30)
    return text, second_factors.confirm(user=user, mark=enrolment.mark, code=code(text, now=earlier), actor=ACTOR, now=earlier)


def mailed(address: str) -> list[str]:
    """The bodies of the mails to an address, after whatever waits was sent."""
    mail.sweep()
    return [str(message.body) for message in outbox.outbox if message.to == [address]]


def link(body: str) -> str:
    """Path and query of the link in a mail."""
    parts = urlsplit(re.findall(r"https?://\S+", body)[0])
    return f"{parts.path}?{parts.query}"
