"""Reconciliation over the API: reading, starting, narrowing; who may, and that nobody reads another's."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.utils import timezone

from routing.models import ReconciliationFinding, ReconciliationRun
from routing.services.reconciliation import running
from tenants.core.roles import Role

if TYPE_CHECKING:
    from tests.tenants.houses import Api, House

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]


def a_finding(house: House, **fields: Any) -> ReconciliationFinding:
    """As a run leaves one."""
    now = timezone.now()
    given: dict[str, Any] = {
        "kind": "router_behind",
        "severity": "warning",
        "state": "open",
        "subject_kind": "router",
        "subject_id": "r1",
        "subject": "r1",
    }
    given |= {"explanation": "Router r1 runs version 1; version 2 is published.", "first_seen_at": now, "last_seen_at": now, **fields}
    with house.scope():
        return ReconciliationFinding.objects.create(tenant_id=house.id, **given)


def test_before_the_first_run_there_is_none(acorn: House) -> None:
    told = acorn.api().get("reconciliation").json()
    assert told == {"last_run": None, "under_way": None, "open": {"critical": 0, "warning": 0, "info": 0}, "findings": []}


def test_start_run_read(acorn: House) -> None:
    """Two starts are one run; when it has ended it is the last one, with what it found, the gravest first."""
    api = acorn.api(Role.OPERATOR)
    started = api.post("reconciliation")
    assert (started.status_code, started.json()["state"], started.json()["trigger"]) == (202, "queued", "demand")
    assert api.post("reconciliation").json()["id"] == started.json()["id"]
    assert api.get("reconciliation").json()["under_way"]["id"] == started.json()["id"]
    ended = running.run(acorn.id, trigger="beat")
    assert ended is not None
    assert str(ended.run.id) == started.json()["id"]
    a_finding(acorn)
    a_finding(acorn, kind="snapshot_refused", severity="critical", done="published again under a new version")
    a_finding(acorn, kind="assignment_void", severity="info", state="watching")
    told = acorn.api(Role.VIEWER).get("reconciliation").json()
    assert (told["last_run"]["id"], told["last_run"]["requested_by"], told["under_way"]) == (started.json()["id"], "operator-token", None)
    assert told["open"] == {"critical": 1, "warning": 1, "info": 0}
    assert [one["kind"] for one in told["findings"]] == ["snapshot_refused", "router_behind"]
    first = told["findings"][0]
    assert (first["title"], first["done"]) == ("A router refuses the configuration", "published again under a new version")
    assert [one["id"] for one in acorn.api().get("reconciliation/runs").json()["results"]] == [started.json()["id"]]


def test_findings_are_narrowed_and_read_one_by_one(acorn: House) -> None:
    old = a_finding(acorn, state="resolved", resolved_at=timezone.now() - timedelta(minutes=1))
    now = a_finding(acorn, severity="critical")
    api = acorn.api()

    def ids(query: str) -> list[str]:
        return [one["id"] for one in api.get(f"reconciliation/findings{query}").json()["results"]]

    assert ids("") == [str(now.id), str(old.id)]
    assert ids("?state=resolved") == [str(old.id)]
    assert ids("?severity=critical&kind=router_behind") == [str(now.id)]
    assert ids("?kind=ghost_engine") == []
    wrong = api.get("reconciliation/findings?kind=nonsense")
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (400, "kind")
    assert api.get(f"reconciliation/findings/{old.id}").json()["state"] == "resolved"


def test_a_viewer_may_not_start_one(acorn: House) -> None:
    assert acorn.api(Role.VIEWER).post("reconciliation").status_code == 403
    with acorn.scope():
        assert not ReconciliationRun.objects.exists()
    assert acorn.api(Role.OPERATOR).post("reconciliation").status_code == 202


def test_another_tenants_are_absent(acorn: House, birch: House, platform: Api) -> None:
    """Byte for byte what nobody's is."""
    theirs = a_finding(birch)
    birch.api().post("reconciliation")
    api = acorn.api()
    absent = api.get("reconciliation/findings/00000000-0000-4000-8000-000000000000")
    found = api.get(f"reconciliation/findings/{theirs.id}")
    assert (found.status_code, found.content) == (absent.status_code, absent.content) == (404, absent.content)
    assert api.get("reconciliation/findings").json()["results"] == api.get("reconciliation/runs").json()["results"] == []
    assert api.get("reconciliation").json()["under_way"] is None
    seen = platform.get("reconciliation/findings", X_Saltroute_Tenant="birch").json()["results"]
    assert [one["id"] for one in seen] == [str(theirs.id)]
