"""Texts that keys had before they got others: kept as digests, and refused whoever brings them again, in whatever tenant."""

from __future__ import annotations

from django.db import connection

from tenants.core.errors import Conflict, LimitReached
from tenants.models import ApiKey, FormerText

# A digest that was dropped would let its text come back, so at the bound the key gives way. Rotated daily, a key lasts 2.7 years.
MAX_FORMER_TEXTS_PER_KEY = 1000


def keep(key: ApiKey, digest: bytes) -> None:
    """Note that ``key`` no longer has the text with this digest; inside the transaction that gives it another, under the tenant's lock.

    Raises:
        LimitReached: ``MAX_FORMER_TEXTS_PER_KEY``.
    """
    if FormerText.objects.filter(tenant_id=key.tenant_id, key=key).count() >= MAX_FORMER_TEXTS_PER_KEY:
        raise LimitReached(
            f"A key gets at most {MAX_FORMER_TEXTS_PER_KEY} other texts (MAX_FORMER_TEXTS_PER_KEY). Revoke it and issue another of the same name."
        )
    FormerText.objects.create(tenant_id=key.tenant_id, key=key, digest=digest)


def refuse(key: ApiKey) -> None:
    """Refuse the text that ``key`` was just given if some key had it before. Asked after the row is written: whoever replaces that text at
    this moment holds it in the unique index until they commit, so the write waits for them and the question comes after.

    Raises:
        Conflict: it was replaced; of another tenant's key that is not said.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT saltroute_text_was_replaced(%s)", [bytes(key.digest)])
        if not cursor.fetchone()[0]:
            return
    former = FormerText.objects.select_related("key").filter(tenant_id=key.tenant_id, digest=bytes(key.digest)).first()
    if former is None:
        raise Conflict("This key cannot be used: choose another.", field="secret")
    whose = "this key" if former.key_id == key.id else f"the key {former.key.name}"
    stored = ", or `stored` to keep the one in force" if former.key_id == key.id else ""
    raise Conflict(
        f"This secret was replaced: {whose} got another text on {former.created_at:%Y-%m-%d}, and this one stays out. Name another one{stored}.",
        field="secret",
    )
