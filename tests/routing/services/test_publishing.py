"""Publishing, on real Valkey; the router's own code opens what arrives."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.db import transaction

from namespaces.core import keyring
from namespaces.models import TenantKeyVersion
from routing import queries, tasks
from routing.core.snapshot import TenantSnapshot, open_sealed, version_of
from routing.services import pools, publishing, replicas
from tenants.core.api_key import Kind
from tenants.core.errors import Conflict
from tenants.core.roles import Role
from tenants.models import Tenant
from tenants.scoping import tenant_scope
from tenants.services import api_keys, provisioning
from tests.routing.services.made import Made, make
from tests.routing.services.rows import ACTOR, a_model, a_pool, a_replica, an_endpoint, secret, version

pytestmark = pytest.mark.django_db
Opened = Callable[[Made], TenantSnapshot]


@pytest.fixture
def client(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    publishing._client.cache_clear()
    publishing._bursts.rest_until_s = 0.0
    publishing._bursts.spent_s = 0.0
    with redis.Redis.from_url(valkey_url) as made:
        yield made


@pytest.fixture
def opened(client: redis.Redis) -> Opened:
    """What a router sees of a tenant."""

    def read(tenant: Made) -> TenantSnapshot:
        document = client.get(f"saltroute:snap:{tenant.id}")
        assert isinstance(document, bytes)
        public = keyring.publish_public_key(secret("PUBLISH_KEY"))
        return open_sealed(document, tenant_id=tenant.id, root=secret("ROOT_KEY"), publish_public_key=public)

    return read


def test_weights_and_the_pool_that_an_endpoint_spills_to(acorn: Made, birch: Made, platform: Made, opened: Opened) -> None:
    """Each tenant's snapshot has its own weight. Of one name the tenant's own pool wins; a granted one is found too, as long as it is granted."""
    with tenant_scope(platform.id):
        shared = a_pool(platform.id, "shared")
        pools.grant(tenant_id=platform.id, actor=ACTOR, pool_id=shared.id, grantee_id=acorn.id, weight=2.5)
        pools.grant(tenant_id=platform.id, actor=ACTOR, pool_id=shared.id, grantee_id=birch.id)
    spill = {"overload": "spill", "spill_pool": "shared"}
    with tenant_scope(acorn.id):
        endpoint = an_endpoint(acorn.id, slo=spill)
    publishing.publish(acorn.id)
    snapshot = opened(acorn)
    assert {pool.name: pool.weight for pool in snapshot.pools} == {"gpu": 1.0, "shared": 2.5}
    assert snapshot.endpoints[0].spill_pool_id == shared.id
    publishing.publish(birch.id)
    assert [pool.weight for pool in opened(birch).pools] == [1.0]
    with tenant_scope(platform.id):
        with pytest.raises(Conflict, match="spills to this pool"):
            pools.withdraw(tenant_id=platform.id, actor=ACTOR, pool_id=shared.id, grantee_id=acorn.id)
        pools.grant(tenant_id=platform.id, actor=ACTOR, pool_id=shared.id, grantee_id=birch.id, weight=4)
    with tenant_scope(acorn.id):
        own = a_pool(acorn.id, "shared")
    publishing.publish(acorn.id)
    assert opened(acorn).endpoints[0].spill_pool_id == own.id
    publishing.publish(birch.id)
    assert [pool.weight for pool in opened(birch).pools] == [4.0]
    assert endpoint.name == "chat"


def test_a_router_opens_everything_that_was_configured(acorn: Made, platform: Made, opened: Opened) -> None:
    """Keys, scopes, an own and a granted pool, an endpoint with its policies: as a router reads them."""
    with tenant_scope(platform.id):
        shared = a_pool(platform.id, "shared")
        far = a_replica(shared, url="http://127.0.0.1:9005", credential="be-secret-1234", role="prefill", max_concurrency=7)
        pools.grant(tenant_id=platform.id, actor=ACTOR, pool_id=shared.id, grantee_id=acorn.id)
    with tenant_scope(acorn.id):
        model = a_model(acorn.id, quantisation="fp8", tokenizer_revision="t1")
        own = a_pool(acorn.id, "own")
        a_replica(own, kv_events={"endpoint": "tcp://127.0.0.1:9101", "replay": "tcp://127.0.0.1:9201"})
        endpoint = an_endpoint(
            acorn.id, pool=shared, model=model, context={"org": "v7"}, request_context=["repo"], slo={"ttft_p95_ms": 2000}, sharing="key"
        )
        TenantKeyVersion.objects.create(tenant_id=acorn.id, version=1, wrapped=b"w" * 60)
        TenantKeyVersion.objects.create(tenant_id=acorn.id, version=2, wrapped=b"x" * 60)
        key = api_keys.issue_inference(tenant_id=acorn.id, actor=ACTOR, name="app", now=_now()).key
        api_keys.issue_control(tenant_id=acorn.id, actor=ACTOR, name="ci", role="viewer", ceiling=Role.OWNER, now=_now())
        published = version(acorn.id)
    assert publishing.publish(acorn.id) == published
    snapshot = opened(acorn)
    assert (snapshot.slug, snapshot.version, snapshot.deleted, snapshot.suspended) == ("acorn", published, False, False)
    assert snapshot.key_material is not None
    assert snapshot.key_material.version == 2
    assert [(entry.id, entry.digest) for entry in snapshot.keys] == [(key.id, bytes(key.digest))]  # no control token
    assert [scope.path for scope in snapshot.scopes] == [""]
    assert [(pool.name, pool.owner_tenant_id, pool.shared, len(pool.replicas)) for pool in snapshot.pools] == [
        ("own", acorn.id, False, 1),
        ("shared", platform.id, True, 1),
    ]
    assert (snapshot.pools[0].replicas[0].role, snapshot.pools[1].replicas[0].role) == ("both", "prefill")
    assert (snapshot.pools[0].replicas[0].max_concurrency, snapshot.pools[1].replicas[0].max_concurrency) == (None, 7)
    assert snapshot.pools[0].replicas[0].kv_events is not None
    assert snapshot.pools[0].replicas[0].kv_events.replay == "tcp://127.0.0.1:9201"
    sealed = snapshot.pools[1].replicas[0].credential
    assert sealed is not None
    assert keyring.unseal(secret("ROOT_KEY"), sealed, info=keyring.credential_info(platform.id, far.id)) == b"be-secret-1234"
    (entry,) = snapshot.endpoints
    assert (entry.id, entry.pool_id, entry.served_model, entry.sharing) == (endpoint.id, shared.id, "m-7b", "key")
    assert (entry.model.quantisation, entry.model.tokenizer.revision) == ("fp8", "t1")
    assert (entry.context, entry.request_context) == ({"org": "v7"}, ("repo",))
    assert (entry.routing_policy.name, entry.routing_policy.spec) == ("chat", {"policy": "ettft"})
    assert entry.slo is not None
    assert entry.slo.spec == {"ttft_p95_ms": 2000}


def _now() -> Any:
    from django.utils import timezone

    return timezone.now()


def test_assembly_takes_the_same_queries_however_much_there_is(acorn: Made, django_assert_num_queries: Any) -> None:
    """One for the scope's check and eight for the content: no query per row."""
    with tenant_scope(acorn.id):
        an_endpoint(acorn.id)
        with django_assert_num_queries(10):
            publishing.build_snapshot(acorn.id, now_s=time.time())
        pool = a_pool(acorn.id, "second")
        for number in range(5):
            a_replica(pool, f"r{number}", f"http://127.0.0.1:91{number:02d}")
            an_endpoint(acorn.id, f"e{number}", pool=pool, model=a_model(acorn.id, f"m{number}"), slo={"ttft_p95_ms": 100 + number})
            api_keys.issue_inference(tenant_id=acorn.id, actor=ACTOR, name=f"k{number}", now=_now())
        with django_assert_num_queries(10):
            snapshot = publishing.build_snapshot(acorn.id, now_s=time.time())
    assert len(snapshot.endpoints) == 6


def test_an_older_version_never_replaces_a_newer_one(acorn: Made, client: redis.Redis, opened: Opened) -> None:
    """Compare and set: a latecomer changes nothing and announces nothing."""
    with tenant_scope(acorn.id):
        a_pool(acorn.id)
        Tenant.objects.filter(id=acorn.id).update(config_version=7)
    publishing.publish(acorn.id)
    with client.pubsub(ignore_subscribe_messages=True) as heard:  # type: ignore[no-untyped-call]  # not annotated
        heard.subscribe("saltroute:announce")
        heard.get_message(timeout=1)
        with tenant_scope(acorn.id):
            Tenant.objects.filter(id=acorn.id).update(config_version=6)
        publishing.publish(acorn.id)
        with tenant_scope(acorn.id):
            Tenant.objects.filter(id=acorn.id).update(config_version=8)
        publishing.publish(acorn.id)
        message = heard.get_message(timeout=5)
    assert message is not None
    assert message["data"] == f"{acorn.id} 8".encode()
    assert opened(acorn).version == 8
    assert client.hget("saltroute:versions", str(acorn.id)) == b"8"


def test_the_same_version_again_is_left_alone_unless_the_document_is_gone(acorn: Made, client: redis.Redis) -> None:
    publishing.publish(acorn.id)
    first = client.get(f"saltroute:snap:{acorn.id}")
    publishing.publish(acorn.id)
    assert client.get(f"saltroute:snap:{acorn.id}") == first
    client.delete(f"saltroute:snap:{acorn.id}")
    publishing.publish(acorn.id)
    assert client.get(f"saltroute:snap:{acorn.id}") is not None


def test_a_deleted_tenant_leaves_a_tombstone(acorn: Made, opened: Opened) -> None:
    """No key, no pool, no endpoint: every request of it is an unknown key."""
    with tenant_scope(acorn.id):
        an_endpoint(acorn.id)
        provisioning.delete(tenant_id=acorn.id, actor=ACTOR, now=_now())
    publishing.sweep()
    snapshot = opened(acorn)
    assert snapshot.deleted
    assert (snapshot.keys, snapshot.pools, snapshot.endpoints, snapshot.key_material) == ((), (), (), None)


def test_a_suspended_tenant_says_so(acorn: Made, opened: Opened) -> None:
    with tenant_scope(acorn.id):
        provisioning.suspend(tenant_id=acorn.id, actor=ACTOR, suspended=True)
    publishing.publish(acorn.id)
    assert opened(acorn).suspended


def test_the_sweep_publishes_what_differs_and_nothing_else(acorn: Made, birch: Made, client: redis.Redis, opened: Opened) -> None:
    assert set(publishing.sweep()) >= {acorn.id, birch.id}
    assert publishing.sweep() == []
    with tenant_scope(acorn.id):
        a_pool(acorn.id)
    client.delete(f"saltroute:snap:{birch.id}")
    assert set(publishing.sweep()) == {acorn.id, birch.id}
    assert len(opened(acorn).pools) == 1


def test_the_sweep_says_when_the_database_is_behind(acorn: Made, client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    """A restored backup: routers would refuse it, so nobody pretends to have published it."""
    client.hset("saltroute:versions", str(acorn.id), "99")
    client.set(f"saltroute:snap:{acorn.id}", b"newer")
    with caplog.at_level(logging.ERROR, logger="routing.services.publishing"):
        assert acorn.id not in publishing.sweep()
    assert "at version 1 here and at 99 in Valkey" in caplog.text


def test_the_tasks_are_doors_to_the_services(acorn: Made, opened: Opened) -> None:
    tasks.publish(str(acorn.id))
    assert opened(acorn).version == 1
    with tenant_scope(acorn.id):
        a_pool(acorn.id)
    tasks.sweep_publications()
    assert opened(acorn).version == 2


@pytest.mark.django_db(transaction=True)
def test_revoking_a_key_reaches_valkey_within_the_commit(transactional_db: None, opened: Opened) -> None:
    """No Celery runs here: the hook of the commit itself publishes, so the key is gone when the call returns."""
    acorn = make("acorn")
    with tenant_scope(acorn.id):
        key = api_keys.issue_inference(tenant_id=acorn.id, actor=ACTOR, name="app", now=_now()).key
    assert [entry.id for entry in opened(acorn).keys] == [key.id]
    with tenant_scope(acorn.id):
        api_keys.revoke(tenant_id=acorn.id, actor=ACTOR, kind=Kind.INFERENCE, key_id=key.id, ceiling=Role.OWNER, now=_now())
    assert opened(acorn).keys == ()


@pytest.mark.django_db(transaction=True)
def test_many_changes_in_one_commit_are_published_once(transactional_db: None, client: redis.Redis) -> None:
    """Twenty records of one tenant: the first hook publishes the last version, the others see that it is there and build nothing."""
    acorn = make("acorn")
    before = _publications(client)
    with tenant_scope(acorn.id):
        for number in range(20):
            a_pool(acorn.id, f"p{number}")
    assert _publications(client) == before + 1
    assert client.hget("saltroute:versions", str(acorn.id)) == b"21"


def _publications(client: redis.Redis) -> int:
    """How often anybody ran the publishing script on this server."""
    stats: Any = client.info("commandstats")
    return int(stats.get("cmdstat_eval", {}).get("calls", 0))


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_change_publishes_nothing(transactional_db: None, client: redis.Redis) -> None:
    acorn = make("acorn")
    with tenant_scope(acorn.id), transaction.atomic():
        a_pool(acorn.id)
        transaction.set_rollback(True)
    assert client.get(f"saltroute:snap:{acorn.id}") is None


@pytest.mark.django_db(transaction=True)
def test_valkey_away_neither_fails_a_change_nor_holds_it_up(
    transactional_db: None, client: redis.Redis, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    """A Valkey that does not answer: the change stands, one hook waits its bound, the rest are left to the sweep, which repairs."""
    acorn = make("acorn")
    client.client_pause(1500, all=True)
    with caplog.at_level(logging.INFO, logger="routing.services.publishing"), tenant_scope(acorn.id):
        a_pool(acorn.id)
        a_pool(acorn.id, "second")
    lines = [line.getMessage() for line in caplog.records if str(acorn.id) in line.getMessage()]
    assert lines == [
        f"tenant {acorn.id} was not published at once (TimeoutError); the sweep repeats it",
        f"publishing tenant {acorn.id} is left to the sweep",
    ]
    client.client_unpause()
    publishing.sweep()
    assert len(opened(acorn).pools) == 2


def test_a_process_without_keys_publishes_nothing(acorn: Made, client: redis.Redis, settings: Any) -> None:
    """Ingest and bare commands hold no publish key; that is no error."""
    settings.PUBLISH_KEY = None
    publishing.publish_on_commit(acorn.id)
    assert client.keys("saltroute:snap:*") == []


def test_valkey_learns_neither_digests_nor_addresses(acorn: Made, client: redis.Redis) -> None:
    with tenant_scope(acorn.id):
        pool = a_pool(acorn.id)
        a_replica(pool, url="http://127.0.0.1:9009")
        key = api_keys.issue_inference(tenant_id=acorn.id, actor=ACTOR, name="app", now=_now()).key
    publishing.publish(acorn.id)
    document = client.get(f"saltroute:snap:{acorn.id}")
    assert isinstance(document, bytes)
    assert version_of(document) == 4
    assert bytes(key.digest) not in document
    assert b"127.0.0.1" not in document


def test_routers_are_counted_by_what_they_applied(acorn: Made, client: redis.Redis, valkey_url: str) -> None:
    """Applied by 1 of 2: one runs an older version; a damaged report counts as none."""
    client.set("saltroute:router:r1", f'{{"router_id":"r1","state":"ready","versions":{{"{acorn.id}":4}}}}')
    client.set("saltroute:router:r2", f'{{"router_id":"r2","state":"stale","versions":{{"{acorn.id}":3}}}}')
    client.set("saltroute:router:r3", "not json")
    found = queries.routers(acorn.id, 4)
    assert found.summary == "applied by 1 of 2 routers"
    assert [(router.router_id, router.applied_version, router.stale) for router in found.routers] == [("r1", 4, False), ("r2", 3, True)]


def test_without_valkey_routers_are_unknown(acorn: Made, settings: Any) -> None:
    settings.VALKEY_URL = "unix:///nowhere/valkey.sock"
    found = queries.routers(acorn.id, 1)
    assert (found.reachable, found.routers, found.summary) == (False, (), "unknown: Valkey does not answer")


def test_uuid_of_nobody(acorn: Made) -> None:
    """A task for a tenant that never was is our mistake, and says so."""
    with pytest.raises(Tenant.DoesNotExist):
        publishing.publish(uuid.UUID(int=1))


def test_draining_reaches_every_grantee(acorn: Made, platform: Made, opened: Opened) -> None:
    with tenant_scope(platform.id):
        shared = a_pool(platform.id, "shared")
        replica = a_replica(shared)
        pools.grant(tenant_id=platform.id, actor=ACTOR, pool_id=shared.id, grantee_id=acorn.id)
    publishing.publish(acorn.id)
    with tenant_scope(platform.id):
        replicas.set_state(tenant_id=platform.id, actor=ACTOR, replica_id=replica.id, state="draining")
    publishing.publish(acorn.id)
    assert opened(acorn).pools[0].replicas[0].state == "draining"
