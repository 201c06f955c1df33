"""Looking at an engine before it is added: ordered by whoever may add it, carried out by a router, told to the tenant.

The web never connects to the address and cannot open the credential; the worker carries a signed order to a router's internal door
(:mod:`routing.dataplane.checks`). An address that this tenant may not use, another tenant's among them, is not connected to at all, and gives the
report of one where nothing answers, at the moment at which such a report is given: neither content nor time tells them apart.
"""

from __future__ import annotations

import http.client
import time
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from namespaces.core import check as orders
from routing import queries
from routing.core.engines import ENGINES
from routing.core.replica_check import UNANSWERED, CheckReport
from routing.models import Replica, ReplicaCheck
from routing.services import replicas, support
from routing.services.audits import wake
from tenants import changes
from tenants.actor import Actor
from tenants.core import names
from tenants.core.errors import Conflict, Invalid, LimitReached, NotFound
from tenants.scoping import tenant_scope
from tenants.services import locks

TASK = "routing.audit_replica_check"
PRIORITY = 0  # a person waits
MAX_AN_HOUR = 30  # checks of one tenant: each makes a router connect to an address that somebody wrote down
KEPT_FOR = timedelta(hours=24)
ADD_WITHIN = timedelta(hours=1)  # afterwards what was found is too old, and a sealed credential too
NO_ANSWER_S = 12.0  # after its begin, when "nothing answered" is told, whatever the reason: more than names and a page may take
LOST_S = 90.0  # after which a check that nobody took, or that did not end, is over
DOOR_S = 70.0
ORDER_LIFE_S = 30.0
PATH = "/internal/check"
MAX_ANSWER_BYTES = 256 * 1024


def checks(tenant_id: UUID) -> QuerySet[ReplicaCheck]:
    """A tenant's checks, without credentials."""
    return ReplicaCheck.objects.filter(tenant_id=tenant_id).defer("credential", "credential_tag")


def check(tenant_id: UUID, check_id: UUID) -> ReplicaCheck:
    """One of them.

    Raises:
        NotFound: none of this tenant's.
    """
    found = checks(tenant_id).filter(id=check_id).first()
    if found is None:
        raise NotFound
    return found


def order(
    *,
    tenant_id: UUID,
    actor: Actor,
    pool_id: UUID,
    name: str,
    url: str,
    engine: str = "vllm",
    served_model: str = "",
    endpoint_id: UUID | None = None,
    credential: str | None = None,
) -> ReplicaCheck:
    """Have a router look at an engine that is to be added to a pool of the tenant's own; a worker is woken on commit.

    Raises:
        NotFound: no such pool or endpoint of this tenant.
        Invalid: a field is malformed.
        LimitReached: ``MAX_AN_HOUR``.
        Unavailable: a credential is given and this process cannot seal it.
    """
    now = timezone.now()
    locks.tenant(tenant_id)
    pool = queries.own_pool(tenant_id, str(pool_id))
    if endpoint_id is not None:
        queries.endpoint(tenant_id, str(endpoint_id))
    names.label(name, field="name", maximum=100)
    if served_model:
        names.model_name(served_model, field="served_model")
    family = support.one_of(engine, tuple(ENGINES), field="engine")
    spelled = replicas.spelling(url)
    ReplicaCheck.objects.filter(tenant_id=tenant_id, created_at__lt=now - KEPT_FOR).delete()
    lately = ReplicaCheck.objects.filter(tenant_id=tenant_id, created_at__gt=now - timedelta(hours=1)).count()
    if lately >= MAX_AN_HOUR:
        raise LimitReached(f"A tenant has at most {MAX_AN_HOUR} tests of replicas an hour (MAX_AN_HOUR). Add the replica without one, or wait.")
    prepared = replicas.sealed(tenant_id, credential)
    row = ReplicaCheck.objects.create(
        id=prepared.replica_id,
        tenant_id=tenant_id,
        pool_id=pool.id,
        name=name,
        url=spelled,
        engine=family,
        served_model=served_model,
        endpoint_id=endpoint_id,
        credential=prepared.credential,
        credential_tag=prepared.tag,
        requested_by=actor.label[:254],
    )
    after = {"url": spelled, "engine": family, "has_credential": prepared.credential is not None}
    label = f"{pool.name}/{name}"
    changes.record(tenant_id=tenant_id, actor=actor, action="replica.check", object_id=row.id, object_label=label, after=after, publishes=False)
    transaction.on_commit(lambda: wake.post(TASK, (str(tenant_id), str(row.id)), PRIORITY))
    return row


def state(row: ReplicaCheck, now: datetime) -> str:
    """``queued``, ``running``, ``done`` or ``failed``, as it is told at ``now``."""
    if row.state == "done":
        return "done" if row.shown_at is None or row.shown_at <= now else "running"
    if row.state in ("queued", "running") and now - (row.started_at or row.created_at) > timedelta(seconds=LOST_S):
        return "failed"
    return row.state


def report(row: ReplicaCheck, now: datetime) -> CheckReport | None:
    """What was found, once it is told."""
    return msgspec.convert(row.report, CheckReport) if row.report is not None and state(row, now) == "done" else None


def error(row: ReplicaCheck, now: datetime) -> str:
    """Why it failed, in words; empty where it did not."""
    if state(row, now) != "failed":
        return ""
    if row.error:
        return row.error
    return "No worker took it up." if row.started_at is None else "The worker that carried it out did not come back."


def add(*, tenant_id: UUID, actor: Actor, check_id: UUID) -> Replica:
    """Add the replica as it was looked at, credential included. What was found does not stop anybody: the pool's isolation decides what it may serve.

    Raises:
        NotFound: no such check, or its pool is gone.
        Conflict: it was added already, or looked at too long ago; or as :func:`replicas.create`.
        Invalid, LimitReached: as :func:`replicas.create`.
    """
    locks.tenant(tenant_id)
    row = ReplicaCheck.objects.filter(tenant_id=tenant_id, id=check_id).first()
    if row is None:
        raise NotFound
    if Replica.objects.filter(tenant_id=tenant_id, id=row.id).exists():
        raise Conflict("This replica was added already.")
    if timezone.now() - row.created_at > ADD_WITHIN:
        raise Conflict("This test is more than an hour old: test the replica again.")
    credential = None if row.credential is None else bytes(row.credential)
    tag = None if row.credential_tag is None else bytes(row.credential_tag)
    prepared = replicas.Sealed(row.id, credential, tag)
    fields: dict[str, Any] = {"name": row.name, "url": row.url, "engine": row.engine}
    made = replicas.create(tenant_id=tenant_id, actor=actor, pool_id=row.pool_id, prepared=prepared, **fields)
    ReplicaCheck.objects.filter(tenant_id=tenant_id, id=row.id).update(credential=None, credential_tag=None)
    return made


# ---- carrying it out ---------------------------------------------------------------------------------------------------


def run(tenant_id: UUID, check_id: UUID) -> None:
    """Carry out an order that waits; one that does not is left alone."""
    if settings.PUBLISH_KEY is None:
        raise Invalid("This process holds no publish key.")
    with tenant_scope(tenant_id):
        now = timezone.now()
        waiting = ReplicaCheck.objects.filter(tenant_id=tenant_id, id=check_id, state="queued")
        if not waiting.update(state="running", started_at=now):
            return
        row = ReplicaCheck.objects.get(tenant_id=tenant_id, id=check_id)
        usable = replicas.usable(row.url)
    found = _asked(row, settings.PUBLISH_KEY) if usable else UNANSWERED
    with tenant_scope(tenant_id):
        rows = ReplicaCheck.objects.filter(tenant_id=tenant_id, id=check_id)
        if isinstance(found, str):
            rows.update(state="failed", error=found)
            return
        shown_at = timezone.now() if found.answered else now + timedelta(seconds=NO_ANSWER_S)
        rows.update(state="done", report=msgspec.to_builtins(found), shown_at=shown_at)


def _asked(row: ReplicaCheck, publish_key: bytes) -> CheckReport | str:
    """The router's report, or in words why there is none."""
    signed = orders.sign(
        orders.Order(
            tenant=row.tenant_id,
            check=row.id,
            url=row.url,
            engine=row.engine,
            exp=time.time() + ORDER_LIFE_S,
            nonce=uuid4().hex,
            served_model=row.served_model or None,
            endpoint=row.endpoint_id,
            credential=None if row.credential is None else bytes(row.credential),
        ),
        publish_key,
    )
    parts = urlsplit(settings.DOOR_URL)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=DOOR_S)
    try:
        connection.request("POST", PATH, signed.encode(), {"Content-Type": "text/plain"})
        answer = connection.getresponse()
        page = answer.read(MAX_ANSWER_BYTES)
        if answer.status == 503:
            return "The router tests as many replicas as it may. Try again in a minute."
        if answer.status != 200:
            return "The router did not take the order."
        return msgspec.json.decode(page, type=CheckReport)
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return "No router could be asked."
    finally:
        connection.close()
