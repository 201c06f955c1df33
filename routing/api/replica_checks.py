"""Looking at an engine before it is added: ordered, read, added."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from routing import queries
from routing.api import pool_shapes, rows
from routing.core.replica_check import SALTS_IN_WORDS, CheckReport
from routing.core.snapshot import EngineFamily
from routing.models import ReplicaCheck
from routing.services import replica_checks
from tenants.api.base import TenantView, describe
from tenants.api.bodies import Body, parse
from tenants.api.pagination import page
from tenants.api.schema import PAGING, changed, page_of
from tenants.core.errors import NotFound, referred
from tenants.core.roles import Permission
from tenants.queries import parse_uuid


class ReplicaCheckNew(Body):
    """The replica as it would be added; ``pool`` is an own pool. ``endpoint``: whose tokenizer and template its tokens are compared with.

    ``served_model``: the name to probe, where it is not the first that the engine lists. ``credential`` is sealed to the routers.
    """

    pool: str
    name: str
    url: str
    engine: EngineFamily = "vllm"
    endpoint: str | None = None
    served_model: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    credential: str | None = None


class ReplicaCheckOut(msgspec.Struct, frozen=True, kw_only=True):
    """A check. ``report`` is null until it is done; ``salts_in_words`` says what its verdict on salts means."""

    id: UUID
    pool_id: UUID
    name: str
    url: str
    engine: str
    state: Literal["queued", "running", "done", "failed"]
    error: str
    report: CheckReport | None
    salts_in_words: str | None
    requested_by: str
    created_at: datetime


def shown(row: ReplicaCheck) -> ReplicaCheckOut:
    """A check as answered now."""
    now = timezone.now()
    report = replica_checks.report(row, now)
    return ReplicaCheckOut(
        id=row.id,
        pool_id=row.pool_id,
        name=row.name,
        url=row.url,
        engine=row.engine,
        state=replica_checks.state(row, now),  # type: ignore[arg-type]  # one of the four
        error=replica_checks.error(row, now),
        report=report,
        salts_in_words=SALTS_IN_WORDS[report.salts.verdict] if report is not None and report.answered else None,
        requested_by=row.requested_by,
        created_at=row.created_at,
    )


class CheckView(TenantView):
    """Base: one check by its id."""

    def check(self, reference: str) -> ReplicaCheck:
        """A check of this tenant.

        Raises:
            NotFound: none.
        """
        row_id = parse_uuid(reference.strip("/"))
        if row_id is None:
            raise NotFound
        return replica_checks.check(self.tenant_id, row_id)


class ReplicaCheckCollection(CheckView):
    """Checks of the last day."""

    permissions = {"GET": Permission.READ, "POST": Permission.CONFIGURE}

    @describe("replica_checks_list", "List tests of replicas", answers=page_of(ReplicaCheckOut), parameters=PAGING, tag="pools")
    def get(self, request: Request) -> Response:
        """Newest first."""
        return self.answer(page(request, replica_checks.checks(self.tenant_id)).render(shown))

    @describe("replica_checks_create", "Test a replica", body=ReplicaCheckNew, answers=changed(ReplicaCheckOut), status=201, tag="pools")
    def post(self, request: Request) -> Response:
        """A router asks the address for its models, version, cache settings and events, sends one prompt three times under two salts, and compares
        tokens. Ask for the result by its id. An address that does not answer as an engine does, or may not be used, gives ``answered: false``."""
        wanted = parse(request, ReplicaCheckNew)
        with referred("pool"):
            pool_id = queries.own_pool(self.tenant_id, wanted.pool).id
        with referred("endpoint"):
            endpoint_id = None if wanted.endpoint is None else queries.endpoint(self.tenant_id, wanted.endpoint).id
        row = replica_checks.order(
            tenant_id=self.tenant_id,
            actor=self.actor,
            pool_id=pool_id,
            name=wanted.name,
            url=wanted.url,
            engine=wanted.engine,
            served_model=wanted.served_model or "",
            endpoint_id=endpoint_id,
            credential=wanted.credential,
        )
        return self.changed(shown(row), status=201)


class ReplicaCheckItem(CheckView):
    """One check."""

    permissions = {"GET": Permission.READ}

    @describe("replica_checks_read", "Read a test of a replica", answers=ReplicaCheckOut, tag="pools")
    def get(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """With its report, once it is done."""
        return self.answer(shown(self.check(reference)))


class ReplicaCheckAdd(CheckView):
    """Adding what was looked at."""

    permissions = {"POST": Permission.CONFIGURE}

    @describe("replica_checks_add", "Add a tested replica", answers=changed(pool_shapes.ReplicaOut), status=201, tag="pools")
    def post(self, request: Request, reference: str) -> Response:  # noqa: ARG002 - DRF's signature
        """As it was tested, with the credential that was given then. Within an hour of the test."""
        row = replica_checks.add(tenant_id=self.tenant_id, actor=self.actor, check_id=self.check(reference).id)
        return self.changed(rows.replica(row, queries.routers(self.tenant_id, self.tenant.config_version)), status=201)
