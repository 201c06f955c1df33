"""Turns a violated database constraint into a refusal, by the constraint's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import IntegrityError, transaction

from tenants.core.errors import Refusal


def violated(error: IntegrityError) -> str | None:
    """The name of the constraint that PostgreSQL reports, or None."""
    return getattr(getattr(error.__cause__, "diag", None), "constraint_name", None)


@contextmanager
def refuse_on(**refusals: Refusal) -> Iterator[None]:
    """Run a write in a savepoint; a violation of a named constraint becomes its refusal, any other stays our mistake.

    ``with refuse_on(api_key_name_per_tenant=Conflict("This name is in use.", field="name")): ...``

    Deferred constraints (the composite foreign keys) are checked at commit, after this block.
    """
    try:
        with transaction.atomic():
            yield
    except IntegrityError as error:
        refusal = refusals.get(violated(error) or "")
        if refusal is None:
            raise
        raise refusal from None
