"""``namespace explain``: which cache identity a key's requests for a model get, from the rows as they are published. Needs no root key."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from django.utils import timezone
from multidict import CIMultiDict, CIMultiDictProxy

from namespaces.core.keyring import KeyringError, Roots
from namespaces.core.salts import derive
from namespaces.core.subject import Subject
from routing.core import explanation, subject
from routing.core.explanation import Explanation
from routing.core.snapshot import EndpointEntry, TenantSnapshot
from routing.dataplane.authenticate import request_context
from routing.dataplane.errors import ApiError
from routing.services import publishing
from tenants import queries
from tenants.core import scopes
from tenants.core.api_key import Kind
from tenants.core.errors import Invalid, NotFound, referred
from tenants.models import ApiKey

SCOPE_HEADER = "X-Saltroute-Scope"
CONTEXT_HEADER = "X-Saltroute-Context"
READ_HEADERS = {SCOPE_HEADER.lower(), CONTEXT_HEADER.lower()}
MAX_HEADERS = 50
MAX_SUBDIVISION_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class Explained:
    """The answer. ``notes`` say what keeps such a request from being served, and which of its inputs count for nothing."""

    tenant: str
    key: str
    model: str
    scope: str
    key_version: int | None  # of the tenant key under which the names are derived
    public_id: str | None  # only where a root key is held
    notes: tuple[str, ...]
    identity: Explanation


def explain(
    *, tenant_id: UUID, key: str, model: str, headers: Mapping[str, str], cache_salt: str | None = None, roots: Roots | None = None
) -> Explained:
    """Explain what the router would derive for a request with this key (id or name), model name and headers.

    Raises:
        NotFound: no such key or model in this tenant.
        Invalid: a header that the router would refuse; ``field`` names it.
    """
    with referred("key"):
        row = queries.key(tenant_id, Kind.INFERENCE, key)
    snapshot = publishing.build_snapshot(tenant_id, now_s=time.time())
    endpoint = next((entry for entry in snapshot.endpoints if entry.name == model), None)
    if endpoint is None:
        raise NotFound(field="model")
    if len(headers) > MAX_HEADERS:
        raise Invalid(f"At most {MAX_HEADERS} headers.", field="headers")
    given = CIMultiDictProxy(CIMultiDict(headers))
    path = _scope(snapshot, row, given.get(SCOPE_HEADER))
    try:
        context = request_context(endpoint, given)
    except ApiError as refusal:
        raise Invalid(refusal.message, field=CONTEXT_HEADER) from None
    if cache_salt is not None and not 1 <= len(cache_salt) <= MAX_SUBDIVISION_CHARACTERS:
        raise Invalid(f"'cache_salt' must be text of 1 to {MAX_SUBDIVISION_CHARACTERS} characters.", field="cache_salt")
    by_path = {scope.path: scope for scope in snapshot.scopes}
    built = subject.build(
        tenant=snapshot,
        endpoint=endpoint,
        levels=subject.scope_levels(path, by_path),  # at level tenant the component itself keeps the root alone
        key_id=row.id,
        request_context=context,
        client_subdivision=cache_salt,
        request_nonce=explanation.NONCE,
    )
    return Explained(
        tenant=snapshot.slug,
        key=row.name,
        model=model,
        scope=path,
        key_version=snapshot.key_material.version if snapshot.key_material else None,
        public_id=None if endpoint.sharing == "none" else _public_id(snapshot, built, roots),
        notes=tuple(_notes(snapshot, endpoint, row, given, cache_salt)),
        identity=explanation.explain(built),
    )


def _scope(snapshot: TenantSnapshot, row: ApiKey, asked: str | None) -> str:
    """The scope acted in, by the router's rule: absent and not allowed are one refusal."""
    paths = {scope.id: scope.path for scope in snapshot.scopes}
    own = paths.get(row.scope_id) if row.scope_id else None
    if own is None:
        raise Invalid("This key's scope is gone: its requests are refused.", field="key")
    if asked is None:
        return own
    path = asked.strip()
    if path not in paths.values() or not scopes.contains(own, path):
        raise Invalid("The router refuses this scope: it is unknown, or not at or below the key's own.", field=SCOPE_HEADER)
    return path


def _public_id(snapshot: TenantSnapshot, built: Subject, roots: Roots | None) -> str | None:
    material = snapshot.key_material
    if roots is None or material is None:
        return None
    try:
        return derive(roots.unwrap(snapshot.tenant_id, material.version, material.wrapped), built).public_id
    except KeyringError:
        return None


def _notes(snapshot: TenantSnapshot, endpoint: EndpointEntry, row: ApiKey, headers: Mapping[str, str], cache_salt: str | None) -> list[str]:
    status = queries.key_status(row, timezone.now())
    checks = (
        (status is not queries.KeyStatus.ACTIVE, f"this key is {status.value}: its requests are refused"),
        (snapshot.suspended, "this tenant is suspended: its requests are refused"),
        (not endpoint.enabled, "this endpoint is switched off: its requests are refused"),
        (row.endpoints is not None and endpoint.name not in row.endpoints, "this key may not use this endpoint: its requests are refused"),
        (snapshot.key_material is None, "this tenant has no key yet: its requests are refused until the keys worker has made one"),
        (cache_salt is not None and not endpoint.client_subdivision, "cache_salt is dropped: this endpoint does not let clients subdivide"),
    )
    ignored = sorted({name for name in headers if name.lower() not in READ_HEADERS}, key=str.lower)
    said = [note for applies, note in checks if applies]
    return said + ([f"no part of the identity: {', '.join(ignored)}"] if ignored else [])
