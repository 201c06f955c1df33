"""A replica that does not list the model that an endpoint asks for says so on its pool's page and its own, with the next report of a router."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from routing.models import Endpoint, Replica
from tenants.scoping import tenant_scope
from tests.console.rows import Town

pytestmark = pytest.mark.django_db
PILL = ">model not served</a>"


def _reported(valkey_url: str, **lists: Any) -> None:
    """Reports of routers r1, r2 ...: what each says of models, by replica's URL."""
    with redis.Redis.from_url(valkey_url) as client:
        for name, replicas in lists.items():
            said = {url: {"condition": "ok", "models": models} for url, models in replicas.items()}
            client.set(f"saltroute:router:{name}", json.dumps({"versions": {}, "replicas": said}), ex=60)


def _pages(town: Town, replica: Replica) -> tuple[str, str]:
    paths = "/t/acorn/pools", f"/t/acorn/replicas/{replica.id}"
    pools, own = (town.owner.get(path).content.decode() for path in paths)
    return pools, own


def test_a_replica_of_another_model_says_so_at_once(town: Town, valkey_url: str) -> None:
    """Healthy, and nothing is sent there: of two replicas the one that lists the model is the control."""
    with tenant_scope(town.acorn.tenant_id):
        other, right = [Replica.objects.get(id=one) for one in town.acorn.replica_ids]
        asked = Endpoint.objects.get(id=town.acorn.endpoint_id).served_model
    _reported(valkey_url, r1={other.url: ["phi-3"], right.url: [asked, "phi-3"]})
    pools, own = _pages(town, other)
    assert pools.count(PILL) == 1
    assert f"llama-chat asks for {asked}" in pools
    assert f"Endpoint llama-chat asks for the model {asked}, which this engine does not list" in own
    assert "does not list" not in _pages(town, right)[1]


@pytest.mark.parametrize("models", [[], None, "phi-3", [7]])
def test_what_no_router_has_a_list_of_speaks_against_nobody(town: Town, valkey_url: str, models: Any) -> None:
    with tenant_scope(town.acorn.tenant_id):
        replica = Replica.objects.get(id=town.acorn.replica_ids[0])
    _reported(valkey_url, r1={replica.url: models})
    pools, own = _pages(town, replica)
    assert PILL not in pools
    assert "does not list" not in own
    _reported(valkey_url, r1={replica.url: ["phi-3"]})
    assert PILL in _pages(town, replica)[0]


def test_one_router_that_sees_the_model_is_enough(town: Town, valkey_url: str) -> None:
    with tenant_scope(town.acorn.tenant_id):
        replica = Replica.objects.get(id=town.acorn.replica_ids[0])
        asked = Endpoint.objects.get(id=town.acorn.endpoint_id).served_model
    for lists in ((["phi-3"], [asked]), ([asked], ["phi-3"])):
        _reported(valkey_url, r1={replica.url: lists[0]}, r2={replica.url: lists[1]})
        assert PILL not in _pages(town, replica)[0]
    _reported(valkey_url, r1={replica.url: ["phi-3"]}, r2={replica.url: ["phi-3"]})
    assert PILL in _pages(town, replica)[0]


def test_what_is_not_asked_of_a_replica_is_not_missed(town: Town, valkey_url: str) -> None:
    """An endpoint that takes no requests, one of another engine family, one of another tenant; a replica that is out of service."""
    with tenant_scope(town.acorn.tenant_id):
        replica = Replica.objects.get(id=town.acorn.replica_ids[0])
    _reported(valkey_url, r1={replica.url: ["phi-3"]})
    assert PILL in _pages(town, replica)[0]
    for changed in ({"enabled": False}, {"engine": "sglang"}):
        with tenant_scope(town.acorn.tenant_id):
            before = {name: getattr(Endpoint.objects.get(id=town.acorn.endpoint_id), name) for name in changed}
            Endpoint.objects.filter(id=town.acorn.endpoint_id).update(**changed)
        assert PILL not in _pages(town, replica)[0]
        with tenant_scope(town.acorn.tenant_id):
            Endpoint.objects.filter(id=town.acorn.endpoint_id).update(**before)
    with tenant_scope(town.acorn.tenant_id):
        Replica.objects.filter(id=replica.id).update(state="paused")
    assert PILL not in _pages(town, replica)[0]


def test_names_are_text(town: Town, valkey_url: str) -> None:
    evil = "<img src=x onerror=alert(1)>"
    with tenant_scope(town.acorn.tenant_id):
        replica = Replica.objects.get(id=town.acorn.replica_ids[0])
        Endpoint.objects.filter(id=town.acorn.endpoint_id).update(name=evil, served_model=evil)
    _reported(valkey_url, r1={replica.url: ["phi-3"]})
    for page in _pages(town, replica):
        assert "<img" not in page
        assert "asks for" in page
