"""Replicas: the engines of a pool. An address is checked when it is registered and again by the router whenever it connects."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, TypedDict, Unpack, get_args
from urllib.parse import urlsplit
from uuid import UUID, uuid4

from django.conf import settings
from django.db import connection
from django.utils.crypto import salted_hmac

from namespaces.core import keyring
from namespaces.services.sealed import seal
from routing.core.engines import ENGINES
from routing.core.snapshot import ReplicaRole
from routing.models import Pool, Replica
from routing.outbound.addresses import MALFORMED, UrlRefused, base_url, check_url, normalise_url, origins, parse_ranges, system_resolve
from routing.services import pools, support
from tenants.actor import Actor
from tenants.constraints import refuse_on
from tenants.core import names
from tenants.core.errors import Conflict, Invalid
from tenants.services import locks

MAX_PER_POOL = 256
MAX_CREDENTIAL_CHARACTERS = 4096
MAX_CONCURRENCY = 100_000  # highest limit of requests in flight that may be declared
RESOLVE_S = 2.0
# One text for every reason beside a malformed text, so that registering is no oracle for what resolves, what is inside, or what another tenant has.
ADDRESS_REFUSED = "This address cannot be used: it is not allowed here, or cannot be verified as yours."
FOREIGN = "foreign"  # the reason beside those of addresses.UrlRefused: another tenant has registered the engine
_SOCKET = re.compile(r"tcp://([^/?#@\s]+):([1-9]\d{0,4})")
_EVERYWHERE = ("*", "0.0.0.0", "[::]")  # noqa: S104 - what engines listen on, refused here


def refusal(reason: str) -> str:
    """What a tenant is told: what is wrong with the text, else :data:`ADDRESS_REFUSED`, whatever the reason."""
    return f"This address cannot be used: {MALFORMED[reason]}." if reason in MALFORMED else ADDRESS_REFUSED


class AddressRefused(Invalid):
    """Says :func:`refusal`. ``reason`` is for the platform operator's own command and goes into no answer to a tenant."""

    def __init__(self, reason: str, *, field: str) -> None:
        super().__init__(refusal(reason), field=field)
        self.reason = reason


class ReplicaFields(TypedDict, total=False):
    """What may be set on a replica. ``credential`` is write-only: text is sealed to the routers, None takes it away."""

    name: str
    url: str
    engine: str
    role: str
    max_concurrency: int | None
    kv_events: dict[str, str | None] | None
    credential: str | None


def _address(value: object, *, field: str) -> str:
    """Normalise and check an address of this tenant.

    Raises:
        AddressRefused: malformed, or not allowed.
    """
    try:
        return check_url(spelling(value, field=field), parse_ranges(settings.ALLOWED_RANGES), _resolve)
    except UrlRefused as refused:
        raise AddressRefused(refused.reason, field=field) from None


def _resolve(host: str) -> Iterable[str]:
    """The name's present addresses, or none when the resolver takes too long: the check that counts is the router's, at every connect."""
    try:
        return _resolver().submit(system_resolve, host).result(timeout=RESOLVE_S)
    except TimeoutError:
        return ()


@cache
def _resolver() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=4, thread_name_prefix="resolve")


def _lock_address(origin: str) -> None:
    """Let two tenants register one address in turn only; the second sees the first one's row. Held until the transaction ends."""
    number = int.from_bytes(hashlib.sha256(origin.encode()).digest()[:8], "big", signed=True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [number])


def _check_ours(url: str) -> None:
    """Refuse an engine that another tenant has registered, under whatever spelling: by host and port, and by what a name resolves to now.

    Raises:
        AddressRefused: it is another tenant's.
    """
    known_by = sorted(origins(url, _resolve))
    for origin in known_by:  # in one order, so that two tenants cannot wait for each other
        _lock_address(origin)
    with connection.cursor() as cursor:
        for origin in known_by:
            cursor.execute("SELECT saltroute_url_is_foreign(%s)", [origin])
            if cursor.fetchone()[0]:
                raise AddressRefused(FOREIGN, field="url")


def _kv_events(value: object, url: str) -> dict[str, str] | None:
    """Check where KV events are published: on the replica's own host, since that stream holds token ids and salts in clear."""
    if value is None:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("endpoint"), str):
        raise Invalid("Give an object such as {endpoint: tcp://host:5557, replay: tcp://host:5558}.", field="kv_events")
    checked: dict[str, str] = {}
    for name, inner in value.items():
        field = f"kv_events.{name}"
        if inner is None or inner == "":
            continue
        if name == "topic":
            checked["topic"] = names.label(inner, field=field, maximum=200)
        elif name in ("endpoint", "replay"):
            checked[name] = _socket_address(inner, url, field)
        else:
            raise Invalid("Unknown field.", field=field)
    if "replay" in checked and checked["replay"] == checked.get("endpoint"):
        raise Invalid("Replays have a socket of their own: another port than the events'.", field="kv_events.replay")
    return checked


def _socket_address(value: object, url: str, field: str) -> str:
    match = _SOCKET.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise Invalid("Use tcp://host:port.", field=field)
    own = _socket(url, match[2])
    if match[1] in _EVERYWHERE and value != own:
        raise Invalid(f"{match[1]} is where an engine listens; routers connect to the replica's own host: {own}.", field=field)
    spelt = spelling(f"http://{match[1]}:{match[2]}", field=field)
    if _socket(spelt, match[2]) != own:  # before anything else is asked of the host, which would tell of it
        raise Invalid(f"KV events must come from the replica's own host: {own}.", field=field)
    return _socket(_address(spelt, field=field), match[2])


def spelled(kv_events: dict[str, str] | None) -> dict[str, str] | None:
    """``kv_events`` as they would be kept, without any check: to tell whether a declaration differs from what is held."""
    if kv_events is None:
        return None
    kept: dict[str, str] = {}
    for name, value in kv_events.items():
        match = _SOCKET.fullmatch(value)
        try:
            kept[name] = value if match is None else _socket(normalise_url(f"http://{match[1]}:{match[2]}"), match[2])
        except UrlRefused:
            kept[name] = value
    return kept


def _socket(url: str, port: str) -> str:
    host = urlsplit(url).hostname or ""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _credential(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_CREDENTIAL_CHARACTERS:
        raise Invalid(f"A credential has 1 to {MAX_CREDENTIAL_CHARACTERS} characters.", field="credential")
    if not all("!" <= character <= "~" for character in value):
        raise Invalid("A credential has visible ASCII characters only.", field="credential")
    return value


def _sealed(tenant_id: UUID, replica_id: UUID, credential: str) -> bytes:
    return seal(credential, info=keyring.credential_info(tenant_id, replica_id))


def tag(replica_id: UUID, credential: str) -> bytes:
    """A keyed digest (16 bytes) of a credential: tells whether one is the same as before, and nothing without the control plane's key."""
    return salted_hmac("routing.replica-credential", f"{replica_id}:{credential}", algorithm="sha256").digest()[:16]


def _checked(fields: ReplicaFields) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for field, value in fields.items():
        if field == "name":
            columns["name"] = names.label(value, field=field, maximum=100)
        elif field == "url":
            columns["url"] = _address(value, field=field)
        elif field == "engine":
            columns["engine"] = support.one_of(value, tuple(ENGINES), field=field)
        elif field == "role":
            columns["role"] = support.one_of(value, get_args(ReplicaRole), field=field)
        elif field == "max_concurrency":
            columns["max_concurrency"] = _max_concurrency(value)
        elif field not in ("kv_events", "credential"):
            raise Invalid("Unknown field.", field=field)
    return columns


def _max_concurrency(value: object) -> int | None:
    """A limit of requests in flight, or None for no limit.

    Raises:
        Invalid: on field ``max_concurrency``.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_CONCURRENCY:
        raise Invalid(f"Use a whole number of requests from 1 to {MAX_CONCURRENCY}, or null.", field="max_concurrency")
    return value


def _check_role(role: str, engine: str) -> None:
    """Refuse half of a request to an engine that cannot hand over or take in a prompt's KV cache.

    Raises:
        Invalid: on field ``role``.
    """
    if role != "both" and ENGINES[engine].transfer_field is None:
        raise Invalid(f"An engine of the family {engine} can only have the role both.", field="role")


def _with_credential(columns: dict[str, Any], fields: ReplicaFields, tenant_id: UUID, replica_id: UUID, held: bytes | None) -> None:
    """Add the sealed credential to ``columns`` when the one given differs from the one held."""
    if "credential" not in fields:
        return
    given = fields["credential"]
    if given is None or given == "":
        columns |= {"credential": None, "credential_tag": None}
        return
    fresh = tag(replica_id, _credential(given))
    if fresh != held:
        columns |= {"credential": _sealed(tenant_id, replica_id, given), "credential_tag": fresh}


def _audit(columns: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in columns.items() if name not in ("credential", "credential_tag")}
    if "credential" in columns:
        shown["has_credential"] = columns["credential"] is not None
    return shown


_NAME_TAKEN = "This pool has a replica of this name already."


def _refuse_twin(pool: Pool, url: str, but: UUID | None = None) -> None:
    twins = Replica.objects.filter(tenant_id=pool.tenant_id, pool=pool, url=url)
    if (twins if but is None else twins.exclude(id=but)).exists():
        raise Conflict("This pool has a replica at this address already.", field="url")


@dataclass(frozen=True, slots=True)
class Sealed:
    """The id that a replica will have, and its credential, sealed to that id, where it has one."""

    replica_id: UUID
    credential: bytes | None = None
    tag: bytes | None = None


def sealed(tenant_id: UUID, credential: object) -> Sealed:
    """An id for a replica that may be added later, and its credential sealed to it.

    Raises:
        Invalid: malformed.
        Unavailable: this process cannot seal it.
    """
    replica_id = uuid4()
    if credential is None or credential == "":
        return Sealed(replica_id)
    text = _credential(credential)
    return Sealed(replica_id, _sealed(tenant_id, replica_id, text), tag(replica_id, text))


def spelling(url: object, *, field: str = "url") -> str:
    """The one spelling of an address; whether it may be used is another question.

    Raises:
        AddressRefused: malformed.
    """
    try:
        return base_url(url)
    except UrlRefused as refused:
        raise AddressRefused(refused.reason, field=field) from None


def usable(url: str) -> bool:
    """Whether this tenant could register the address, as far as can be told from here. For whoever acts on it alone: the answer tells of others."""
    try:
        _check_ours(_address(url, field="url"))
    except Invalid:
        return False
    return True


def create(*, tenant_id: UUID, actor: Actor, pool_id: UUID, prepared: Sealed | None = None, **fields: Unpack[ReplicaFields]) -> Replica:
    """Register an engine in a pool of the tenant's own; ``name`` and ``url`` are required. In a platform pool every grantee's version rises.

    ``prepared``: id and credential were made before, by :func:`sealed`.

    Raises:
        NotFound: no such pool of this tenant.
        Invalid: a field is missing or malformed, or :data:`ADDRESS_REFUSED`.
        Conflict: the name or the address is taken in this pool.
        LimitReached: ``MAX_PER_POOL``.
        Unavailable: a credential is given and this process cannot seal it.
    """
    locks.tenant(tenant_id)
    pool = support.locked(Pool, tenant_id=tenant_id, row_id=pool_id)
    for required in ("name", "url"):
        if required not in fields:
            raise Invalid("This field is required.", field=required)
    columns = _checked(fields)
    columns["kv_events"] = _kv_events(fields.get("kv_events"), columns["url"])
    _check_role(columns.get("role", "both"), columns.get("engine", "vllm"))
    support.within(Replica.objects.filter(tenant_id=tenant_id, pool=pool).count(), MAX_PER_POOL, "replicas per pool")
    _check_ours(columns["url"])
    _refuse_twin(pool, columns["url"])
    replica_id = uuid4() if prepared is None else prepared.replica_id
    _with_credential(columns, fields, tenant_id, replica_id, None)
    if prepared is not None and prepared.credential is not None:
        columns |= {"credential": prepared.credential, "credential_tag": prepared.tag}
    with refuse_on(replica_name_per_pool=Conflict(_NAME_TAKEN, field="name")):
        replica = Replica.objects.create(id=replica_id, tenant_id=tenant_id, pool=pool, **columns)
    pools.record(pool, actor=actor, action="replica.create", object_id=replica.id, object_label=f"{pool.name}/{replica.name}", after=_audit(columns))
    return replica


def update(*, tenant_id: UUID, actor: Actor, replica_id: UUID, **fields: Unpack[ReplicaFields]) -> Replica:
    """Change what is given. Another address takes the credential away unless it is given again: it must not follow to a host nobody meant.

    Raises:
        NotFound: no such replica of this tenant.
        Invalid: malformed, :data:`ADDRESS_REFUSED`, or another address without a word on the credential.
        Conflict, Unavailable: as :func:`create`.
    """
    locks.tenant(tenant_id)
    replica = support.locked(Replica, tenant_id=tenant_id, row_id=replica_id)
    pool = replica.pool
    columns = _checked(fields)
    _check_role(columns.get("role", replica.role), columns.get("engine", replica.engine))
    url = columns.get("url", replica.url)
    if url != replica.url:
        if replica.credential is not None and "credential" not in fields:
            raise Invalid("Give the credential again, or null: it does not follow to another address.", field="credential")
        _check_ours(url)
        _refuse_twin(pool, url, but=replica.id)
    if "kv_events" in fields or (url != replica.url and replica.kv_events):
        columns["kv_events"] = _kv_events(fields.get("kv_events", replica.kv_events), url)
    _with_credential(columns, fields, tenant_id, replica.id, bytes(replica.credential_tag) if replica.credential_tag else None)
    if "credential" in columns and columns["credential"] is None and replica.credential is None:
        del columns["credential"], columns["credential_tag"]
    with refuse_on(replica_name_per_pool=Conflict(_NAME_TAKEN, field="name")):
        before, after = support.apply_changes(replica, columns)
    if after:
        pools.record(
            pool,
            actor=actor,
            action="replica.update",
            object_id=replica.id,
            object_label=f"{pool.name}/{replica.name}",
            before=_audit(before),
            after=_audit(after),
        )
    return replica


def set_state(*, tenant_id: UUID, actor: Actor, replica_id: UUID, state: str, reason: str = "") -> Replica:
    """Drain (no new requests, running ones finish), pause (as drained, and out of every count) or resume a replica. Safe to repeat.

    Raises:
        NotFound: no such replica of this tenant.
        Invalid: unknown state, or a reason that cannot be written down.
    """
    names.reason(reason)
    locks.tenant(tenant_id)
    replica = support.locked(Replica, tenant_id=tenant_id, row_id=replica_id)
    pool = replica.pool
    before, after = support.apply_changes(replica, {"state": support.one_of(state, ("active", "draining", "paused"), field="state")})
    if after:
        verb = {"active": "resume", "draining": "drain", "paused": "pause"}[state]
        label = f"{pool.name}/{replica.name}"
        pools.record(pool, actor=actor, action=f"replica.{verb}", object_id=replica.id, object_label=label, before=before, after=after, reason=reason)
    return replica


def delete(*, tenant_id: UUID, actor: Actor, replica_id: UUID) -> None:
    """Take a replica out of its pool. Routers let its running requests finish.

    Raises:
        NotFound: no such replica of this tenant.
    """
    locks.tenant(tenant_id)
    replica = support.locked(Replica, tenant_id=tenant_id, row_id=replica_id)
    pool, name, url = replica.pool, replica.name, replica.url
    replica.delete()
    pools.record(
        pool, actor=actor, action="replica.delete", object_id=replica_id, object_label=f"{pool.name}/{name}", before={"name": name, "url": url}
    )
