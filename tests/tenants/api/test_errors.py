"""One shape for every error, and one place that makes it."""

from __future__ import annotations

import pytest
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, IntegrityError, InterfaceError, connection, transaction
from django.http import Http404
from rest_framework import exceptions

from tenants.api.errors import CHALLENGE, handle
from tenants.core.errors import Conflict, Forbidden, Invalid, LimitReached, NotFound, Refusal, Unauthenticated, Unavailable


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Invalid("Bad.", field="a.b"), 400, "invalid"),
        (Unauthenticated("Who?"), 401, "unauthenticated"),
        (Forbidden("No."), 403, "forbidden"),
        (NotFound(), 404, "not_found"),
        (Conflict("Taken."), 409, "conflict"),
        (LimitReached("Full."), 409, "limit_reached"),
        (Unavailable("Later."), 503, "unavailable"),
        (Refusal("Hm."), 400, "refused"),
        (Http404(), 404, "not_found"),
        (PermissionDenied(), 403, "forbidden"),
        (InterfaceError(), 503, "unavailable"),
        (exceptions.ParseError(), 400, "malformed"),
        (exceptions.NotAuthenticated(), 401, "unauthenticated"),
        (exceptions.AuthenticationFailed("Token of acorn has expired."), 401, "unauthenticated"),
        (exceptions.PermissionDenied(), 403, "forbidden"),
        (exceptions.NotFound("No key 7 in birch."), 404, "not_found"),
        (exceptions.MethodNotAllowed("PUT"), 405, "method_not_allowed"),
        (exceptions.UnsupportedMediaType("text/plain"), 415, "unsupported_media_type"),
        (exceptions.Throttled(wait=2.4), 429, "too_many_requests"),
        (exceptions.APIException(), 500, "refused"),
    ],
)
@pytest.mark.django_db
def test_each_error_has_its_status_and_code(error: Exception, status: int, code: str) -> None:
    """And the same keys: code, message, field."""
    answer = handle(error, {})
    assert answer is not None
    assert (answer.status_code, answer.data["error"]["code"]) == (status, code)
    assert set(answer.data) == {"error"}
    assert set(answer.data["error"]) == {"code", "message", "field"}
    assert answer.headers.get("WWW-Authenticate") == (CHALLENGE if status == 401 else None)
    assert answer.headers.get("Retry-After") == ("3" if status == 429 else None)


@pytest.mark.django_db
def test_reasons_that_must_not_differ_do_not() -> None:
    """Whatever a library says of the cause, a 404 is one answer and a 401 is one answer."""
    absent = [handle(error, {}) for error in (NotFound(), Http404("acorn"), exceptions.NotFound("birch"))]
    unknown = [handle(error, {}) for error in (exceptions.NotAuthenticated(), exceptions.AuthenticationFailed("expired"))]
    for answers in (absent, unknown):
        assert len({str(answer.data) for answer in answers if answer is not None}) == 1


@pytest.mark.django_db
def test_several_fields_at_fault_are_listed() -> None:
    """Paths as a caller writes them; the first is also the error's own."""
    answer = handle(exceptions.ValidationError({"name": ["Too long."], "inner": [{}, {"port": ["Not a port."]}], "non_field_errors": ["No."]}), {})
    assert answer is not None
    assert answer.data["error"]["details"] == [
        {"field": "name", "message": "Too long."},
        {"field": "inner[1].port", "message": "Not a port."},
        {"field": "", "message": "No."},
    ]
    assert (answer.data["error"]["field"], answer.data["error"]["message"]) == ("name", "Too long.")


@pytest.mark.django_db
@pytest.mark.parametrize("error", [ZeroDivisionError(), KeyError("x"), IntegrityError("unnamed"), RuntimeError()])
def test_our_own_mistakes_are_not_answered_here(error: Exception) -> None:
    """They become a 500 and a traceback in the log."""
    assert handle(error, {}) is None


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (["DO $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$"], "its disk is full"),
        (["SET LOCAL transaction_read_only = on", "CREATE TABLE never (x int)"], "it is read-only"),
    ],
    ids=["full", "read-only"],
)
def test_a_database_that_takes_no_changes_is_said(statements: list[str], why: str, caplog: pytest.LogCaptureFixture) -> None:
    """As PostgreSQL itself raises it: the caller hears why, and whoever runs it reads an error."""
    with pytest.raises(DatabaseError) as raised:
        _execute(statements)
    answer = handle(raised.value, {})
    assert answer is not None
    assert (answer.status_code, answer.data["error"]["code"]) == (503, "unavailable")
    assert why in answer.data["error"]["message"]
    assert [record.levelname for record in caplog.records if why in record.getMessage()] == ["ERROR"]


def _execute(statements: list[str]) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
