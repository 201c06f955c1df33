"""Lists by cursor: ``{"results": [...], "next": cursor | null}``. A page costs the same wherever it lies, and rows added meanwhile shift nothing."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from tenants.core.errors import Invalid

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
MAX_CURSOR_CHARACTERS = 2000

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class Page(Generic[M]):
    """Some rows and where the next ones begin; ``next`` None is the end."""

    rows: list[M]
    next: str | None

    def render(self, shape: Callable[[M], Any]) -> dict[str, Any]:
        """The JSON of a list."""
        return {"results": [msgspec.to_builtins(shape(row)) for row in self.rows], "next": self.next}


def page(request: Request, rows: QuerySet[M], *, by: str = "-created_at") -> Page[M]:
    """One page of ``rows``, ordered ``by`` a column without nulls ("-" first: descending) and then by id.

    Raises:
        Invalid: ``limit`` or ``cursor`` is malformed.
    """
    limit = limit_of(request)
    descending, column = by.startswith("-"), by.lstrip("-")
    sign, comparison = ("-", "lt") if descending else ("", "gt")
    cursor = request.query_params.get("cursor")
    if cursor:
        value, row_id = _decode(cursor, rows, column)
        rows = rows.filter(Q(**{f"{column}__{comparison}": value}) | Q(**{column: value, f"id__{comparison}": row_id}))
    found = list(rows.order_by(f"{sign}{column}", f"{sign}id")[: limit + 1])
    more = len(found) > limit
    found = found[:limit]
    return Page(rows=found, next=_encode(getattr(found[-1], column), found[-1].pk) if more else None)


def filtered(request: Request, rows: QuerySet[M], parameters: Iterable[OpenApiParameter]) -> QuerySet[M]:
    """``rows`` narrowed by those of ``parameters`` that the caller gives; each is named like its column and takes one of its ``enum``.

    Raises:
        Invalid: another value.
    """
    for parameter in parameters:
        value = request.query_params.get(parameter.name)
        if value is None:
            continue
        if value not in (parameter.enum or ()):
            raise Invalid(f"Use one of: {', '.join(str(one) for one in parameter.enum or ())}.", field=parameter.name)
        rows = rows.filter(**{parameter.name: value})
    return rows


def limit_of(request: Request) -> int:
    """How many rows the caller wants on a page.

    Raises:
        Invalid: not a whole number from 1 to ``MAX_LIMIT``.
    """
    raw = request.query_params.get("limit")
    if raw is None:
        return DEFAULT_LIMIT
    if not raw.isascii() or not raw.isdigit() or not 1 <= int(raw[:9]) <= MAX_LIMIT:
        raise Invalid(f"Use a whole number from 1 to {MAX_LIMIT}.", field="limit")
    return int(raw)


def _encode(value: Any, row_id: Any) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([value, row_id])).rstrip(b"=").decode()


def _decode(cursor: str, rows: QuerySet[Any], column: str) -> tuple[Any, Any]:
    """Read a cursor. It is not secret and not signed: it can only move within rows that the caller may see anyway."""
    refusal = Invalid("This is not a cursor of this list.", field="cursor")
    if len(cursor) > MAX_CURSOR_CHARACTERS or not cursor.isascii():
        raise refusal
    meta = rows.model._meta
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        value, row_id = msgspec.json.decode(raw, type=tuple[Any, Any])
        value, row_id = meta.get_field(column).to_python(value), meta.pk.to_python(row_id)
    except (ValueError, TypeError, binascii.Error, msgspec.MsgspecError, ValidationError):
        raise refusal from None
    if value is None or row_id is None or "\0" in str(value):
        raise refusal
    return value, row_id
