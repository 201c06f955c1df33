"""Configuration as it arrives: sealed snapshots through Valkey, applied within a moment of being announced, kept on disk, never rolled back.

    announce   a published "tenant version" wakes us; that tenant's document is fetched at once
    poll       every second all versions are compared, so that a lost wake-up costs a second and no more
    verify     signature, seal, tenant, version not below the highest ever seen, policies compile; otherwise the last good one stays and status
    says so
    swap       one new immutable view for all requests that begin from now on; those under way keep theirs
    report     what is in force goes to ``saltroute:router:{id}`` every second and at once after a change

A tenant that vanishes from Valkey keeps its last snapshot: deletion is said by a tombstone, not by silence. A document refused once is looked at
again when
its bytes change.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Mapping
from uuid import UUID

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from routing.core.snapshot import SnapshotError, version_of
from routing.dataplane.feeds import state_file
from routing.dataplane.feeds.state_file import StateFile
from routing.dataplane.keys import KeyringError, Keys
from routing.dataplane.state import Plane
from routing.dataplane.view import TenantView, compile_tenant

VERSIONS = "saltroute:versions"
SNAPSHOT = "saltroute:snap:{}"
CHANNEL = "saltroute:announce"
REPORT = "saltroute:router:{}"
REPORT_EX_S = 10
CALL_S = 2.0
FETCH_AT_ONCE = 100
CONTACT_SAVE_S = 30.0
WARN_S = 60.0  # between two warnings that the state cannot be saved, which is tried every second: the log may lie on the same disk
ROLLBACK = "rollback"
log = logging.getLogger("saltroute.snapshots")


class SnapshotFeed:
    """Holds the sealed documents and their high-water marks; owns the view of the plane."""

    def __init__(self, plane: Plane, keys: Keys) -> None:
        self._plane = plane
        self._keys = keys
        self._documents: dict[UUID, bytes] = {}
        self._marks: dict[UUID, int] = {}
        self._refused: dict[UUID, bytes] = {}  # digest of the document refused last
        self._changed = asyncio.Event()  # something to save and to report
        self._saved_at = 0.0
        self._warned_at = -math.inf  # monotonic: when it was last said that the state cannot be saved
        self._saved_marks: dict[UUID, int] | None = None

    # -- applying -----------------------------------------------------------------------------------------------------------------

    def apply(self, documents: Mapping[UUID, bytes]) -> int:
        """Verify documents and put the good ones in force, all in one swap; returns how many were applied."""
        opened = [tenant for tenant_id, document in documents.items() if (tenant := self._open(tenant_id, document)) is not None]
        if opened or not self._plane.feed.loaded:
            self._plane.swap(self._plane.view.with_tenants(opened))
            self._plane.metrics.snapshots_applied.inc(len(opened))
            self._changed.set()
        self._plane.metrics.config_ok.set(not self._plane.feed.refused)
        return len(opened)

    def _open(self, tenant_id: UUID, document: bytes) -> TenantView | None:
        digest = hashlib.sha256(document).digest()
        if self._refused.get(tenant_id) == digest:
            return None
        mark = self._marks.get(tenant_id, 0)
        try:
            version = version_of(document)
            if version == mark and tenant_id in self._plane.view.tenants:
                return None
            if version < mark:
                self._refuse(tenant_id, digest, ROLLBACK)
                return None
            tenant = compile_tenant(self._keys.open_snapshot(document, tenant_id), self._keys)
        except (SnapshotError, ValueError) as error:
            self._refuse(tenant_id, digest, str(error) if isinstance(error, SnapshotError) else "malformed")
            return None
        self._marks[tenant_id] = version
        self._documents[tenant_id] = document
        self._refused.pop(tenant_id, None)
        self._plane.feed.refused.pop(tenant_id, None)
        return tenant

    def _refuse(self, tenant_id: UUID, digest: bytes, reason: str) -> None:
        kind = reason if reason == ROLLBACK else "invalid"
        self._refused[tenant_id] = digest
        self._plane.feed.refused[tenant_id] = kind
        self._plane.metrics.snapshots_refused.labels(reason=kind).inc()
        self._changed.set()
        log.error("snapshot of tenant %s refused: %s", tenant_id, reason)

    # -- Valkey -------------------------------------------------------------------------------------------------------------------

    async def sync(self, valkey: Redis) -> None:
        """Compare all versions and fetch what is newer.

        Raises:
            RedisError, OSError, TimeoutError: Valkey is away.
        """
        async with asyncio.timeout(CALL_S):
            versions = await valkey.hgetall(VERSIONS)
        newer: list[UUID] = []
        for raw_id, raw_version in versions.items():
            try:
                tenant_id, version = UUID(_text(raw_id)), int(raw_version)
            except ValueError:
                continue
            if version > self._marks.get(tenant_id, 0) or tenant_id not in self._plane.view.tenants or tenant_id in self._refused:
                newer.append(tenant_id)
            elif version < self._marks[tenant_id]:
                newer.append(tenant_id)  # a rollback: looked at, so that it is refused and shown
        for start in range(0, len(newer), FETCH_AT_ONCE):
            await self.fetch(valkey, newer[start : start + FETCH_AT_ONCE])
        self._in_contact()

    async def fetch(self, valkey: Redis, tenant_ids: list[UUID]) -> None:
        """Fetch and apply some tenants' documents."""
        async with asyncio.timeout(CALL_S):
            found = await valkey.mget([SNAPSHOT.format(tenant_id) for tenant_id in tenant_ids])
        self.apply({tenant_id: document for tenant_id, document in zip(tenant_ids, found, strict=True) if isinstance(document, bytes)})

    def _in_contact(self) -> None:
        self._plane.feed.contact_at = time.time()
        if not self._plane.feed.loaded:
            self.apply({})  # Valkey answered and has no tenant: that is a configuration, and every key is unknown in it

    async def poll(self, valkey: Redis) -> None:
        """Sync every ``poll_s``, for ever."""
        while True:
            try:
                await self.sync(valkey)
            except (RedisError, OSError, TimeoutError) as error:
                log.warning("no contact with Valkey: %s", type(error).__name__)
            await asyncio.sleep(self._plane.config.poll_s)

    async def listen(self, valkey: Redis) -> None:
        """Apply what is announced, for ever; the poll covers the time without a connection."""
        while True:
            try:
                async with valkey.pubsub(ignore_subscribe_messages=True) as subscription:
                    await subscription.subscribe(CHANNEL)
                    async for message in subscription.listen():
                        await self._announced(valkey, message.get("data"))
            except (RedisError, OSError, TimeoutError):
                await asyncio.sleep(self._plane.config.poll_s)

    async def _announced(self, valkey: Redis, data: object) -> None:
        try:
            tenant_id = UUID(bytes(data).split()[0].decode()) if isinstance(data, bytes) else None
        except (ValueError, IndexError):
            return
        if tenant_id is not None:
            await self.fetch(valkey, [tenant_id])
            self._in_contact()

    async def report(self, valkey: Redis) -> None:
        """Tell the control plane what is in force, every ``poll_s`` and at once after a change."""
        while True:
            self._changed.clear()
            try:
                async with asyncio.timeout(CALL_S):
                    await valkey.set(REPORT.format(self._plane.config.router_id), self.status(), ex=REPORT_EX_S)
            except (RedisError, OSError, TimeoutError):
                pass  # the report expires by itself, which says the same
            await self._save_if_needed()
            try:
                async with asyncio.timeout(self._plane.config.poll_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def status(self) -> bytes:
        """The report as JSON."""
        plane, now = self._plane, time.time()
        report = {
            "router_id": plane.config.router_id,
            "versions": {str(tenant_id): tenant.snapshot.version for tenant_id, tenant in plane.view.tenants.items()},
            "refused": {str(tenant_id): reason for tenant_id, reason in plane.feed.refused.items()},
            "at": now,
            "contact_at": plane.feed.contact_at,
            "state": readiness(plane, now),
            "roots": list(self._keys.root_ids),
            "in_flight": plane.in_flight,
            "replicas": plane.engine_report(time.monotonic()),
            "siblings": plane.siblings.report(time.monotonic()),
            "residency_changes": plane.residency.report(),
            "unserved": plane.unserved.report(time.monotonic()),
            "tokens": plane.tokens.report(),
        }
        return msgspec.json.encode(report)

    # -- disk ---------------------------------------------------------------------------------------------------------------------

    def load_from_disk(self) -> None:
        """Start from the state file, if there is a good one. High-water marks count even where a document no longer opens."""
        try:
            state = state_file.load(self._plane.config.state_dir, self._keys)
        except (KeyringError, OSError) as error:
            log.warning("state file cannot be used: %s", type(error).__name__)
            return
        if state is None:
            return
        self._plane.feed.contact_at = state.contact_at
        applied = self.apply(state.documents) if state.documents else 0
        for tenant_id, mark in state.marks.items():
            self._marks[tenant_id] = max(mark, self._marks.get(tenant_id, 0))
        self._saved_at = time.monotonic()
        log.info("%d tenants from disk", applied)

    async def _save_if_needed(self) -> None:
        """Save after a change, and now and then the time of contact."""
        state = StateFile(contact_at=self._plane.feed.contact_at, documents=dict(self._documents), marks=dict(self._marks))
        due = time.monotonic() - self._saved_at > CONTACT_SAVE_S
        if not self._documents or not (due or self._marks != self._saved_marks):
            return
        try:
            await asyncio.to_thread(state_file.save, self._plane.config.state_dir, self._keys, state)
        except OSError as error:
            if time.monotonic() - self._warned_at > WARN_S:
                self._warned_at = time.monotonic()
                log.warning("state file cannot be written: %s; until it can be, a restart without Valkey begins with an older one", error.strerror)
            self._plane.metrics.state_unsaved.set(1)
            return
        if self._warned_at > -math.inf:
            self._warned_at = -math.inf
            log.info("state file is written again")
        self._plane.metrics.state_unsaved.set(0)
        self._saved_marks, self._saved_at = state.marks, time.monotonic()

    async def save(self) -> None:
        """Save now."""
        self._saved_marks = None
        await self._save_if_needed()


def _text(value: bytes | str) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def readiness(plane: Plane, now: float) -> str:
    """``ready``, ``stale`` (served, but long without contact), ``expired``, ``starting`` or ``draining``. ``now`` is unix seconds."""
    if plane.draining:
        return "draining"
    if not plane.feed.loaded:
        return "starting"
    age_s = 0.0 if plane.feed.contact_at is None else now - plane.feed.contact_at
    if age_s > plane.config.expired_s:
        return "expired"
    return "stale" if age_s > plane.config.stale_s else "ready"
