"""From a file to a :class:`Document`, or to all its errors at once. Reads what the declaration refers to; no database."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from yaml.nodes import Node

from routing.core.quota import MEASURES, OFS
from routing.services.declarations import document as doc
from routing.services.declarations import references
from routing.services.declarations.parts import Parts
from routing.services.declarations.problems import DeclarationError, Problem
from routing.services.declarations.reader import Fields, Reader
from tenants.core import names
from tenants.core.roles import Role
from tenants.core.scopes import parse_path
from tenants.models import PLATFORM_SLUG


def parse(file: Path, *, env: Mapping[str, str] = os.environ) -> doc.Document:
    """Read and check a declaration file.

    Raises:
        DeclarationError: with every problem that can be seen without the database.
    """
    reader = Reader(file)
    root = reader.root()
    found = None if root is None else _Parser(reader, env).document(root)
    if reader.problems:
        raise DeclarationError(str(file), reader.problems)
    if root is None or found is None or not (root.has("pools") or root.has("tenants")):
        # No mistake of the format, but one of whoever made the file: a template that did not render, say.
        raise DeclarationError(str(file), [Problem(1, "", "is empty: a declaration has pools, tenants or both at the top")])
    return found


class _Parser:
    """Reads one file."""

    def __init__(self, reader: Reader, env: Mapping[str, str]) -> None:
        self.reader = reader
        self.parts = Parts(reader, env)
        self._env = env

    def document(self, root: Fields) -> doc.Document:
        pools = root.items("pools", lambda node, path: self.parts.pool(node, path, platform=True)) if root.has("pools") else None
        tenants = root.items("tenants", self._tenant)
        root.done()
        self.parts.distinct(pools or [], lambda pool: pool.name, "pool")
        self.parts.distinct(tenants, lambda tenant: tenant.slug, "tenant")
        return doc.Document(str(self.reader.file), self.reader.lines, pools, tenants)

    def _tenant(self, node: Node, path: str) -> doc.Tenant | None:
        fields = self.reader.fields(node, path)
        if fields is None:
            return None
        slug = fields.text("slug", required=True, check=names.slug)
        if slug == PLATFORM_SLUG:
            self.reader.refuse(f"{path}.slug", "the platform is no tenant; its pools are declared under pools at the top")
        models = fields.items("models", self.parts.model)
        pools = fields.items("pools", lambda item, at: self.parts.pool(item, at, platform=False))
        policies = fields.items("routing_policies", lambda item, at: self.parts.policy(item, at, "routing"))
        policies += fields.items("slo_policies", lambda item, at: self.parts.policy(item, at, "slo"))
        endpoints = fields.items("endpoints", lambda item, at: self.parts.endpoint(item, at, models, pools))
        tenant = doc.Tenant(
            path=path,
            slug=slug or "",
            name=fields.text("name", check=names.label),
            suspended=fields.flag("suspended", False) if fields.has("suspended") else None,
            scopes=fields.items("scopes", self._scope) if fields.has("scopes") else None,
            members=fields.items("members", self._member) if fields.has("members") else None,
            keys=fields.items("keys", self._key) if fields.has("keys") else None,
            pools=pools if pools or fields.has("pools") or fields.has("endpoints") else None,
            policies=policies,
            policy_kinds={kind for kind in ("routing", "slo") if fields.has("routing_policies" if kind == "routing" else "slo_policies")},
            endpoints=endpoints if fields.has("endpoints") else None,
            models=models,
            models_given=fields.has("models") or fields.has("endpoints"),
            quotas=fields.items("quotas", self._quota) if fields.has("quotas") else None,
        )
        fields.done()
        self._distinct(tenant)
        return tenant if slug is not None else None

    def _distinct(self, tenant: doc.Tenant) -> None:
        distinct = self.parts.distinct
        distinct(tenant.scopes or [], lambda scope: scope.scope, "scope")
        distinct(tenant.members or [], lambda member: member.email, "member")
        distinct(tenant.keys or [], lambda key: key.name, "key")
        distinct(tenant.pools or [], lambda pool: pool.name, "pool")
        distinct(tenant.policies, lambda policy: (policy.kind, policy.name), "policy")
        distinct(tenant.quotas or [], lambda quota: (quota.of, quota.name), "quota")
        distinct(tenant.endpoints or [], lambda endpoint: endpoint.name, "endpoint")
        # One model may be written out at several endpoints, as long as it is the same model.
        known: dict[str, doc.Model] = {}
        for model in tenant.models:
            first = known.setdefault(model.name, model)
            if first.fields != model.fields or [(a.name, a.revision) for a in first.adapters] != [(a.name, a.revision) for a in model.adapters]:
                line = self.reader.line_of(first.path)
                self.reader.refuse(model.path, f"the model {model.name} is declared differently at line {line}; declare it once and use its name")
        tenant.models = list(known.values())

    def _scope(self, node: Node, path: str) -> doc.Scope | None:
        fields = self.reader.fields(node, path)
        if fields is None:
            return None
        scope = fields.text("path", required=True, check=parse_path)
        fields.done()
        return None if scope is None else doc.Scope(path, scope)

    def _member(self, node: Node, path: str) -> doc.Member | None:
        fields = self.reader.fields(node, path)
        if fields is None:
            return None
        email = fields.text("email", required=True)
        role = self.parts.word(fields, "role", tuple(role.value for role in Role)) or ("viewer" if not fields.has("role") else None)
        fields.done()
        return doc.Member(path, email.strip().lower(), role) if email is not None and role is not None else None

    def _key(self, node: Node, path: str) -> doc.Key | None:
        fields = self.reader.fields(node, path)
        if fields is None:
            return None
        name = fields.text("name", required=True, check=names.label)
        scope = fields.text("scope", check=parse_path) or ""
        secret_node = fields.node("secret", required=True)
        secret = None if secret_node is None else references.secret(self.reader, secret_node, f"{path}.secret", self._env)
        endpoints = fields.words("endpoints", check=names.model_name)
        expires_at = self._moment(fields)
        fields.done()
        return doc.Key(path, name, scope, secret, endpoints, expires_at) if name is not None and secret is not None else None

    def _quota(self, node: Node, path: str) -> doc.Quota | None:
        fields = self.reader.fields(node, path)
        if fields is None:
            return None
        of = self.parts.word(fields, "of", OFS)
        if not fields.has("of"):
            self.reader.refuse(path, f"must say whose it is: of one of {', '.join(OFS)}")
        name = fields.text("name") or ""
        limits: dict[str, int | None] = {measure: fields.integer(measure) for measure in MEASURES}
        fields.done()
        return None if of is None else doc.Quota(path, of, name, limits)

    def _moment(self, fields: Fields) -> datetime | None:
        text = fields.text("expires_at")
        if text is None:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            self.reader.refuse(f"{fields.path}.expires_at", "must be a time with its zone, such as 2027-01-31T12:00:00Z")
            return None
        return moment.astimezone(UTC)


__all__ = ["DeclarationError", "parse"]
