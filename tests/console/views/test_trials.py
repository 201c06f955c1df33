"""A trial on an endpoint's page: begun, read, promoted and rolled back."""

from __future__ import annotations

import html
import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from routing.core.dry_run import NO_ORDER
from routing.core.record import TrialRecord
from routing.models import Endpoint, Policy, PolicyVersion
from tenants.models import AuditEntry
from tenants.scoping import tenant_scope
from tests.console import rows
from tests.console.rows import AsOwner, Town

pytestmark = pytest.mark.django_db


@pytest.fixture
def candidate(town: Town) -> PolicyVersion:
    """Another policy, which nobody uses."""
    tenant_id = town.acorn.tenant_id
    with tenant_scope(tenant_id):
        policy = Policy.objects.create(tenant_id=tenant_id, kind="routing", name="turns")
        return PolicyVersion.objects.create(tenant_id=tenant_id, policy=policy, version=4, spec={"policy": "round_robin"})


def page(town: Town) -> str:
    return str(town.owner.get(f"/t/acorn/endpoints/{town.acorn.endpoint_id}").content.decode())


def post(town: Town, verb: str, **body: Any) -> Any:
    return town.owner.post(f"/t/acorn/endpoints/{town.acorn.endpoint_id}/{verb}", body)


def endpoint(town: Town) -> Endpoint:
    with tenant_scope(town.acorn.tenant_id):
        return Endpoint.objects.select_related("routing_policy__policy", "candidate_policy").get(id=town.acorn.endpoint_id)


def test_from_the_shadow_to_all_prompts_and_back(town: Town, candidate: PolicyVersion) -> None:
    assert "None runs." in page(town)
    assert post(town, "trial", policy=str(candidate.id), percent="0").status_code == 302
    assert "in the shadow" in page(town)
    post(town, "trial", policy=str(candidate.id), percent="12.5")
    assert "placing 12.5 % of the prompts" in page(town)
    asked = town.owner.get(f"/t/acorn/endpoints/{town.acorn.endpoint_id}/promote", headers={"HX-Request": "true"}).content.decode()
    assert "Promote turns v4?" in asked
    assert "It has placed no request yet" in asked
    assert post(town, "promote", version="4", reason="faster").status_code == 302
    assert (endpoint(town).routing_policy.policy.name, endpoint(town).candidate_policy) == ("turns", None)
    assert "A roll-back returns to default v1." in page(town)
    assert "back to <strong>default v1</strong>" in town.owner.get(f"/t/acorn/endpoints/{town.acorn.endpoint_id}/rollback").content.decode()
    for _ in range(2):
        assert post(town, "rollback", reason="").status_code == 302
    assert endpoint(town).routing_policy.policy.name == "default"
    with tenant_scope(town.acorn.tenant_id):
        told = list(AuditEntry.objects.order_by("created_at").values_list("action", flat=True))
    assert told == ["endpoint.trial", "endpoint.trial", "endpoint.promote", "endpoint.rollback"]


def test_what_is_promoted_is_what_was_read(town: Town, candidate: PolicyVersion) -> None:
    assert post(town, "promote", version="4").status_code == 409
    post(town, "trial", policy=str(candidate.id), percent="0")
    for version in ("3", "", "x"):
        assert post(town, "promote", version=version).status_code == 409
    assert endpoint(town).routing_policy.policy.name == "default"


@pytest.mark.parametrize("percent", ["101", "-1", "nan", "inf", "half", ""])
def test_a_share_that_is_none_is_refused_in_the_form(town: Town, candidate: PolicyVersion, percent: str) -> None:
    answer = post(town, "trial", policy=str(candidate.id), percent=percent)
    assert (answer.status_code, "Give " in answer.content.decode()) == (400, True)
    assert endpoint(town).candidate_policy is None


def test_another_tenants_version_cannot_be_tried(town: Town, candidate: PolicyVersion) -> None:
    """It is answered as one that is not there."""
    url = f"/t/birch/endpoints/{town.birch.endpoint_id}/trial"
    foreign = town.stranger.post(url, {"policy": str(candidate.id), "percent": "0"})
    absent = town.stranger.post(url, {"policy": str(town.acorn.key_id), "percent": "0"})
    assert (foreign.status_code, absent.status_code) == (400, 400)
    assert "Choose a policy." in foreign.content.decode()
    assert "turns" not in foreign.content.decode()


def test_the_report_is_on_the_page(town: Town, candidate: PolicyVersion, as_owner: AsOwner) -> None:
    post(town, "trial", policy=str(candidate.id), percent="50")
    said: dict[str, Any] = {"policy": "round_robin", "policy_version": 4, "placed": False, "replica_id": "b", "replica_name": "b"}
    trial = TrialRecord(**said, expected_ttft_s=0.31, expected_cached_tokens=0.0)
    rows.store(as_owner, town.acorn, *(rows.record(town.acorn, trial=trial) for _ in range(30)))
    shown = page(town)
    assert "30 decisions since" in shown
    assert "-980" in shown  # expected tokens saved a request
    assert "95 % intervals" in shown
    assert "none by the candidate yet, so nothing is compared" in shown


def test_decisions_that_are_in_neither_column_are_counted(town: Town, candidate: PolicyVersion, as_owner: AsOwner) -> None:
    """Four of the live policy, then three of the candidate and two more: nine decisions, of which two and three are compared."""
    post(town, "trial", policy=str(candidate.id), percent="50")
    other: dict[str, Any] = {"replica_id": "b", "replica_name": "b", "expected_ttft_s": 0.31, "expected_cached_tokens": 0.0}
    live = TrialRecord(policy="round_robin", policy_version=4, placed=False, **other)
    tried = TrialRecord(policy="ettft", policy_version=1, placed=True, **other)
    with tenant_scope(town.acorn.tenant_id):
        Endpoint.objects.filter(id=town.acorn.endpoint_id).update(trial_since=timezone.now() - timedelta(minutes=20))
    made = [rows.record(town.acorn, trial=live, started_at=rows.ago(minutes=minutes)) for minutes in (9, 8, 7, 6, 2, 1)]
    places = {"policy": "round_robin", "policy_version": 4}
    made += [rows.record(town.acorn, trial=tried, started_at=rows.ago(minutes=minutes), **places) for minutes in (5, 4, 3)]
    rows.store(as_owner, town.acorn, *made)
    shown = page(town)
    assert "9 decisions since" in shown
    assert "from the candidate's first on; the 4 before it, all placed by the live policy, are not compared" in shown
    assert '<td data-label="Live">2</td><td data-label="Candidate">3</td>' in shown


def _version(candidate: PolicyVersion, spec: dict[str, Any]) -> uuid.UUID:
    """The id of another version of the candidate's policy."""
    with tenant_scope(candidate.tenant_id):
        return PolicyVersion.objects.create(tenant_id=candidate.tenant_id, policy_id=candidate.policy_id, version=5, spec=spec).id


def _columns(shown: str) -> list[str]:
    """Of the example."""
    return re.findall(r'<th scope="col">([^<]+)</th>', shown)


def test_a_dry_run_reads_and_stores_nothing(town: Town, as_owner: AsOwner, candidate: PolicyVersion) -> None:
    rows.store(as_owner, town.acorn, rows.record(town.acorn))
    url = f"/t/acorn/endpoints/{town.acorn.endpoint_id}/dry-run"
    shown = town.viewer.get(f"{url}?policy={candidate.id}").content.decode()
    assert "turns v4 against the past" in shown
    assert "it went here" in shown
    assert _columns(shown) == ["Replica", "Expected TTFT"]
    assert "0 s<" not in shown
    assert "by turns" in shown
    assert town.viewer.get(f"{url}?policy=nobody").status_code == 200


@pytest.mark.parametrize(
    ("spec", "first"),
    [
        ({"policy": "least_outstanding"}, {"Replica": "b", "In flight": "0", "Expected TTFT": "910 ms"}),
        (
            {"policy": "longest_prefix", "prefix_tokens": 1000},
            {"Replica": "a", "Matched tokens": "1,000", "In flight": "1", "Expected TTFT": "160 ms"},
        ),
        (
            {"policy": "weighted", "weights": {"wait": 2}},
            {"Replica": "a", "Score before": "160 ms", "Score after": "40 ms", "Terms after": "wait 40 ms", "Expected TTFT": "160 ms"},
        ),
    ],
)
def test_a_dry_run_shows_what_its_policy_goes_by(
    town: Town, as_owner: AsOwner, candidate: PolicyVersion, spec: dict[str, Any], first: dict[str, str]
) -> None:
    made = town.acorn
    weighed = (
        rows.candidate(made.replica_ids[0], "a", matched_tokens=1024),
        rows.candidate(made.replica_ids[1], "b", terms={"wait": 0.4, "prefill": 0.31, "external_price": 0.2}, in_flight=0),
    )
    rows.store(as_owner, made, rows.record(made, candidates=weighed))
    shown = town.viewer.get(f"/t/acorn/endpoints/{made.endpoint_id}/dry-run?policy={_version(candidate, spec)}").content.decode()
    assert _columns(shown) == list(first)
    row = re.findall(r"<tr[^>]*><th.*?</tr>", shown.split("<tbody>")[1], re.S)[0]
    cells = [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
    assert [cells[0].split()[0], *cells[1:]] == list(first.values())


def test_a_dry_run_says_what_it_could_not_redo_and_why(town: Town, as_owner: AsOwner, candidate: PolicyVersion) -> None:
    made = town.acorn
    for _ in range(2):
        rows.store(as_owner, made, rows.record(made, candidates=(rows.candidate(made.replica_ids[0], "a"),)))
    url = f"/t/acorn/endpoints/{made.endpoint_id}/dry-run?policy={_version(candidate, {'policy': 'bounded_hash'})}"
    assert f"<dt>2</dt><dd>{html.escape(NO_ORDER)}</dd>" in town.viewer.get(url).content.decode()


def test_replicas_of_the_platform_are_ordered_by_name_in_a_dry_run(town: Town, as_owner: AsOwner, candidate: PolicyVersion) -> None:
    """Whatever the policy goes by: the order, and what is in flight, would tell of others' load."""
    made = town.acorn
    low, high = sorted([uuid.uuid4(), uuid.uuid4()])
    weighed = (rows.candidate(high, "h100", in_flight=0), rows.candidate(low, "h200", in_flight=77))
    rows.store(as_owner, made, rows.record(made, replica_id=str(high), replica_name="h100", candidates=weighed))
    url = f"/t/acorn/endpoints/{made.endpoint_id}/dry-run?policy={_version(candidate, {'policy': 'least_outstanding'})}"
    told = town.viewer.get(url).content.decode()
    assert re.findall(r'class="break">(replica \d)', told) == ["replica 1", "replica 2"]
    assert "77" not in told.split("<tbody>")[1]
    assert re.findall(r'class="break">(h\d+)', town.operator.get(url).content.decode()) == ["h100", "h200"]


def test_what_was_done_is_said_once_in_the_panel_where_it_was_done_and_elsewhere_at_the_top(town: Town, candidate: PolicyVersion) -> None:
    """The address leads to it, and it can take the focus. What belongs to no panel, and what waits when another page opens, stands at the top."""
    page = f"/t/acorn/endpoints/{town.acorn.endpoint_id}"
    tried = town.owner.post(f"{page}/trial", {"policy": str(candidate.id), "percent": "10"})
    captured = town.owner.post(f"{page}/capture", {"days": "3", "percent": "10"})
    town.owner.post(f"{page}/rotate-epoch", {"reason": "a leak"})
    assert [answer["Location"] for answer in (tried, captured)] == [f"{page}#trial-said", f"{page}#capture-said"]
    said = town.owner.get(page).content.decode()
    panels = {name: said.split(f'id="{name}-said" role="status" tabindex="-1">')[1].split("</div>")[0] for name in ("trial", "capture")}
    assert "is tried on llama-chat" in panels["trial"]
    assert "conversations are captured" in panels["capture"]
    assert [text.count('<p class="note success"') for text in panels.values()] == [1, 1]
    top = said.split("<main")[1].split('<div class="head">')[0]
    assert top.count('<p class="note') == 1
    assert said.count('<p class="note success"') == 3
    assert '-said"' not in town.owner.get(page).content.decode()
    town.owner.post(f"{page}/rollback", {"reason": ""})
    assert "nothing is tried" in town.owner.get("/t/acorn/pools").content.decode().split("<main")[1].split("<h1>")[0]
