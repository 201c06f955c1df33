"""Where requests' time went, in the console."""

from __future__ import annotations

import pytest

from routing.core.record import CauseRecord
from tests.console import rows
from tests.console.rows import AsOwner, Town

pytestmark = pytest.mark.django_db


def test_sums_are_shown_by_endpoint_and_hour(town: Town, as_owner: AsOwner) -> None:
    cause = CauseRecord(parts_us={"missed_evicted": 900_000, "queue_router": 250_000}, main="missed_evicted")
    rows.store(as_owner, town.acorn, *(rows.record(town.acorn, cause=cause) for _ in range(4)))
    page = town.viewer.get("/t/acorn/causes").content.decode()
    assert "4 decisions" in page
    assert "3.60 s" in page
    assert "1.00 s" in page
    assert "style=" not in page.split("<main")[1]
    by_hour = town.viewer.get("/t/acorn/causes?by=hour").content.decode()
    assert "3.60 s" in by_hour
    assert town.viewer.get("/t/acorn/causes?by=%3Cimg%3E&endpoint=1").status_code == 200
    assert "3.60 s" not in town.stranger.get("/t/birch/causes").content.decode()
    assert town.stranger.get("/t/acorn/causes").status_code == 404
