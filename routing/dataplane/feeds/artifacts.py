"""Tokenizers and chat templates as they arrive: fetched by SHA-256 for the tenants whose snapshots name them, verified, kept on disk, compiled.

    named     only what a snapshot names is fetched, and what none names any more is forgotten
    fetch     from the router's own disk, else from Valkey; believed only with the right SHA-256
    load      into ``Prompts``, and compiled there in the sandbox, so that no request waits for it
    repeat    what is missing or wrong is looked for again, ever more slowly

Nothing here is an outage: until an artifact is there, its endpoints know no exact tokens, and the report says which and why.

Policy: memory is bounded, and shared fairly. A tenant within its share of the bound always gets in, at the expense of tenants beyond theirs; beyond
its share a tenant gets what nobody else needs. One task at a time works for a tenant, and what may take long, compiling, takes none of the few places
for fetching: who uploads what never ends delays nobody else, also where others name the same artifacts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal
from uuid import UUID

from redis.asyncio import Redis
from redis.exceptions import RedisError

from routing.core import artifact
from routing.core.artifact import ArtifactError, Kind
from routing.dataplane.feeds.artifact_files import ArtifactFiles
from routing.dataplane.keys import Keys
from routing.dataplane.state import Plane
from routing.dataplane.view import PlaneView

AT_ONCE = 4  # fetched
FETCH_S = 10.0
ADMIT_S = 10.0
RETRY_S = 1.0  # after the first failure; doubled with each until
RETRY_MAX_S = 60.0
REPORTED = 100  # artifacts that are not ready, in the report
Item = tuple[Kind, bytes]
State = Literal["waiting", "ready", "missing", "damaged", "too_large", "forged", "refused", "full"]
log = logging.getLogger("saltroute.artifacts")


@dataclass(slots=True)
class Held:
    """One artifact that a snapshot names. ``size_bytes`` is 0 until it is loaded; times are monotonic."""

    tenants: tuple[UUID, ...]
    state: State = "waiting"
    reason: str | None = None  # why the sandbox refused it
    size_bytes: int = 0
    due_s: float = 0.0
    delay_s: float = RETRY_S
    owner: UUID | None = None  # the one of its tenants for which it is being brought

    def failed(self, state: State, now_s: float) -> None:
        self.state, self.due_s = state, now_s + self.delay_s
        self.delay_s = min(RETRY_MAX_S, 2 * self.delay_s)


class ArtifactFeed:
    """Keeps ``Prompts`` filled with what the view names."""

    def __init__(self, plane: Plane, keys: Keys) -> None:
        self._plane = plane
        self._prompts = plane.tokens.prompts
        self._files = ArtifactFiles(plane.config.state_dir, keys, plane.config.artifact_disk_bytes)
        self._held: dict[Item, Held] = {}
        self._tasks: dict[Item, asyncio.Task[None]] = {}
        self._wake = plane.swapped
        self._started = False
        self._view: PlaneView | None = None
        self._items: Mapping[Item, tuple[UUID, ...]] = {}

    async def run(self, valkey: Redis | None) -> None:
        """Follow the view, for ever. The prompt service, with its processes, is started when a snapshot first names an artifact."""
        try:
            while True:
                self._wake.clear()
                if not self._started and self._named():
                    await self._prompts.start()
                    self._started = True
                if self._started:
                    self.adjust(valkey)
                self._settle()
                try:
                    async with asyncio.timeout(self._plane.config.poll_s):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            for task in self._tasks.values():
                task.cancel()

    def _settle(self) -> None:
        """Say which artifacts are ready, and what follows from that and from the view: a swap wakes this feed, as the end of each task does."""
        desk = self._plane.tokens
        ready = frozenset(item for item, held in self._held.items() if held.state == "ready")
        if ready != desk.ready:
            desk.ready = ready
        desk.settle(self._plane)

    def adjust(self, valkey: Redis | None) -> None:
        """Forget what nobody names any more and begin what is due."""
        named = self._named()
        for item in [item for item in self._held if item not in named]:
            self._forget(item)
        for item, tenants in named.items():
            self._held.setdefault(item, Held(tenants=tenants)).tenants = tenants
        now_s = time.monotonic()
        busy = {held.owner for item, held in self._held.items() if item in self._tasks}
        for item, held in self._held.items():
            if sum(not self._held[one].size_bytes for one in self._tasks) >= AT_ONCE:
                return
            if held.state in ("ready", "refused") or held.due_s > now_s or item in self._tasks:
                continue
            held.owner = next((tenant for tenant in held.tenants if tenant not in busy), None)
            if held.owner is None:
                continue
            busy.add(held.owner)
            task = self._tasks[item] = asyncio.create_task(self._bring(item, held, held.owner, valkey), name="artifact")
            task.add_done_callback(partial(self._ended, item))

    def _ended(self, item: Item, task: asyncio.Task[None]) -> None:
        if self._tasks.get(item) is task:
            del self._tasks[item]
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:  # a mistake of ours: seen, and tried again
            log.error("bringing an artifact failed: %s", type(error).__name__)
            if (held := self._held.get(item)) is not None:
                held.failed("waiting", time.monotonic())

    def _named(self) -> Mapping[Item, tuple[UUID, ...]]:
        """What the view names and for whom; looked through once for each view."""
        if self._view is self._plane.view:
            return self._items
        named: dict[Item, list[UUID]] = {}
        for tenant_id, tenant in self._plane.view.tenants.items():
            for item in artifact.named_by(tenant.snapshot):
                named.setdefault(item, []).append(tenant_id)
        self._view, self._items = self._plane.view, {item: tuple(tenants) for item, tenants in named.items()}
        return self._items

    def _forget(self, item: Item) -> None:
        kind, digest = item
        del self._held[item]
        if (task := self._tasks.pop(item, None)) is not None:
            task.cancel()
        self._prompts.unload(digest, kind)

    async def _bring(self, item: Item, held: Held, owner: UUID, valkey: Redis | None) -> None:
        """Fetch, load and compile one artifact; whatever fails is noted and tried again later."""
        kind, digest = item
        if not self._prompts.known(digest, kind):
            try:
                content = await self._fetch(digest, valkey)
            except ArtifactError as error:
                held.failed(error.reason, time.monotonic())
                self._plane.metrics.artifacts_refused.labels(reason=error.reason).inc()
                log.error("artifact %s in Valkey is not used: %s", digest.hex(), error.reason)  # noqa: TRY400 - the reason says all
                return
            if content is None:
                held.failed("missing", time.monotonic())
                return
            if not self._make_room(held, len(content)) or not self._prompts.load(digest, content, kind):
                held.failed("full", time.monotonic())
                self._plane.metrics.artifacts_dropped.labels(where="memory").inc()
                log.warning("artifact %s is not held: its tenant's share of the memory for artifacts is used up", digest.hex())
                return
            held.size_bytes = len(content)
        reason = await self._prompts.admit(digest, kind, owner=owner.bytes, deadline_s=ADMIT_S)
        if reason is None:
            held.state, held.reason = "ready", None
        elif reason.startswith("bad_"):
            held.state, held.reason = "refused", reason
            self._plane.metrics.artifacts_refused.labels(reason=reason).inc()
            log.warning("artifact %s does not compile: %s", digest.hex(), reason)
        else:  # the sandbox was busy or was killed: the next time it may not be
            held.reason = reason
            held.failed("waiting", time.monotonic())

    async def _fetch(self, digest: bytes, valkey: Redis | None) -> bytes | None:
        """The content, or None if nobody has it now.

        Raises:
            ArtifactError: Valkey holds something else under this name.
        """
        packed = await asyncio.to_thread(self._files.read, digest)
        if packed is not None:
            try:
                content = await asyncio.to_thread(artifact.unpack, packed, digest)
            except ArtifactError:
                await asyncio.to_thread(self._files.remove, digest)
            else:
                self._plane.metrics.artifacts_fetched.labels(source="disk").inc()
                return content
        packed = None if valkey is None else await self._from_valkey(digest, valkey)
        if packed is None:
            return None
        content = await asyncio.to_thread(artifact.unpack, packed, digest)
        self._plane.metrics.artifacts_fetched.labels(source="valkey").inc()
        named, held = {one for _, one in self._held}, {one for (_, one), row in self._held.items() if row.size_bytes}
        try:
            dropped = await asyncio.to_thread(self._files.write, digest, packed, named=named, held=held)
        except OSError as error:
            log.warning("artifact %s is not kept on disk: %s", digest.hex(), error.strerror)
        else:
            self._plane.metrics.artifacts_dropped.labels(where="disk").inc(dropped)
        return content

    async def _from_valkey(self, digest: bytes, valkey: Redis) -> bytes | None:
        key = artifact.KEY.format(digest.hex())
        try:
            async with asyncio.timeout(FETCH_S):
                if await valkey.strlen(key) > artifact.MAX_PACKED_BYTES:
                    raise ArtifactError("too_large")
                packed = await valkey.get(key)
        except (RedisError, OSError, TimeoutError):
            return None
        return packed if isinstance(packed, bytes) else None

    def _make_room(self, wanted: Held, size_bytes: int) -> bool:
        """Whether ``size_bytes`` more may be held; artifacts of tenants beyond their share leave for a tenant within its own."""
        limit = self._plane.config.artifact_bytes
        excess = sum(held.size_bytes for held in self._held.values()) + size_bytes - limit
        if excess <= 0:
            return True
        used: Counter[UUID] = Counter()
        for held in self._held.values():
            used.update(dict.fromkeys(held.tenants, held.size_bytes))
        share = limit // max(1, len(used))
        if min(used[tenant] for tenant in wanted.tenants) + size_bytes > share:
            return False
        victims: list[Item] = []
        for item, held in sorted(self._held.items(), key=lambda one: -one[1].size_bytes):
            if excess > 0 and held.size_bytes and item not in self._tasks and all(used[tenant] > share for tenant in held.tenants):
                victims.append(item)
                excess -= held.size_bytes
                used.subtract(dict.fromkeys(held.tenants, held.size_bytes))
        if excess > 0:
            return False
        for item in victims:
            self._drop(item)
        return True

    def _drop(self, item: Item) -> None:
        kind, digest = item
        held = self._held[item]
        held.size_bytes = 0
        held.failed("full", time.monotonic())
        self._prompts.unload(digest, kind)
        self._plane.metrics.artifacts_dropped.labels(where="memory").inc()
        log.warning("artifact %s left the memory for artifacts: its tenants use more than their share", digest.hex())

    def status(self) -> dict[str, object]:
        """For the router's report: how many are ready, and what keeps the others."""
        others = [(item, held) for item, held in self._held.items() if held.state != "ready"]
        return {
            "ready": len(self._held) - len(others),
            "bytes": sum(held.size_bytes for held in self._held.values()),
            "others": {digest.hex(): {"kind": kind, "state": held.state, "reason": held.reason} for (kind, digest), held in others[:REPORTED]},
        }
