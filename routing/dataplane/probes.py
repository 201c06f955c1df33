"""The internal door for audits: who may send a probe, and as whom it then travels the ordinary request path.

A probe is an ordinary request of a synthetic caller: in one of two audit scopes that no tenant can have, with no key of anybody's, pinned to the one
replica that its token names. From here on nothing but that pin, and what is learned and recorded, tells it from a client's request: the same
functions parse, strip, salt and send it.

Policy: a token is good once in each router and for a minute at most. Whatever is wrong with it, the answer is one. What an authentic token names may
be unknown here (a snapshot not applied yet), and that is said.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import replace
from uuid import UUID, uuid5

import msgspec
from multidict import CIMultiDictProxy

from namespaces.core import probe
from namespaces.core.probe import Claims
from namespaces.core.signed import TokenRefused
from routing.dataplane import errors
from routing.dataplane.authenticate import Caller
from routing.dataplane.view import EndpointView, Grant, PlaneView, TenantView
from tenants.core.snapshot import KeyEntry, ScopeEntry

MAX_NONCES = 20_000  # remembered for their tokens' life; more than any audit sends in a minute


class ProbeDoor:
    """Verifies tokens and remembers their nonces."""

    def __init__(self, publish_public_key: bytes) -> None:
        self._publish_public_key = publish_public_key
        self._used: set[str] = set()
        self._ends: list[tuple[float, str]] = []  # a heap: when each nonce may be forgotten

    def caller(self, view: PlaneView, headers: CIMultiDictProxy[str], *, now: float) -> Caller:
        """The synthetic caller of a probe. ``now`` is unix seconds.

        Raises:
            ApiError: 401 for every token that is not good, 404 where it names what this router does not know, 403 for a suspended tenant.
        """
        claims = self._claims(headers, now)
        return as_caller(view, claims)

    def _claims(self, headers: CIMultiDictProxy[str], now: float) -> Claims:
        presented = headers.getall("Authorization", [])
        kind, _, token = presented[0].partition(" ") if len(presented) == 1 else ("", "", "")
        if kind != probe.SCHEME:
            raise errors.invalid_probe()
        try:
            claims = probe.verify(token, self._publish_public_key, now_s=now)
        except TokenRefused:
            raise errors.invalid_probe() from None
        while self._ends and self._ends[0][0] <= now:
            self._used.discard(heapq.heappop(self._ends)[1])
        if claims.nonce in self._used:
            raise errors.invalid_probe()
        if len(self._used) >= MAX_NONCES:
            raise errors.unavailable("overloaded", "The router holds as many probe tokens as it may.")
        self._used.add(claims.nonce)
        heapq.heappush(self._ends, (claims.exp, claims.nonce))
        return claims


def as_caller(view: PlaneView, claims: Claims) -> Caller:
    """The caller that ``claims`` describe: the tenant's snapshot narrowed to one endpoint on one replica, with the audit's scope in it.

    Raises:
        ApiError: 404, 403.
    """
    tenant = view.tenants.get(claims.tenant)
    if tenant is None or tenant.snapshot.deleted:
        raise errors.unknown_probe_target()
    if tenant.snapshot.suspended:
        raise errors.suspended()
    endpoint = next((one for one in tenant.endpoints.values() if one.entry.id == claims.endpoint), None)
    if endpoint is None or all(one.entry.id != claims.replica for one in endpoint.replicas):
        raise errors.unknown_probe_target()
    path = f"audit-{claims.scope.lower()}"
    key = KeyEntry(id=uuid5(claims.run, f"key {claims.scope}"), name=path, digest=b"", scope_id=probe.scope_id(claims.run, claims.scope))
    return Caller(grant=Grant(tenant=_narrowed(tenant, endpoint, claims, path), key=key), scope_path=path, probe=claims)


def _narrowed(tenant: TenantView, endpoint: EndpointView, claims: Claims, path: str) -> TenantView:
    """The tenant as the probe may see it. Its names are kept apart, so that no audit takes room from the tenant's."""
    scope = ScopeEntry(id=probe.scope_id(claims.run, claims.scope), path=path, version=1)
    entry = endpoint.entry
    # At level tenant both audit scopes would have one salt, at level none every request its own: neither could be tried.
    sharing = "scope" if entry.sharing in ("tenant", "none") else entry.sharing
    entry = msgspec.structs.replace(entry, sharing=sharing, served_model=claims.adapter or entry.served_model)
    pinned = replace(endpoint, entry=entry, replicas=tuple(one for one in endpoint.replicas if one.entry.id == claims.replica))
    root = tenant.scopes.get("")
    scopes = {path: scope} if root is None else {"": root, path: scope}
    paths: dict[UUID, str] = {scope.id: path}
    return replace(tenant, endpoints={entry.name: pinned}, scopes=scopes, scope_paths=paths, namespaces=OrderedDict())
