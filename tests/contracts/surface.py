"""The control API as its own description lists it, and two tenants that have one of everything: what tests of the whole surface walk over."""

from __future__ import annotations

import base64
import re
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import UUID

import msgspec
from django.apps import apps
from django.db import connection, transaction
from django.db.models import Model
from django.utils import timezone
from drf_spectacular.generators import SchemaGenerator

from namespaces.models import TenantKeyVersion
from routing.core.record import DecisionRecord
from routing.models import Alert, ReconciliationFinding, ReconciliationRun, SloMinute, TraceFile, TraceJob, Webhook, WebhookDelivery
from routing.services import records
from tenants.models import AuditEntry, Tenant, TenantRow
from tenants.scoping import tenant_scope
from tenants.services.denials import ACTION as DENIED
from tests.routing.api.test_decisions import store
from tests.routing.services.captured import keep
from tests.routing.services.captured import record as capture_record
from tests.tenants.houses import Api, House, house

PREFIX = "/api/v1/"
TENANT_HEADER = "X-Saltroute-Tenant"
BODY_METHODS = ("post", "put", "patch", "delete")


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. ``path`` is below /api/v1/ and holds its parameters in braces."""

    id: str
    method: str
    path: str
    parameters: tuple[tuple[str, str], ...]  # (name, where)
    body: dict[str, Any] | None  # the JSON body's schema, references resolved at the top

    @property
    def resource(self) -> str:
        return self.path.split("/", 1)[0]

    def named(self, where: str) -> list[str]:
        return [name for name, place in self.parameters if place == where]


@cache
def description() -> dict[str, Any]:
    """The OpenAPI document."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]  # not annotated
    return found


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema behind its reference."""
    while "$ref" in schema:
        schema = description()["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
    return schema


@cache
def operations() -> tuple[Operation, ...]:
    """Every operation of the control API."""
    found = []
    for path, item in description()["paths"].items():
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {})
            body = content.get("application/json", {}).get("schema")
            found.append(
                Operation(
                    id=operation["operationId"],
                    method=method.upper(),
                    path=path.removeprefix(PREFIX),
                    parameters=tuple((one["name"], one["in"]) for one in operation.get("parameters", ())),
                    body=None if body is None else resolved(body),
                )
            )
    return tuple(found)


# ---- what a valid request holds --------------------------------------------------------------------------------------------------------------

SAMPLES: dict[str, Any] = {
    "candidate": {"policy": "round_robin"},
    "policies": [{"policy": "round_robin"}],
    "content_base64": base64.b64encode(b"{{ another }}").decode(),
    "email": "somebody@example.org",
    "kind": "chat_template",
    "path": "another",
    "url": "http://127.0.0.1:9199",
}


def sample(name: str, schema: dict[str, Any], own: dict[str, str]) -> Any:
    """A value that a property of this name and schema should take; ``own`` maps resources to an id of the caller's."""
    schema = resolved(schema)
    if name in SAMPLES:
        return SAMPLES[name]
    if name == "policy":
        return own["routing-policies"]
    for resource in (f"{name}s", f"{name}-policies", f"{name.replace('_policy', '')}-policies"):
        if resource in own:
            return own[resource]
    for option in schema.get("anyOf", ()):
        return sample(name, option, own)
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        return {"policy": "round_robin"} if name == "spec" else {}
    return {"boolean": False, "integer": 1, "number": 1.0, "array": []}.get(str(kind), "another")


def whole(operation: Operation, own: dict[str, str]) -> dict[str, Any]:
    """A body with every required property."""
    body = operation.body or {}
    made = {name: sample(name, schema, own) for name, schema in body.get("properties", {}).items() if name in body.get("required", ())}
    if operation.resource == "slo-policies" and "spec" in made:
        made["spec"] = {"ttft_p95_ms": 1000}
    if operation.resource == "webhooks" and "url" in made:
        made["url"] = "https://hooks.example.org/another"
    return made


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere in a body where a text goes: a property, an item of its list, a value of its map, a member of its object."""

    property: str
    shape: str

    def filled(self, value: str) -> Any:
        return {"text": value, "list": [value], "map": {value: value}, "name": {"name": value, "version": 1}}[self.shape]


def places(operation: Operation) -> Iterator[Place]:
    """Every place of a body that takes a text."""
    for name, schema in (operation.body or {}).get("properties", {}).items():
        options = [resolved(option) for option in resolved(schema).get("anyOf", [schema])]
        options = [inner for option in options for inner in map(resolved, option.get("anyOf", [option]))]
        for option in options:
            kind = option.get("type")
            if kind == "string" and "enum" not in option:
                yield Place(name, "text")
            elif kind == "array":
                yield Place(name, "list")
            elif kind == "object":
                yield Place(name, "map")
                yield Place(name, "name")


# ---- tenants that have one of everything ------------------------------------------------------------------------------------------------------


def furnished(slug: str, port: int) -> House:
    """A tenant with one of everything, each named after the tenant."""
    made = house(slug)
    with tenant_scope(made.id):
        TenantKeyVersion.objects.create(tenant_id=made.id, version=1, wrapped=b"wrapped elsewhere")
    api = made.api()
    template = base64.b64encode(f"{{{{ {slug} }}}}".encode()).decode()
    artifact = _made(api, "artifacts", {"kind": "chat_template", "name": f"{slug}.jinja", "content_base64": template})
    _made(api, "models", {"name": f"{slug}-model", "revision": "r1", "chat_template_sha256": artifact["sha256"]})
    _made(api, "adapters", {"model": f"{slug}-model", "name": f"{slug}-adapter", "revision": "a1"})
    _made(api, "pools", {"name": f"{slug}-pool"})
    _made(api, "replicas", {"pool": f"{slug}-pool", "name": f"{slug}-replica", "url": f"http://127.0.0.1:{port}"})
    _made(api, "replica-checks", {"pool": f"{slug}-pool", "name": f"{slug}-looked-at", "url": f"http://127.0.0.1:{port + 20}"})
    _made(api, "routing-policies", {"name": f"{slug}-routing", "spec": {"policy": "ettft"}})
    _made(api, "routing-policies", {"name": f"{slug}-spare", "spec": {"policy": "round_robin"}})
    _made(api, "slo-policies", {"name": f"{slug}-slo", "spec": {"ttft_p95_ms": 2000}})
    _made(api, "scopes", {"path": f"{slug}-scope"})
    _made(api, "members", {"email": f"person@{slug}.example", "role": "viewer"})
    _made(api, "invitations", {"email": f"invited@{slug}.example", "role": "viewer"})
    endpoint = {"name": f"{slug}-chat", "pool": f"{slug}-pool", "model": f"{slug}-model", "adapter": f"{slug}-adapter"}
    policies = {"routing_policy": f"{slug}-routing", "slo": f"{slug}-slo"}
    _made(api, "endpoints", {**endpoint, **policies})
    key = {"name": f"{slug}-key", "scope": f"{slug}-scope", "endpoints": [f"{slug}-chat"]}
    _made(api, "keys", key, Idempotency_Key=f"{slug}-repeat")
    store(made)
    _counted(made)
    _reconciled(made)
    _traced(made)
    _alerted(made)
    _captured(made)
    return made


def _counted(made: House) -> None:
    """A decision as ingest adds it up, and how long such are kept."""
    fields: dict[str, Any] = {"route": "chat", "outcome": "ok", "status": 200, "router_id": "r1", "config_version": 1}
    one = DecisionRecord(id=uuid.uuid4(), tenant_id=made.id, started_at=timezone.now().timestamp(), **fields)
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_ingest")
        assert records.store([one]).stored == 1
        cursor.execute("SET ROLE saltroute_app")
    assert made.api().patch("records", {"keep_days": 7}).status_code == 200


def _traced(made: House) -> None:
    """A trace that was sent, and a job over it."""
    sizes = {"requests": 1, "prompt_tokens": 9, "block_tokens": 512, "timed": True, "span_s": 0.0, "size_bytes": 1, "content": b"x"}
    with tenant_scope(made.id):
        file = TraceFile.objects.create(tenant_id=made.id, name=f"{made.slug}.jsonl", **sizes)
        said = {"kind": "analyze", "input_name": file.name, "parameters": {"work": {"kind": "analyze"}, "notes": []}}
        TraceJob.objects.create(tenant_id=made.id, file=file, state="failed", finished_at=timezone.now(), **said)


def _alerted(made: House) -> None:
    """An alert, the webhook that heard of it, and a minute of an objective."""
    now = timezone.now()
    with tenant_scope(made.id):
        said = {"kind": "key_expiring", "severity": "warning", "state": "firing", "subject_kind": "key", "subject_id": f"{made.slug}-alerted"}
        said |= {"subject": f"{made.slug}-key", "explanation": f"{made.slug}-key expires"}
        alert = Alert.objects.create(tenant_id=made.id, began_at=now, last_seen_at=now, **said)
        url = f"https://{made.slug}.example.org/hook"
        hook = Webhook.objects.create(tenant_id=made.id, name=f"{made.slug}-hook", url=url, secret=b"sealed elsewhere")
        WebhookDelivery.objects.create(tenant_id=made.id, webhook=hook, event="alert.firing", alert_id=alert.id, body={}, next_at=now)
        SloMinute.objects.create(tenant_id=made.id, endpoint_id=uuid.uuid4(), objective="ttft_p95", minute=now, total=1, bad=0)


def _captured(made: House) -> None:
    """A capture that runs, with one request."""
    answer = made.api().post(f"endpoints/{made.slug}-chat/capture", {"days": 1, "share": 1.0})
    assert answer.status_code == 200, answer.content
    keep(capture_record(made.id, UUID(answer.json()["captures"][0]["id"]), timezone.now()))


def _reconciled(made: House) -> None:
    """As a run leaves it, without a router that reports."""
    now = timezone.now()
    with tenant_scope(made.id):
        ReconciliationRun.objects.create(tenant_id=made.id, state="finished", trigger="beat", started_at=now, finished_at=now)
        said = {"kind": "replica_unseen", "severity": "warning", "state": "open", "subject_kind": "replica", "subject_id": f"{made.slug}-subject"}
        said |= {"subject": f"{made.slug}-pool/{made.slug}-replica", "explanation": f"{made.slug}-replica is known to no router"}
        ReconciliationFinding.objects.create(tenant_id=made.id, first_seen_at=now, last_seen_at=now, **said)


def _made(api: Api, resource: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    answer = api.post(resource, body, **headers)
    assert answer.status_code == 201, answer.content
    found: dict[str, Any] = answer.json()
    return found


def listed(api: Api) -> dict[str, dict[str, Any]]:
    """A row of every list that the caller may read, by resource: the last, since the first may be one that every tenant has."""
    found: dict[str, dict[str, Any]] = {}
    for operation in operations():
        if operation.method == "GET" and "{" not in operation.path:
            answer = api.get(operation.path)
            is_json = answer.headers.get("Content-Type", "").startswith("application/json")
            rows = answer.json().get("results", []) if answer.status_code == 200 and is_json else []
            if rows:
                found[operation.path] = rows[-1]
    return found


def names_of(made: House) -> dict[str, str]:
    """What leads to a tenant's rows: an id of every table, its own id and slug, and the names of what it lists. Texts by where they come from."""
    found = {"tenant id": str(made.id), "slug": made.slug}
    with tenant_scope(made.id):
        for model in tenant_models():
            first = model._default_manager.filter(tenant_id=made.id).order_by("pk").last()
            if first is not None:
                found[model._meta.db_table] = str(first.pk)
    for resource, row in listed(made.api()).items():
        found[resource] = str(row["id"]) if "id" in row else made.slug
        found.update({f"{resource} {name}": str(row[name]) for name in ("name", "path", "email", "sha256") if row.get(name)})
    return found


def tenant_models() -> list[type[TenantRow]]:
    return [model for model in apps.get_models() if issubclass(model, TenantRow)]


# ---- what is stored, and what is answered -----------------------------------------------------------------------------------------------------


def dump(tenant_id: UUID) -> dict[str, tuple[int, str]]:
    """How many rows of a tenant each table holds, and a digest of all they say. Refused attempts in the audit log and the time a token was last
    used are left out: those are notes about the caller."""
    parts = []
    kept: list[type[Model]] = [Tenant, *tenant_models()]
    for model in kept:
        table = model._meta.db_table
        row = "to_jsonb(t) - 'last_used_at'"
        where = f"WHERE t.action <> '{DENIED}'" if model is AuditEntry else ""
        parts.append(f"SELECT '{table}', count(*), coalesce(md5(string_agg(({row})::text, ',' ORDER BY ({row})::text)), '') FROM {table} t {where}")
    with tenant_scope(tenant_id), connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts))
        return {str(table): (int(count), str(digest)) for table, count, digest in cursor.fetchall()}


def tried(api: Api, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
    """One request. What a success wrote is checked against every deferred constraint and taken back, so that each starts from the same rows."""
    with transaction.atomic():
        answer = api.call(method, path, body, **headers)
        if answer.status_code < 400:
            with connection.cursor() as cursor:
                cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            transaction.set_rollback(True)
    return answer.status_code, b"".join(answer.streaming_content) if answer.streaming else answer.content


_IDS = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIMES = re.compile(rb"\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|\+00:00)")
_SECRETS = re.compile(rb'"(secret|shown)":"[^"]*"')


def unlike(content: bytes, value: str) -> bytes:
    """An answer without the value that was sent, and without what is drawn anew for each success."""
    quoted = msgspec.json.encode(value)[1:-1]
    content = content.replace(quoted, b"<given>")
    return _SECRETS.sub(rb'"\1":"..."', _TIMES.sub(b"<time>", _IDS.sub(b"<id>", content)))


def kind_of(value: str) -> str:
    """What a text looks like: parsers and look-ups may treat kinds differently, and must treat all of a kind alike."""
    if re.fullmatch(_IDS.pattern.decode(), value):
        return "id"
    if re.fullmatch(r"[0-9a-f]{64}", value):
        return "digest"
    if re.fullmatch(r"[a-z0-9-]+", value):
        return "slug"
    return "e-mail" if "@" in value else "file" if "." in value else "name"


def drawn(kind: str) -> str:
    """A value of a kind that nobody has."""
    number = uuid.uuid4()
    return {
        "id": str(number),
        "digest": number.hex * 2,
        "e-mail": f"nobody@{number.hex[:8]}.example",
        "file": f"x{number.hex[:8]}.jinja",
        "slug": f"x{number.hex[:8]}",
        "name": f"X{number.hex[:8]}",
    }[kind]
