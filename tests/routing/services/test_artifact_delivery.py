"""Artifacts on their way to routers, on real PostgreSQL and Valkey: there with the snapshot that names them, gone when none does."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest
import redis
from django.utils import timezone

from routing.core import artifact
from routing.models import ModelSpec
from routing.services import artifact_delivery, artifacts, catalogue, publishing
from tenants.scoping import tenant_scope
from tenants.services import provisioning
from tests.fakes.artifacts import TEMPLATE, TOKENIZER, digest
from tests.routing.services.made import Made
from tests.routing.services.rows import ACTOR, a_model, a_pool, an_endpoint

pytestmark = pytest.mark.django_db


@pytest.fixture
def client(valkey_url: str) -> Iterator[redis.Redis]:
    publishing._client.cache_clear()
    with redis.Redis.from_url(valkey_url) as made:
        yield made


def named_model(tenant_id: UUID, name: str = "m-7b", tokenizer: bytes = TOKENIZER) -> ModelSpec:
    """A model with both artifacts, uploaded."""
    artifacts.store(tenant_id=tenant_id, actor=ACTOR, kind="tokenizer", name="t", content=tokenizer)
    artifacts.store(tenant_id=tenant_id, actor=ACTOR, kind="chat_template", name="c", content=TEMPLATE)
    return a_model(tenant_id, name, tokenizer_sha256=digest(tokenizer).hex(), chat_template_sha256=digest(TEMPLATE).hex())


def held(client: redis.Redis) -> set[bytes]:
    """The digests that Valkey holds; each one unpacks to its own content."""
    found = set()
    for key in client.keys(artifact.KEY.format("*")):
        packed = client.get(key)
        assert isinstance(packed, bytes)
        assert isinstance(key, bytes)
        found_digest = bytes.fromhex(key.decode().rpartition(":")[2])
        artifact.unpack(packed, found_digest)
        found.add(found_digest)
    assert {bytes.fromhex(artifact_delivery._text(name)) for name in client.hkeys(artifact_delivery.HELD)} == found
    return found


BOTH = {digest(TOKENIZER), digest(TEMPLATE)}


def test_publishing_brings_along_what_the_snapshot_names(acorn: Made, client: redis.Redis) -> None:
    """Uploaded and named by a model: not needed yet. Named by an endpoint's model: there."""
    with tenant_scope(acorn.id):
        model = named_model(acorn.id)
    publishing.publish(acorn.id)
    assert held(client) == set()
    with tenant_scope(acorn.id):
        an_endpoint(acorn.id, model=model)
    publishing.publish(acorn.id)
    assert held(client) == BOTH


def test_the_sweep_repairs_what_is_lost(acorn: Made, client: redis.Redis) -> None:
    with tenant_scope(acorn.id):
        an_endpoint(acorn.id, model=named_model(acorn.id))
    publishing.sweep()
    client.delete(artifact.KEY.format(digest(TOKENIZER).hex()))
    assert publishing.sweep() == []
    assert held(client) == BOTH
    client.flushdb()
    publishing.sweep()
    assert held(client) == BOTH


def test_what_is_large_waits_for_the_sweep(acorn: Made, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook of a commit has a fifth of a second: it brings the template, the sweep the tokenizer."""
    monkeypatch.setattr(publishing, "DIRECT_ARTIFACT_BYTES", len(TEMPLATE))
    with tenant_scope(acorn.id):
        an_endpoint(acorn.id, model=named_model(acorn.id))
    publishing.publish(acorn.id)
    assert held(client) == {digest(TEMPLATE)}
    publishing.sweep()
    assert held(client) == BOTH


def test_a_tenant_has_a_bound_of_its_own(acorn: Made, birch: Made, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_delivery, "MAX_BYTES_PER_TENANT", len(TOKENIZER) + len(TEMPLATE) + 10)
    other = TOKENIZER.replace(b"\n", b" ")
    with tenant_scope(acorn.id):
        an_endpoint(acorn.id, "one", model=named_model(acorn.id))
        an_endpoint(acorn.id, "two", model=named_model(acorn.id, "m2", other), pool=a_pool(acorn.id, "second"))
    publishing.sweep()
    assert 0 < len(held(client)) < 3  # not both tokenizers
    with tenant_scope(birch.id):
        an_endpoint(birch.id, model=named_model(birch.id))
    publishing.sweep()
    assert held(client) >= BOTH


def test_what_two_name_stays_until_neither_does(acorn: Made, birch: Made, client: redis.Redis) -> None:
    models = {}
    for tenant in (acorn, birch):
        with tenant_scope(tenant.id):
            models[tenant.id] = named_model(tenant.id)
            an_endpoint(tenant.id, model=models[tenant.id])
    publishing.sweep()
    assert held(client) == BOTH
    with tenant_scope(acorn.id):
        catalogue.update_model(tenant_id=acorn.id, actor=ACTOR, model_id=models[acorn.id].id, tokenizer_sha256=None, chat_template_sha256=None)
    publishing.sweep()
    assert held(client) == BOTH
    with tenant_scope(birch.id):
        provisioning.delete(tenant_id=birch.id, actor=ACTOR, now=timezone.now())
    publishing.sweep()
    publishing.sweep()
    assert held(client) == set()


def test_an_artifact_named_at_the_last_moment_stays(acorn: Made, client: redis.Redis) -> None:
    """Between the sweep's look and its removal a tenant may come to name it: Valkey itself asks again."""
    with tenant_scope(acorn.id):
        an_endpoint(acorn.id, model=named_model(acorn.id))
    publishing.publish(acorn.id)
    key = artifact.KEY.format(digest(TOKENIZER).hex())
    script = artifact_delivery._REMOVE_UNNAMED
    assert client.eval(script, 3, artifact_delivery.REFS, artifact_delivery.HELD, key, digest(TOKENIZER).hex()) == 0
    assert held(client) == BOTH


def test_a_document_published_before_names_were_noted_is_published_again(acorn: Made, client: redis.Redis) -> None:
    """So that an update of the control plane delivers what the tenants of the day before name."""
    with tenant_scope(acorn.id):
        an_endpoint(acorn.id, model=named_model(acorn.id))
    publishing.publish(acorn.id)
    client.delete(artifact_delivery.REFS, artifact_delivery.HELD, *(artifact.KEY.format(one.hex()) for one in BOTH))
    assert publishing.sweep() != []
    assert held(client) == BOTH
