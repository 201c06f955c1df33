"""Quotas in a declaration: set, changed and removed by ``apply``, and written by ``export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from routing.core.quota import MEASURES
from routing.services import quotas
from tenants.queries import tenant_id_of
from tenants.scoping import tenant_scope
from tests.routing.management.test_apply_candidate import apply, exported, refused

pytestmark = pytest.mark.django_db


def document(*entries: dict[str, Any]) -> dict[str, Any]:
    replicas = [{"name": "a", "url": "http://127.0.0.1:9301"}]
    chat = {"name": "chat", "model": {"name": "m", "revision": "r1"}, "replicas": replicas, "isolation": "declared"}
    return {"tenants": [{"slug": "acme", "scopes": [{"path": "support"}], "endpoints": [chat], "quotas": list(entries)}]}


def there() -> dict[str, dict[str, int]]:
    tenant_id = tenant_id_of("acme")
    assert tenant_id is not None
    with tenant_scope(tenant_id):
        rows = quotas.entries(tenant_id)
    return {f"{row.of} {row.name}".strip(): {one: limit for one in MEASURES if (limit := getattr(row, one)) is not None} for row in rows}


def test_quotas_are_declared_changed_and_removed(tmp_path: Path) -> None:
    """In the diff, in the rows, and not again when nothing differs; beyond the file they go only by --prune."""
    wanted = [
        {"of": "tenant", "tokens_per_month": 1_000},
        {"of": "platform", "tokens_per_month": 900},
        {"of": "scope", "requests_per_minute": 9},
        {"of": "scope", "name": "support", "requests_per_minute": 5},
        {"of": "endpoint", "name": "chat", "tokens_per_minute": 70},
    ]
    first = apply(tmp_path, document(*wanted))
    assert "+ acme: quota endpoint chat\n    tokens_per_minute: 70" in first
    assert there() == {
        "tenant": {"tokens_per_month": 1_000},
        "platform": {"tokens_per_month": 900},
        "scope": {"requests_per_minute": 9},
        "scope support": {"requests_per_minute": 5},
        "endpoint chat": {"tokens_per_minute": 70},
    }
    assert apply(tmp_path, document(*wanted), "--prune") == "no changes\n"
    assert apply(tmp_path, exported(), "--prune") == "no changes\n"
    changed = apply(tmp_path, document({"of": "tenant", "tokens_per_minute": 3}))
    assert "~ acme: quota tenant\n    tokens_per_minute: none -> 3\n    tokens_per_month: 1000 -> none" in changed
    assert len(there()) == 5
    assert "- acme: quota scope support" in apply(tmp_path, document({"of": "tenant", "tokens_per_minute": 3}), "--prune")
    assert there() == {"tenant": {"tokens_per_minute": 3}}
    unsaid = document()
    del unsaid["tenants"][0]["quotas"]
    assert apply(tmp_path, unsaid, "--prune") == "no changes\n"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"tokens_per_month": 5}, "quotas[0]: must say whose it is"),
        ({"of": "planet", "tokens_per_month": 5}, "quotas[0].of: must be one of tenant, platform, scope, key, endpoint"),
        ({"of": "tenant", "tokens_per_month": "many"}, "quotas[0].tokens_per_month: must be a whole number"),
        ({"of": "tenant", "tokens_per_day": 5}, "quotas[0].tokens_per_day: is not known here"),
        ({"of": "tenant"}, "quotas[0].requests_per_minute: Set at least one of"),
        ({"of": "tenant", "tokens_per_month": 0}, "quotas[0].tokens_per_month: Use a whole number from 1"),
        ({"of": "key", "name": "nobody", "tokens_per_month": 5}, "quotas[0].name: This tenant has no key of this name."),
        ({"of": "endpoint", "name": "nobody", "tokens_per_month": 5}, "quotas[0].name: This tenant has no endpoint of this name."),
    ],
)
def test_mistakes_are_told_with_their_place(tmp_path: Path, entry: dict[str, Any], said: str) -> None:
    assert said in refused(tmp_path, document(entry))


def test_two_quotas_of_one_name_are_a_mistake(tmp_path: Path) -> None:
    assert "is declared twice" in refused(tmp_path, document({"of": "tenant", "tokens_per_month": 5}, {"of": "tenant", "tokens_per_minute": 5}))
