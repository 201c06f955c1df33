"""Endpoints, models, pools and policies of a declaration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from yaml.nodes import MappingNode, Node

from routing.core.engines import ENGINES
from routing.core.snapshot import ReplicaRole
from routing.services import policies
from routing.services.declarations import document as doc
from routing.services.declarations import references
from routing.services.declarations.reader import Fields, Reader
from routing.services.endpoints import SHARING
from routing.services.pools import ISOLATION, WEIGHTS
from routing.services.replicas import MAX_CONCURRENCY
from tenants.core import names
from tenants.core.errors import Invalid


class Parts:
    """Reads the parts of one file; ``env`` holds the variables that secrets may come from."""

    def __init__(self, reader: Reader, env: Mapping[str, str]) -> None:
        self.reader = reader
        self._env = env

    # ---- pools -----------------------------------------------------------------------------------------------------------

    def pool(self, node: Node, path: str, *, platform: bool) -> doc.Pool | None:
        """One item of ``pools``; ``grants`` are the platform's alone."""
        fields = self.reader.fields(node, path)
        if fields is None:
            return None
        name = fields.text("name", required=True, check=names.label)
        isolation = self.word(fields, "isolation", ISOLATION)
        engine = self.word(fields, "engine", tuple(ENGINES)) or "vllm"
        found = fields.items("replicas", lambda item, at: self.replica(item, at, engine))
        grants: list[doc.Grant] = []
        if platform:
            grants = fields.items("grants", lambda item, at: self._grant(fields, item, at))
        fields.done()
        self.distinct(found, lambda replica: replica.name, "replica")
        return None if name is None else doc.Pool(path, name, isolation, tuple(found), tuple(grants))

    def _grant(self, outer: Fields, node: Node, path: str) -> doc.Grant | None:
        """A tenant's slug, or ``{tenant, weight}``."""
        if not isinstance(node, MappingNode):
            slug = outer.reader_text(node, path, names.slug)
            return None if slug is None else doc.Grant(path, slug, None)
        fields = self.reader.fields(node, path)
        if fields is None:
            return None
        slug = fields.text("tenant", required=True, check=names.slug)
        weight = self._number(fields, "weight", *WEIGHTS)
        fields.done()
        return None if slug is None else doc.Grant(path, slug, weight)

    def _number(self, fields: Fields, name: str, low: float, high: float) -> float | None:
        node = fields.node(name)
        if node is None:
            return None
        value = self.reader.plain(node, f"{fields.path}.{name}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            self.reader.refuse(f"{fields.path}.{name}", f"must be a number from {low} to {high:g}", node)
            return None
        return float(value)

    def _whole(self, fields: Fields, name: str, low: int, high: int) -> int | None:
        value = fields.integer(name)
        if value is not None and not low <= value <= high:
            self.reader.refuse(f"{fields.path}.{name}", f"must be a whole number from {low} to {high}", fields.node(name))
            return None
        return value

    def replica(self, node: Node, path: str, engine: str) -> doc.Replica | None:
        """One item of ``replicas``."""
        fields = self.reader.fields(node, path)
        if fields is None:
            return None
        name, url = fields.text("name", required=True, check=names.label), fields.text("url", required=True)
        engine = self.word(fields, "engine", tuple(ENGINES)) or engine
        role = self.word(fields, "role", get_args(ReplicaRole)) or "both"
        limit = self._whole(fields, "max_concurrency", 1, MAX_CONCURRENCY)
        events = self._kv_events(fields)
        credential_node = fields.node("credential")
        credential = None
        if credential_node is not None:
            credential = references.secret(self.reader, credential_node, f"{path}.credential", self._env)
        fields.done()
        return doc.Replica(path, name, url, engine, role, limit, events, credential) if name is not None and url is not None else None

    def _kv_events(self, fields: Fields) -> dict[str, str] | None:
        node = fields.node("kv_events")
        inner = None if node is None else self.reader.fields(node, f"{fields.path}.kv_events")
        if inner is None:
            return None
        given = {"endpoint": inner.text("endpoint", required=True), "replay": inner.text("replay"), "topic": inner.text("topic")}
        inner.done()
        return {key: value for key, value in given.items() if value}

    # ---- models ----------------------------------------------------------------------------------------------------------

    def model(self, node: Node, path: str) -> doc.Model | None:
        """A model with its tokenizer and adapters."""
        fields = self.reader.fields(node, path)
        if fields is None:
            return None
        name = fields.text("name", required=True, check=names.model_name)
        values: dict[str, Any] = {"revision": fields.text("revision", required=True, check=names.label)}
        for key in ("quantisation", "kv_dtype", "multimodal_processor"):
            values[key] = fields.text(key, check=names.label)
        values["context_window_tokens"] = fields.integer("context_window_tokens")
        files = self._tokenizer(fields, values)
        adapters = fields.items("adapters", self._adapter)
        fields.done()
        self.distinct(adapters, lambda adapter: adapter.name, "adapter")
        return None if name is None else doc.Model(path, name, values, tuple(files), tuple(adapters))

    def _tokenizer(self, fields: Fields, values: dict[str, Any]) -> list[doc.File]:
        kinds = ("tokenizer", "chat_template")
        values |= dict.fromkeys(f"{kind}_{part}" for kind in kinds for part in ("sha256", "revision"))
        node = fields.node("tokenizer")
        inner = None if node is None else self.reader.fields(node, f"{fields.path}.tokenizer")
        if inner is None:
            return []
        revision = inner.text("revision", check=names.label)
        template_revision = inner.text("chat_template_revision", check=names.label)
        tokenizer = references.artifact(inner, kind="tokenizer", at="path", digest_at="sha256")
        template = references.artifact(inner, kind="chat_template", at="chat_template", digest_at="chat_template_sha256")
        inner.done()
        values["tokenizer_revision"] = revision
        values["chat_template_revision"] = template_revision if template_revision is not None else revision if template is not None else None
        files = [file for file in (tokenizer, template) if file is not None]
        for file in files:
            values[f"{file.kind}_sha256"] = file.sha256
        return files

    def _adapter(self, node: Node, path: str) -> doc.Adapter | None:
        fields = self.reader.fields(node, path)
        if fields is None:
            return None
        name = fields.text("name", required=True, check=names.model_name)
        revision = fields.text("revision", required=True, check=names.label)
        fields.done()
        return doc.Adapter(path, name, revision) if name is not None and revision is not None else None

    # ---- policies --------------------------------------------------------------------------------------------------------

    def policy(self, node: Node, path: str, kind: policies.Kind) -> doc.Policy | None:
        """One item of ``routing_policies`` or ``slo_policies``."""
        fields = self.reader.fields(node, path)
        if fields is None:
            return None
        name = fields.text("name", required=True, check=names.label)
        inner = fields.node("spec", required=True)
        spec = None if inner is None else self._spec(inner, f"{path}.spec", kind)
        fields.done()
        return doc.Policy(path, kind, name, spec) if name is not None and spec is not None else None

    def _spec(self, node: Node, path: str, kind: policies.Kind) -> dict[str, Any] | None:
        spec = self.reader.plain(node, path)
        try:
            policies.compiled(kind, spec, field=path)
        except Invalid as error:
            for at, message in ((error.field or path, error.message), *error.others):
                self.reader.refuse(at, message)
            return None
        return spec if isinstance(spec, dict) else None

    def _choice(self, fields: Fields, name: str, kind: policies.Kind) -> doc.PolicyChoice | None:
        node, path = fields.node(name), f"{fields.path}.{name}"
        if node is None:
            return None
        if isinstance(node, MappingNode) and not any(getattr(key, "value", None) == "name" for key, _ in node.value):
            spec = self._spec(node, path, kind)
            return None if spec is None else doc.PolicyChoice(spec=spec)
        if not isinstance(node, MappingNode):
            text = fields.reader_text(node, path, names.label)
            return None if text is None else doc.PolicyChoice(name=text)
        inner = self.reader.fields(node, path)
        if inner is None:
            return None
        chosen, version = inner.text("name", required=True, check=names.label), inner.integer("version")
        inner.done()
        return None if chosen is None else doc.PolicyChoice(name=chosen, version=version)

    # ---- endpoints -------------------------------------------------------------------------------------------------------

    def endpoint(self, node: Node, path: str, models: list[doc.Model], pools: list[doc.Pool]) -> doc.Endpoint | None:
        """One item of ``endpoints``; an inline model goes to ``models``, inline replicas become a pool in ``pools``."""
        fields = self.reader.fields(node, path)
        if fields is None:
            return None
        name = fields.text("name", required=True, check=names.model_name)
        model = self._model_of(fields, models)
        engine = self.word(fields, "engine", tuple(ENGINES)) or "vllm"
        values: dict[str, Any] = {
            "engine": engine,
            "context": fields.texts("context", check=names.label),
            "request_context": sorted(set(fields.words("request_context", check=names.label) or ())),
            "sharing": self.word(fields, "sharing", SHARING) or "scope",
            "served_model": fields.text("served_model", check=names.model_name),
            "data_class": fields.text("data_class", check=names.label),
            "own_cache": fields.flag("own_cache", False),
            "client_subdivision": fields.flag("client_subdivision", False),
            "enabled": fields.flag("enabled", True),
        }
        adapter = fields.text("adapter", check=names.model_name)
        routing = self._choice(fields, "routing_policy", "routing") or doc.PolicyChoice(spec={"policy": "ettft"})
        slo = self._choice(fields, "slo", "slo")
        candidate = self._candidate(fields)
        pool = self._pool_of(fields, name, engine, pools)
        fields.done()
        if name is None or model is None or pool is None:
            return None
        return doc.Endpoint(path, name, pool, model, adapter, routing, slo, values, candidate)

    def _candidate(self, fields: Fields) -> doc.Candidate | None:
        node, path = fields.node("candidate"), f"{fields.path}.candidate"
        inner = None if node is None else self.reader.fields(node, path)
        if inner is None:
            return None
        policy, share = self._choice(inner, "policy", "routing"), self._number(inner, "share", 0, 1)
        if not inner.has("policy"):
            self.reader.refuse(f"{path}.policy", "is required")
        inner.done()
        return None if policy is None else doc.Candidate(path, policy, share or 0.0)

    def _model_of(self, fields: Fields, models: list[doc.Model]) -> str | None:
        node, path = fields.node("model", required=True), f"{fields.path}.model"
        if node is None:
            return None
        if not isinstance(node, MappingNode):
            return fields.reader_text(node, path, names.model_name)
        model = self.model(node, path)
        if model is None:
            return None
        models.append(model)
        return model.name

    def _pool_of(self, fields: Fields, name: str | None, engine: str, pools: list[doc.Pool]) -> str | None:
        chosen, inline = fields.text("pool", check=names.label), fields.has("replicas")
        isolation = self.word(fields, "isolation", ISOLATION)
        found = fields.items("replicas", lambda item, at: self.replica(item, at, engine))
        if inline == (chosen is not None):
            self.reader.refuse(fields.path, "needs either pool or replicas")
            return None
        if not inline:
            if isolation is not None:
                self.reader.refuse(f"{fields.path}.isolation", "goes with inline replicas; a named pool has its own")
            return chosen
        self.distinct(found, lambda replica: replica.name, "replica")
        if name is not None and len(name) > 100:
            self.reader.refuse(f"{fields.path}.name", "is too long to name a pool of inline replicas (100 characters); use pool")
            return None
        if name is not None:
            pools.append(doc.Pool(fields.path, name, isolation, tuple(found)))
        return name

    # ---- helpers ---------------------------------------------------------------------------------------------------------

    def word(self, fields: Fields, name: str, allowed: tuple[str, ...]) -> str | None:
        """One of a fixed list of words."""
        value = fields.text(name)
        if value is not None and value not in allowed:
            self.reader.refuse(f"{fields.path}.{name}", f"must be one of {', '.join(allowed)}")
            return None
        return value

    def distinct(self, items: list[Any], key: Any, what: str) -> None:
        """Refuse the second item of one name."""
        seen: set[Any] = set()
        for item in items:
            if key(item) in seen:
                self.reader.refuse(item.path, f"the {what} {key(item)} is declared twice")
            seen.add(key(item))
