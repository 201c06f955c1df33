"""Who is calling, and as what: key, tenant in the path, scope, context versions. Every refusal here is decided in one place for every kind of key.

Policy: a key is presented as ``Authorization: Bearer`` or ``x-api-key`` (not ``api-key``). A foreign credential beside a valid one is ignored;
two different
valid keys are refused rather than resolved by order. Headers are read as bytes that happen to be text: nothing in them can raise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from multidict import CIMultiDictProxy

from namespaces.core.probe import Claims
from routing.core.snapshot import EndpointEntry
from routing.dataplane import errors
from routing.dataplane.view import Grant, PlaneView
from tenants.core import api_key, scopes

MAX_CREDENTIALS = 4
MAX_CONTEXT_NAMES = 16
MAX_CONTEXT_CHARACTERS = 2048
MAX_VERSION_CHARACTERS = 128
MAX_SESSION_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller, acting in one scope. ``probe``: it is an audit's, whose grant and scope exist for this request alone."""

    grant: Grant
    scope_path: str
    probe: Claims | None = None


def _presented(headers: CIMultiDictProxy[str]) -> set[str]:
    """Every credential in the request; none at all if there are more than anybody has, so that no key is found by its place in a list."""
    found: set[str] = set()
    if len(headers.getall("Authorization", [])) > MAX_CREDENTIALS or len(headers.getall("x-api-key", [])) > MAX_CREDENTIALS:
        return found
    for value in headers.getall("Authorization", []):
        kind, _, credential = value.partition(" ")
        if kind.lower() == "bearer" and credential.strip():
            found.add(credential.strip())
    found.update(value.strip() for value in headers.getall("x-api-key", []) if value.strip())
    return {one for one in found if len(one) <= api_key.MAX_CHARACTERS}


def authenticate(view: PlaneView, headers: CIMultiDictProxy[str], *, tenant_slug: str | None, now: float) -> Caller:
    """Find the caller. ``now`` is unix seconds; ``tenant_slug`` is that of the path, where it names one.

    Raises:
        ApiError: 401 for no, unknown, revoked or expired keys and another tenant's path; 403 for a suspended tenant or a scope refused.
    """
    grants = {digest: view.keys[digest] for digest in map(api_key.digest, _presented(headers)) if digest in view.keys}
    usable = [grant for grant in grants.values() if grant.key.expires_at is None or now < grant.key.expires_at]
    if len(usable) > 1:
        raise errors.conflicting_keys()
    if not usable:
        raise errors.invalid_key()
    grant = usable[0]
    if tenant_slug is not None and tenant_slug != grant.tenant.snapshot.slug:
        raise errors.invalid_key()
    if grant.tenant.snapshot.suspended:
        raise errors.suspended()
    return Caller(grant=grant, scope_path=_scope(grant, headers))


def _scope(grant: Grant, headers: CIMultiDictProxy[str]) -> str:
    """The scope to act in: the key's own, or the one named by ``X-Saltroute-Scope`` if it lies at or below it."""
    own = grant.tenant.scope_paths.get(grant.key.scope_id)
    if own is None:  # the snapshot lacks the key's scope: no identity can be built
        raise errors.scope_refused()
    asked = headers.getall("X-Saltroute-Scope", [])
    if not asked:
        return own
    path = asked[0].strip()
    if len(asked) > 1 or not scopes.contains(own, path) or path not in grant.tenant.scopes:  # outside its own scope a key learns nothing of any other
        raise errors.scope_refused()
    return path


def request_context(endpoint: EndpointEntry, headers: CIMultiDictProxy[str]) -> Mapping[str, str]:
    """The versions that the request gives for hidden context: ``X-Saltroute-Context: repo=abc123, tools=v4``, declared names only.

    Raises:
        ApiError: 400 for a name that the endpoint does not declare, one named twice, or a malformed or oversized list.
    """
    text = ",".join(headers.getall("X-Saltroute-Context", []))
    if not text:
        return {}
    if len(text) > MAX_CONTEXT_CHARACTERS:
        raise errors.bad_request("X-Saltroute-Context is too long.", code="invalid_context")
    versions: dict[str, str] = {}
    for item in text.split(","):
        name, equals, version = (part.strip() for part in item.partition("="))
        well_formed = equals and version and len(version) <= MAX_VERSION_CHARACTERS and all("!" <= character <= "~" for character in version)
        if not well_formed or name in versions or name not in endpoint.request_context or len(versions) >= MAX_CONTEXT_NAMES:
            raise errors.bad_request(
                "X-Saltroute-Context takes name=version pairs, each of a name that this model declares, once.", code="invalid_context"
            )
        versions[name] = version
    return versions


def request_id(headers: CIMultiDictProxy[str]) -> str | None:
    """The caller's own X-Request-Id, if it is one value of 1 to 128 printable ASCII characters: echoed and recorded, never used for anything else."""
    values = headers.getall("X-Request-Id", [])
    if len(values) == 1 and 1 <= len(values[0]) <= 128 and all(" " <= character <= "~" for character in values[0]):
        return values[0]
    return None


def session(headers: CIMultiDictProxy[str]) -> bytes | None:
    """The session that ``X-Session-ID`` names, as a digest (16 bytes): what the session policy places by. The header itself goes no further."""
    values = headers.getall("X-Session-ID", [])
    if len(values) != 1 or not 1 <= len(values[0]) <= MAX_SESSION_CHARACTERS:
        return None
    return hashlib.sha256(values[0].encode("utf-8", "surrogateescape")).digest()[:16]
