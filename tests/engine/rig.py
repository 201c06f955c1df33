"""The product in front of real engines: everything that ``make up`` starts, except the simulated fleet, and a declaration of two vLLM replicas."""

from __future__ import annotations

import http.cookiejar
import json
import os
import re
import secrets
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deploy.local.options import REPOSITORY
from tests.engine import wire
from tests.engine.vllm_cpu import MODEL_NAME, Replica
from tests.engine.waiting import until
from tests.product import Product

PAIR = "tiny-pair"  # an endpoint over both replicas
SOLO = "tiny-solo"  # an endpoint over the first replica alone: where nothing hides behind the choice of a replica
# Callers by name: tenant and scope. Scopes of the two tenants have the same names on purpose.
KEYS = {"support": ("acme", "support"), "research": ("acme", "research"), "stranger": ("globex", "support"), "far": ("globex", "research")}
APPLY_S = 120
CONFIGURED_S = 30.0
RECORDED_S = 30.0
SETTLED_S = 10.0


def declaration(replicas: Sequence[Replica], tokenizer: Path, *, isolation: str = "declared") -> dict[str, Any]:
    """Two tenants with scopes and keys, and the same two endpoints for both, on platform pools."""

    def pool(name: str, members: Sequence[Replica]) -> dict[str, Any]:
        declared = [{"name": f"vllm-{each.name}", "url": each.url, "kv_events": {"endpoint": each.events, "replay": each.replay}} for each in members]
        return {"name": name, "isolation": isolation, "grants": ["acme", "globex"], "replicas": declared}

    def endpoint(name: str, pool_name: str) -> dict[str, Any]:
        return {
            "name": name,
            "pool": pool_name,
            "engine": "vllm",
            "model": {"name": MODEL_NAME, "revision": "r1", "tokenizer": {"path": str(tokenizer), "revision": "t1"}},
            "context": {"org_policy": "v1"},
            "request_context": ["repo"],
            "routing_policy": {"policy": "ettft"},
            "slo": {"ttft_p95_ms": 5000},
        }

    def tenant(slug: str) -> dict[str, Any]:
        held = {name: scope for name, (owner, scope) in KEYS.items() if owner == slug}
        return {
            "slug": slug,
            "scopes": [{"path": "support"}, {"path": "research"}],
            "keys": [{"name": name, "scope": scope, "secret": f"env:{name.upper()}_KEY"} for name, scope in held.items()],
            "endpoints": [endpoint(PAIR, "pair"), endpoint(SOLO, "solo")],
        }

    return {"pools": [pool("pair", replicas), pool("solo", replicas[:1])], "tenants": [tenant("acme"), tenant("globex")]}


@dataclass
class Rig:
    """A running product, its engines, and the callers' keys by name."""

    product: Product
    replicas: Sequence[Replica]
    keys: Mapping[str, str]

    @classmethod
    def declare(cls, product: Product, replicas: Sequence[Replica], tokenizer: Path) -> Rig:
        """Apply the declaration and wait until every key is answered by both endpoints: a new tenant's cache key is made behind the scenes."""
        rig = cls._applied(product, replicas, declaration(replicas, tokenizer))
        pairs = [(key, model) for key in KEYS for model in (PAIR, SOLO)]
        until("every key is answered by both endpoints", lambda: all(rig._answers(key, model) for key, model in pairs), within_s=CONFIGURED_S)
        return rig

    @classmethod
    def declare_audited(cls, product: Product, replicas: Sequence[Replica], tokenizer: Path) -> Rig:
        """The same on audited pools. Nothing is waited for: replicas are unverified then, and serve one namespace at most."""
        return cls._applied(product, replicas, declaration(replicas, tokenizer, isolation="audited"))

    @classmethod
    def _applied(cls, product: Product, replicas: Sequence[Replica], declared: Mapping[str, Any]) -> Rig:
        rig = cls(product, replicas, {name: f"sk-sr-{secrets.token_urlsafe(32)}" for name in KEYS})
        file = product.home.root / "engines.yaml"
        file.write_text(yaml.safe_dump(declared, sort_keys=False))
        rig._apply(file)
        return rig

    def manage(self, *arguments: str, within_s: float) -> subprocess.CompletedProcess[str]:
        """A command as an operator types it beside the running product: manage.py finds the environment in the product's home."""
        ours = ("DATABASE_", "VALKEY_", "CELERY_", "SALTROUTE_", "DJANGO_")
        env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        env["SALTROUTE_HOME"] = str(self.product.home.root)
        argv = [sys.executable, "manage.py", *arguments]
        return subprocess.run(argv, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=within_s, check=False)

    def _apply(self, file: Path) -> None:
        env = {**self._control_environment(), **{f"{name.upper()}_KEY": key for name, key in self.keys.items()}}
        argv = [sys.executable, "manage.py", "apply", "-f", str(file)]
        done = subprocess.run(argv, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=APPLY_S, check=False)
        if done.returncode != 0:
            raise AssertionError(f"apply refused the declaration:\n{done.stdout}{done.stderr}")

    def _control_environment(self) -> dict[str, str]:
        """The environment that the launcher gave the control plane: commands run with the same rights."""
        raw = Path(f"/proc/{self.product.pid('control')}/environ").read_bytes()
        return dict(entry.split("=", 1) for entry in raw.decode().split("\0") if "=" in entry)

    def _answers(self, key: str, model: str) -> bool:
        body = {"model": model, "prompt": "Ready?", "max_tokens": 1}
        return wire.post(f"{self.product.router_url}/v1/completions", body, headers=self.bearer(key)).status == 200

    def bearer(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[key]}"}

    def chat(self, key: str, messages: Sequence[Mapping[str, str]], *, model: str, stream: bool = False, **more: Any) -> wire.Answer:
        """One chat through the router; asserts that it was answered."""
        return self._post("/v1/chat/completions", key, {"model": model, "messages": messages, **more}, stream)

    def completion(self, key: str, prompt: str, *, model: str, stream: bool = False, **more: Any) -> wire.Answer:
        """One completion through the router; asserts that it was answered."""
        return self._post("/v1/completions", key, {"model": model, "prompt": prompt, **more}, stream)

    def _post(self, path: str, key: str, body: Mapping[str, Any], stream: bool) -> wire.Answer:
        headers = self.bearer(key) | dict(body.get("extra_headers", {}))
        sent = {"max_tokens": 4, "temperature": 0, **{name: value for name, value in body.items() if name != "extra_headers"}}
        if stream:
            sent |= {"stream": True, "stream_options": {"include_usage": True}}
        answer = wire.post(f"{self.product.router_url}{path}", sent, headers=headers)
        assert answer.status == 200, answer.body
        return answer

    def served_by(self, send: Callable[[], wire.Answer]) -> tuple[Replica, wire.Answer]:
        """Send one request and learn from the engines' own counters which of them computed it."""
        before = [replica.metric("vllm:prompt_tokens_total") for replica in self.replicas]
        answer = send()
        grown: list[Replica] = []

        def seen() -> bool:
            grown[:] = [each for each, was in zip(self.replicas, before, strict=True) if each.metric("vllm:prompt_tokens_total") > was]
            return bool(grown)

        until("an engine counted the prompt", seen, within_s=SETTLED_S)
        assert len(grown) == 1, f"one request reached {len(grown)} replicas"
        return grown[0], answer

    def running(self) -> float:
        """Requests that the engines work on, over all replicas."""
        return sum(replica.metric("vllm:num_requests_running") for replica in self.replicas)

    def decision(self, tenant: str, decision_id: str) -> dict[str, Any]:
        """The decision record, once ingest has stored it, as the control API gives it to a signed-in operator."""
        browser = self._signed_in()
        request = self._api_request(tenant, f"decisions/{decision_id}")
        found: list[dict[str, Any]] = []

        def stored() -> bool:
            try:
                with browser.open(request, timeout=10) as answer:
                    found.append(json.load(answer))
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise
            return bool(found)

        until("the decision is stored", stored, within_s=RECORDED_S)
        return found[0]

    def api(self, tenant: str, path: str) -> Any:
        """What the control API answers to a signed-in operator."""
        with self._signed_in().open(self._api_request(tenant, path), timeout=30) as answer:
            return json.load(answer)

    def _api_request(self, tenant: str, path: str) -> urllib.request.Request:
        headers = {"X-Saltroute-Tenant": tenant, "Accept": "application/json"}
        return urllib.request.Request(f"{self.product.control_url}/api/v1/{path}", headers=headers)

    def _signed_in(self) -> urllib.request.OpenerDirector:
        jar = http.cookiejar.CookieJar()
        browser = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(jar))
        login = f"{self.product.control_url}/login"
        with browser.open(login, timeout=10) as page:
            token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.read().decode())
        assert token is not None
        form = {"email": self.product.email, "password": self.product.password, "csrfmiddlewaretoken": token.group(1)}
        browser.open(login, data=urllib.parse.urlencode(form).encode(), timeout=10).close()
        return browser
