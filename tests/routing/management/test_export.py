"""``manage.py export``: what it writes, apply accepts and finds nothing to do with."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
import yaml
from django.core.management import CommandError, call_command
from django.db import transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing.models import Endpoint
from routing.services import endpoints, quotas
from routing.services.playground import passing_keys
from tenants.queries import all_tenants, tenant_id_of
from tenants.scoping import tenant_scope
from tenants.services import api_keys
from tests.fakes.artifacts import SMALL
from tests.routing.services.rows import ACTOR

pytestmark = pytest.mark.django_db
DEMO = Path(__file__).parents[3] / "deploy" / "demo" / "demo.yaml"
SECRET = "sk-sr-from-a-file-0123456789"


def call(command: str, *options: str) -> str:
    out = StringIO()
    call_command(command, *options, stdout=out)
    return out.getvalue()


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACME_APP_KEY", "ACME_SUPPORT_KEY", "ACME_EMEA_KEY", "ACME_RESEARCH_KEY", "GLOBEX_APP_KEY", "GLOBEX_RESEARCH_KEY"):
        monkeypatch.setenv(name, f"sk-sr-{name.lower().replace('_', '-')}-0123456789")
    call("apply", "-f", str(DEMO))


def test_the_demo_comes_back(demo: None, tmp_path: Path) -> None:
    """No changes, even with everything pruned; no secret and no digest in it."""
    text = call("export")
    before = {ref.slug: ref.config_version for ref in all_tenants()}
    assert call("apply", "-f", written(tmp_path / "out.yaml", text), "--prune", "--prune-tenants") == "no changes\n"
    assert {ref.slug: ref.config_version for ref in all_tenants()} == before
    assert "sk-sr-" not in text
    declared = yaml.safe_load(text)
    assert declared["pools"][0]["grants"] == ["acme", "globex"]
    acme = declared["tenants"][0]
    assert {key["secret"] for key in acme["keys"]} == {"stored"}
    assert acme["endpoints"][0]["routing_policy"] == {"policy": "ettft"}  # inline, as it was declared
    assert acme["routing_policies"] == []


def test_the_playgrounds_keys_stay_here(demo: None, tmp_path: Path) -> None:
    """Nor does a quota that somebody set on one; one that lasts is written, and the file is accepted."""
    tenant_id, now = tenant_id_of("acme"), timezone.now()
    assert tenant_id is not None
    with tenant_scope(tenant_id):
        passing = passing_keys.issue(tenant_id=tenant_id, actor=ACTOR, now=now).key
        lasting = api_keys.issue_inference(tenant_id=tenant_id, actor=ACTOR, name="ci", expires_at=now + timedelta(hours=2), now=now).key
        for key in (passing, lasting):
            quotas.put(tenant_id=tenant_id, actor=ACTOR, of="key", name=key.name, platform=False, requests_per_minute=5)
    text = call("export", "--tenant", "acme")
    assert passing.name not in text
    acme = yaml.safe_load(text)["tenants"][0]
    assert "ci" in {key["name"] for key in acme["keys"]}
    assert "ci" in {row.get("name") for row in acme["quotas"]}
    assert call("apply", "-f", written(tmp_path / "out.yaml", text)) == "no changes\n"


def test_one_tenant(demo: None, tmp_path: Path) -> None:
    """Without the platform's pools; applied alone it changes nothing."""
    text = call("export", "--tenant", "globex")
    assert list(yaml.safe_load(text)) == ["tenants"]
    assert call("apply", "-f", written(tmp_path / "out.yaml", text), "--prune") == "no changes\n"
    for slug in ("nobody", "platform"):
        with pytest.raises(CommandError, match=f"there is no tenant {slug}"):
            call("export", "--tenant", slug)


def test_a_policy_that_is_not_simply_inline_is_written_apart(demo: None, tmp_path: Path) -> None:
    """An endpoint that stays on an old version of its own policy names the version."""
    tenant_id = tenant_id_of("acme")
    assert tenant_id is not None
    with tenant_scope(tenant_id):
        chat = Endpoint.objects.get(name="llama-chat")
        endpoints.update(tenant_id=tenant_id, actor=ACTOR, endpoint_id=chat.id, routing_policy={"policy": "round_robin"})
        endpoints.update(tenant_id=tenant_id, actor=ACTOR, endpoint_id=chat.id, routing_policy={"name": "llama-chat", "version": 1})
    text = call("export", "--tenant", "acme")
    acme = yaml.safe_load(text)["tenants"][0]
    assert acme["routing_policies"] == [{"name": "llama-chat", "spec": {"policy": "round_robin"}}]
    assert acme["endpoints"][0]["routing_policy"] == {"name": "llama-chat", "version": 1}
    assert call("apply", "-f", written(tmp_path / "out.yaml", text), "--prune") == "no changes\n"


def test_a_stored_secret_cannot_be_made_up(tmp_path: Path) -> None:
    """On another installation the placeholder is refused where there is nothing stored, with its line."""
    file = written(tmp_path / "out.yaml", "tenants:\n  - slug: acme\n    keys:\n      - {name: app, secret: stored}\n")
    err = StringIO()
    with pytest.raises(SystemExit):
        call_command("apply", "-f", file, stderr=err)
    assert err.getvalue().startswith(f"{file}:4: tenants[0].keys[0].secret: There is no stored secret")


def test_artifacts_go_to_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the file can be applied where they are not known yet, and the two can be moved together: no path of this machine is in it."""
    (tmp_path / "t.json").write_bytes(SMALL)
    source = """\
tenants:
  - slug: acme
    models: [{name: m, revision: r, tokenizer: {path: t.json, revision: t1}}]
"""
    call("apply", "-f", written(tmp_path / "in.yaml", source))
    text = call("export", "--artifacts", str(tmp_path / "held"))
    tokenizer = yaml.safe_load(text)["tenants"][0]["models"][0]["tokenizer"]
    assert Path(tokenizer["path"]).read_bytes() == SMALL
    elsewhere = text.replace("slug: acme", "slug: other")
    assert "+ other: artifact" in call("apply", "-f", written(tmp_path / "out.yaml", elsewhere))
    monkeypatch.chdir(tmp_path)
    moved = call("export", "--tenant", "acme", "--artifacts", "beside")
    assert str(tmp_path) not in moved
    (tmp_path / "there").mkdir()
    (tmp_path / "beside").rename(tmp_path / "there" / "beside")
    third = moved.replace("slug: acme", "slug: third")
    assert "+ third: artifact" in call("apply", "-f", written(tmp_path / "there" / "out.yaml", third))


labels = st.text(st.characters(codec="utf-8", categories=("L", "N")), min_size=1, max_size=8).filter(lambda text: normalize("NFC", text) == text)
slugs = st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True)
optional = st.none() | labels


@st.composite
def tenants(draw: st.DrawFn) -> dict[str, Any]:
    """A tenant with a bit of everything, whatever goes together."""
    models: list[dict[str, Any]] = [
        {
            "name": name,
            "revision": draw(labels),
            "quantisation": draw(optional),
            "context_window_tokens": draw(st.none() | st.integers(1, 10**6)),
            "tokenizer": {"revision": draw(optional)},
            "adapters": [{"name": adapter, "revision": draw(labels)} for adapter in draw(st.lists(labels, unique=True, max_size=2))],
        }
        for name in draw(st.lists(labels, unique=True, min_size=1, max_size=2))
    ]
    pools = [
        {
            "name": name,
            "isolation": draw(st.sampled_from(["audited", "declared", "dedicated"])),
            "replicas": [
                {
                    "name": f"r{port}",
                    "url": f"http://127.0.0.1:{port}",
                    "role": draw(st.sampled_from(["both", "prefill", "decode"])),
                    "max_concurrency": draw(st.none() | st.integers(1, 100_000)),
                    "credential": draw(st.none() | st.just("env:SECRET")),
                }
                for port in draw(st.lists(st.integers(2000, 9999), unique=True, max_size=2))
            ],
        }
        for name in draw(st.lists(labels, unique=True, min_size=1, max_size=2))
    ]
    policies = st.sampled_from([{"policy": "ettft"}, {"policy": "weighted", "weights": {"wait": 1}}, {"policy": "bounded_hash"}, "named"])
    endpoints = []
    for name in draw(st.lists(labels, unique=True, max_size=3)):
        model = draw(st.sampled_from(models))
        endpoints.append(
            {
                "name": name,
                "model": model["name"],
                "adapter": draw(st.sampled_from([None, *(adapter["name"] for adapter in model["adapters"])])),
                "pool": draw(st.sampled_from(pools))["name"],
                "engine": draw(st.sampled_from(["vllm", "sglang"])),
                "served_model": draw(optional),
                "context": draw(st.dictionaries(slugs, labels, max_size=2)),
                "request_context": draw(st.lists(slugs, unique=True, max_size=2)),
                "sharing": draw(st.sampled_from(["tenant", "scope", "key", "none"])),
                "routing_policy": draw(policies),
                "slo": draw(st.none() | st.just({"ttft_p95_ms": 100})),
                "data_class": draw(optional),
                "own_cache": draw(st.booleans()),
                "client_subdivision": draw(st.booleans()),
                "enabled": draw(st.booleans()),
            }
        )
    names = [endpoint["name"] for endpoint in endpoints]
    scopes = draw(st.lists(slugs, unique=True, max_size=2))
    return {
        "slug": "acme",
        "name": draw(labels),
        "suspended": draw(st.booleans()),
        "scopes": [{"path": path} for path in scopes],
        "members": [{"email": "a@example.com", "role": "owner"}] if draw(st.booleans()) else [],
        "keys": [
            {
                "name": "k",
                "scope": draw(st.sampled_from(["", *scopes])),
                "secret": "env:SECRET",
                "endpoints": draw(st.none() | (st.lists(st.sampled_from(names), unique=True) if names else st.just([]))),
            }
        ],
        "models": models,
        "pools": pools,
        "routing_policies": [{"name": "named", "spec": {"policy": "round_robin"}}],
        "endpoints": endpoints,
    }


@given(tenant=tenants())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_declared_comes_back(tenant: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round trip: what was applied is no change, what is exported is no change, and the export of that is the same text."""
    monkeypatch.setenv("SECRET", SECRET)
    with transaction.atomic():
        source = written(tmp_path / "in.yaml", yaml.safe_dump({"tenants": [tenant]}, allow_unicode=True))
        call("apply", "-f", source)
        assert call("apply", "-f", source, "--prune") == "no changes\n"
        text = call("export")
        assert call("apply", "-f", written(tmp_path / "out.yaml", text), "--prune", "--prune-tenants") == "no changes\n"
        assert call("export") == text
        transaction.set_rollback(True)
