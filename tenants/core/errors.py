"""Refusals: errors that are the caller's to read. A mistake of ours is never a Refusal; it is an exception and a page.

Each class has a stable ``code`` (public, never changes) and an HTTP status. ``field`` names the input at fault, in the caller's own words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar


class Refusal(Exception):
    """The base of everything a service refuses. The message is shown to the caller; it never holds secrets or another tenant's facts."""

    code: ClassVar[str] = "refused"
    http_status: ClassVar[int] = 400

    def __init__(self, message: str, *, field: str | None = None, others: Sequence[tuple[str, str]] = ()) -> None:
        """``others``: further inputs at fault as (field, message), where a check finds more than one."""
        super().__init__(message)
        self.message = message
        self.field = field
        self.others = tuple(others)


class Invalid(Refusal):
    """The input is malformed or breaks a rule; ``field`` says where."""

    code = "invalid"


class NotFound(Refusal):
    """No such object for this caller. Absent and not-yours are the same answer, byte for byte. ``field``: what refers to it; None: the path."""

    code = "not_found"
    http_status = 404

    def __init__(self, *, field: str | None = None) -> None:
        super().__init__("Not found.", field=field)


@contextmanager
def referred(field: str) -> Iterator[None]:
    """What is looked up inside is what ``field`` of the input refers to.

    Raises:
        NotFound: it is absent; names the field.
    """
    try:
        yield
    except NotFound:
        raise NotFound(field=field) from None


class Forbidden(Refusal):
    """The caller is known and may not do this."""

    code = "forbidden"
    http_status = 403


class Unauthenticated(Refusal):
    """No credential, or one that is unknown, revoked or expired: one answer for all."""

    code = "unauthenticated"
    http_status = 401


class Conflict(Refusal):
    """The state does not allow it: a name is taken, a thing is in use, a version has moved on."""

    code = "conflict"
    http_status = 409


class LimitReached(Refusal):
    """A numbered limit of the product; the message names it and its value."""

    code = "limit_reached"
    http_status = 409


class Unavailable(Refusal):
    """Something this operation needs is away; nothing was changed and a retry is safe."""

    code = "unavailable"
    http_status = 503
