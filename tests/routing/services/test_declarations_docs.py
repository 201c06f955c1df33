"""docs/declarations.md says what the code does."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

from routing.services import artifacts, catalogue, endpoints, policies, pools, replicas
from tenants.services import api_keys, members, scopes

DOCS = (Path(__file__).parents[3] / "docs" / "declarations.md").read_text()


@pytest.mark.django_db
def test_every_key_that_the_format_knows_is_documented(tmp_path: Path) -> None:
    """The refusal of an unknown key lists the known ones of its place; each stands in the document."""
    file = tmp_path / "unknown.yaml"
    file.write_text(
        """\
x: 1
pools: [{name: p, x: 1, replicas: [{name: a, url: u, x: 1, kv_events: {endpoint: e, x: 1}}]}]
tenants:
  - slug: a
    x: 1
    scopes: [{path: s, x: 1}]
    members: [{email: e, x: 1}]
    keys: [{name: k, secret: stored, x: 1}]
    quotas: [{of: tenant, tokens_per_month: 1, x: 1}]
    routing_policies: [{name: p, spec: {}, x: 1}]
    models: [{name: m, revision: r, x: 1, tokenizer: {x: 1}, adapters: [{name: a, revision: r, x: 1}]}]
    endpoints: [{name: e, model: m, pool: p, x: 1, slo: {name: n, x: 1}}]
"""
    )
    err = StringIO()
    with pytest.raises(SystemExit):
        call_command("apply", "-f", str(file), stderr=err)
    lists = re.findall(r"\.?x: is not known here; known: (.*)", err.getvalue())
    assert len(lists) == 15
    known = {key for line in lists for key in line.split(", ")}
    assert len(known) > 45
    missing = {key for key in known if not re.search(rf"[`{{, ]{key}[`}},: ]", DOCS)}
    assert missing == set()


def test_the_limits_are_the_code_s() -> None:
    """Each number of the table."""
    table = DOCS[DOCS.index("## Limits") :]
    numbers = {
        artifacts.MAX_PER_TENANT,
        catalogue.MAX_MODELS,
        catalogue.MAX_ADAPTERS_PER_MODEL,
        pools.MAX_POOLS,
        replicas.MAX_PER_POOL,
        pools.MAX_GRANTS,
        endpoints.MAX_ENDPOINTS,
        policies.MAX_POLICIES,
        policies.MAX_VERSIONS,
        endpoints.MAX_CONTEXT_NAMES,
        endpoints.MAX_CONTEXT_CHARACTERS,
        scopes.MAX_SCOPES_PER_TENANT,
        api_keys.MAX_KEYS_PER_TENANT,
        members.MAX_MEMBERS_PER_TENANT,
        artifacts.MAX_BYTES // 2**20,
        policies.MAX_SPEC_BYTES // 2**10,
    }
    assert numbers <= {int(number) for number in re.findall(r"\d+", table)}
