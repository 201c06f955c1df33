"""A tenant's view keeps derived names: whatever tells two namespaces apart must tell the questions apart under which they are kept."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from namespaces.core.salts import Namespace
from routing.core.snapshot import ModelEntry
from routing.dataplane.keys import Keys
from routing.dataplane.view import TenantView, compile_tenant
from tests.fakes.rig import SECRETS, endpoint, tenant

ASKED: dict[str, Any] = {"model": "plain", "scope_path": "", "key_id": UUID(int=1), "context": {}, "subdivision": None}


@pytest.fixture
def view() -> TenantView:
    """Endpoints that differ in their model, share by key, and let clients subdivide."""
    acme = tenant("acme", (), {})
    pool = acme.pools[0]
    other = ModelEntry(name="m-7b", revision="r2")
    endpoints = (
        endpoint(pool, "plain"),
        endpoint(pool, "other", model=other),
        endpoint(pool, "by-key", sharing="key"),
        endpoint(pool, "divided", client_subdivision=True),
    )
    return compile_tenant(msgspec.structs.replace(acme, endpoints=endpoints), Keys(SECRETS))


def _ask(view: TenantView, **changes: Any) -> Namespace:
    asked = {**ASKED, **changes}
    return view.namespace(view.endpoints[asked.pop("model")].entry, **asked)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"model": "other"}),
        ({}, {"scope_path": "support"}),
        ({"model": "by-key"}, {"model": "by-key", "key_id": UUID(int=2)}),
        ({}, {"context": {"repo": "abc"}}),
        ({"context": {"repo": "abc"}}, {"context": {"repo": "def"}}),
        ({"model": "divided"}, {"model": "divided", "subdivision": "mine"}),
        ({"model": "divided", "subdivision": ""}, {"model": "divided"}),
    ],
    ids=["model", "scope", "key", "context", "version", "subdivision", "empty subdivision"],
)
def test_two_namespaces_are_never_kept_as_one(view: TenantView, one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = _ask(view, **one), _ask(view, **other)
    assert first.salt != second.salt
    assert (_ask(view, **one), _ask(view, **other)) == (first, second)


@pytest.mark.parametrize("change", [{"key_id": UUID(int=2)}, {"subdivision": "mine"}], ids=["another key of the scope", "a salt where none is taken"])
def test_what_does_not_count_changes_nothing(view: TenantView, change: dict[str, Any]) -> None:
    assert _ask(view, **change) == _ask(view)


def test_what_is_kept_is_what_would_be_derived(view: TenantView) -> None:
    _ask(view)
    kept = _ask(view)
    view.namespaces.clear()
    assert _ask(view) == kept
