"""What this part of the API takes and gives, beside pools (:mod:`routing.api.pool_shapes`) and trials. Requests refuse unknown fields."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from routing.core.snapshot import EngineFamily, SharingLevel
from tenants.api.bodies import Body

Reason = Annotated[str, msgspec.Meta(max_length=500, description="Goes to the audit log.")]
Sha256 = Annotated[str, msgspec.Meta(description="64 hexadecimal digits; of an artifact that the tenant holds.")]
Template = Annotated[
    str,
    msgspec.Meta(
        description="As tokenizer_sha256. Without a tokenizer it is part of the cache identity alone: routers need both for a chat's tokens."
    ),
]
Document = Annotated[str | dict[str, Any], msgspec.Meta(description="A policy's name (its newest version), {name, version}, or a policy document.")]
Objectives = Annotated[
    str | dict[str, Any],
    msgspec.Meta(description="As routing_policy, of an SLO policy. An empty document names no target and means the same as null."),
]


class ReasonGiven(Body):
    """Why; it goes to the audit log."""

    reason: Reason


class ReasonMaybe(Body):
    """Why, if there is something to say."""

    reason: Reason = ""


# ---- catalogue ---------------------------------------------------------------------------------------------------------


class ArtifactOut(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenizer or chat template."""

    id: UUID
    kind: str
    name: str
    sha256: str
    size_bytes: int
    created_at: datetime


class ArtifactNew(Body):
    """An artifact to keep. A large one is better sent as application/octet-stream, with kind and name in the query."""

    kind: str
    name: str
    content_base64: str


class ModelOut(msgspec.Struct, frozen=True, kw_only=True):
    """A model. Every revision and digest is part of the cache identity."""

    id: UUID
    name: str
    revision: str
    quantisation: str | None
    kv_dtype: str | None
    tokenizer_sha256: str | None
    tokenizer_revision: str | None
    chat_template_sha256: str | None
    chat_template_revision: str | None
    multimodal_processor: str | None
    context_window_tokens: int | None
    created_at: datetime


class ModelNew(Body):
    """A model to declare."""

    name: str
    revision: str
    quantisation: str | None = None
    kv_dtype: str | None = None
    tokenizer_sha256: Sha256 | None = None
    tokenizer_revision: str | None = None
    chat_template_sha256: Template | None = None
    chat_template_revision: str | None = None
    multimodal_processor: str | None = None
    context_window_tokens: int | None = None


class ModelChange(Body):
    """What to change of a model; absent fields stay."""

    name: str | UnsetType = UNSET
    revision: str | UnsetType = UNSET
    quantisation: str | UnsetType | None = UNSET
    kv_dtype: str | UnsetType | None = UNSET
    tokenizer_sha256: Sha256 | UnsetType | None = UNSET
    tokenizer_revision: str | UnsetType | None = UNSET
    chat_template_sha256: Template | UnsetType | None = UNSET
    chat_template_revision: str | UnsetType | None = UNSET
    multimodal_processor: str | UnsetType | None = UNSET
    context_window_tokens: int | UnsetType | None = UNSET


class AdapterOut(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter. ``generation`` rises when it is reloaded under the same name."""

    id: UUID
    model: str
    model_id: UUID
    name: str
    revision: str
    generation: int
    created_at: datetime


class AdapterNew(Body):
    """An adapter to declare; ``model`` is an id or name."""

    model: str
    name: str
    revision: str


class AdapterChange(Body):
    """Another revision of an adapter."""

    revision: str


# ---- policies and endpoints --------------------------------------------------------------------------------------------


class PolicyOut(msgspec.Struct, frozen=True, kw_only=True):
    """A policy at its newest version."""

    id: UUID
    name: str
    version: int
    spec: dict[str, Any]
    created_at: datetime


class PolicyNew(Body):
    """A policy with the document of its version 1."""

    name: str
    spec: dict[str, Any]


class VersionOut(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a policy. Versions never change."""

    id: UUID
    version: int
    spec: dict[str, Any]
    created_at: datetime
    created_by: str


class VersionNew(Body):
    """A document to append. ``activate`` moves the endpoints that use the policy to it at once."""

    spec: dict[str, Any]
    activate: bool = True


class FieldDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One field that routers would read differently."""

    field: str
    old: Any
    new: Any


class VersionDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What changes from one version to another."""

    old_version: int
    new_version: int
    differences: list[FieldDifference]


class PolicyUse(msgspec.Struct, frozen=True, kw_only=True):
    """The policy version an endpoint runs."""

    name: str
    version: int
    spec: dict[str, Any]


class EndpointOut(msgspec.Struct, frozen=True, kw_only=True):
    """A model name that clients send, where it is served and under which identity."""

    id: UUID
    name: str
    pool: str
    pool_id: UUID
    model: str
    model_id: UUID
    model_revision: str
    adapter: str | None
    adapter_id: UUID | None
    engine: EngineFamily
    served_model: str
    context: dict[str, str]
    request_context: list[str]
    sharing: SharingLevel
    routing_policy: PolicyUse
    slo: PolicyUse | None
    epoch: int
    data_class: str | None
    candidate: Annotated[PolicyUse | None, msgspec.Meta(description="The routing policy on trial beside the live one.")]
    canary_share: Annotated[float, msgspec.Meta(description="Of the prompts that the candidate places; 0: in the shadow only.")]
    own_cache: bool
    client_subdivision: bool
    enabled: bool
    created_at: datetime


class EndpointNew(Body):
    """An endpoint to create; ``pool``, ``model`` and ``adapter`` are ids or names."""

    name: str
    pool: str
    model: str
    adapter: str | None = None
    engine: EngineFamily = "vllm"
    served_model: str | None = None
    context: dict[str, str] = {}
    request_context: list[str] = []
    sharing: SharingLevel = "scope"
    routing_policy: Document = msgspec.field(default_factory=lambda: {"policy": "ettft"})
    slo: Objectives | None = None
    data_class: str | None = None
    own_cache: bool = False
    client_subdivision: bool = False
    enabled: bool = True


class EndpointChange(Body):
    """What to change of an endpoint; absent fields stay."""

    name: str | UnsetType = UNSET
    pool: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    adapter: str | UnsetType | None = UNSET
    engine: EngineFamily | UnsetType = UNSET
    served_model: str | UnsetType | None = UNSET
    context: dict[str, str] | UnsetType = UNSET
    request_context: list[str] | UnsetType = UNSET
    sharing: SharingLevel | UnsetType = UNSET
    routing_policy: Document | UnsetType = UNSET
    slo: Objectives | UnsetType | None = UNSET
    data_class: str | UnsetType | None = UNSET
    own_cache: bool | UnsetType = UNSET
    client_subdivision: bool | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


# ---- decisions and routers ---------------------------------------------------------------------------------------------


class DecisionOut(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as lists show it. Times in seconds; null is not known."""

    id: UUID
    started_at: datetime
    endpoint_id: UUID | None
    key_id: UUID | None
    scope_id: UUID | None
    replica_id: str | None
    outcome: str
    status: int
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    matched_tokens: int
    expected_ttft_s: float | None
    ttft_s: float | None
    e2e_s: float | None


class RouterOut(msgspec.Struct, frozen=True, kw_only=True):
    """One router. ``report`` is what it says of itself, for platform operators alone."""

    router_id: str
    applied_version: int | None
    stale: bool
    report: dict[str, Any] | None


class RoutersOut(msgspec.Struct, frozen=True, kw_only=True):
    """Which routers run the tenant's newest configuration."""

    summary: str
    reachable: bool
    config_version: int
    published_version: int | None
    applied: int
    total: int
    routers: list[RouterOut]


class StatusOut(msgspec.Struct, frozen=True, kw_only=True):
    """The tenant at a glance."""

    tenant: str
    suspended: bool
    config_version: int
    published_version: int | None
    applied: str
    endpoints: int
    pools: int
    replicas: dict[str, int]
