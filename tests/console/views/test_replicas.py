"""The page of one replica: what it did, what was learned and found of it, and nothing of another tenant's."""

from __future__ import annotations

import re
import uuid
from typing import Any

import msgspec
import pytest
import redis
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from routing.models import ReconciliationFinding, Replica
from routing.services import record_store
from tenants.scoping import tenant_scope
from tests.console import rows
from tests.console.rows import AsOwner, Town
from tests.console.views.test_overview import _document, _figures, _state

pytestmark = pytest.mark.django_db


def _page(town: Town, query: str = "") -> str:
    answer = town.viewer.get(f"/t/acorn/replicas/{town.acorn.replica_ids[0]}{query}")
    assert answer.status_code == 200
    return str(answer.content.decode())


def _plain(page: str) -> str:
    """The page without the links of words that lead to their terms."""
    return re.sub(r'<a class="term[^>]*>([^<]*)</a>', r"\1", page)


def test_measures_over_time_and_over_all(town: Town, as_owner: AsOwner) -> None:
    made, replica_id = town.acorn, town.acorn.replica_ids[0]
    held: dict[str, Any] = {"event_us": 10_000_000, "kv_used_ppm": 500_000, "resident_blocks": 40, "distinct_blocks": 20}
    with tenant_scope(made.tenant_id), as_owner():
        record_store.store_states(
            [
                _state(made.tenant_id, replica_id, busy_us=2_000_000, request_us=30_000_000, evicted_blocks=10, **held),
                _state(made.tenant_id, replica_id, busy_us=4_000_000, started_at=rows.ago(minutes=9), **held),
                _state(made.tenant_id, made.replica_ids[1], busy_us=10_000_000),
            ]
        )
    page = _page(town)
    figures = _figures(_plain(page))
    assert figures["Utilisation"] == "30 %"
    assert figures["Blocks evicted"] == "0.5"
    assert figures["Copies of a block"] == "2"
    plots = {
        plot["id"]: {line["label"]: [value for value in line["values"] if value is not None] for line in plot["lines"]}
        for plot in _document(page)["plots"]
    }
    assert plots["load"]["utilisation"] == [0.4, 0.2]
    assert plots["requests"]["in flight"] == [0.0, 3.0]
    assert plots["evicted"]["evicted"] == [0.0, 1.0]
    assert _figures(_plain(_page(town, "?range=7d")))["Utilisation"] == "30 %"


def test_what_routers_learned_and_what_was_found(town: Town, valkey_url: str) -> None:
    made, replica_id = town.acorn, town.acorn.replica_ids[0]
    with tenant_scope(made.tenant_id):
        url = Replica.objects.get(id=replica_id).url
        Replica.objects.filter(id=replica_id).update(isolation_state="isolated", isolation_reason="clean <b>audit</b>", build="b19")
        run = rows.audit_run(made)
        now = timezone.now()
        ReconciliationFinding.objects.create(
            tenant_id=made.tenant_id,
            kind="capacity_changed",
            severity="warning",
            state="open",
            subject_kind="replica",
            subject_id=str(replica_id),
            subject="a",
            explanation="Its cache is half of what it was.",
            first_seen_at=now,
            last_seen_at=now,
        )
    said = {
        "versions": {},
        "replicas": {
            url: {
                "condition": "ok",
                "in_flight": 3,
                "residency": "exact",
                "capacity_tokens": 4096,
                "calibration": {"tokens_per_s": 7654.4, "learned": True, "fixed_s": 0.021},
                "trust": {"kappa": 0.93, "verdict": "fine", "withholds": True},
            }
        },
    }
    with redis.Redis.from_url(valkey_url) as client:
        client.set("saltroute:router:r-9", msgspec.json.encode(said), ex=60)
    page = _page(town)
    for words in (
        "r-9",
        "7,654 tokens/s",
        "21 ms",
        "0.93",
        "fine",
        "last block computed anew",
        "exact",
        "clean &lt;b&gt;audit",
        "Its cache is half of what it was.",
        "4,096 tokens",
    ):
        assert words in page
    assert f"/t/acorn/isolation/audits/{run.id}" in page
    assert "style=" not in page.split("<main")[1]


def test_actions_are_for_those_who_may(town: Town) -> None:
    path = f"/t/acorn/replicas/{town.acorn.replica_ids[0]}"
    assert f"{path}/drain" in town.owner.get(path).content.decode()
    assert f"{path}/drain" not in town.viewer.get(path).content.decode()


def test_another_tenants_replica_is_absent(town: Town) -> None:
    absent = town.stranger.get(f"/t/birch/replicas/{uuid.uuid4()}")
    foreign = town.stranger.get(f"/t/birch/replicas/{town.acorn.replica_ids[0]}")
    assert absent.status_code == foreign.status_code == 404
    assert town.viewer.get(f"/t/acorn/replicas/{town.acorn.replica_ids[0]}").status_code == 200
    assert town.stranger.get(f"/t/acorn/replicas/{town.acorn.replica_ids[0]}").status_code == 404


def test_a_long_history_costs_no_more_queries(town: Town, as_owner: AsOwner) -> None:
    made, replica_id = town.acorn, town.acorn.replica_ids[0]
    _page(town)
    with CaptureQueriesContext(connection) as few:
        _page(town)
    with tenant_scope(made.tenant_id), as_owner():
        record_store.store_states([_state(made.tenant_id, replica_id, started_at=rows.ago(minutes=number)) for number in range(50)])
    with CaptureQueriesContext(connection) as many:
        _page(town)
    assert len(many) == len(few)
