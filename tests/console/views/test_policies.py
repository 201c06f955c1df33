"""Policies in the console: versions and their difference, and a form that stores only what routers would take."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import pytest

from console.reads import policies as reads
from routing.core.policy import SCORERS
from routing.core.policy_form import POLICIES, form_fields
from routing.models import Endpoint, Policy, PolicyVersion
from tenants.models import AuditEntry
from tenants.scoping import tenant_scope
from tests.console.rows import Town

pytestmark = pytest.mark.django_db


def edit(town: Town, text: str, **more: str) -> Any:
    return town.owner.post(f"/t/acorn/policies/{town.acorn.policy_id}/edit", {"spec": text, **more})


def versions(town: Town) -> list[dict[str, Any]]:
    with tenant_scope(town.acorn.tenant_id):
        return [row.spec for row in PolicyVersion.objects.filter(policy_id=town.acorn.policy_id).order_by("version")]


def test_the_list_says_who_runs_what(town: Town) -> None:
    page = town.viewer.get("/t/acorn/policies").content.decode()
    assert "Routing policies" in page
    assert "Latency targets" in page
    assert f'/t/acorn/policies/{town.acorn.policy_id}"' in page
    assert '<span class="muted">runs v1</span>' in page
    assert "/policies/new/routing" not in page  # a viewer writes none
    assert "/policies/new/routing" in town.owner.get("/t/acorn/policies").content.decode()


def test_weights_are_fields_as_others(town: Town) -> None:
    """Endpoint and list name each weight; the form says of each what it multiplies."""
    assert edit(town, "policy: weighted\nweights: {wait: 2, prefill: 1}\n", activate="on").status_code == 302
    for page in (f"/t/acorn/endpoints/{town.acorn.endpoint_id}", "/t/acorn/policies"):
        shown = town.owner.get(page).content.decode()
        assert "{&#x27;wait&#x27;" not in shown
        assert re.search(r"weights\.wait(?:</dt><dd class=\"mono\">| )2<", shown)
        assert re.search(r"weights\.prefill(?:</dt><dd class=\"mono\">| )1<", shown)
    form = town.owner.get(f"/t/acorn/policies/{town.acorn.policy_id}/edit?form=1").content.decode()
    hints = re.findall(r'id="h-weights\.(\w+)">([^<]*)', form)
    assert [name for name, _ in hints] == list(SCORERS)
    assert all(hint.startswith("Multiplies these seconds: ") for _, hint in hints)


def test_a_version_is_written_and_compared_and_moves_endpoints_only_when_asked(town: Town) -> None:
    assert edit(town, "policy: ettft\npressure: 2\n").status_code == 302
    assert edit(town, "policy: ettft\npressure: 3\n", activate="on").status_code == 302
    assert versions(town) == [{"policy": "ettft"}, {"policy": "ettft", "pressure": 2}, {"policy": "ettft", "pressure": 3}]
    with tenant_scope(town.acorn.tenant_id):
        assert Endpoint.objects.select_related("routing_policy").get().routing_policy.version == 3
        assert list(AuditEntry.objects.values_list("action", "actor_label")) == [("routing_policy.version", "owner@example.com")] * 2
    page = town.owner.get(f"/t/acorn/policies/{town.acorn.policy_id}?from=1&to=3").content.decode()
    assert "What changes from v1 to v3" in page
    assert '<th scope="row" class="mono">pressure</th><td class="mono break" data-label="Before">1.0</td>' in page
    assert "can go back to v1" in page
    for odd in ("?from=9&to=x", "?from=-1", "?to=99999999999"):
        assert town.owner.get(f"/t/acorn/policies/{town.acorn.policy_id}{odd}").status_code == 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("policy: magic", "spec.policy"),
        ("policy: ettft\npressure: -1", "spec.pressure"),
        ("policy: ettft\npressure: .nan", "spec.pressure"),
        ("policy: weighted\nweights: {luck: 1}", "spec.weights.luck"),
        ("a: &a [x]\nb: [*a, *a]", "aliases are not read"),
        ("policy: [", "This is no YAML"),
        ("", "Write a policy document"),
    ],
)
def test_what_cannot_run_is_said_while_it_is_typed_and_never_stored(town: Town, text: str, said: str) -> None:
    """The text stays in the form, as text."""
    typed = town.owner.post("/t/acorn/policies/check/routing", {"spec": text})
    assert (typed.status_code, said in typed.content.decode()) == (200, True)
    refused = edit(town, f"{text} # <b>")
    assert (refused.status_code, said in refused.content.decode() or "no YAML" in refused.content.decode()) == (400, True)
    assert "# &lt;b&gt;" in refused.content.decode()
    assert len(versions(town)) == 1
    good = town.owner.post("/t/acorn/policies/check/slo", {"spec": "ttft_p95_ms: 500"}).content.decode()
    assert "Routers would take this." in good
    assert "<html" not in good


def test_a_policy_is_made_and_its_name_is_taken_once(town: Town) -> None:
    body = {"name": "night", "spec": "policy: round_robin\n"}
    assert town.owner.post("/t/acorn/policies/new/routing", body).status_code == 302
    again = town.owner.post("/t/acorn/policies/new/routing", body)
    assert (again.status_code, "There is a policy of this name already" in again.content.decode()) == (409, True)
    with tenant_scope(town.acorn.tenant_id):
        assert Policy.objects.filter(name="night").count() == 1
    assert town.owner.post("/t/acorn/policies/new/magic", body).status_code == 404


def test_the_same_document_is_a_form_and_yaml(town: Town) -> None:
    """A button turns one into the other and stores nothing; what was filled in comes along. The form of a way of routing has its fields alone."""
    path = f"/t/acorn/policies/{town.acorn.policy_id}/edit"
    page = town.owner.get(path).content.decode()
    assert 'name="tie_s"' in page
    assert 'name="load_factor"' not in page
    filled = {"way": "form", "policy": "ettft", "pressure": "2.5", "tie_s": ""}
    yaml = town.owner.post(path, {**filled, "do": "yaml"}).content.decode()
    assert "policy: ettft\npressure: 2.5\n</textarea>" in yaml
    back = town.owner.post(path, {"way": "yaml", "spec": "policy: session\nload_factor: 2\n", "do": "form"}).content.decode()
    assert 'name="load_factor" autocomplete="off" spellcheck="false" maxlength="200" inputmode="decimal" value="2"' in back
    assert 'name="prefix_tokens"' in town.owner.post(path, {"way": "form", "policy": "bounded_hash", "do": "fields"}).content.decode()
    unread = town.owner.post(path, {"way": "yaml", "spec": "policy: [", "do": "form"}).content.decode()
    assert "This is no YAML" in unread
    assert len(versions(town)) == 1
    assert town.owner.post(path, {**filled, "do": "store"}).status_code == 302
    assert versions(town)[-1] == {"policy": "ettft", "pressure": 2.5}
    assert town.viewer.post(path, {**filled, "do": "yaml"}).status_code == 403


def test_every_mistake_of_a_form_is_said_at_its_field(town: Town) -> None:
    """All at once, while typed and when sent; the texts stay as they were written."""
    wrong = {"way": "form", "ttft_p95_ms": "0", "e2e_p95_ms": "soon<b>", "priority": "standard"}
    typed = town.owner.post("/t/acorn/policies/check/slo", wrong).content.decode()
    assert "<code>spec.ttft_p95_ms</code>: Must be between" in typed
    assert "<code>spec.e2e_p95_ms</code>: Must be a whole number" in typed
    sent = town.owner.post("/t/acorn/policies/new/slo", {**wrong, "name": "gold"})
    assert sent.status_code == 400
    page = sent.content.decode()
    assert page.count('aria-invalid="true"') == 2
    assert 'value="soon&lt;b&gt;"' in page
    good = {"way": "form", "ttft_p95_ms": "900", "max_queue_ms": "", "overload": "shed"}
    assert "Routers would take this." in town.owner.post("/t/acorn/policies/check/slo", good).content.decode()
    assert town.owner.post("/t/acorn/policies/new/slo", {**good, "name": "gold"}).status_code == 302
    with tenant_scope(town.acorn.tenant_id):
        assert PolicyVersion.objects.get(policy__name="gold").spec == {"ttft_p95_ms": 900, "overload": "shed"}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_way_of_routing_can_be_filled_in(town: Town, policy: str) -> None:
    """With every field at the lowest that it may be, and with all left empty but a weight where one is needed."""
    lowest = {field.name: "1" if field.name.startswith("weights.") else f"{field.low:g}" for field in form_fields("routing", policy)}
    sparse = {"weights.wait": "1"} if policy == "weighted" else {}
    for texts in (lowest, sparse):
        answer = town.owner.post("/t/acorn/policies/check/routing", {"way": "form", "policy": policy, **texts}).content.decode()
        assert "Routers would take this." in answer


def test_endpoints_are_moved_to_a_version_and_back(town: Town) -> None:
    """To an older one too; the question says what changes for routers, nothing moves that was not chosen, and a roll-back returns."""
    edit(town, "policy: round_robin\n")
    path = f"/t/acorn/policies/{town.acorn.policy_id}/versions/2/activate"
    question = town.owner.get(path).content.decode()
    assert "Activate default v2?" in question
    assert "ettft to round_robin" in question
    assert (town.viewer.get(path).status_code, town.viewer.post(path).status_code) == (403, 403)
    assert town.owner.post(path, {"endpoint": str(town.birch.endpoint_id)}).status_code == 400

    def runs() -> int:
        with tenant_scope(town.acorn.tenant_id):
            return int(Endpoint.objects.select_related("routing_policy").get().routing_policy.version)

    assert runs() == 1
    assert town.owner.post(path, {"endpoint": str(town.acorn.endpoint_id)}).status_code == 302
    assert runs() == 2
    page = town.owner.get(f"/t/acorn/policies/{town.acorn.policy_id}").content.decode()
    assert f"/t/acorn/endpoints/{town.acorn.endpoint_id}/rollback" in page
    assert "Every endpoint that uses this policy runs v2 already." in town.owner.get(path).content.decode()
    assert town.owner.post(path.replace("/2/", "/1/"), {"endpoint": str(town.acorn.endpoint_id)}).status_code == 302
    assert runs() == 1
    assert town.owner.get(path.replace("/2/", "/9/")).status_code == 404
    assert town.stranger.get(path).status_code == 404


def test_what_changes_is_said_while_it_is_typed(town: Town) -> None:
    """Against the version that the form began with, as routers read it; another tenant's version is none."""
    page = town.owner.get(f"/t/acorn/policies/{town.acorn.policy_id}/edit").content.decode()
    found = re.search(r'name="against" value="([0-9a-f-]{36})"', page)
    assert found

    def typed(spec: str, client: Any = town.owner, slug: str = "acorn") -> str:
        return str(client.post(f"/t/{slug}/policies/check/routing", {"spec": spec, "against": found[1]}).content.decode())

    assert 'Unlike default v1: <span class="mono">pressure</span> 1.0 to 2.0.' in typed("policy: ettft\npressure: 2")
    assert "For routers it is the same as default v1." in typed("policy: ettft\npressure: 1")
    assert "Unlike" not in typed("policy: magic")
    assert typed("policy: round_robin", town.stranger, "birch") == '<span class="hint">Routers would take this.</span>\n'


@pytest.mark.parametrize(("kind", "document"), [("routing", "policy: round_robin\n"), ("slo", "ttft_p95_ms: 700\n")])
def test_a_policy_that_nobody_uses_is_activated_on_an_endpoint_by_its_name(town: Town, kind: str, document: str) -> None:
    """Its page offers it, and another tenant's endpoint is none."""
    town.owner.post(f"/t/acorn/policies/new/{kind}", {"name": "night", "spec": document})
    with tenant_scope(town.acorn.tenant_id):
        policy = Policy.objects.get(name="night")
    with tenant_scope(town.birch.tenant_id):
        Endpoint.objects.update(name="birch-only")
    path = f"/t/acorn/policies/{policy.id}/versions/1/activate"
    assert f'href="{path}"' in town.owner.get(f"/t/acorn/policies/{policy.id}").content.decode()
    assert '<option value="llama-chat">' in town.owner.get(path).content.decode()
    for name in ("", "nobody", "birch-only", str(town.birch.endpoint_id)):
        assert town.owner.post(path, {"other": name}).status_code == 400
    assert town.owner.post(path, {"other": "llama-chat"}).status_code == 302
    with tenant_scope(town.acorn.tenant_id):
        row = Endpoint.objects.select_related("routing_policy__policy", "slo_policy__policy").get()
        assert (row.routing_policy if kind == "routing" else row.slo_policy).policy.name == "night"


def test_one_activation_moves_so_many_and_says_that_there_are_more(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one finds the rest, and in the end there is none."""
    monkeypatch.setattr(reads, "MAX_MOVES", 2)
    edit(town, "policy: round_robin\n")
    with tenant_scope(town.acorn.tenant_id):
        for name in ("second", "third"):
            row = Endpoint.objects.get(name="llama-chat")
            row.id, row.name = uuid4(), name
            row._state.adding = True
            row.save()
    path = f"/t/acorn/policies/{town.acorn.policy_id}/versions/2/activate"
    for offered, more in ((["llama-chat", "second"], True), (["third"], False)):
        page = town.owner.get(path).content.decode()
        assert re.findall(r"<strong>([a-z-]+)</strong>, from v1", page) == offered
        assert ("Ask again for the next." in page) is more
        chosen = re.findall(r'name="endpoint" value="([0-9a-f-]{36})"', page)
        assert town.owner.post(path, {"endpoint": chosen}).status_code == 302
    assert "runs v2 already" in town.owner.get(path).content.decode()
    with tenant_scope(town.acorn.tenant_id):
        assert set(Endpoint.objects.values_list("routing_policy__version", flat=True)) == {2}


def test_from_a_version_to_its_trial(town: Town) -> None:
    """On one endpoint, chosen or named, that does not run it; a latency target is not tried. Nothing moves by this alone."""
    edit(town, "policy: round_robin\n")
    path = f"/t/acorn/policies/{town.acorn.policy_id}/versions/2/activate"
    chosen = str(town.acorn.endpoint_id)
    assert town.owner.post(path, {"do": "try"}).status_code == 400
    answer = town.owner.post(path, {"do": "try", "endpoint": chosen})
    assert answer.status_code == 302
    form = town.owner.get(answer.headers["Location"]).content.decode()
    assert re.search(r'<option value="[0-9a-f-]{36}" selected>default v2: round_robin', form)
    assert "runs this version already" in town.owner.post(path.replace("/2/", "/1/"), {"do": "try", "other": "llama-chat"}).content.decode()
    with tenant_scope(town.acorn.tenant_id):
        assert Endpoint.objects.get().candidate_policy_id is None
        target = Policy.objects.get(kind="slo")
    refused = town.owner.post(f"/t/acorn/policies/{target.id}/versions/1/activate", {"do": "try", "other": "llama-chat"})
    assert (refused.status_code, "is not tried" in refused.content.decode()) == (400, True)
