"""Endpoints: what they are, where they run, and which identity their cached blocks live under."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from namespaces.core.components import COMPONENTS
from routing.models import Endpoint

MAX_ROWS = 1000
PAGE_ROWS = 200
MAX_TARGETS = 3  # drawn on one plot


def names(tenant_id: UUID) -> dict[UUID, str]:
    """Endpoint names by id."""
    return dict(Endpoint.objects.filter(tenant_id=tenant_id).order_by("name").values_list("id", "name")[:MAX_ROWS])


def targets(tenant_id: UUID, endpoint_id: UUID | None = None) -> list[float]:
    """The objectives for the time to first token in force, in seconds: of one endpoint, or all that differ, at most ``MAX_TARGETS``."""
    rows = Endpoint.objects.filter(tenant_id=tenant_id, enabled=True, slo_policy__isnull=False)
    rows = rows if endpoint_id is None else rows.filter(id=endpoint_id)
    found = rows.values_list("slo_policy__spec__ttft_p95_ms", flat=True).distinct()[: MAX_TARGETS + 1]
    return sorted(value / 1000 for value in found if isinstance(value, int | float))[:MAX_TARGETS]


@dataclass(frozen=True, slots=True)
class Part:
    """One identity component of an endpoint: its value in words, where it comes from, and whether each request brings its own."""

    name: str
    value: str
    source: str
    per_request: bool = False

    @property
    def left_out(self) -> bool:
        return self.value.startswith(_LEFT_OUT)


def identity(endpoint: Endpoint, *, tenant_slug: str, tenant_epoch: int, given: Mapping[str, str] = MappingProxyType({})) -> tuple[Part, ...]:
    """The components in encoding order, in the words of the register; those of no effect here say so. ``given``: what requests brought, by component,
    where that is known."""
    parts = []
    for component in COMPONENTS:
        in_words = _WORDS.get(component.name)
        value = in_words(endpoint, tenant_slug, tenant_epoch) if in_words else "as the request says"
        varies = component.name in _PER_REQUEST and not value.startswith(_LEFT_OUT)
        if varies and component.name in given:
            value, varies = given[component.name], False
        parts.append(Part(name=component.name, value=value, source=component.source, per_request=varies))
    return tuple(parts)


_PER_REQUEST = frozenset({"scope", "key", "request", "client"})
_LEFT_OUT = "left out"


def _model(endpoint: Endpoint, *_: object) -> str:
    model = endpoint.model
    extra = [f"quantisation {model.quantisation}"] if model.quantisation else []
    extra += [f"KV {model.kv_dtype}"] if model.kv_dtype else []
    return ", ".join([f"{model.name} at {model.revision}", *extra])


def _file(digest: object, revision: str | None) -> str:
    held = bytes(digest).hex()[:16] + "…" if isinstance(digest, bytes | memoryview) else None
    said = [f"revision {revision}"] if revision else []
    said += [f"sha256 {held}"] if held else []
    return ", ".join(said) or "none declared"


def _context(endpoint: Endpoint, *_: object) -> str:
    fixed = [f"{name}={version}" for name, version in sorted(endpoint.context.items())]
    asked = [f"{name} by X-Saltroute-Context" for name in endpoint.request_context]
    return ", ".join([*fixed, *asked]) or "none"


def _adapter(endpoint: Endpoint, *_: object) -> str:
    adapter = endpoint.adapter
    return f"{adapter.name} at {adapter.revision}, load {adapter.generation}" if adapter else "none: the base model"


def _scope(endpoint: Endpoint, *_: object) -> str:
    return "the root scope" if endpoint.sharing == "tenant" else "the acting scope and all above it, each with its version"


def _key(endpoint: Endpoint, *_: object) -> str:
    return "the key's id" if endpoint.sharing in ("key", "none") else _LEFT_OUT


# component name -> (endpoint, tenant slug, tenant epoch) -> words
_WORDS: dict[str, Callable[[Endpoint, str, int], str]] = {
    "tenant": lambda _endpoint, slug, _epoch: slug,
    "sharing": lambda endpoint, _slug, _epoch: endpoint.sharing,
    "scope": _scope,
    "key": _key,
    "request": lambda endpoint, _slug, _epoch: "a nonce for each request" if endpoint.sharing == "none" else _LEFT_OUT,
    "endpoint": lambda endpoint, _slug, _epoch: "this endpoint alone" if endpoint.own_cache else f"{_LEFT_OUT}: alias and canary endpoints share",
    "engine": lambda endpoint, _slug, _epoch: endpoint.engine,
    "model": _model,
    "tokenizer": lambda endpoint, _slug, _epoch: _file(endpoint.model.tokenizer_digest, endpoint.model.tokenizer_revision),
    "chat_template": lambda endpoint, _slug, _epoch: _file(endpoint.model.chat_template_digest, endpoint.model.chat_template_revision),
    "adapter": _adapter,
    "context": _context,
    "multimodal": lambda endpoint, _slug, _epoch: endpoint.model.multimodal_processor or "none: text only",
    "data_class": lambda endpoint, _slug, _epoch: endpoint.data_class or _LEFT_OUT,
    "epoch": lambda endpoint, _slug, epoch: f"tenant {epoch}, endpoint {endpoint.epoch}",
    "client": lambda endpoint, _slug, _epoch: "the request's cache_salt" if endpoint.client_subdivision else f"{_LEFT_OUT}: cache_salt is stripped",
}
