"""What every view has: roles, a rollback, the log of refused attempts, headers."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection
from django.test import RequestFactory
from django.urls import URLPattern
from rest_framework.request import Request
from rest_framework.response import Response

import tenants.api.urls as routes
from tenants.api.base import ApiView, PlatformView, TenantView
from tenants.core.errors import Conflict, Invalid
from tenants.core.roles import Permission, Role, permissions
from tenants.models import AuditEntry, Scope
from tenants.scoping import current
from tenants.services import denials, scopes
from tests.tenants.houses import ABSENT, Api, House


def _views() -> list[tuple[str, type[ApiView]]]:
    patterns = [pattern for pattern in routes.urlpatterns if isinstance(pattern, URLPattern) and pattern.name]
    return [(str(pattern.pattern), pattern.callback.cls) for pattern in patterns]  # type: ignore[attr-defined]  # DRF puts it there


def _path(route: str) -> str:
    return route.replace("<str:reference>", ABSENT).replace("<path:reference>", ABSENT)


def test_the_matrix_of_roles_holds_on_every_route(acorn: House) -> None:
    """For each route, method and role: 403 exactly where the role lacks what the view names."""
    tried = 0
    for route, view in _views():
        if not issubclass(view, TenantView):
            continue
        for method, permission in view.permissions.items():
            for role in Role:
                answer = acorn.api(role).call(method, _path(route), None if method == "GET" else {})
                assert (answer.status_code == 403) == (permission not in permissions(role)), (method, route, role)
                assert answer.status_code != 401
                tried += 1
    assert tried > 80


def test_every_route_needs_a_credential(db: None) -> None:
    """No route answers a stranger, and each refuses with the same bytes."""
    answers = [(method, Api().call(method, _path(route))) for route, view in _views() for method in view().allowed_methods]
    assert {answer.status_code for _, answer in answers} == {401}
    assert len({answer.content for method, answer in answers if method != "HEAD"}) == 1
    assert len(answers) > 25


def test_a_view_that_names_no_permission_cannot_be_written() -> None:
    """A forgotten permission stops the process at import, not a request at run time."""
    with pytest.raises(TypeError, match="no permission for post"):

        class Forgetful(TenantView):
            permissions = {"GET": Permission.READ}

            def get(self, request: Request) -> Response:
                return Response()

            def post(self, request: Request) -> Response:
                return Response()


def _refuse_after_writing(error: Exception) -> type[TenantView]:
    class Breaks(TenantView):
        permissions = {"POST": Permission.CONFIGURE}

        def post(self, request: Request) -> Response:
            scopes.create(tenant_id=self.tenant_id, actor=self.actor, path="half-done")
            raise error

    return Breaks


@pytest.mark.parametrize(("error", "status"), [(Conflict("no"), 409), (Invalid("no", field="x"), 400), (OperationalError("gone"), 503)])
def test_a_refused_request_leaves_nothing(acorn: House, error: Exception, status: int) -> None:
    """DRF turns an exception into an answer, which would commit what was written before; the scope rolls back first."""
    request = RequestFactory().post("/x", headers={"Authorization": f"Bearer {acorn.tokens[Role.OWNER]}"})
    answer = _refuse_after_writing(error).as_view()(request)
    assert answer.status_code == status
    assert current() is None
    with acorn.scope():
        assert not Scope.objects.filter(path="half-done").exists()
        assert not AuditEntry.objects.filter(action="scope.create").exists()


def test_our_own_mistake_is_no_refusal_and_leaves_nothing_either(acorn: House) -> None:
    """It is raised on, for Django to log and answer 500."""
    request = RequestFactory().post("/x", headers={"Authorization": f"Bearer {acorn.tokens[Role.OWNER]}"})
    with pytest.raises(ZeroDivisionError):
        _refuse_after_writing(ZeroDivisionError()).as_view()(request)
    with acorn.scope():
        assert not Scope.objects.filter(path="half-done").exists()
    assert current() is None


def test_an_unnamed_constraint_is_our_mistake(acorn: House) -> None:
    """Only constraints that a service names become refusals."""
    request = RequestFactory().post("/x", headers={"Authorization": f"Bearer {acorn.tokens[Role.OWNER]}"})
    with pytest.raises(IntegrityError):
        _refuse_after_writing(IntegrityError("other")).as_view()(request)


def test_a_refused_attempt_to_change_something_is_in_the_callers_own_log(acorn: House, birch: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who tried what; nothing in the other tenant's log; reading is not written down, and neither is a flood."""
    foreign = birch.key().key
    acorn.api(Role.ADMIN).delete(f"keys/{foreign.id}")
    acorn.api(Role.VIEWER).post("keys", {"name": "x"})
    acorn.api(Role.VIEWER).get(f"keys/{foreign.id}")
    acorn.api(Role.VIEWER).get("members")
    entries = acorn.log("request.denied")
    assert [(entry.actor_label, entry.object_label, entry.reason) for entry in entries] == [
        ("admin-token", f"DELETE /api/v1/keys/{foreign.id}", "not_found"),
        ("viewer-token", "POST /api/v1/keys", "forbidden"),
    ]
    assert birch.log("request.denied") == []
    monkeypatch.setattr(denials, "MAX_DENIALS_PER_HOUR", 3)
    assert {acorn.api(Role.VIEWER).post("keys", {}).status_code for _ in range(3)} == {403}
    assert len(acorn.log("request.denied")) == 3


def test_answers_are_private(acorn: House) -> None:
    """No cache keeps them, whatever the status."""
    for answer in (acorn.api().get("keys"), acorn.api().get(f"keys/{ABSENT}"), Api().get("keys"), acorn.api().call("PUT", "keys")):
        assert answer.headers["Cache-Control"] == "private, no-store"
        assert {"Authorization", "Cookie"} <= {name.strip() for name in answer.headers["Vary"].split(",")}


def test_wrong_methods_are_405_and_head_is_get(acorn: House) -> None:
    """In our shape; OPTIONS tells nothing."""
    wrong = acorn.api().call("PUT", "keys", {})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert acorn.api().call("OPTIONS", "keys").status_code == 405
    head = acorn.api(Role.VIEWER).call("HEAD", "keys")
    assert (head.status_code, head.content) == (200, b"")
    assert acorn.api(Role.VIEWER).call("HEAD", "members").status_code == 403


def test_platform_views_are_for_operators(acorn: House, platform: Api) -> None:
    """An owner of a tenant is none."""

    class Only(PlatformView):
        def get(self, request: Request) -> Response:
            return self.answer({"scope": current()})

    def ask(token: str | None) -> Any:
        return Only.as_view()(RequestFactory().get("/x", headers={"Authorization": f"Bearer {token}"}))

    assert ask(acorn.tokens[Role.OWNER]).status_code == 403
    assert ask(platform.token).data == {"scope": None}


def test_a_request_costs_a_bounded_number_of_queries(acorn: House) -> None:
    """A page of keys costs the same for one key and for twenty."""
    from django.test.utils import CaptureQueriesContext

    counts = []
    for many in (1, 19):
        for number in range(many):
            acorn.key(f"{many}-{number}")
        acorn.api(Role.VIEWER).get("keys")
        with CaptureQueriesContext(connection) as queries:
            assert acorn.api(Role.VIEWER).get("keys").status_code == 200
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 16
