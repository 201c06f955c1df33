"""The subject of an identity: everything that decides whether two requests may share cached blocks.

A value is *absent* (the component does not apply and adds nothing), *null* (it applies and is known to be none), or a value. The three differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID


class Sharing(StrEnum):
    """At which depth the auth scope enters the identity."""

    TENANT = "tenant"  # all keys of the tenant share
    SCOPE = "scope"  # keys acting in one scope share (default)
    KEY = "key"  # one key shares with itself only
    NONE = "none"  # every request alone


@dataclass(frozen=True, slots=True)
class ScopeLevel:
    """One scope on the way from the tenant's root to the scope the request acts in."""

    id: UUID
    segment: str  # "" for the root
    version: int


@dataclass(frozen=True, slots=True)
class Model:
    """The weights. Engines expose no digest of them, so the declared revision counts."""

    name: str
    revision: str
    quantisation: str | None = None
    kv_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that decides tokens: its SHA-256 where we hold it, else None, and the label people gave it."""

    digest: bytes | None
    revision: str | None


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter. ``generation`` rises at every reload under the same name."""

    name: str
    revision: str
    generation: int


@dataclass(frozen=True, slots=True)
class Subject:
    """All inputs of one identity. Built from the snapshot and the request; holds no secret."""

    tenant_id: UUID
    sharing: Sharing
    scope: tuple[ScopeLevel, ...]
    engine_family: str
    model: Model
    tokenizer: Artifact
    chat_template: Artifact
    epoch: tuple[int, int]  # tenant-wide, this endpoint's
    adapter: Adapter | None = None
    context: tuple[tuple[str, str], ...] = field(default=())  # (name, version), sorted by name
    multimodal_processor: str | None = None
    data_class: str | None = None
    key_id: UUID | None = None  # required when sharing is KEY
    request_nonce: bytes | None = None  # required when sharing is NONE; the caller draws it
    endpoint_id: UUID | None = None  # set only where the endpoint keeps its cache apart from its siblings
    client_subdivision: str | None = None  # the client's own salt, where the endpoint allows it
