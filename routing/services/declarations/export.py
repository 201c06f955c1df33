"""``export``: what is there as a declaration that ``apply`` accepts and finds nothing to do with.

Secrets are not known here, only their digests: they are written as ``stored``, which means "the one that is held"; see docs/declarations.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import yaml

from routing.models import Artifact
from routing.services.declarations.document import STORED
from routing.services.declarations.state import State, inline_policies, read
from tenants.core.errors import NotFound
from tenants.core.scopes import ROOT
from tenants.models import PLATFORM_SLUG
from tenants.queries import all_tenants, tenant_id_of
from tenants.scoping import tenant_scope

HEADER = "# Written by manage.py export. Secrets stand as `stored`: put env:NAME or file:PATH in their place to apply this elsewhere.\n"
_MODEL_KEYS = ("revision", "quantisation", "kv_dtype", "multimodal_processor", "context_window_tokens")
_SUFFIX = {"tokenizer": "json", "chat_template": "jinja"}


class Artifacts:
    """Where artifacts go: beside the declaration, one file for each content, or nowhere, so that only their SHA-256 is written."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def reference(self, tenant_id: UUID, kind: str, sha256: str) -> dict[str, str]:
        """The keys under ``tokenizer`` that name an artifact."""
        path_key, digest_key = ("path", "sha256") if kind == "tokenizer" else ("chat_template", "chat_template_sha256")
        reference = {digest_key: sha256}
        if self.folder is not None:
            target = self.folder / f"{sha256}.{_SUFFIX[kind]}"
            if not target.exists():
                content = Artifact.objects.values_list("content", flat=True).get(tenant_id=tenant_id, kind=kind, digest=bytes.fromhex(sha256))
                self.folder.mkdir(parents=True, exist_ok=True)
                target.write_bytes(bytes(content))
            reference[path_key] = str(target)  # as it was named: apply reads it relative to the declaration
        return reference


def export(*, slug: str | None = None, artifacts_folder: Path | None = None) -> str:
    """The declaration of everything, or of one tenant (without the platform's pools).

    Raises:
        NotFound: no such tenant.
    """
    held = Artifacts(artifacts_folder)
    content: dict[str, Any] = {}
    if slug is None:
        platform = tenant_id_of(PLATFORM_SLUG)
        if platform is not None:
            with tenant_scope(platform):
                content["pools"] = _pools(read(platform), platform=True)
        slugs = [ref.slug for ref in all_tenants() if ref.slug != PLATFORM_SLUG]
    else:
        slugs = [slug]
    content["tenants"] = [_tenant(one, held) for one in slugs]
    return HEADER + yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=160)


class _Dumper(yaml.SafeDumper):
    """Writes every value out: an alias would need a reader to know YAML's anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        """Never."""
        return True


def _tenant(slug: str, held: Artifacts) -> dict[str, Any]:
    tenant_id = tenant_id_of(slug)
    if tenant_id is None or slug == PLATFORM_SLUG:
        raise NotFound
    with tenant_scope(tenant_id):
        state = read(tenant_id)
        models = [_model(state, name, held) for name in sorted(state.models)]
    inline = inline_policies(state)
    return {
        "slug": state.slug,
        "name": state.name,
        "suspended": state.suspended,
        "scopes": [{"path": path} for path in sorted(state.scopes - {ROOT})],
        "members": [{"email": email, "role": role} for email, role in sorted(state.members.items())],
        "keys": [_key(state, name) for name in _lasting_keys(state)],
        "models": models,
        "pools": _pools(state, platform=False),
        "routing_policies": _policies(state, "routing", inline),
        "slo_policies": _policies(state, "slo", inline),
        "endpoints": [_endpoint(state, name, inline) for name in sorted(state.endpoints)],
        "quotas": [_quota(of, name, limits) for (of, name), limits in sorted(state.quotas.items()) if _there(state, of, name)],
    }


def _lasting_keys(state: State) -> list[str]:
    """Names of the keys that another installation could use: the playground's have ended before anybody applies the file."""
    return sorted(name for name, key in state.keys.items() if not key.passing)


def _key(state: State, name: str) -> dict[str, Any]:
    key = state.keys[name]
    written: dict[str, Any] = {"name": name, "scope": key.scope, "secret": STORED}
    if key.endpoints is not None:
        written["endpoints"] = key.endpoints
    if key.expires_at is not None:
        written["expires_at"] = key.expires_at.isoformat()
    return written


def _there(state: State, of: str, name: str) -> bool:
    """Whether something has the name that a quota is for; where nothing has, no other installation could take it."""
    names = {"scope": state.scopes, "key": _lasting_keys(state), "endpoint": state.endpoints}.get(of)
    return names is None or name in names


def _quota(of: str, name: str, limits: dict[str, int | None]) -> dict[str, Any]:
    given = {measure: limit for measure, limit in limits.items() if limit is not None}
    return {"of": of, **({"name": name} if name else {}), **given}


def _model(state: State, name: str, held: Artifacts) -> dict[str, Any]:
    fields = state.models[name]
    tokenizer: dict[str, Any] = {}
    for kind in ("tokenizer", "chat_template"):
        if fields[f"{kind}_sha256"] is not None:
            tokenizer |= held.reference(state.tenant_id, kind, fields[f"{kind}_sha256"])
    if fields["tokenizer_revision"] is not None:
        tokenizer["revision"] = fields["tokenizer_revision"]
    if fields["chat_template_revision"] is not None:
        tokenizer["chat_template_revision"] = fields["chat_template_revision"]
    written: dict[str, Any] = {"name": name, **{key: fields[key] for key in _MODEL_KEYS if fields[key] is not None}}
    if tokenizer:
        written["tokenizer"] = tokenizer
    adapters = [{"name": adapter, "revision": revision} for (model, adapter), revision in sorted(state.adapters.items()) if model == name]
    return {**written, "adapters": adapters}


def _pools(state: State, *, platform: bool) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "isolation": isolation,
            **({"grants": [_grant(slug, weight) for slug, weight in sorted(state.grants[name].items())]} if platform else {}),
            "replicas": [_replica(replica, fields) for (pool, replica), fields in sorted(state.replicas.items()) if pool == name],
        }
        for name, isolation in sorted(state.pools.items())
    ]


def _grant(slug: str, weight: float) -> str | dict[str, Any]:
    return slug if weight == 1 else {"tenant": slug, "weight": weight}


def _replica(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    written: dict[str, Any] = {"name": name, "url": fields["url"], "engine": fields["engine"]}
    if fields["role"] != "both":
        written["role"] = fields["role"]
    if fields["max_concurrency"] is not None:
        written["max_concurrency"] = fields["max_concurrency"]
    if fields["kv_events"]:
        written["kv_events"] = fields["kv_events"]
    if fields["has_credential"]:
        written["credential"] = STORED
    return written


def _policies(state: State, kind: str, inline: set[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {"name": name, "spec": policy.spec} for (one, name), policy in sorted(state.policies.items()) if one == kind and (kind, name) not in inline
    ]


def _endpoint(state: State, name: str, inline: set[tuple[str, str]]) -> dict[str, Any]:
    fields = state.endpoints[name]
    written: dict[str, Any] = {"name": name, "pool": fields["pool"], "model": fields["model"], "adapter": fields["adapter"]}
    written |= {key: fields[key] for key in ("engine", "served_model", "context", "request_context", "sharing")}
    for kind, column in (("routing", "routing_policy"), ("slo", "slo")):
        if fields[column] is not None:
            policy, version = fields[column]
            key = (kind, policy)
            written[column] = state.policies[key].spec if key in inline else {"name": policy, "version": version}
    if fields["candidate"] is not None:
        policy, version = fields["candidate"]
        key = ("routing", policy)
        tried = state.policies[key].spec if key in inline else {"name": policy, "version": version}
        written["candidate"] = {"policy": tried, "share": fields["canary_share"]}
    written |= {key: fields[key] for key in ("data_class", "own_cache", "client_subdivision", "enabled")}
    return {key: value for key, value in written.items() if value not in (None, {}, [])}
