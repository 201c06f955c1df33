"""What a router tells of replicas every few seconds: time with work, evictions by events, blocks that several hold."""

from __future__ import annotations

import asyncio
import uuid
from array import array
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from routing.core import replica_state
from routing.core.kv_events import Batch, Removed, Stored
from routing.core.replica_state import ReplicaState
from routing.dataplane.telemetry import STREAM
from routing.simulator.fleet import Fleet
from tests.fakes.replica import Script
from tests.fakes.rig import Rig, bumped, until
from tests.routing.dataplane.conftest import MakeRig
from tests.routing.dataplane.feeds.test_kv_simulated import ask, fleet, routed
from tests.services import Services

__all__ = ["fleet"]


@pytest.fixture
async def live(valkey_url: str, services: Services) -> AsyncIterator[Redis]:
    """Valkey as a router may use it."""
    async with Redis.from_url(services.valkey_url("router")) as client:
        yield client


async def told(valkey_url: str) -> list[ReplicaState]:
    """The states in the stream, each authenticated."""
    async with Redis.from_url(valkey_url) as reader:
        entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", await reader.xrange(STREAM))
    found = []
    for _, fields in entries:
        if fields.get(b"k") == replica_state.KIND:
            found.append(replica_state.decode(fields[b"d"]))
            assert fields[b"t"].decode() == str(found[-1].tenant_id)
    return found


def by_name(rig: Rig, states: list[ReplicaState]) -> dict[str, ReplicaState]:
    """The newest state of each replica."""
    names = {entry.id: entry.name for pool in rig.acme.pools for entry in pool.replicas}
    return {names[state.replica_id]: state for state in states if state.replica_id in names}


def place(rig: Rig, url: str, *events: Any, generation: int = 1) -> None:
    """Apply events as a subscription does."""
    plane = rig.router.plane
    target = (url, 0)
    if url not in plane.residency.ranks:
        plane.residency.begin(target, 0.0)
        plane.events.set_generation(target, generation, 0.0)
    applied = plane.events.apply(target, Batch(timestamp_s=0.0, events=tuple(events)), 1.0, generation=generation)
    plane.engine(url).evicted_blocks += applied.removed


async def test_time_with_work_is_that_of_the_replica_that_had_it(make_rig: MakeRig, live: Redis, valkey_url: str) -> None:
    """The control beside it: the other replica had none; and the whole observed time is told."""
    rig = await make_rig()
    rig.only_a()
    feed = rig.router.states
    feed.begin()
    release = asyncio.Event()
    rig.a.script = Script(hold=release)
    asking = asyncio.create_task(rig.chat())
    await until(lambda: rig.router.plane.engine(rig.a.url).in_flight == 1)
    assert await feed.tell(live)
    release.set()
    await asking
    await rig.settled()
    assert await feed.tell(live)
    states = await told(valkey_url)
    names = {entry.url: entry.id for pool in rig.acme.pools for entry in pool.replicas}
    of_a = [one for one in states if one.replica_id == names[rig.a.url]]
    assert len(of_a) == 2
    assert all(0 < one.busy_us <= one.observed_us and one.request_us >= one.busy_us for one in of_a)
    assert {one.busy_us for one in states if one.replica_id != names[rig.a.url]} <= {0}
    busy_s, _ = rig.router.plane.engine(rig.a.url).work.read(0.0)
    assert sum(one.busy_us for one in of_a) == pytest.approx(busy_s * 1e6, abs=5)
    assert rig.router.plane.engine(rig.a.url).work.count == 0


async def test_what_could_not_be_sent_is_in_the_next_state(make_rig: MakeRig, live: Redis, valkey_url: str) -> None:
    """Nothing is queued and nothing lost: the next state covers the time of both."""
    rig = await make_rig()
    feed = rig.router.states
    feed.begin()
    await rig.chat()
    await rig.settled()
    async with Redis.from_url("redis://127.0.0.1:1/0", retry=Retry(NoBackoff(), 0)) as away:
        assert await feed.tell(away) is False
    assert await told(valkey_url) == []
    assert await feed.tell(live)
    states = await told(valkey_url)
    assert sum(one.busy_us for one in states) == pytest.approx(sum(engine.work.busy_s for engine in rig.router.plane.engines.values()) * 1e6, abs=10)
    assert "saltroute_replica_states_failed_total 1.0" in rig.router.plane.metrics.page().decode()


async def test_each_replica_is_told_once_for_the_owner_of_its_pool(make_rig: MakeRig, live: Redis, valkey_url: str) -> None:
    """However many tenants' snapshots name it: what is told of a platform's replica is the platform's."""
    rig = await make_rig()
    platform = uuid.uuid4()
    pools = tuple(msgspec.structs.replace(pool, owner_tenant_id=platform, shared=True) for pool in rig.acme.pools)
    for document in (rig.acme, rig.globex):
        granted = tuple(msgspec.structs.replace(pool, id=old.id) for pool, old in zip(pools, document.pools, strict=True))
        rig.publish(bumped(document, pools=granted))
    feed = rig.router.states
    feed.begin()
    assert await feed.tell(live)
    states = await told(valkey_url)
    assert sorted(one.replica_id for one in states) == sorted(entry.id for pool in pools for entry in pool.replicas)
    assert {one.tenant_id for one in states} == {platform}


async def test_what_engines_evict_is_counted_where_it_was_evicted(make_rig: MakeRig, fleet: Fleet) -> None:
    """Simulated engines with small caches, followed by their events: what was stored and is no longer there was evicted."""
    rig = await routed(make_rig, fleet)
    for number in range(40):
        await ask(rig, [*range(10_000 + 700 * number, 10_000 + 700 * number + 645)])
    engines = rig.router.plane.engines
    await until(lambda: sum(engine.evicted_blocks for engine in engines.values()) > 0)
    counters = rig.router.plane.events.counters
    assert sum(engine.evicted_blocks for engine in engines.values()) == counters["removed"]
    assert counters["evicted"] == 0


async def test_of_an_engine_that_is_away_nothing_is_claimed(make_rig: MakeRig, live: Redis, valkey_url: str) -> None:
    """What it held before it went is not shown as if it were there; of the other one it still is."""
    rig = await make_rig()
    feed, plane, namespace = rig.router.states, rig.router.plane, rig.namespace()
    plane.events.claim(namespace.salt, ns_key=namespace.key, owner=b"o", seed=namespace.index_seed)
    block = Stored(hashes=(1,), parent=None, tokens=array("I", range(16)).tobytes(), block_tokens=16, extra_keys=((namespace.salt,),))
    for fake in (rig.a, rig.b):
        place(rig, fake.url, block)
        plane.engine(fake.url).kv_used = 0.5
    feed.begin()
    await feed.tell(live)
    assert f'saltroute_replica_resident_blocks{{replica="{rig.a.url}"}} 1.0' in plane.metrics.page().decode()
    plane.engine(rig.a.url).away_since = 1.0
    feed.begin()
    await feed.tell(live)
    newest = by_name(rig, await told(valkey_url))
    urls = {entry.name: entry.url for pool in rig.acme.pools for entry in pool.replicas}
    seen = {urls[name]: one.resident_blocks for name, one in newest.items()}
    assert seen == {rig.a.url: None, rig.b.url: 1}
    page = plane.metrics.page().decode()
    for metric, value in (("resident_blocks", "1.0"), ("kv_used_ratio", "0.5")):
        assert f'saltroute_replica_{metric}{{replica="{rig.b.url}"}} {value}' in page
        assert f'saltroute_replica_{metric}{{replica="{rig.a.url}"}}' not in page


async def test_evictions_and_copies_are_those_that_events_tell(make_rig: MakeRig, live: Redis, valkey_url: str) -> None:
    """Two replicas hold one block each of the same prompt, one of them another; one block is then removed. Without events there are no figures."""
    rig = await make_rig()
    feed = rig.router.states
    feed.begin()
    assert await feed.tell(live)
    (silent,) = {(one.resident_blocks, one.event_us, one.evicted_blocks) for one in await told(valkey_url)}
    assert silent == (None, 0, 0)
    namespace = rig.namespace()
    plane = rig.router.plane
    plane.events.claim(namespace.salt, ns_key=namespace.key, owner=b"o", seed=namespace.index_seed)
    shared = Stored(hashes=(1,), parent=None, tokens=array("I", range(16)).tobytes(), block_tokens=16, extra_keys=((namespace.salt,),))
    own = Stored(hashes=(2,), parent=None, tokens=array("I", range(50, 66)).tobytes(), block_tokens=16, extra_keys=((namespace.salt,),))
    place(rig, rig.a.url, shared, own)
    place(rig, rig.b.url, shared)
    feed.begin()
    await feed.tell(live)
    place(rig, rig.a.url, Removed(hashes=(2,)))
    await feed.tell(live)
    newest = by_name(rig, await told(valkey_url))
    urls = {entry.name: entry.url for pool in rig.acme.pools for entry in pool.replicas}
    seen = {urls[name]: one for name, one in newest.items()}
    a, b = seen[rig.a.url], seen[rig.b.url]
    assert (a.evicted_blocks, b.evicted_blocks) == (1, 0)
    assert (a.resident_blocks, b.resident_blocks) == (1, 1)
    assert a.event_us == a.observed_us
    page = plane.metrics.page().decode()
    assert f'saltroute_replica_distinct_blocks{{replica="{rig.a.url}"}} 0.5' in page
    assert f'saltroute_replica_evicted_blocks_total{{replica="{rig.a.url}"}} 1.0' in page
