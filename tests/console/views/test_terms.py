"""The page of terms, and the words of other pages that lead to it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import redis
from django.urls import reverse

import console
from routing.core import glossary
from routing.models import AuditRun, Replica
from tenants.scoping import tenant_scope
from tests.console.rows import Town

pytestmark = pytest.mark.django_db
_EXPLAINED = re.compile(r'explained "([a-z_]+)"(?: "([a-z_]+)")?')
_LINK = re.compile(r'href="(/t/acorn/terms)#([^"]+)" title="([^"]+)"')


def test_every_term_stands_on_the_page_under_its_anchor(town: Town) -> None:
    page = town.viewer.get("/t/acorn/terms").content.decode()
    for name, group in glossary.GROUPS.items():
        assert f'id="{name}"' in page
        for code in group.terms:
            assert page.count(f'id="{glossary.anchor(name, code)}"') == 1, (name, code)
    assert "Others&#x27; requests were ahead of it inside the engine." in page


@pytest.mark.usefixtures("valkey_url")
def test_words_of_pages_lead_to_their_terms(town: Town, valkey_url: str) -> None:
    """By a link, so without a mouse too; the meaning is its title."""
    with tenant_scope(town.acorn.tenant_id):
        url = Replica.objects.get(id=town.acorn.replica_ids[0]).url
    said = {"condition": "failing (passive)", "residency": "degraded", "residency_reason": "stale", "trust": {"verdict": "flag", "cause": "unknown"}}
    with redis.Redis.from_url(valkey_url) as client:
        client.set("saltroute:router:r1", json.dumps({"versions": {}, "replicas": {url: {**said, "condition": "asleep"}}}), ex=60)
        client.set("saltroute:router:r2", json.dumps({"versions": {}, "replicas": {url: said}}), ex=60)
    terms = town.viewer.get(reverse("console:terms", args=["acorn"])).content.decode()
    wanted = {
        "/t/acorn/pools": {"health-asleep", "residency-degraded", "residency_reason-stale", "isolation-unverified", "state-active"},
        f"/t/acorn/replicas/{town.acorn.replica_ids[0]}": {"trust-flag", "trust_cause-unknown", "figure-kappa", "health-asleep"},
    }
    for path, anchors in wanted.items():
        found = {anchor: title for _, anchor, title in _LINK.findall(town.viewer.get(path).content.decode())}
        assert anchors <= set(found), path
        for anchor, title in found.items():
            assert f'id="{anchor}"' in terms
            assert title in terms


def test_templates_name_groups_and_figures_that_exist() -> None:
    folder = Path(console.__file__).parent / "templates"
    used = [pair for path in folder.rglob("*.html") for pair in _EXPLAINED.findall(path.read_text())]
    assert {"health", "residency", "cause", "isolation", "figure"} <= {group for group, _ in used}
    for group, code in used:
        assert group in glossary.GROUPS
        assert not code or code in glossary.GROUPS[group].terms


def test_states_of_audits_have_meanings() -> None:
    """Where an audit has no outcome yet, its state stands in the same column."""
    states = {value for value, _ in AuditRun._meta.get_field("state").choices or ()}
    assert states <= set(glossary.GROUPS["audit"].terms)


def test_a_word_that_is_unknown_here_is_text(town: Town, valkey_url: str) -> None:
    with tenant_scope(town.acorn.tenant_id):
        url = Replica.objects.get(id=town.acorn.replica_ids[0]).url
    with redis.Redis.from_url(valkey_url) as client:
        client.set("saltroute:router:r1", json.dumps({"versions": {}, "replicas": {url: {"condition": "<b>on_fire"}}}), ex=60)
    page = town.viewer.get("/t/acorn/pools").content.decode()
    assert "&lt;b&gt;on fire" in page
    assert "<b>on" not in page
