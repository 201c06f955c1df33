"""What the overview says of requests that reached no engine."""

from __future__ import annotations

import re

import pytest

from tests.console import rows
from tests.console.rows import AsOwner, Town

pytestmark = pytest.mark.django_db


def test_refusals_are_a_share_of_their_own(town: Town, as_owner: AsOwner) -> None:
    """Of four requests three were refused since no replica was ready, and one was answered: nothing failed at an engine, and 75 % were refused."""
    made = town.acorn
    refused = [rows.record(made, outcome="refused", status=503, error_code="no_ready_replica", replica_id=None, ttft_s=None) for _ in range(3)]
    rows.store(as_owner, made, rows.record(made), *refused)
    page = town.viewer.get("/t/acorn").content.decode()
    figures = dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)</dd>", page))
    assert {name: figures[name] for name in ("Requests", "Failed", "Refused")} == {"Requests": "4", "Failed": "0 %", "Refused": "75 %"}
    assert "<dd>3 by the router: a quota, no replica, overload</dd>" in page
    assert "of answered ones, " in page  # late ones are a share of what was answered: refusals are no part of it
