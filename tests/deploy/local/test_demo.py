"""The demo's declaration with the ports that this run really has."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from deploy.demo import make_tokenizer
from deploy.local import demo
from deploy.local.plan import FleetPorts
from deploy.local.process import LaunchError

DECLARED = yaml.safe_load(
    """
pools:
  - name: shared
    grants: [acme]
    replicas:
      - {name: a, url: "http://127.0.0.1:9001", kv_events: {endpoint: "tcp://127.0.0.1:9101", replay: "tcp://127.0.0.1:9201"}}
      - {name: b, url: "http://127.0.0.1:9002", kv_events: {endpoint: "tcp://127.0.0.1:9102", replay: "tcp://127.0.0.1:9202"}}
tenants:
  - slug: acme
    keys: [{name: app, secret: "env:ACME_KEY"}]
    endpoints: [{name: chat, pool: shared}]
  - slug: other
    keys: [{name: app, secret: "env:ACME_KEY"}]
"""
)


def test_ports_follow_the_fleet() -> None:
    (pool,) = demo.with_ports(DECLARED, FleetPorts(count=2, http=9401, kv_events=9501, replay=9601))["pools"]
    second = pool["replicas"][1]
    assert second == {
        "name": "b",
        "url": "http://127.0.0.1:9402",
        "kv_events": {"endpoint": "tcp://127.0.0.1:9502", "replay": "tcp://127.0.0.1:9602"},
    }


def test_the_usual_ports_change_nothing() -> None:
    assert demo.with_ports(DECLARED, FleetPorts(count=2, http=9001, kv_events=9101, replay=9201)) == DECLARED


def test_a_smaller_fleet_leaves_replicas_out() -> None:
    (pool,) = demo.with_ports(DECLARED, FleetPorts(count=1, http=9001, kv_events=9101, replay=9201))["pools"]
    assert [replica["name"] for replica in pool["replicas"]] == ["a"]


def test_an_endpoint_that_would_have_no_replica_is_left_out() -> None:
    declared = {"endpoints": [{"name": "own", "replicas": [{"name": "c", "url": "http://127.0.0.1:9003"}]}, {"name": "chat", "pool": "shared"}]}
    left = demo.with_ports(declared, FleetPorts(count=2, http=9001, kv_events=9101, replay=9201))
    assert left == {"endpoints": [{"name": "chat", "pool": "shared"}]}


def test_every_replica_of_the_real_declaration_has_a_port_of_the_default_fleet() -> None:
    text = demo.DECLARATION.read_text()
    ports = FleetPorts(count=4, http=9001, kv_events=9101, replay=9201)
    declared = yaml.safe_load(text)
    assert demo.with_ports(declared, ports) == declared
    moved = yaml.safe_dump(demo.with_ports(declared, FleetPorts(count=4, http=9401, kv_events=9501, replay=9601)))
    assert {f"127.0.0.1:{port + n}" in moved for port in (9401, 9501, 9601) for n in range(4)} == {True}


def test_referenced_secrets_are_named_once() -> None:
    assert demo.referenced(DECLARED) == ["ACME_KEY"]


def test_the_sample_is_the_first_endpoint_with_a_key() -> None:
    assert demo.first_sample(DECLARED, {"ACME_KEY": "sk-1"}) == demo.Sample(tenant="acme", model="chat", key_name="app", key="sk-1")
    with pytest.raises(LaunchError):
        demo.first_sample({"tenants": []}, {})


def test_the_shown_command_is_one_shell_command() -> None:
    words = shlex.split(demo.curl("http://127.0.0.1:8080", demo.Sample("acme", "chat", "app", "sk-1")).replace("\\\n", ""))
    assert words[:3] == ["curl", "-iN", "http://127.0.0.1:8080/v1/chat/completions"]
    assert "Authorization: Bearer sk-1" in words
    assert yaml.safe_load(words[-1])["stream"] is True


def test_a_generated_secret_is_remembered_privately(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    assert demo.remembered(path, lambda: "one") == "one"
    assert demo.remembered(path, lambda: "two") == "one"
    assert path.stat().st_mode & 0o777 == 0o600


def test_paths_of_artifacts_hold_from_anywhere() -> None:
    """The declaration that is applied lies elsewhere; scopes have paths too, and keep them."""
    declared = yaml.safe_load(demo.DECLARATION.read_text())
    tenant = demo.with_files(declared)["tenants"][0]
    assert tenant["scopes"] == declared["tenants"][0]["scopes"]
    files = tenant["endpoints"][0]["model"]["tokenizer"]
    assert Path(files["path"]).is_file()
    assert Path(files["chat_template"]).is_file()
    assert files["revision"] == "t1"


def test_the_tokenizer_is_what_its_script_makes() -> None:
    """And small; nobody edited it by hand."""
    assert make_tokenizer.TARGET.read_text() == make_tokenizer.train()
    assert make_tokenizer.TARGET.stat().st_size < 200_000
