"""The standard rig: a real router, started by its own start-up code, fakes A and B behind it, tenants acme and globex with real keys.

Snapshots are sealed and signed as the control plane does it, and delivered through a real Valkey or straight to the feed.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import aiohttp
import msgspec

from namespaces.core import keyring
from namespaces.core.keyring import TenantKey
from namespaces.core.salts import Namespace
from namespaces.core.snapshot import KeyMaterial
from routing.core import snapshot
from routing.core.record import DecisionRecord
from routing.core.snapshot import EndpointEntry, ModelEntry, PolicyEntry, PoolEntry, ReplicaEntry, TenantSnapshot
from routing.dataplane.app import Router
from routing.dataplane.config import Config, Secrets
from tenants.core import api_key
from tenants.core.snapshot import KeyEntry, ScopeEntry
from tests.fakes.replica import FakeReplica

ROOT = bytes(range(32))
PUBLISH = bytes(range(32, 64))
SECRETS = Secrets(root=ROOT, publish_public_key=keyring.publish_public_key(PUBLISH), records_key=b"records key of the tests")
SPACE = UUID("11111111-2222-4333-8444-555555555555")
LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)

KEY_A = "sk-sr-acme-key-of-the-tests-0000000001"
KEY_A_EMEA = "sk-sr-acme-emea-key-of-the-tests-0002"
KEY_B = "sk-sr-globex-key-of-the-tests-00000003"
HI = {"model": "m-7b", "messages": [{"role": "user", "content": "hi"}]}


def named(name: str) -> UUID:
    """A stable id for a name."""
    return uuid5(SPACE, name)


def tenant_key(tenant_id: UUID) -> TenantKey:
    return TenantKey(tenant_id=tenant_id, version=1, secret=tenant_id.bytes * 2)


def replica_entry(fake: FakeReplica | str, name: str = "", **more: Any) -> ReplicaEntry:
    """A replica of the snapshot for a fake, or for a URL."""
    url, label = (fake, name) if isinstance(fake, str) else (fake.url, fake.name)
    return ReplicaEntry(id=named(f"replica {label}"), name=label, url=url, engine=more.pop("engine", "vllm"), **more)


def endpoint(pool: PoolEntry, name: str = "m-7b", **more: Any) -> EndpointEntry:
    """An endpoint with the defaults of the rig."""
    values: dict[str, Any] = {
        "id": named(f"endpoint {pool.owner_tenant_id} {name}"),
        "name": name,
        "pool_id": pool.id,
        "model": ModelEntry(name="m-7b", revision="r1"),
        "engine": "vllm",
        "served_model": name,
        "routing_policy": PolicyEntry(name="default", version=1, spec={"policy": "ettft"}),
        "created_at": 1_700_000_000.0,
    }
    return EndpointEntry(**{**values, **more})


def tenant(slug: str, replicas: tuple[ReplicaEntry, ...], keys: Mapping[str, str], *, isolation: str = "declared", **more: Any) -> TenantSnapshot:
    """A tenant with scopes root, support and support/emea; ``keys`` maps a key's text to its scope path."""
    tenant_id = named(f"tenant {slug}")
    scopes = {path: ScopeEntry(id=named(f"scope {slug} {path}"), path=path, version=1) for path in ("", "support", "support/emea")}
    pool = PoolEntry(id=named(f"pool {slug}"), name="pool", owner_tenant_id=tenant_id, isolation=isolation, replicas=replicas)  # type: ignore[arg-type] # tests write wrong modes too
    values: dict[str, Any] = {
        "tenant_id": tenant_id,
        "slug": slug,
        "version": 1,
        "published_at": 0.0,
        "key_material": KeyMaterial(version=1, wrapped=keyring.wrap_tenant_key(ROOT, tenant_key(tenant_id), tenant_id.bytes[:12])),
        "scopes": tuple(scopes.values()),
        "keys": tuple(
            KeyEntry(id=named(f"key {text}"), name=text[:12], digest=api_key.digest(text), scope_id=scopes[path].id) for text, path in keys.items()
        ),
        "pools": (pool,),
        "endpoints": (endpoint(pool),),
    }
    return TenantSnapshot(**{**values, **more})


def sealed(document: TenantSnapshot) -> bytes:
    return snapshot.seal(document, seal_public_key=keyring.seal_public_key(ROOT), publish_key=PUBLISH)


def bumped(document: TenantSnapshot, **changes: Any) -> TenantSnapshot:
    """The next version of a snapshot."""
    return msgspec.structs.replace(document, version=document.version + 1, **changes)


@dataclass
class Reply:
    """An answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["error"]
        return found


@dataclass
class Rig:
    """Everything a test touches."""

    router: Router
    a: FakeReplica
    b: FakeReplica
    client: aiohttp.ClientSession
    acme: TenantSnapshot
    globex: TenantSnapshot
    extra: list[FakeReplica] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.router.port}"

    @property
    def internal(self) -> str:
        return f"http://127.0.0.1:{self.router.internal_port}"

    def publish(self, document: TenantSnapshot) -> None:
        """Put a snapshot in force as the feed would on an announcement."""
        self.router.snapshots.apply({document.tenant_id: sealed(document)})
        if document.slug == "acme":
            self.acme = document
        elif document.slug == "globex":
            self.globex = document

    async def call(
        self,
        method: str,
        path: str,
        *,
        key: str | None = KEY_A,
        json: Any = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """One request, answer read to its end."""
        sent = {"Content-Type": "application/json"} if method == "POST" else {}
        if key is not None:
            sent["Authorization"] = f"Bearer {key}"
        sent.update(headers or {})
        data = body if body is not None else None if json is None else msgspec.json.encode(json)
        async with self.client.request(method, f"{self.url}{path}", data=data, headers=sent, allow_redirects=False) as answer:
            return Reply(status=answer.status, headers=answer.headers, body=await answer.read())

    async def chat(self, json: Any = None, **more: Any) -> Reply:
        """A chat completion; ``hi`` unless told otherwise."""
        return await self.call("POST", "/v1/chat/completions", json=HI if json is None and "body" not in more else json, **more)

    async def raw(self, text: bytes) -> bytes:
        """Bytes as written; all bytes that come back until the router closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.router.port)
        writer.write(text)
        try:
            return await asyncio.wait_for(reader.read(), 10)
        finally:
            writer.close()

    def records(self) -> list[DecisionRecord]:
        return self.router.plane.telemetry.waiting()

    async def settled(self) -> None:
        """Wait until no request is in flight."""
        await until(lambda: self.router.plane.in_flight == 0)

    def assert_nothing_held(self) -> None:
        """Every count that requests take is exactly zero."""
        plane = self.router.plane
        assert plane.in_flight == 0
        assert not plane.tasks
        for engine in plane.engines.values():
            assert engine.in_flight == 0
            assert engine.ledger.entries == {}
            assert engine.breaker.probing is False
        assert all(entry.pending == 0 for held in plane.index._replicas.values() for entries in held.owners.values() for entry in entries.values())

    def served(self) -> int:
        return len(self.a.requests) + len(self.b.requests)

    def received(self) -> Any:
        """The body of the only request that reached a replica."""
        (only,) = [*self.a.requests, *self.b.requests]
        return only.json

    def only_a(self) -> None:
        """Leave A alone in acme's pool, so that it is the one that answers."""
        pool = msgspec.structs.replace(self.acme.pools[0], replicas=self.acme.pools[0].replicas[:1])
        self.publish(bumped(self.acme, pools=(pool,)))

    def namespace(self, key: str = KEY_A, scope_path: str = "") -> Namespace:
        """The namespace the router derives for a key of acme's or globex's, from its own view."""
        grant = self.router.plane.view.keys[api_key.digest(key)]
        return grant.tenant.namespace(grant.tenant.endpoints["m-7b"].entry, scope_path=scope_path, key_id=grant.key.id, context={}, subdivision=None)


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    """Poll for a condition of this process; fails loudly when it does not come true."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - the condition is plain state, nobody signals it
            await asyncio.sleep(0.002)


def prefer_a(rig: Rig) -> None:
    """Make A the first choice for every prompt, without keeping B from being the second: round robin begins with the smaller id."""
    pool = rig.acme.pools[0]
    first, second = sorted((named("replica A"), named("replica B")))
    replicas = (
        msgspec.structs.replace(replica_entry(rig.a), id=first),
        msgspec.structs.replace(replica_entry(rig.b), id=second),
    )
    spec = PolicyEntry(name="turns", version=1, spec={"policy": "round_robin"})
    endpoints = tuple(msgspec.structs.replace(one, routing_policy=spec) for one in rig.acme.endpoints)
    rig.publish(bumped(rig.acme, pools=(msgspec.structs.replace(pool, replicas=replicas),), endpoints=endpoints))


@asynccontextmanager
async def standard_rig(
    state_dir: Path,
    *,
    valkey_url: str | None = None,
    deliver: bool = True,
    resolver: aiohttp.abc.AbstractResolver | None = None,
    fakes: tuple[FakeReplica, FakeReplica] | None = None,
    **settings: Any,
) -> AsyncIterator[Rig]:
    """Start the fakes, the router and a client; stop them all. ``deliver=False``: the test publishes itself."""
    a, b = fakes or (FakeReplica("A"), FakeReplica("B"))
    for fake in (a, b):
        if fake.port == 0:
            await fake.start()
    config = replace(
        Config(
            router_id="router-of-the-tests",
            state_dir=state_dir,
            valkey_url=valkey_url,
            port=0,
            internal_port=0,
            allowed_ranges=LOOPBACK,
            scrape_s=3600.0,
            linger_s=0.01,
            record_sample=1.0,
        ),
        **settings,
    )
    router = Router(config, SECRETS, resolver=resolver)
    replicas = (replica_entry(a), replica_entry(b))
    acme = tenant("acme", replicas, {KEY_A: "", KEY_A_EMEA: "support/emea"})
    globex = tenant("globex", replicas, {KEY_B: ""})
    await router.start()
    async with aiohttp.ClientSession(auto_decompress=False) as client:
        rig = Rig(router=router, a=a, b=b, client=client, acme=acme, globex=globex)
        if deliver:
            router.snapshots.apply({document.tenant_id: sealed(document) for document in (acme, globex)})
        try:
            yield rig
        finally:
            await router.stop()
            for fake in (a, b, *rig.extra):
                await fake.stop()
