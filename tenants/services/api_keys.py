"""API keys: inference keys for the data plane, control tokens for this API. A key is shown once; only its digest is kept.

How they are used is in :mod:`tenants.services.key_use`, which texts they had before in :mod:`tenants.services.former_texts`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from tenants import changes, queries
from tenants.actor import Actor
from tenants.constraints import refuse_on
from tenants.core import api_key, names, scopes
from tenants.core.api_key import Kind
from tenants.core.errors import Conflict, Forbidden, Invalid, LimitReached, NotFound, Refusal
from tenants.core.roles import Role
from tenants.models import PLATFORM_SLUG, ApiKey, Scope
from tenants.services import former_texts, locks

MAX_KEYS_PER_TENANT = 1000  # inference keys that are not revoked
MAX_TOKENS_PER_TENANT = 200  # control tokens that are not revoked
MAX_ENDPOINTS_PER_KEY = 100
NAME_MAX = 100  # characters
_FOREIGN_PREFIX = {Kind.INFERENCE: "srct-", Kind.CONTROL: "sk-sr-"}


@dataclass(frozen=True, slots=True)
class Issued:
    """A key and its text, which is shown to the caller once and then forgotten. None where the caller brought it."""

    key: ApiKey
    secret: str | None = field(repr=False)


def issue_inference(
    *,
    tenant_id: UUID,
    actor: Actor,
    name: str,
    scope_path: str = scopes.ROOT,
    endpoints: list[str] | None = None,
    expires_at: datetime | None = None,
    own_secret: str | None = None,
    now: datetime,
) -> Issued:
    """Issue an inference key bound to a scope; ``endpoints`` None opens all. ``own_secret`` is a key the operator brought, never shown again.

    Raises:
        Invalid: name, scope, endpoints, expiry or own secret are not acceptable.
        Conflict: the name is in use.
        LimitReached: ``MAX_KEYS_PER_TENANT``.
    """
    _check_name(name)
    tenant = locks.tenant(tenant_id)
    if tenant.slug == PLATFORM_SLUG:
        raise Invalid("The platform serves no requests of its own: it has no inference keys.")
    _check_expiry(expires_at, now)
    _check_endpoints(endpoints)
    scope = _scope(tenant_id, scope_path)
    _check_room(tenant_id, Kind.INFERENCE, MAX_KEYS_PER_TENANT, "MAX_KEYS_PER_TENANT")
    key = ApiKey(tenant_id=tenant_id, kind=Kind.INFERENCE.value, name=name, expires_at=expires_at, created_by=actor.label)
    key.scope, key.endpoints = scope, endpoints
    return _store(key, actor, _own(own_secret, Kind.INFERENCE), "api_key.issue")


def issue_control(
    *,
    tenant_id: UUID,
    actor: Actor,
    name: str,
    role: str,
    ceiling: Role,
    expires_at: datetime | None = None,
    own_secret: str | None = None,
    now: datetime,
) -> Issued:
    """Issue a control token with a role, at most ``ceiling`` (the issuer's own role).

    Raises:
        Invalid: name, role or expiry is not acceptable.
        Forbidden: the role is above the issuer's.
        Conflict: the name is in use.
        LimitReached: ``MAX_TOKENS_PER_TENANT``.
    """
    _check_name(name)
    granted = check_role(role, ceiling)
    locks.tenant(tenant_id)
    _check_expiry(expires_at, now)
    _check_room(tenant_id, Kind.CONTROL, MAX_TOKENS_PER_TENANT, "MAX_TOKENS_PER_TENANT")
    key = ApiKey(tenant_id=tenant_id, kind=Kind.CONTROL.value, name=name, role=granted.value, expires_at=expires_at, created_by=actor.label)
    return _store(key, actor, _own(own_secret, Kind.CONTROL), "control_token.issue")


def issue_platform_token(
    *, tenant_id: UUID, actor: Actor, name: str, expires_at: datetime | None = None, own_secret: str | None = None, now: datetime
) -> Issued:
    """Issue a platform operator's token; ``tenant_id`` is the platform's own tenant. The caller has checked that the actor is a platform operator.

    Raises:
        Invalid: not the platform's tenant, or name or expiry is not acceptable.
        Conflict: the name is in use.
        LimitReached: ``MAX_TOKENS_PER_TENANT``.
    """
    _check_name(name)
    if locks.tenant(tenant_id).slug != PLATFORM_SLUG:
        raise Invalid("Platform tokens live in the platform's tenant.")
    _check_expiry(expires_at, now)
    _check_room(tenant_id, Kind.CONTROL, MAX_TOKENS_PER_TENANT, "MAX_TOKENS_PER_TENANT")
    key = ApiKey(
        tenant_id=tenant_id, kind=Kind.CONTROL.value, name=name, role=Role.OWNER.value, platform=True, expires_at=expires_at, created_by=actor.label
    )
    return _store(key, actor, _own(own_secret, Kind.CONTROL), "control_token.issue")


def rotate(*, tenant_id: UUID, actor: Actor, kind: Kind, key_id: UUID, ceiling: Role, own_secret: str | None = None, now: datetime) -> Issued:
    """Give a key a new text; the old one opens nothing from the next snapshot on, and never again.

    Id, name, scope and what it shares caches with stay.

    Raises:
        NotFound: no such key of this kind.
        Conflict: it is revoked or expired, or the own secret is or was some key's.
        Forbidden: a token with a role above the caller's.
        LimitReached: ``former_texts.MAX_FORMER_TEXTS_PER_KEY``.
    """
    key = _locked(tenant_id, kind, key_id)
    _check_reach(key, ceiling)
    status = queries.key_status(key, now)
    if status is not queries.KeyStatus.ACTIVE:
        raise Conflict(f"This key is {status.value}: issue a new one.")
    return _store(key, actor, _own(own_secret, kind), f"{_noun(kind)}.rotate")


def revoke(*, tenant_id: UUID, actor: Actor, kind: Kind, key_id: UUID, ceiling: Role, reason: str = "", now: datetime) -> ApiKey:
    """Revoke a key; a control token is refused at once, an inference key once routers hold the snapshot that follows. Safe to repeat.

    Raises:
        NotFound: no such key of this kind.
        Forbidden: a token with a role above the caller's.
        Invalid: a reason that cannot be written down.
    """
    names.reason(reason)
    key = _locked(tenant_id, kind, key_id)
    _check_reach(key, ceiling)
    if key.revoked_at is not None:
        return key
    key.revoked_at = now
    key.save(update_fields=["revoked_at"])
    changes.record(
        tenant_id=tenant_id,
        actor=actor,
        action=f"{_noun(kind)}.revoke",
        object_id=key.id,
        object_label=key.name,
        reason=reason,
        publishes=kind is Kind.INFERENCE,
    )
    return key


def update(*, tenant_id: UUID, actor: Actor, kind: Kind, key_id: UUID, ceiling: Role, fields: Mapping[str, Any], now: datetime) -> ApiKey:
    """Change a key's ``name``, ``expires_at`` or, of an inference key, ``endpoints``; what is not in ``fields`` stays. Safe to repeat.

    Raises:
        NotFound: no such key of this kind.
        Forbidden: a token with a role above the caller's.
        Invalid: a value is not acceptable.
        Conflict: it is revoked, or the name is in use.
    """
    key = _locked(tenant_id, kind, key_id)
    _check_reach(key, ceiling)
    if key.revoked_at is not None:
        raise Conflict("This key is revoked: issue a new one.")
    before = {"name": key.name, **_facts(key)}
    if "name" in fields:
        _check_name(fields["name"])
        key.name = fields["name"]
    if "expires_at" in fields:
        _check_expiry(fields["expires_at"], now)
        key.expires_at = fields["expires_at"]
    if "endpoints" in fields and kind is Kind.INFERENCE:
        _check_endpoints(fields["endpoints"])
        key.endpoints = fields["endpoints"]
    after = {"name": key.name, **_facts(key)}
    if before == after:
        return key
    with refuse_on(api_key_name_per_tenant=Conflict("This name is in use.", field="name")):
        key.save(update_fields=["name", "expires_at", "endpoints"])
    changes.record(
        tenant_id=tenant_id,
        actor=actor,
        action=f"{_noun(kind)}.update",
        object_id=key.id,
        object_label=key.name,
        before=before,
        after=after,
        publishes=kind is Kind.INFERENCE,
    )
    return key


def declare_inference(
    *,
    tenant_id: UUID,
    actor: Actor,
    name: str,
    own_secret: str | None,
    scope_path: str = scopes.ROOT,
    endpoints: list[str] | None = None,
    expires_at: datetime | None = None,
    now: datetime,
) -> tuple[ApiKey, list[str]]:
    """Make the inference key ``name`` be as declared. Returns it and what had to change: empty when nothing did, ``["issued"]`` for a new key.

    ``own_secret`` None keeps the text in force. Another text replaces it as :func:`rotate` does.

    Raises:
        Invalid: as :func:`issue_inference`, or there is no text that could be kept.
        Conflict, LimitReached: as :func:`issue_inference` and :func:`rotate`.
    """
    locks.tenant(tenant_id)
    key = ApiKey.objects.filter(tenant_id=tenant_id, kind=Kind.INFERENCE.value, name=name, revoked_at=None).first()
    if key is None:
        if own_secret is None:
            raise Invalid("There is no stored secret that could be kept here: give env:NAME or file:PATH.", field="secret")
        issued = issue_inference(
            tenant_id=tenant_id,
            actor=actor,
            name=name,
            scope_path=scope_path,
            endpoints=endpoints,
            expires_at=expires_at,
            own_secret=own_secret,
            now=now,
        )
        return issued.key, ["issued"]
    changed = _redeclare(key, scope=_scope(tenant_id, scope_path), endpoints=endpoints, expires_at=expires_at, now=now)
    if own_secret is not None and bytes(key.digest) != api_key.digest(own_secret):
        changed.append("secret")
        _store(key, actor, _own(own_secret, Kind.INFERENCE), "api_key.declare", after={"changed": changed})
    elif changed:
        _write(key, actor, "api_key.declare", after={"changed": changed})
    return key, changed


def _redeclare(key: ApiKey, *, scope: Scope, endpoints: list[str] | None, expires_at: datetime | None, now: datetime) -> list[str]:
    changed = []
    if key.scope_id != scope.id:
        key.scope = scope
        changed.append("scope")
    if key.endpoints != endpoints:
        _check_endpoints(endpoints)
        key.endpoints = endpoints
        changed.append("endpoints")
    if key.expires_at != expires_at:
        _check_expiry(expires_at, now)
        key.expires_at = expires_at
        changed.append("expires_at")
    return changed


def check_role(role: object, ceiling: Role, *, field: str = "role") -> Role:
    """A role that somebody with ``ceiling`` may give away.

    Raises:
        Invalid: no such role.
        Forbidden: it is above theirs.
    """
    if not isinstance(role, str) or role not in Role.__members__.values():
        raise Invalid(f"Use one of {', '.join(Role)}.", field=field)
    if rank(Role(role)) > rank(ceiling):
        raise Forbidden("You cannot give away a role above your own.")
    return Role(role)


def rank(role: Role) -> int:
    return list(Role).index(role)


def _noun(kind: Kind) -> str:
    return "api_key" if kind is Kind.INFERENCE else "control_token"


def _check_name(name: object) -> None:
    names.label(name, field="name", maximum=NAME_MAX)


def _check_expiry(expires_at: datetime | None, now: datetime) -> None:
    if expires_at is not None and expires_at <= now:
        raise Invalid("This lies in the past.", field="expires_at")


def _check_endpoints(endpoints: list[str] | None) -> None:
    if endpoints is None:
        return
    if len(endpoints) > MAX_ENDPOINTS_PER_KEY:
        raise Invalid(f"At most {MAX_ENDPOINTS_PER_KEY} endpoints (MAX_ENDPOINTS_PER_KEY).", field="endpoints")
    for position, name in enumerate(endpoints):
        names.model_name(name, field=f"endpoints[{position}]")
    if len(set(endpoints)) != len(endpoints):
        raise Invalid("Each endpoint is named once.", field="endpoints")


def _check_room(tenant_id: UUID, kind: Kind, limit: int, limit_name: str) -> None:
    if ApiKey.objects.filter(tenant_id=tenant_id, kind=kind.value, revoked_at=None).count() >= limit:
        raise LimitReached(f"A tenant has at most {limit} of these ({limit_name}). Revoke one first.")


def _check_reach(key: ApiKey, ceiling: Role) -> None:
    # Whoever could take over a token of a higher role would hold that role.
    if key.kind == Kind.CONTROL.value and rank(Role(key.role)) > rank(ceiling):
        raise Forbidden("This token has a role above your own.")


def _scope(tenant_id: UUID, scope_path: str) -> Scope:
    path = scopes.parse_path(scope_path, field="scope")
    scope = Scope.objects.filter(tenant_id=tenant_id, path=path).first()
    if scope is None:
        raise Invalid("There is no such scope.", field="scope")
    return scope


def _locked(tenant_id: UUID, kind: Kind, key_id: UUID) -> ApiKey:
    # The tenant first, as whoever issues or declares does: two changes of one key wait in turn, and never for each other.
    locks.tenant(tenant_id)
    key = ApiKey.objects.select_for_update().filter(tenant_id=tenant_id, kind=kind.value, id=key_id).first()
    if key is None:
        raise NotFound
    return key


def _own(secret: str | None, kind: Kind) -> str | None:
    if secret is None:
        return None
    if secret.startswith(_FOREIGN_PREFIX[kind]):
        raise Invalid("This has the form of a key of the other kind.", field="secret")
    return api_key.check_own(secret, field="secret")


def _store(key: ApiKey, actor: Actor, own_secret: str | None, action: str, after: dict[str, Any] | None = None) -> Issued:
    """Give a new or held key its text: the one brought, or one made here."""
    kind = Kind(key.kind)
    text = own_secret if own_secret is not None else api_key.compose(kind, secrets.token_bytes(api_key.SECRET_BYTES))
    former = None if key._state.adding else bytes(key.digest)
    key.digest, key.shown = api_key.digest(text), api_key.shown(text)
    _write(key, actor, action, former if former != key.digest else None, after)
    return Issued(key=key, secret=None if own_secret is not None else text)


def _write(key: ApiKey, actor: Actor, action: str, former: bytes | None = None, after: dict[str, Any] | None = None) -> None:
    """Write a key's row and the record of it; ``former`` is the digest that it had until now, where that is another."""
    taken: dict[str, Refusal] = {
        "api_key_name_per_tenant": Conflict("This name is in use.", field="name"),
        # Only a key that the operator brought can collide. Whose it is already is not said.
        "api_key_digest_unique": Conflict("This key cannot be used: choose another.", field="secret"),
    }
    with refuse_on(**taken):
        key.save()
        former_texts.refuse(key)
        if former is not None:
            former_texts.keep(key, former)
    changes.record(
        tenant_id=key.tenant_id,
        actor=actor,
        action=action,
        object_id=key.id,
        object_label=key.name,
        after=_facts(key) if after is None else {**_facts(key), **after},
        publishes=Kind(key.kind) is Kind.INFERENCE,
    )


def _facts(key: ApiKey) -> dict[str, Any]:
    """What the audit log says of a key: no text of it and no digest."""
    facts: dict[str, Any] = {"expires_at": key.expires_at.isoformat() if key.expires_at else None}
    if key.kind == Kind.CONTROL.value:
        return {**facts, "role": key.role, "platform": key.platform}
    return {**facts, "scope": key.scope.path if key.scope else None, "endpoints": key.endpoints}
