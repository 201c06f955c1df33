"""How PostgreSQL finds decisions, where it matters how many it reads. Plans are asked for with scans of tables forbidden: few rows lie here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from routing import queries
from routing.core.policy import compile_routing
from routing.models import DecisionRow
from routing.queries import Audits, DecisionFilter
from routing.services import dry_run
from tenants.scoping import tenant_scope
from tests.routing.services.made import Made
from tests.routing.services.rows import an_endpoint

pytestmark = pytest.mark.django_db
AsOwner = Callable[[], AbstractContextManager[None]]


def plan(statement: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("SET LOCAL enable_bitmapscan = off")
        cursor.execute(f"EXPLAIN {statement}")
        return "\n".join(row[0] for row in cursor.fetchall())


def test_audits_are_listed_from_an_index_of_theirs(acorn: Made, as_owner: AsOwner) -> None:
    """The index by time is taken away for a moment: the list of audits needs it not, the list of everything else does."""
    with as_owner(), connection.cursor() as cursor:
        cursor.execute("DROP INDEX decision_by_time, decision_by_endpoint")

    def listed(audits: Audits) -> str:
        found: QuerySet[DecisionRow] = queries.decisions(acorn.id, DecisionFilter(audits=audits)).order_by("-started_at")[:51]
        with tenant_scope(acorn.id):
            with CaptureQueriesContext(connection) as captured:
                list(found)
            return plan(captured[-1]["sql"])

    assert "Seq Scan" in listed("none")
    assert "Seq Scan" not in listed("only")


def test_the_bound_of_a_dry_run_is_found_without_reading_a_decision(acorn: Made) -> None:
    """A hundred thousand decisions are counted off in the index. The control: those with candidates are read."""
    with tenant_scope(acorn.id):
        endpoint, policy = an_endpoint(acorn.id, "chat"), compile_routing({"policy": "round_robin"})
        with CaptureQueriesContext(connection) as captured:
            dry_run.run(tenant_id=acorn.id, endpoint=endpoint, policy=policy, whole=True, own_replica_ids=None, now=timezone.now())
        bound, kept = (one["sql"] for one in captured.captured_queries if "routing_decisionrow" in one["sql"])
        assert "OFFSET 100000" in bound
        assert "Index Only Scan" in plan(bound)
        assert "Index Only Scan" not in plan(kept)
