"""Every request leaves one record that counts once, whatever is killed behind the router: ``make chaos`` in small."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.bench import chaos
from tests.bench.chaos import Blow
from tests.product import START_S, STOP_S, Product, fresh_home, remove

pytestmark = [pytest.mark.journey, pytest.mark.timeout(START_S + STOP_S + 240)]

COUNT = 2000
QUEUE = 100  # records: the smallest that a router takes


@pytest.fixture(scope="module")
def fresh() -> Iterator[Product]:
    """A product that nobody else asks, with two engines, a small queue of records, and an ingest that soon takes over from a dead one."""
    home = fresh_home()
    try:
        product = Product.start(home, fleet=2, ROUTER_RECORD_QUEUE=str(QUEUE), ROUTER_RECORD_SAMPLE_PERCENT="1", INGEST_CLAIM_IDLE_S="1")
        yield product
        assert product.stop() == 0, product.output.read_text()
    finally:
        remove(home)


def test_what_clients_were_told_is_what_is_kept_although_ingest_and_valkey_die(fresh: Product) -> None:
    """2,000 requests; ingest is killed with entries in hand, Valkey is frozen until the router drops records, then restarted.

    Delivered and counted as lost are all; each row says what its client was told; usage and rollups of every grain are the sums of the rows. The
    control: some were lost.
    """
    blows = (Blow(0.1, "kill", "ingest"), Blow(0.3, "freeze", "valkey", frozen_s=3.0, until_dropped=True), Blow(0.7, "stop", "valkey"))
    outcome = asyncio.run(chaos.run(fresh, count=COUNT, connections=16, blows=blows))
    assert outcome.holds, str(outcome)
    assert outcome.statuses.keys() == {200, 404}
    assert 0 < outcome.dropped <= outcome.noted.missing
