"""Dates at the ends of what there are: a list of decisions is answered whatever it is asked for."""

from __future__ import annotations

import re
import uuid

import pytest

from tests.console import rows
from tests.console.rows import AsOwner, Town

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("to", ["0001-01-01", "0001-01-01T23:59:59", "0001-01-02T00:00", "9999-12-31T23:59:59"])
@pytest.mark.parametrize("before", ["", "0001-01-01T00:00:00+23:59", "9999-12-31T23:00:00-23:59", "2999-01-01T00:00:00+23:59"])
def test_the_first_and_the_last_dates_that_there_are_end_a_range(town: Town, as_owner: AsOwner, to: str, before: str) -> None:
    made = town.acorn
    one = rows.record(made, started_at=rows.ago(minutes=1))
    rows.store(as_owner, made, one)
    cursor = {"before": f"{before}~{uuid.uuid4()}"} if before else {}
    answer = town.owner.get("/t/acorn/decisions", {"namespace": str(one.namespace), "to": to, **cursor})
    assert answer.status_code == 200
    assert re.findall(r"/t/acorn/decisions/([0-9a-f-]{36})", answer.content.decode()) == ([str(one.id)] if to > "2026" else [])
