"""The audit log in the console."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tenants import changes
from tenants.actor import system
from tenants.scoping import tenant_scope
from tests.console.rows import Made, Town

pytestmark = pytest.mark.django_db


def _change(made: Made, number: int, **fields: object) -> None:
    with tenant_scope(made.tenant_id):
        changes.record(
            tenant_id=made.tenant_id,
            actor=system("apply"),
            action="pool.update",
            object_label=f"pool-{number}",
            before={"isolation": "audited", "same": 1},
            after={"isolation": "<img src=x onerror=alert(1)>", "same": 1, "size": number},
            publishes=False,
        )


def test_a_change_is_shown_with_before_and_after(town: Town) -> None:
    _change(town.acorn, 7)
    page = town.owner.get("/t/acorn/audit").content.decode()
    assert "pool.update" in page
    assert "<del>audited</del> → &lt;img src=x onerror=alert(1)&gt;" in page
    assert re.search(r"size:</span>\s+7", page)
    assert "same:" not in page
    assert "pool-7" in town.owner.get("/t/acorn/audit?action=pool").content.decode()
    assert "No entry matches" in town.owner.get("/t/acorn/audit?action=api_key").content.decode()
    assert "No entry matches" in town.owner.get("/t/acorn/audit?action=pool%00").content.decode()
    assert "Nothing was changed yet" in town.stranger.get("/t/birch/audit").content.decode()


def test_it_is_paged_in_a_fixed_number_of_queries(town: Town) -> None:
    _change(town.acorn, 0)
    town.owner.get("/t/acorn/audit")  # the session is noted once
    with CaptureQueriesContext(connection) as few:
        town.owner.get("/t/acorn/audit")
    for number in range(1, 60):
        _change(town.acorn, number)
    with CaptureQueriesContext(connection) as many:
        page = town.owner.get("/t/acorn/audit").content.decode()
    assert len(many) == len(few)
    older = re.search(r'href="(\?[^"]+)">Older', page)
    assert older
    second = town.owner.get("/t/acorn/audit" + older[1].replace("&amp;", "&")).content.decode()
    labels = re.findall(r"pool-\d+", page + second)
    assert len(labels) == len(set(labels)) == 60
