"""Adding a replica in the console: a form that tests or adds, and a page that says what was found."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from deploy.local.options import REPOSITORY
from routing.models import Pool, Replica, ReplicaCheck
from routing.services import replica_checks
from tenants.models import AuditEntry
from tenants.scoping import tenant_scope
from tests.console.rows import Town

pytestmark = pytest.mark.django_db
URL = "http://127.0.0.1:9444"
FOUND: dict[str, Any] = {
    "answered": True,
    "family": "vllm",
    "version": "0.32.0",
    "models": ["m-7b", "<img src=x>"],
    "served_model": "m-7b",
    "served": True,
    "block_tokens": 16,
    "capacity_tokens": 64_000,
    "events": "published",
    "event_ranks": 1,
    "event_replay": True,
    "salts": {"verdict": "honoured", "first": 0, "again": 496, "other": 0, "prompt_tokens": 500},
    "parity": {"state": "different", "sample": "tools", "position": 7, "compared": 5},
}


def body(town: Town, **more: str) -> dict[str, str]:
    return {"pool": str(town.acorn.pool_id), "name": "c", "url": f"{URL}/v1", "engine": "vllm", "do": "test", **more}


def stored(town: Town, report: dict[str, Any], **more: Any) -> str:
    """A check that is done."""
    columns = {"name": "c", "url": URL, "engine": "vllm", "state": "done", "started_at": timezone.now(), "shown_at": timezone.now()}
    with tenant_scope(town.acorn.tenant_id):
        row = ReplicaCheck.objects.create(tenant_id=town.acorn.tenant_id, pool_id=town.acorn.pool_id, report=report, **{**columns, **more})
    return f"/t/acorn/replicas/checks/{row.id}"


def text(answer: Any) -> str:
    page: str = answer.content.decode()
    return page


def test_a_test_is_ordered_and_nothing_is_added_by_it(town: Town) -> None:
    """By whoever may configure. The page waits, without scripts by a link; the credential is nowhere in clear."""
    assert "Add a replica" in text(town.owner.get("/t/acorn/pools"))
    assert "Add a replica" not in text(town.viewer.get("/t/acorn/pools"))
    for method in (town.viewer.get, town.viewer.post):
        assert method("/t/acorn/replicas/new", body(town)).status_code == 403
    answer = town.owner.post("/t/acorn/replicas/new", body(town, endpoint=str(town.acorn.endpoint_id)))
    assert answer.status_code == 302
    page = text(town.owner.get(answer.headers["Location"]))
    assert "It waits for a worker." in page
    assert f'<a href="{answer.headers["Location"]}">Look again</a>' in page
    with tenant_scope(town.acorn.tenant_id):
        row = ReplicaCheck.objects.get()
        assert (row.url, row.state, row.requested_by) == (URL, "queued", "owner@example.com")
        assert Replica.objects.filter(name="c").count() == 0
        assert AuditEntry.objects.get(action="replica.check").actor_label == "owner@example.com"
    assert town.stranger.get(answer.headers["Location"]).status_code == 404


def test_the_form_says_of_v1_what_is_so(town: Town) -> None:
    """As the reference of declarations does: both spellings are one address."""
    said = re.search(r'id="url-hint">(.+?)</span>', text(town.owner.get("/t/acorn/replicas/new")))
    assert said
    assert said[1].startswith("With or without <code>/v1</code>.")
    assert "base URL, with or without `/v1`." in (REPOSITORY / "docs/declarations.md").read_text()
    for name, spelled in (("c", f"{URL}/v1"), ("d", "http://127.0.0.1:9445")):
        assert town.owner.post("/t/acorn/replicas/new", body(town, name=name, url=spelled, do="add")).status_code == 302
    with tenant_scope(town.acorn.tenant_id):
        assert Replica.objects.get(name="c").url == URL
        assert Replica.objects.get(name="d").url == "http://127.0.0.1:9445"


@pytest.mark.parametrize(
    ("parity", "words"),
    [
        ({"state": "ok", "compared": 6}, "the same</span> in 6 samples"),
        (
            {"state": "inexact", "sample": "question", "why": "special_tokens", "compared": 1},
            "not all known here</span> sample “question” has tokens",
        ),
    ],
)
def test_samples_without_tokens_here_are_not_told_as_agreement(town: Town, parity: dict[str, Any], words: str) -> None:
    page = text(town.owner.get(stored(town, {**FOUND, "parity": parity})))
    assert words in page
    assert ("special tokens unknown" in page) is (parity["state"] == "inexact")


def test_what_was_found_is_told_and_the_replica_added(town: Town) -> None:
    """Text of the engine's is text. Whoever only reads may read it, and not add; once added it says so, and is not added twice."""
    path = stored(town, FOUND)
    page = text(town.owner.get(path))
    for said in (
        "0.32.0",
        "m-7b",
        "16 tokens",
        "64,000 tokens",
        "published",
        "two identities share nothing",
        "differs at token 7",
        "Add it to acorn-pool",
    ):
        assert said in page
    assert "<img src=x>" not in page
    assert "Add it to" not in text(town.viewer.get(path))
    assert town.viewer.post(path).status_code == 403
    answer = town.owner.post(path)
    assert (answer.status_code, answer.headers["Location"]) == (302, f"/t/acorn/replicas/{path.rsplit('/', 1)[1]}")
    assert "It is added" in text(town.owner.get(path))
    assert town.owner.post(path).status_code == 409


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"answered": False}, "Nothing answered there as an engine does."),
        ({"answered": True, "refused_status": 401}, "it wants a credential"),
        ({**FOUND, "salts": {"verdict": "ignored", "first": 0, "again": 496, "other": 496}}, "shares cached blocks between identities"),
        ({**FOUND, "served": False, "served_model": "other"}, "It does not list other"),
        ({**FOUND, "events": "none", "event_ranks": 0}, "--kv-events-config"),
        ({**FOUND, "parity": {"state": "not asked"}}, "no endpoint was named"),
    ],
)
def test_every_finding_says_what_it_means(town: Town, report: dict[str, Any], said: str) -> None:
    assert said in text(town.owner.get(stored(town, report)))


def test_when_nothing_answers_the_page_waits_as_long_whatever_the_reason(town: Town) -> None:
    """Before the moment at which it is told, the page says what it says of any test under way."""
    path = stored(town, {"answered": False}, shown_at=timezone.now() + timedelta(seconds=replica_checks.NO_ANSWER_S))
    page = text(town.owner.get(path))
    assert "A router is looking at it." in page
    assert "Nothing answered" not in page


def test_without_a_test_it_is_added_at_once_and_to_a_new_pool(town: Town) -> None:
    """What is wrong is said at its field, with what was written kept; the credential is not put back into the page."""
    refused = town.owner.post("/t/acorn/replicas/new", body(town, do="add", name="a", credential="of-the-engine"))
    assert (refused.status_code, "This pool has a replica of this name already" in text(refused)) == (409, True)
    assert "of-the-engine" not in text(refused)
    bad = town.owner.post("/t/acorn/replicas/new", body(town, url="ftp://x"))
    assert (bad.status_code, "This address cannot be used" in text(bad)) == (400, True)
    assert town.owner.post("/t/acorn/replicas/new", body(town, pool=str(uuid.uuid4()))).status_code == 400
    answer = town.owner.post("/t/acorn/replicas/new", body(town, do="add", new_pool="fresh"))
    assert answer.status_code == 302
    with tenant_scope(town.acorn.tenant_id):
        assert Replica.objects.get(name="c").pool == Pool.objects.get(name="fresh")
