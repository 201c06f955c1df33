"""Trials and dry runs over the API."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.db import connection
from django.utils import timezone

from routing.core.policy import SCORERS
from routing.core.record import CandidateRecord, DecisionRecord, TrialRecord
from routing.models import DecisionRow, Endpoint, Pool, Replica
from routing.services import dry_run, trials
from tenants.core.roles import Role
from tests.tenants.houses import ABSENT, Api, House

pytestmark = pytest.mark.django_db

TURNS = {"policy": "round_robin"}


@pytest.fixture
def api(acorn: House) -> Api:
    """An operator of a tenant that has the endpoint chat on a pool of its own, which runs ``p`` v1 (ettft)."""
    furnish(acorn)
    return acorn.api(Role.OPERATOR)


def furnish(made: House, pool: str = "gpu") -> None:
    owner = made.api()
    if pool == "gpu":
        owner.post("pools", {"name": pool})
    owner.post("models", {"name": "m", "revision": "r1"})
    owner.post("routing-policies", {"name": "p", "spec": {"policy": "ettft"}})
    assert owner.post("endpoints", {"name": "chat", "pool": pool, "model": "m", "routing_policy": "p"}).status_code == 201


def endpoint_of(made: House) -> Endpoint:
    with made.scope():
        return Endpoint.objects.get(tenant_id=made.id, name="chat")


REPLICAS = tuple(str(uuid.UUID(int=number + 1)) for number in range(2))


def decided(made: House, endpoint: Endpoint, count: int = 1, *, placed: bool = False, agreed: bool = True, **fields: Any) -> None:
    """Records of a trial of ``p`` v1 (ettft) against ``p`` v2 (round robin), or without one, as ingest stores them."""
    now = timezone.now()
    rows = []
    for number in range(count):
        started = now + timedelta(milliseconds=number) + fields.get("after", timedelta(0))
        live, candidate = ("ettft", 1), ("round_robin", 2)
        here, there = (candidate, live) if placed else (live, candidate)
        said = TrialRecord(
            policy=there[0],
            policy_version=there[1],
            placed=placed,
            replica_id=REPLICAS[0 if agreed else 1],
            replica_name="b",
            expected_ttft_s=0.2 if placed else 0.4,
            expected_cached_tokens=100.0 if placed else 60.0,
        )
        record = DecisionRecord(
            id=uuid.uuid4(),
            tenant_id=made.id,
            started_at=started.timestamp(),
            route="chat",
            outcome="ok",
            status=200,
            router_id="r1",
            config_version=1,
            policy=here[0],
            policy_version=here[1],
            endpoint_id=endpoint.id,
            replica_id=REPLICAS[0],
            replica_name="a",
            expected_ttft_s=0.4 if placed else 0.2,
            expected_cached_tokens=60.0 if placed else 100.0,
            candidates=fields.get("candidates", ()),
            trial=said if fields.get("trial", True) else None,
            alarm=fields.get("alarm"),
        )
        rows.append(
            DecisionRow(
                id=record.id,
                tenant_id=made.id,
                started_at=started,
                endpoint_id=endpoint.id,
                replica_id=record.replica_id or "",
                outcome="ok",
                status=200,
                expected_ttft_s=record.expected_ttft_s,
                ttft_s=0.5 if placed else 0.3,
                cached_tokens=50 if placed else 90,
                record=msgspec.to_builtins(record),
            )
        )
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_ingest")
    DecisionRow.objects.bulk_create(rows, ignore_conflicts=True)
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE saltroute_app")


def v2(api: Api, spec: dict[str, Any] | None = None) -> None:
    """Append to ``p`` without moving the endpoint."""
    assert api.post("routing-policies/p/versions", {"spec": spec or TURNS, "activate": False}).json()["version"] == 2


def test_from_the_shadow_over_a_canary_to_all_and_back(acorn: House, api: Api) -> None:
    """Each step is one call, one entry of the audit log and one published version."""
    v2(api)
    assert api.get("endpoints/chat/trial").json()["candidate"] is None
    shadow = api.call("PUT", "endpoints/chat/trial", {"policy": "p"})
    assert shadow.status_code == 200, shadow.content
    assert (shadow.json()["candidate"]["version"], shadow.json()["live"]["version"], shadow.json()["share"]) == (2, 1, 0.0)
    since = shadow.json()["since"]
    canary = api.call("PUT", "endpoints/chat/trial", {"policy": {"name": "p", "version": 2}, "share": 0.1}).json()
    assert (canary["share"], canary["since"]) == (0.1, since)  # the same pair: what the shadow showed still counts
    assert canary["config_version"] == shadow.json()["config_version"] + 1
    shown = api.get("endpoints/chat").json()
    assert (shown["routing_policy"]["version"], shown["candidate"]["spec"], shown["canary_share"]) == (1, TURNS, 0.1)
    live = api.post("endpoints/chat/trial/promote", {"version": 2, "reason": "faster"}).json()
    assert (live["live"]["version"], live["candidate"], live["share"], live["since"], live["back_to"]["version"]) == (2, None, 0.0, None, 1)
    back = api.post("endpoints/chat/rollback", {"reason": "not faster"}).json()
    assert (back["live"]["version"], back["candidate"], back["back_to"]) == (1, None, None)
    entries = [acorn.log(f"endpoint.{verb}") for verb in ("trial", "promote", "rollback")]
    assert [len(found) for found in entries] == [2, 1, 1]
    assert entries[0][1].after == {"canary_share": 0.1}
    assert (entries[1][0].after, entries[1][0].reason) == (
        {"routing_policy": "p v2", "candidate": None, "canary_share": 0.0, "back_to": "p v1"},
        "faster",
    )
    assert entries[2][0].before == {"routing_policy": "p v2", "back_to": "p v1"}


def test_rolling_back_twice_is_rolling_back_once(acorn: House, api: Api) -> None:
    """And before it a running trial is what is taken back, not the promotion before it."""
    v2(api)
    api.call("PUT", "endpoints/chat/trial", {"policy": "p"})
    api.post("endpoints/chat/trial/promote", {})
    api.call("PUT", "endpoints/chat/trial", {"policy": {"policy": "least_outstanding"}, "share": 0.5})
    first = api.post("endpoints/chat/rollback", {}).json()
    assert (first["live"]["version"], first["candidate"], first["back_to"]) == (2, None, None)
    again = api.post("endpoints/chat/rollback", {}).json()
    assert again == first
    assert len(acorn.log("endpoint.rollback")) == 1


def test_the_same_trial_again_and_ending_none_change_nothing(acorn: House, api: Api) -> None:
    v2(api)
    first = api.call("PUT", "endpoints/chat/trial", {"policy": "p", "share": 0.25}).json()
    assert api.call("PUT", "endpoints/chat/trial", {"policy": "p", "share": 0.25}).json() == first
    ended = api.delete("endpoints/chat/trial").json()
    assert (ended["candidate"], ended["live"]["version"]) == (None, 1)
    assert api.delete("endpoints/chat/trial").json() == ended
    assert (len(acorn.log("endpoint.trial")), len(acorn.log("endpoint.trial_end"))) == (1, 1)


def test_what_was_read_is_what_is_promoted(api: Api) -> None:
    v2(api)
    assert api.post("endpoints/chat/trial/promote", {}).status_code == 409
    api.call("PUT", "endpoints/chat/trial", {"policy": "p"})
    other = api.post("endpoints/chat/trial/promote", {"version": 1})
    assert (other.status_code, other.json()["error"]["field"]) == (409, "version")
    assert api.get("endpoints/chat/trial").json()["live"]["version"] == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"policy": "nobody's"}, "policy"),
        ({"policy": {"name": "p", "version": 9}}, "policy.version"),
        ({"policy": {"policy": "ettft", "pressure": -1}}, "policy.pressure"),
        ({"policy": {"policy": "weighted", "weights": {"luck": 1}}}, "policy.weights.luck"),
        ({"policy": "p"}, "policy"),  # what runs already
        ({"policy": TURNS, "share": 1.5}, "share"),
        ({"policy": TURNS, "share": -0.1}, "share"),
        ({"policy": TURNS, "share": "half"}, "share"),
        ({"share": 0.5}, "policy"),
    ],
)
def test_what_cannot_be_tried_is_refused_by_its_field(api: Api, body: dict[str, Any], field: str) -> None:
    answer = api.call("PUT", "endpoints/chat/trial", body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
    assert api.get("endpoints/chat/trial").json()["candidate"] is None


def test_an_inline_candidate_is_apart_from_the_live_document(acorn: House, api: Api) -> None:
    """The two run side by side: neither is the other's older version."""
    assert acorn.api().patch("endpoints/chat", {"routing_policy": {"policy": "ettft"}}).status_code == 200
    made = api.call("PUT", "endpoints/chat/trial", {"policy": TURNS}).json()
    assert (made["live"]["name"], made["candidate"]["name"], made["candidate"]["version"]) == ("chat", "chat~candidate", 1)


def test_every_change_of_the_live_policy_has_a_way_back(acorn: House, api: Api) -> None:
    """Activating a version, and changing the endpoint, are rolled back like a promotion; making the candidate live by hand ends its trial."""
    assert api.post("routing-policies/p/versions", {"spec": TURNS}).json()["version"] == 2
    assert api.get("endpoints/chat/trial").json()["back_to"]["version"] == 1
    assert api.post("endpoints/chat/rollback", {}).json()["live"]["version"] == 1
    acorn.api().patch("endpoints/chat", {"routing_policy": {"name": "p", "version": 2}})
    assert api.post("endpoints/chat/rollback", {}).json()["live"]["version"] == 1
    api.call("PUT", "endpoints/chat/trial", {"policy": {"name": "p", "version": 2}})
    api.post("routing-policies/p/versions", {"spec": TURNS})  # the newest again: no version, but it is activated
    now = api.get("endpoints/chat/trial").json()
    assert (now["live"]["version"], now["candidate"], now["back_to"]["version"]) == (2, None, 1)


def test_a_live_policy_that_moves_starts_the_comparison_again(api: Api) -> None:
    started = api.call("PUT", "endpoints/chat/trial", {"policy": TURNS}).json()
    api.post("routing-policies/p/versions", {"spec": {"policy": "ettft", "pressure": 2}})
    now = api.get("endpoints/chat/trial").json()
    assert (now["live"]["version"], now["candidate"], now["back_to"]) == (2, started["candidate"], None)
    assert now["since"] > started["since"]


def test_a_policy_on_trial_cannot_be_deleted_and_a_way_back_can(api: Api) -> None:
    api.post("routing-policies", {"name": "q", "spec": TURNS})
    api.call("PUT", "endpoints/chat/trial", {"policy": "q"})
    assert api.delete("routing-policies/q").status_code == 409
    api.post("endpoints/chat/trial/promote", {})
    assert api.delete("routing-policies/p").status_code == 200
    assert api.get("endpoints/chat/trial").json()["back_to"] is None


def test_the_report_sums_up_this_pair_of_policies_alone(acorn: House, api: Api) -> None:
    """Neither decisions before the trial, nor of another pair, nor without one."""
    v2(api)
    endpoint = endpoint_of(acorn)
    decided(acorn, endpoint, 5, after=-timedelta(hours=1))
    api.call("PUT", "endpoints/chat/trial", {"policy": "p", "share": 0.4})
    decided(acorn, endpoint, 40, agreed=True)
    decided(acorn, endpoint, 20, agreed=False)
    decided(acorn, endpoint, 40, placed=True, agreed=False)
    decided(acorn, endpoint, 7, trial=False)
    report = api.get("endpoints/chat/trial").json()["report"]
    figures = report["figures"]
    assert (figures["decisions"], figures["agreement"]["value"]) == (100, 0.4)
    assert figures["ttft_difference_s"]["value"] == pytest.approx(0.2)
    assert figures["candidate_ttft_s"]["p95"]["value"] == pytest.approx(0.4)
    assert figures["tokens_saved"] == pytest.approx(-4000.0)
    assert (figures["candidate"]["requests"], figures["candidate"]["ttft_s"]["mean"]["value"]) == (40, 0.5)
    assert figures["realised_difference_s"] is None or figures["live"]["requests"] > 0
    assert (report["truncated"], report["rounded"]) == (False, False)
    assert "95 %" in report["method"]


def test_the_report_is_bounded(acorn: House, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """In rows and in time, and says when it left some out."""
    monkeypatch.setattr(trials, "MAX_DECISIONS", 10)
    v2(api)
    api.call("PUT", "endpoints/chat/trial", {"policy": "p"})
    decided(acorn, endpoint_of(acorn), 12)
    report = api.get("endpoints/chat/trial").json()["report"]
    assert (report["figures"]["decisions"], report["truncated"]) == (10, True)
    with acorn.scope():
        Endpoint.objects.filter(tenant_id=acorn.id).update(trial_since=timezone.now() - timedelta(days=30))
        endpoint = Endpoint.objects.select_related("candidate_policy", "routing_policy").get(tenant_id=acorn.id)
        found = trials.report(tenant_id=acorn.id, endpoint=endpoint, whole=True, now=timezone.now() + timedelta(days=2))
    assert found is not None
    assert found.figures.decisions == 0


def test_on_a_platforms_pool_expected_times_are_rounded_means(acorn: House, platform: Api) -> None:
    """Of a single decision they would tell how busy others keep a replica. What was realised is the tenant's own."""
    platform.post("pools", {"name": "shared"})
    platform.post("pools/shared/grants", {"tenant": "acorn"})
    furnish(acorn, "shared")
    api = acorn.api(Role.OPERATOR)
    v2(api)
    api.call("PUT", "endpoints/chat/trial", {"policy": "p"})
    decided(acorn, endpoint_of(acorn), 19)
    figures = api.get("endpoints/chat/trial").json()["report"]["figures"]
    assert figures["candidate_ttft_s"] == {"count": 19, "mean": None, "p50": None, "p95": None}
    assert figures["ttft_difference_s"] is None
    decided(acorn, endpoint_of(acorn), 21)
    report = api.get("endpoints/chat/trial").json()["report"]
    assert report["rounded"]
    assert report["figures"]["candidate_ttft_s"]["mean"] == {"value": 0.4, "low": None, "high": None}
    assert report["figures"]["candidate_ttft_s"]["p95"] is None
    told = platform.get("endpoints/chat/trial", X_Saltroute_Tenant="acorn").json()["report"]
    assert not told["rounded"]
    assert told["figures"]["candidate_ttft_s"]["p95"]["value"] == 0.4


# ---- dry runs ----------------------------------------------------------------------------------------------------------------------------------

NO_TERMS = dict.fromkeys(SCORERS, 0.0)
KEPT = (
    CandidateRecord(
        replica_id=REPLICAS[0],
        replica_name="a",
        expected_ttft_s=0.6,
        expected_cached_tokens=900.0,
        uncached_tokens=100.0,
        in_flight=3,
        score_s=0.8,
        terms={**NO_TERMS, "wait": 0.5, "prefill": 0.1, "external_price": 0.2},
    ),
    CandidateRecord(
        replica_id=REPLICAS[1],
        replica_name="b",
        expected_ttft_s=1.0,
        uncached_tokens=1000.0,
        score_s=3.0,
        terms={**NO_TERMS, "prefill": 1.0, "external_price": 2.0},
    ),
)


def test_a_dry_run_says_what_would_have_gone_elsewhere(acorn: House, api: Api) -> None:
    """Stores nothing; the example shows both sides in terms."""
    with acorn.scope():
        pool = Pool.objects.get(tenant_id=acorn.id, name="gpu")
        for number, replica_id in enumerate(REPLICAS):
            Replica.objects.create(id=replica_id, tenant_id=acorn.id, pool=pool, name="ab"[number], url=f"http://127.0.0.1:{9201 + number}")
    decided(acorn, endpoint_of(acorn), 4, trial=False, candidates=KEPT)
    before = api.get("status").json()["config_version"]
    found = api.post("endpoints/chat/dry-run", {"policy": {"policy": "least_outstanding"}}).json()
    assert (found["decisions"], found["summary"]["redone"], found["summary"]["differing"]) == (4, 4, 4)
    assert (found["summary"]["ttft_before_s"], found["summary"]["ttft_after_s"]) == (pytest.approx(0.6), pytest.approx(1.0))
    assert (found["summary"]["cached_before"], found["summary"]["cached_after"]) == (pytest.approx(900.0), 0.0)
    best = found["example"]["candidates"][0]
    assert (found["example"]["goes_by"], best["in_flight"], best["terms_after"], best["score_after_s"]) == ("load", 0, {}, None)
    weighted = api.post("endpoints/chat/dry-run", {"policy": {"policy": "weighted", "weights": {"wait": 4, "prefill": 1}}}).json()
    assert weighted["example"]["goes_by"] == "score"
    chosen, other = weighted["example"]["candidates"]
    assert (chosen["chosen_before"], chosen["chosen_after"], chosen["score_after_s"]) == (False, True, pytest.approx(1.0))
    assert (other["terms_before"]["wait"], other["terms_after"]["wait"]) == (0.5, pytest.approx(2.0))
    assert api.get("status").json()["config_version"] == before
    assert api.post("endpoints/chat/dry-run", {"policy": {"version": 1}}).json()["summary"]["differing"] == 0
    assert api.post("endpoints/chat/dry-run", {"policy": "p"}).json()["summary"]["differing"] == 0
    left = api.post("endpoints/chat/dry-run", {"policy": {"policy": "bounded_hash"}}).json()["summary"]["left_out"]
    assert [one["count"] for one in left] == [4]


def test_a_dry_run_is_bounded_and_says_what_weighs_too_much(acorn: House, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """In rows read, in rows looked at, and in the share of those that were kept because they went wrong."""
    wanted = {"policy": {"policy": "least_outstanding"}}
    decided(acorn, endpoint_of(acorn), 6, trial=False, candidates=KEPT)
    assert api.post("endpoints/chat/dry-run", wanted).json()["went_wrong"] == 0
    decided(acorn, endpoint_of(acorn), 2, trial=False, candidates=KEPT, alarm="cached_more_than_owned")
    assert api.post("endpoints/chat/dry-run", wanted).json()["went_wrong"] == 2
    monkeypatch.setattr(dry_run, "MAX_DECISIONS", 5)
    found = api.post("endpoints/chat/dry-run", wanted).json()
    assert (found["decisions"], found["truncated"]) == (5, True)
    monkeypatch.setattr(dry_run, "MAX_SCANNED", 3)
    found = api.post("endpoints/chat/dry-run", wanted).json()
    assert (found["decisions"], found["truncated"]) == (4, False)  # the bound is a moment: what it falls on is read too


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ("nobody's", "policy"),
        ({"version": 9}, "policy.version"),
        ({"policy": "ettft", "pressure": -1}, "policy.pressure"),
        ({"policy": "weighted", "weights": {"wait": 0}}, "policy.weights"),
    ],
)
def test_a_dry_run_of_what_cannot_run_is_refused(api: Api, policy: object, field: str) -> None:
    answer = api.post("endpoints/chat/dry-run", {"policy": policy})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


def test_on_a_platforms_pool_a_dry_run_tells_no_load(acorn: House, platform: Api) -> None:
    platform.post("pools", {"name": "shared"})
    platform.post("pools/shared/grants", {"tenant": "acorn"})
    furnish(acorn, "shared")
    decided(acorn, endpoint_of(acorn), 3, trial=False, candidates=KEPT)
    found = acorn.api().post("endpoints/chat/dry-run", {"policy": {"policy": "least_outstanding"}}).json()
    assert (found["rounded"], found["summary"]["ttft_after_s"], found["summary"]["differing"]) == (True, None, 3)
    for one in found["example"]["candidates"]:
        assert one["replica"].startswith("replica ")
        assert (one["expected_ttft_s"], one["score_after_s"], set(one["terms_before"])) == (None, None, {"prefill", "external_price"})


# ---- who may -----------------------------------------------------------------------------------------------------------------------------------


def test_roles(acorn: House, api: Api) -> None:
    """Operators try, promote and roll back; viewers read, dry runs included."""
    v2(api)
    calls: tuple[tuple[str, str, Any], ...] = (
        ("PUT", "trial", {"policy": "p"}),
        ("POST", "trial/promote", {}),
        ("POST", "rollback", {}),
        ("DELETE", "trial", None),
    )
    for method, verb, body in calls:
        assert acorn.api(Role.VIEWER).call(method, f"endpoints/chat/{verb}", body).status_code == 403
    for role in (Role.OPERATOR, Role.ADMIN, Role.OWNER):
        assert [acorn.api(role).call(method, f"endpoints/chat/{verb}", body).status_code for method, verb, body in calls] == [200] * 4
    for role in Role:
        assert acorn.api(role).get("endpoints/chat/trial").status_code == 200
        assert acorn.api(role).post("endpoints/chat/dry-run", {"policy": "p"}).status_code == 200


def test_a_stranger_and_an_absent_id_get_the_same_bytes(acorn: House, birch: House, api: Api) -> None:
    """In paths, and where a body names a policy."""
    v2(api)
    api.call("PUT", "endpoints/chat/trial", {"policy": "p"})
    stranger, answers = birch.api(), set()
    for reference in (str(endpoint_of(acorn).id), ABSENT, "chat"):
        for method, verb, body in (
            ("GET", "trial", None),
            ("PUT", "trial", {"policy": "p"}),
            ("DELETE", "trial", None),
            ("POST", "trial/promote", {}),
            ("POST", "rollback", {}),
            ("POST", "dry-run", {"policy": "p"}),
        ):
            answer = stranger.call(method, f"endpoints/{reference}/{verb}", body)
            answers.add((answer.status_code, answer.content))
    assert len(answers) == 1
    assert answers.pop()[0] == 404
    furnish(birch)
    made = acorn.api().get("routing-policies/p").json()
    for verb, method in (("trial", "PUT"), ("dry-run", "POST")):
        theirs, nobodys = (stranger.call(method, f"endpoints/chat/{verb}", {"policy": name}) for name in (made["id"], ABSENT))
        assert (theirs.status_code, theirs.content) == (400, nobodys.content)
