"""The broker's URL follows the URL of Valkey."""

from __future__ import annotations

import pytest

from settings.env import broker_url


@pytest.mark.parametrize(
    ("url", "broker"),
    [
        ("unix://control:{password}@/run/x/valkey.sock?db=2", "redis+socket://control:{password}@/run/x/valkey.sock?virtual_host=2"),
        ("unix:///run/valkey.sock", "redis+socket:///run/valkey.sock?virtual_host=0"),
        ("redis://user:{password}@host:6379/1", "redis://user:{password}@host:6379/1"),
        ("valkey://host/0", "redis://host/0"),
        ("valkeys://host/0", "rediss://host/0"),
    ],
)
def test_celery_spells_urls_its_own_way(url: str, broker: str) -> None:
    assert broker_url(url) == broker
