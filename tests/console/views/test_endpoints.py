"""Endpoints in the console: identity, policies, and snippets that are safe to paste."""

from __future__ import annotations

import html
import json
import re
import shlex
import uuid

import pytest
import redis
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from console.reads import endpoints
from namespaces.core.components import COMPONENTS
from routing.models import Endpoint
from routing.services import policies
from tenants.actor import system
from tenants.scoping import tenant_scope
from tests.console import rows
from tests.console.rows import Town

pytestmark = pytest.mark.django_db


def test_the_identity_lists_every_component_of_the_register(town: Town) -> None:
    page = town.owner.get(f"/t/acorn/endpoints/{town.acorn.endpoint_id}").content.decode()
    assert re.findall(r'<th scope="row">(\w+)</th>', page) == [component.name for component in COMPONENTS]
    for text in ("org_policy=v7", "m-7b at r1", "sha256 0101010101010101…", "tenant 1, endpoint 1", "ttft_p95_ms", "ettft"):
        assert text in page


def test_what_keeps_its_prompts_from_exact_tokens_is_told_as_routers_say_it(town: Town, valkey_url: str) -> None:
    """At once, whoever reads; of other endpoints nothing, and without a report nothing either."""
    path = f"/t/acorn/endpoints/{town.acorn.endpoint_id}"
    pair = {"endpoint": str(town.acorn.endpoint_id), "replica": str(town.acorn.replica_ids[0])}
    different = {**pair, "state": "different", "sample": "tools", "position": 7}
    missing = {"01" * 32: {"kind": "tokenizer", "state": "refused", "reason": "bad_tokenizer"}}
    cases: list[tuple[dict[str, object], str]] = [
        ({"parity": {"others": [{**different, "endpoint": str(uuid.uuid4())}]}}, "Routers say nothing against them."),
        ({"parity": {"others": [different]}}, "gives other tokens at acorn-pool/a than here (tools, from token 7 on)"),
        ({"parity": {"others": [{**different, "replica": str(uuid.uuid4())}]}}, "gives other tokens at an engine of acorn-pool than here"),
        ({"parity": {"others": [{**pair, "state": "inexact", "sample": "question", "why": "date"}]}}, "none here (date in the template)"),
        ({"artifacts": {"others": missing}}, "is not in use at r1 (refused: bad_tokenizer)"),
        ({"parity": {"others": "odd"}}, "Routers say nothing against them."),
    ]
    assert "Not known: no router reports." in town.viewer.get(path).content.decode()
    with redis.Redis.from_url(valkey_url) as client:
        for tokens, words in cases:
            client.set("saltroute:router:r1", json.dumps({"router_id": "r1", "tokens": tokens}), ex=60)
            page = town.viewer.get(path).content.decode()
            assert [words in page for _, words in cases] == [words == other for _, other in cases]
        client.delete("saltroute:router:r1")
    with tenant_scope(town.acorn.tenant_id):
        Endpoint.objects.get(id=town.acorn.endpoint_id).model.__class__.objects.update(tokenizer_digest=None)
    assert "no tokenizer declared" in town.viewer.get(path).content.decode()


def test_an_empty_target_is_said_to_be_none(town: Town) -> None:
    """In words on the endpoint's page and in the list; one with a target shows it in both."""
    page, listed = f"/t/acorn/endpoints/{town.acorn.endpoint_id}", "/t/acorn/endpoints"
    assert "This document is empty" not in town.owner.get(page).content.decode()
    assert ">ttft_p95_ms 2000</span>" in town.owner.get(listed).content.decode()
    with tenant_scope(town.acorn.tenant_id):
        version = Endpoint.objects.get(id=town.acorn.endpoint_id).slo_policy
        assert version is not None
        policies.add_version(tenant_id=town.acorn.tenant_id, actor=system("tests"), policy_id=version.policy_id, kind="slo", spec={})
    assert "This document is empty: it names no target" in town.owner.get(page).content.decode()
    assert '<td data-label="Target"><span class="muted">none</span></td>' in town.owner.get(listed).content.decode()


@pytest.mark.parametrize("name", ["it's; rm -rf ~ #", "$(touch /tmp/x)", '"quoted" \\ name', "<img src=x onerror=alert(1)>"])
def test_a_snippet_cannot_run_what_somebody_named_an_endpoint(name: str) -> None:
    """The endpoint's name stays one string for the shell, for JSON and for Python, whatever is in it; and the page shows it as text."""
    made = rows.tenant("cedar", endpoint=name, model=name)
    owner = rows.person("cedar@example.com")
    rows.member(made.tenant_id, owner, "owner")
    client = Client()
    client.force_login(owner)
    page = client.get(f"/t/cedar/endpoints/{made.endpoint_id}").content.decode()
    assert "<img" not in page
    curl = re.search(r'<code id="curl">(.*?)</code>', page, re.S)
    assert curl
    words = shlex.split(html.unescape(curl[1]))
    assert json.loads(words[words.index("-d") + 1])["model"] == name
    python = re.search(r'<code id="openai">(.*?)</code>', page, re.S)
    assert python
    compile(html.unescape(python[1]), "snippet", "exec")
    assert f"model={name!r}," in html.unescape(python[1])
    langchain = re.search(r'<code id="langchain">(.*?)</code>', page, re.S)
    assert langchain
    compile(html.unescape(langchain[1]), "snippet", "exec")
    assert f"model={name!r})" in html.unescape(langchain[1])
    for path in ("/endpoints", "", "/decisions"):
        assert "<img" not in client.get(f"/t/cedar{path}").content.decode()


def test_many_endpoints_cost_no_more_queries(town: Town) -> None:
    town.owner.get("/t/acorn/endpoints")  # the session is noted once
    with CaptureQueriesContext(connection) as few:
        town.owner.get("/t/acorn/endpoints")
    with tenant_scope(town.acorn.tenant_id):
        one = Endpoint.objects.get()
        for number in range(30):
            one.id, one.name = uuid.uuid4(), f"endpoint-{number}"
            one._state.adding = True
            one.save()
    with CaptureQueriesContext(connection) as many:
        assert "endpoint-29" in town.owner.get("/t/acorn/endpoints").content.decode()
    assert len(many) == len(few)


def test_no_endpoint_yet_is_taught(town: Town) -> None:
    with tenant_scope(town.acorn.tenant_id):
        Endpoint.objects.all().delete()
    page = town.owner.get("/t/acorn/endpoints").content.decode()
    assert "No endpoint yet" in page
    assert "- slug: acorn" in page


def test_a_long_list_is_paged_and_found_by_a_part_of_its_names(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "PAGE_ROWS", 3)
    with tenant_scope(town.acorn.tenant_id):
        for number in range(5):
            one = Endpoint.objects.get(name="llama-chat")
            one.id, one.name = uuid.uuid4(), f"m-{number} & more"
            one._state.adding = True
            one.save()
    first = town.viewer.get("/t/acorn/endpoints").content.decode()
    assert [name in first for name in ("llama-chat", "m-1 &amp; more", "m-2 &amp; more")] == [True, True, False]
    (query,) = re.findall(r'href="\?(q=[^"]*after=[^"]*)"', first)
    second = town.viewer.get(f"/t/acorn/endpoints?{html.unescape(query)}").content.decode()
    assert [name in second for name in ("llama-chat", "m-1 &amp; more", "m-2 &amp; more", "m-4 &amp; more")] == [False, False, True, True]
    found = town.viewer.get("/t/acorn/endpoints?q=M-3").content.decode()
    assert "m-3 &amp; more" in found
    assert "llama-chat" not in found
    assert "No endpoint of such a name" in town.viewer.get("/t/acorn/endpoints?q=%00%3Cimg%3E").content.decode()


def test_an_endpoint_is_found_by_the_name_that_clients_send(town: Town) -> None:
    """A link by name leads to the page; an unknown name, and a stranger's, are absent alike."""
    found = town.viewer.get("/t/acorn/endpoints/llama-chat")
    assert (found.status_code, found.headers["Location"]) == (302, f"/t/acorn/endpoints/{town.acorn.endpoint_id}")
    with tenant_scope(town.acorn.tenant_id):
        Endpoint.objects.filter(id=town.acorn.endpoint_id).update(name="org/llama chat")
    assert town.viewer.get("/t/acorn/endpoints/org/llama%20chat/").status_code == 302
    assert town.viewer.get("/t/acorn/endpoints/nobody").status_code == 404
    assert town.stranger.get("/t/acorn/endpoints/org/llama%20chat").status_code == 404
