"""Every operation of the control API under every role: refused where the role does not reach, and refused by the services themselves too.

The operations come from the API's own description. What each takes is read from its view; what is held here is that a role below it gets 403 and
changes nothing, that the role itself gets further than that, and that with the view's own question left out no viewer can change anything: services
ask again where they record a change.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import resolve

from tenants.api.base import TenantView
from tenants.core.roles import Permission, Role, permissions
from tests.contracts.surface import Operation, dump, furnished, listed, operations, tried, whole
from tests.tenants.houses import House, platform_api

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(300)]
# Operations of no tenant's view: their own tests hold who may use them.
OUTSIDE = {"tenants_list", "tenants_create", "tenants_read", "tenants_change", "tenants_delete", "me"}


class Surface:
    """A tenant with one of everything, and what a valid request to each operation holds."""

    def __init__(self) -> None:
        platform_api()
        self.house: House = furnished("acorn", 9101)
        rows = {resource: row for resource, row in listed(self.house.api()).items() if "id" in row}
        self.ids = {resource: str(row["id"]) for resource, row in rows.items()}
        self.names = {resource: str(row.get("sha256") or row.get("name") or row.get("path") or row["id"]) for resource, row in rows.items()}

    def path(self, operation: Operation) -> str:
        """Its path with an own object in it."""
        filled = operation.path
        for name in operation.named("path"):
            filled = filled.replace("{" + name + "}", self.ids.get(operation.resource, self.house.slug))
        return filled

    def send(self, operation: Operation, role: Role) -> tuple[int, bytes]:
        """One request under a role; what it wrote is taken back."""
        body: Any = whole(operation, self.names) if operation.body else None
        return tried(self.house.api(role), operation.method, self.path(operation), body)


@pytest.fixture
def surface(db: None) -> Surface:
    return Surface()


def _needed(operation: Operation, path: str) -> Permission | None:
    """What its view asks for; None for a view of no tenant."""
    view = getattr(resolve(f"/api/v1/{path}").func, "cls", None)
    return view.permissions[operation.method] if isinstance(view, type) and issubclass(view, TenantView) else None


def test_each_operation_is_open_to_its_roles_alone(surface: Surface) -> None:
    open_to: dict[str, list[Role]] = {}
    outside = set()
    for operation in operations():
        needed = _needed(operation, surface.path(operation))
        if needed is None:
            outside.add(operation.id)
            continue
        for role in Role:
            status, said = surface.send(operation, role)
            if needed in permissions(role):
                # 403 here could only be the service's table contradicting the view's
                assert status != 403 or b"above your own" in said or b"platform operator" in said, (operation.id, role, said)
                open_to.setdefault(operation.id, []).append(role)
            else:
                assert status == 403, (operation.id, role, status)
    assert outside >= OUTSIDE
    assert outside - OUTSIDE <= {one for one in outside if not one.endswith(("_create", "_change", "_delete"))} | {"root_key_read"}
    ranked = list(Role)
    assert all(roles == ranked[ranked.index(roles[0]) :] for roles in open_to.values())  # whoever is above may do as much
    assert len(open_to) > 60


def test_services_refuse_a_viewer_although_the_view_did_not_ask(surface: Surface, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view's question is switched off; nothing that the tenant holds changes. The control: an owner's same requests change a good deal."""
    monkeypatch.setattr(TenantView, "_permit", lambda self, request: None)
    changed: dict[Role, set[str]] = {}
    for role in (Role.VIEWER, Role.OWNER):
        changed[role] = set()
        for operation in operations():
            if operation.method == "GET" or _needed(operation, surface.path(operation)) in (None, Permission.READ):
                continue
            before = dump(surface.house.id)
            body: Any = whole(operation, surface.names) if operation.body else None
            if _kept(surface, role, operation, body, before):
                changed[role].add(operation.id)
    assert changed[Role.VIEWER] == set()
    assert len(changed[Role.OWNER]) >= 25


def _kept(surface: Surface, role: Role, operation: Operation, body: Any, before: Any) -> bool:
    """Whether the request changed what the tenant holds; taken back either way."""
    from django.db import transaction

    with transaction.atomic():
        surface.house.api(role).call(operation.method, surface.path(operation), body)
        after = dump(surface.house.id)
        transaction.set_rollback(True)
    return bool(after != before)
