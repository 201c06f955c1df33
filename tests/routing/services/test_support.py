from __future__ import annotations

import pytest
from django.conf import settings

from routing.services import quotas, support, webhooks


@pytest.mark.parametrize("count", range(1, 13))
@pytest.mark.parametrize("every_s", [10.0, 120.0])
def test_everybody_is_first_in_turn(count: int, every_s: float) -> None:
    """However many there are, and however the number of tenants and the time between two sweeps divide one another."""
    refs = list(range(count))
    orders = [support.in_turn(refs, 1_000_003.0 + sweep * every_s, every_s=every_s) for sweep in range(count)]
    assert {order[0] for order in orders} == set(refs)
    assert all(sorted(order) == refs for order in orders)


def test_where_there_is_nobody_nobody_is_first() -> None:
    assert support.in_turn([], 7.0, every_s=10.0) == []


@pytest.mark.parametrize(("beat", "every_s"), [("webhooks", webhooks.EVERY_S), ("quotas-correct", quotas.EVERY_S)])
def test_turns_change_as_often_as_beat_asks(beat: str, every_s: float) -> None:
    assert settings.CELERY_BEAT_SCHEDULE[beat]["schedule"] == every_s
