"""Testing a replica over the API: who may order it, what is told when, and adding it as it was tested."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from routing.models import ReplicaCheck
from tenants.core.roles import Role
from tests.tenants.houses import ABSENT, House

pytestmark = pytest.mark.django_db
NEW: dict[str, Any] = {"pool": "gpu", "name": "a", "url": "http://127.0.0.1:9601/v1/"}
FOUND = {"answered": True, "models": ["m"], "salts": {"verdict": "ignored", "first": 0, "again": 32, "other": 32}}


def test_who_may_add_replicas_may_test_them(acorn: House) -> None:
    """An operator may read tests and order none; the order is in the audit log without the credential; another tenant's test is absent."""
    acorn.api().post("pools", {"name": "gpu"})
    assert acorn.api(Role.OPERATOR).post("replica-checks", NEW).status_code == 403
    made = acorn.api(Role.ADMIN).post("replica-checks", {**NEW, "engine": "sglang"})
    assert (made.status_code, made.json()["state"], made.json()["url"]) == (201, "queued", "http://127.0.0.1:9601")
    (entry,) = acorn.log("replica.check")
    assert (entry.object_label, entry.after) == ("gpu/a", {"url": "http://127.0.0.1:9601", "engine": "sglang", "has_credential": False})
    viewer = acorn.api(Role.VIEWER)
    assert [one["id"] for one in viewer.get("replica-checks").json()["results"]] == [made.json()["id"]]
    assert viewer.get(f"replica-checks/{made.json()['id']}").json()["report"] is None
    assert viewer.post(f"replica-checks/{made.json()['id']}/add").status_code == 403
    assert viewer.get(f"replica-checks/{ABSENT}").status_code == 404
    assert acorn.api().post(f"replica-checks/{ABSENT}/add").status_code == 404


@pytest.mark.parametrize(
    ("change", "field"),
    [({"url": "ftp://x"}, "url"), ({"url": "http://u:p@x"}, "url"), ({"name": ""}, "name"), ({"served_model": "bad\u200bname"}, "served_model")],
)
def test_what_is_malformed_is_refused_by_its_field(acorn: House, change: dict[str, Any], field: str) -> None:
    """And nothing is stored."""
    acorn.api().post("pools", {"name": "gpu"})
    error = acorn.api().post("replica-checks", {**NEW, **change})
    assert (error.status_code, error.json()["error"]["field"]) == (400, field)
    with acorn.scope():
        assert ReplicaCheck.objects.count() == 0


def test_the_report_is_told_when_it_may_be_and_the_replica_added(acorn: House) -> None:
    """Not before its moment; with what its verdict means; adding twice is refused."""
    admin = acorn.api()
    admin.post("pools", {"name": "gpu"})
    check_id = admin.post("replica-checks", NEW).json()["id"]
    rows = ReplicaCheck.objects.filter(id=check_id)
    now = timezone.now()
    with acorn.scope():
        rows.update(state="done", started_at=now, report=FOUND, shown_at=now + timedelta(seconds=30))
    waiting = admin.get(f"replica-checks/{check_id}").json()
    assert (waiting["state"], waiting["report"], waiting["salts_in_words"]) == ("running", None, None)
    with acorn.scope():
        rows.update(shown_at=now)
    told = admin.get(f"replica-checks/{check_id}").json()
    assert (told["state"], told["report"]["salts"]["verdict"]) == ("done", "ignored")
    assert "shares cached blocks between identities" in told["salts_in_words"]
    added = admin.post(f"replica-checks/{check_id}/add")
    assert (added.status_code, added.json()["id"], added.json()["name"]) == (201, check_id, "a")
    assert admin.post(f"replica-checks/{check_id}/add").status_code == 409
    assert len(acorn.log("replica.create")) == 1
