"""The document: what a declaration file says, checked as far as that needs no database. Every part keeps its path, for errors that come later."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

STORED = "stored"  # in place of a reference: the secret that is held already, which an export cannot know


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret read through its reference. ``value`` None is :data:`STORED`."""

    reference: str
    value: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class File:
    """An artifact's content, or the SHA-256 of one that the tenant holds already. ``path`` is the field that names it."""

    path: str
    kind: str
    name: str
    sha256: str
    content: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Replica:
    path: str
    name: str
    url: str
    engine: str
    role: str
    max_concurrency: int | None  # None: no limit
    kv_events: dict[str, str] | None
    credential: Secret | None


@dataclass(frozen=True, slots=True)
class Grant:
    path: str
    slug: str
    weight: float | None  # None: whatever it is, 1 when it is new


@dataclass(frozen=True, slots=True)
class Pool:
    path: str
    name: str
    isolation: str | None  # None: whatever it is, "audited" when it is new
    replicas: tuple[Replica, ...]
    grants: tuple[Grant, ...] = ()


@dataclass(frozen=True, slots=True)
class Adapter:
    path: str
    name: str
    revision: str


@dataclass(frozen=True, slots=True)
class Model:
    path: str
    name: str
    fields: dict[str, Any]  # as catalogue.ModelFields, all of them
    files: tuple[File, ...]
    adapters: tuple[Adapter, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    path: str
    kind: str
    name: str
    spec: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """What an endpoint says of a policy: an inline document, or a name with or without a version."""

    spec: dict[str, Any] | None = None
    name: str | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A routing policy on trial, and the share of prompts that it places."""

    path: str
    policy: PolicyChoice
    share: float


@dataclass(frozen=True, slots=True)
class Endpoint:
    path: str
    name: str
    pool: str
    model: str
    adapter: str | None
    routing_policy: PolicyChoice
    slo: PolicyChoice | None
    fields: dict[str, Any]  # the rest of endpoints.EndpointFields, all of them
    candidate: Candidate | None = None


@dataclass(frozen=True, slots=True)
class Key:
    path: str
    name: str
    scope: str
    secret: Secret
    endpoints: list[str] | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Member:
    path: str
    email: str
    role: str


@dataclass(frozen=True, slots=True)
class Scope:
    path: str
    scope: str


@dataclass(frozen=True, slots=True)
class Quota:
    path: str
    of: str
    name: str
    limits: dict[str, int | None]  # by measure, all of them


@dataclass(slots=True)
class Tenant:
    """One tenant; a section that the file does not have is None and is left alone, also by ``--prune``."""

    path: str
    slug: str
    name: str | None
    suspended: bool | None
    scopes: list[Scope] | None
    members: list[Member] | None
    keys: list[Key] | None
    pools: list[Pool] | None
    policies: list[Policy]
    policy_kinds: set[str]  # the kinds whose section is there
    endpoints: list[Endpoint] | None
    models: list[Model]
    models_given: bool
    quotas: list[Quota] | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A whole file."""

    file: str
    lines: dict[str, int]
    pools: list[Pool] | None  # of the platform
    tenants: list[Tenant]

    def line(self, path: str) -> int:
        """The line of ``path`` or of the nearest path around it."""
        while path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.lines[path]
