"""What routers report, acted on: namespaces are assigned to replicas that serve one only, new builds and restarts are noticed. Every two seconds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from routing.models import Replica
from routing.services import isolation
from routing.services.audits import calendar
from routing.services.audits.reports import EngineReport, Reports
from tenants.core.errors import NotFound
from tenants.queries import all_tenants, parse_uuid
from tenants.scoping import tenant_scope

_log = logging.getLogger(__name__)


class Watch:
    """Remembers what it has acted on, so that a quiet fleet costs one look at Valkey and no query. Forgetting it costs queries, no more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._noted: dict[str, tuple[str, float | None]] = {}  # by URL: build and start
        self._owners: dict[UUID, UUID] = {}  # by replica; ids never change hands

    def look(self, reports: Reports, now: datetime) -> None:
        """Act on what differs from the last time. Two looks at once would do the same work twice, so the second one passes."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._note(reports, now)
            self._assign(reports, now)
        finally:
            self._lock.release()

    def _note(self, reports: Reports, now: datetime) -> None:
        said = {url: (engine.build, engine.started_at) for url, engine in reports.engines.items() if engine.build or engine.started_at is not None}
        changed = {url for url, facts in said.items() if self._noted.get(url) != facts}
        if not changed:
            return
        for ref in all_tenants():
            with tenant_scope(ref.tenant_id):
                rows = list(Replica.objects.filter(tenant_id=ref.tenant_id, url__in=changed).order_by("url", "id").distinct("url"))
            for row in rows:
                self._observe(ref.tenant_id, row, reports.engines[row.url], now)
        self._noted |= {url: said[url] for url in changed}
        for url in [url for url in self._noted if url not in reports.engines]:
            del self._noted[url]

    def _observe(self, owner_id: UUID, row: Replica, engine: EngineReport, now: datetime) -> None:
        try:
            with tenant_scope(owner_id):
                seen = isolation.observe(tenant_id=owner_id, replica_id=row.id, build=engine.build, started_at=engine.started_at, now=now)
        except NotFound:
            return  # removed meanwhile
        if seen.build or seen.generation:
            calendar.observed(owner_id, row.id, now, trigger="build" if seen.build else "restart")

    def _assign(self, reports: Reports, now: datetime) -> None:
        wanted = spread(reports.unserved)
        self._find_owners(set(wanted))
        for replica_id, namespace in wanted.items():
            owner = self._owners.get(replica_id)
            if owner is None:
                continue
            try:
                with tenant_scope(owner):
                    isolation.assign(tenant_id=owner, replica_id=replica_id, namespace=namespace, now=now)
            except NotFound:
                self._owners.pop(replica_id, None)

    def _find_owners(self, replica_ids: set[UUID]) -> None:
        unknown = replica_ids - self._owners.keys()
        if not unknown:
            return
        for ref in all_tenants():
            with tenant_scope(ref.tenant_id):
                found = Replica.objects.filter(tenant_id=ref.tenant_id, id__in=unknown).values_list("id", flat=True)
                self._owners |= dict.fromkeys(found, ref.tenant_id)


def spread(unserved: Mapping[str, Sequence[str]]) -> dict[UUID, str]:
    """One waiting namespace for each replica: the oldest that no replica before it takes, so that two free replicas serve two namespaces."""
    wanted: dict[UUID, str] = {}
    for text in sorted(unserved):
        replica_id, names = parse_uuid(text), unserved[text]
        if replica_id is not None and names:
            taken = set(wanted.values())
            wanted[replica_id] = next((name for name in names if name not in taken), names[0])
    return wanted
