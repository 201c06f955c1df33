"""Routing and SLO policies: the same views for both kinds."""

from __future__ import annotations

from dataclasses import dataclass

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from routing import queries
from routing.api import rows, shapes
from routing.models import Policy, PolicyVersion
from routing.services import policies
from tenants.api.base import TenantView, describe
from tenants.api.bodies import parse
from tenants.api.pagination import Page, page
from tenants.api.schema import PAGING, changed, page_of
from tenants.core.errors import Invalid, NotFound
from tenants.core.roles import Permission

_FROM = OpenApiParameter("from", int, description="The version to compare from; the one before the other without it.")
_TO = OpenApiParameter("to", int, description="The version to compare to; the newest without it.")


class PolicyView(TenantView):
    """Base of what is done with one policy."""

    kind: policies.Kind = "routing"

    def policy(self, reference: str) -> Policy:
        """By id or name."""
        return queries.policy(self.tenant_id, self.kind, reference)

    def numbered(self, row: Policy, raw: str | None, default: int, field: str) -> PolicyVersion:
        """One version of a policy, by a number from the query."""
        if raw is not None and not (raw.isascii() and raw.isdigit() and len(raw) < 9):
            raise Invalid("Use a version's number.", field=field)
        found = queries.policy_versions(self.tenant_id, row.id).filter(version=default if raw is None else int(raw)).first()
        if found is None:
            raise NotFound
        return found


@dataclass(frozen=True, slots=True)
class PolicyViews:
    """The views of one kind of policy."""

    collection: type[TenantView]
    item: type[TenantView]
    versions: type[TenantView]
    difference: type[TenantView]


def views(kind: policies.Kind) -> PolicyViews:
    """Make the views of one kind."""
    noun, word = f"{kind}_policies", {"routing": "routing", "slo": "SLO"}[kind]
    made = PolicyViews(
        collection=_collection(kind, noun, word),
        item=_item(kind, noun, word),
        versions=_versions(kind, noun, word),
        difference=_difference(kind, noun, word),
    )
    for view in (made.collection, made.item, made.versions, made.difference):
        view.__name__ = f"{kind.title()}Policy{view.__name__}"
    return made


def _collection(kind_of_view: policies.Kind, noun: str, word: str) -> type[TenantView]:
    class Collection(PolicyView):
        """Policies of one kind."""

        kind = kind_of_view
        permissions = {"GET": Permission.READ, "POST": Permission.OPERATE}

        @describe(f"{noun}_list", f"List {word} policies", answers=page_of(shapes.PolicyOut), parameters=PAGING, tag="policies")
        def get(self, request: Request) -> Response:
            """By name, each at its newest version."""
            found: Page[Policy] = page(request, queries.policies(self.tenant_id, self.kind), by="name")
            newest = queries.latest_versions(self.tenant_id, [row.id for row in found.rows])
            return self.answer(found.render(lambda row: rows.policy(row, newest[row.id])))

        @describe(f"{noun}_create", f"Create a {word} policy", body=shapes.PolicyNew, answers=changed(shapes.PolicyOut), status=201, tag="policies")
        def post(self, request: Request) -> Response:
            """Compiled with the routers' own code before it is stored: what cannot run is refused with the field's name."""
            wanted = parse(request, shapes.PolicyNew)
            version = policies.create(tenant_id=self.tenant_id, actor=self.actor, kind=self.kind, name=wanted.name, spec=wanted.spec)
            return self.changed(rows.policy(version.policy, version), status=201)

    return Collection


def _item(kind_of_view: policies.Kind, noun: str, word: str) -> type[TenantView]:
    class Item(PolicyView):
        """One policy."""

        kind = kind_of_view
        permissions = {"GET": Permission.READ, "DELETE": Permission.OPERATE}

        @describe(f"{noun}_read", f"Read a {word} policy", answers=shapes.PolicyOut, tag="policies")
        def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
            """At its newest version."""
            row = self.policy(reference)
            return self.answer(rows.policy(row, policies.latest(row)))

        @describe(f"{noun}_delete", f"Delete a {word} policy", answers=changed(shapes.PolicyOut), tag="policies")
        def delete(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
            """With all its versions. Refused while an endpoint uses one of them."""
            row = self.policy(reference)
            shown = rows.policy(row, policies.latest(row))
            policies.delete(tenant_id=self.tenant_id, actor=self.actor, policy_id=row.id, kind=self.kind)
            return self.changed(shown)

    return Item


def _versions(kind_of_view: policies.Kind, noun: str, word: str) -> type[TenantView]:
    class Versions(PolicyView):
        """The versions of one policy; they never change."""

        kind = kind_of_view
        permissions = {"GET": Permission.READ, "POST": Permission.OPERATE}

        @describe(f"{noun}_versions", f"List a {word} policy's versions", answers=page_of(shapes.VersionOut), parameters=PAGING, tag="policies")
        def get(self, request: Request, reference: str) -> Response:
            """Newest first."""
            found = queries.policy_versions(self.tenant_id, self.policy(reference).id)
            return self.answer(page(request, found, by="-version").render(rows.version))

        @describe(
            f"{noun}_append",
            f"Append a version to a {word} policy",
            body=shapes.VersionNew,
            answers=changed(shapes.VersionOut),
            status=201,
            tag="policies",
        )
        def post(self, request: Request, reference: str) -> Response:
            """The document of the newest version again makes no new one."""
            wanted = parse(request, shapes.VersionNew)
            policy_id = self.policy(reference).id
            row = policies.add_version(
                tenant_id=self.tenant_id, actor=self.actor, policy_id=policy_id, kind=self.kind, spec=wanted.spec, activate=wanted.activate
            )
            return self.changed(rows.version(row), status=201)

    return Versions


def _difference(kind_of_view: policies.Kind, noun: str, word: str) -> type[TenantView]:
    class Difference(PolicyView):
        """What changes between two versions."""

        kind = kind_of_view
        permissions = {"GET": Permission.READ}

        @describe(f"{noun}_diff", f"Compare versions of a {word} policy", answers=shapes.VersionDifference, parameters=(_FROM, _TO), tag="policies")
        def get(self, request: Request, reference: str) -> Response:
            """As routers read them: a default that is now written out is no difference."""
            row = self.policy(reference)
            newest = policies.latest(row).version
            new = self.numbered(row, request.query_params.get("to"), newest, "to")
            old = self.numbered(row, request.query_params.get("from"), max(1, new.version - 1), "from")
            found = [shapes.FieldDifference(**one) for one in policies.diff(self.kind, old.spec, new.spec)]
            return self.answer(shapes.VersionDifference(old_version=old.version, new_version=new.version, differences=found))

    return Difference


ROUTING = views("routing")
SLO = views("slo")
