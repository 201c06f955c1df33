"""The tenant scope of a database session: the one door through which code reaches tenant rows.

Policies compare each row's tenant with the transaction-local setting ``saltroute.tenant``. Without a scope every tenant table is empty and
refuses writes. The scope always lives in a transaction and never outlives it, so a pooled connection carries nothing to its next user.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from django.db import connection, transaction

from tenants.rls import SETTING

# How many tables PostgreSQL orders freely when it plans a join; what a longer one has beyond that is joined as it is written. Long ones of ours read
# a row with all that it refers to, by the ids in it, and the written order is a good one. To try all orders took 6 ms for an endpoint (eleven joins),
# which is read in 0.2 ms; now it is 1 ms. Transaction-local, as the scope is.
FREELY_JOINED = "4"


class ScopeError(Exception):
    """A programmer's mistake: tenant rows were asked for outside a scope. Never shown to a caller as a refusal."""


def current() -> UUID | None:
    """The tenant this transaction is scoped to, or None."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT nullif(current_setting(%s, true), '')", [SETTING])
        value = cursor.fetchone()[0]
    return UUID(value) if value else None


def _set(value: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config(%s, %s, true), set_config('join_collapse_limit', %s, true)", [SETTING, value, FREELY_JOINED])


@contextmanager
def tenant_scope(tenant_id: UUID) -> Iterator[None]:
    """Scope everything inside to ``tenant_id``, in one transaction (a savepoint when nested).

    The value before is restored at the end: PostgreSQL keeps a transaction-local setting beyond a released savepoint, so an inner scope would
    otherwise leak into the rest of the outer one. After an error the rollback restores it.
    """
    with transaction.atomic():
        before = current()
        _set(str(tenant_id))
        yield
        _set("" if before is None else str(before))


def require_scope(tenant_id: UUID) -> None:
    """Assert that the session is scoped to ``tenant_id``.

    Raises:
        ScopeError: it is not; the caller forgot to open the scope.
    """
    if current() != tenant_id:
        raise ScopeError("this must run inside tenant_scope of its tenant")
