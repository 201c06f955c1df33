"""Audits through a real router's internal door against simulated engines: broken ones are caught, honest and lied-about ones are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from namespaces.audit import evidence

if TYPE_CHECKING:
    from routing.models import AuditRun
    from tests.routing.services.audits.world import World

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(180)]


def evidence_of(run: AuditRun) -> dict[str, Any]:
    assert run.evidence is not None
    kept: dict[str, Any] = run.evidence
    return kept


def test_an_honest_engine_passes_every_row_with_controls_seen(world: World) -> None:
    """All 25 rows are in the report; what is expressible passed, by negative probes beside controls; the replica is isolated."""
    run = world.audit_until_sure()
    assert (run.state, run.outcome) == ("finished", "pass"), run.reason
    shown = {case["name"]: case for case in run.cases}
    assert sorted(row for case in run.cases for row in case["rows"]) == list(range(1, 26))
    for name in ("two_salts", "part_of_salt", "routes", "client_salts", "adapters", "joined_texts"):
        assert shown[name]["outcome"] == "pass"
        assert shown[name]["negative_probes"] >= 1
        assert shown[name]["controls_seen"] >= 1
    assert {name for name, case in shown.items() if case["outcome"] == "proved elsewhere"} == {"encoding", "anonymous"}
    assert not any(case["odd"] for case in run.cases)
    assert run.negative_probes >= 20
    assert run.failure_bound_ppm == round(3_000_000 / run.negative_probes)
    assert 0 < run.tokens_spent < 60_000
    replica = world.replica()
    assert (replica.isolation_state, replica.audit_busy_until) == ("isolated", None)
    assert replica.audit_tokens == run.tokens_spent
    assert replica.isolation_verified_at is not None


@pytest.mark.parametrize(
    ("mode", "case", "judged_by"),
    [
        ({"salt_mode": "ignore_salt"}, "two_salts", "reported"),
        ({"salt_mode": "truncate_salt"}, "part_of_salt", "reported"),
        ({"salt_mode": "concat_salt_with_adapter"}, "joined_texts", "reported"),
        ({"salt_mode": "ignore_salt", "hide_cached_tokens": True}, "two_salts", "times"),
    ],
    ids=lambda value: "+".join(f"{name}" for name in value.values()) if isinstance(value, dict) else None,
)
def test_each_broken_engine_is_caught_and_quarantined(world: World, mode: dict[str, Any], case: str, judged_by: str) -> None:
    """The report names the row; the router learns, and nobody is served from then on."""
    from tests.routing.services.audits.world import failed

    assert world.audit_until_sure().outcome == "pass"
    key = world.key("app")
    assert world.rig.chat(key, "hello")[0] == 200
    world.rig.mode(**mode)
    run = world.audit_until_sure()
    assert run.outcome == "fail", run.reason
    # by times one confirmed case is enough for a run, and chance says which comes first
    assert failed(run) if judged_by == "times" else case in failed(run)
    assert any(name in run.reason for name in failed(run))
    assert evidence_of(run)["judged_by"].startswith(judged_by)
    replica = world.replica()
    assert replica.isolation_state == "quarantined"
    assert str(run.id) in replica.isolation_reason
    assert world.rig.chat(key, "hello")[0] == 503


@pytest.mark.parametrize("forged", [40, 5000])
def test_a_forged_field_quarantines_nobody(world: World, forged: int) -> None:
    """The engine keeps namespaces apart and lies about it. It may become suspect, no more."""
    world.rig.mode(forge_cached_tokens=forged)
    run = world.audit()
    assert run.outcome == "inconclusive", run.reason
    assert any(case["odd"] for case in run.cases) == (forged == 5000)  # of 40 tokens all that is seen is that no control hits
    assert world.replica().isolation_state == "unverified"


def test_an_engine_that_hides_its_tokens_passes_by_its_times(world: World) -> None:
    world.rig.mode(hide_cached_tokens=True)
    run = world.audit_until_sure()
    assert run.outcome == "pass", run.reason
    assert evidence_of(run)["times"]["reading"] == "apart"
    assert world.replica().isolation_state == "isolated"


def test_evidence_verifies_and_holds_no_content(world: World, settings: Any) -> None:
    """Signed with the evidence key; not a word of the prompts, no salt, no address, no token."""
    from routing.services.audits.prompts import WORDS

    run = world.audit()
    document = evidence.report(evidence_of(run), bytes(run.signature or b""), bytes(run.evidence_key or b""))
    assert evidence.verify(document, settings.EVIDENCE_PUBLIC_KEY)["run"] == str(run.id)
    assert document.count(b" ".join(word.encode() for word in WORDS[:1])) < 50
    sent = [body for recorded in world.rig.fleet[0].replica.requests for body in [recorded.body]]
    salts = {line for body in sent for line in body.split(b'"') if line.startswith(b"sr1-")}
    assert salts
    assert not [salt for salt in salts if salt in document]
    assert world.rig.engine().encode() not in document
    prompts = [body.split(b'"content": "')[1][:60] if b'"content": "' in body else body for body in sent]
    assert not [text for text in prompts if text in document]


def test_probes_leave_nothing_of_theirs_to_the_next_run(world: World) -> None:
    """Every run has scopes of its own: what one cached, the next one cannot hit, and its first uses are first uses."""
    first, second = world.audit_until_sure(), world.audit_until_sure()
    assert (first.outcome, second.outcome) == ("pass", "pass")


def test_a_repeated_delivery_runs_once(world: World) -> None:
    from routing.services.audits import running

    order = world.order()
    ended = running.run(world.tenant.id, order.id)
    assert ended is not None
    assert running.run(world.tenant.id, order.id) is None
    assert world.replica().audit_tokens == ended.run.tokens_spent


def test_one_audit_at_a_time_and_replica(world: World) -> None:
    """The second waits: it stays ordered."""
    from datetime import timedelta

    from django.utils import timezone

    from routing.models import AuditRun, Replica
    from routing.services.audits import running
    from tenants.scoping import tenant_scope

    order = world.order()
    with tenant_scope(world.tenant.id):
        Replica.objects.filter(id=world.replica_id).update(audit_busy_until=timezone.now() + timedelta(seconds=60))
    assert running.run(world.tenant.id, order.id) is None
    with tenant_scope(world.tenant.id):
        assert AuditRun.objects.get(id=order.id).state == "queued"


def test_the_budget_refuses_and_says_so(world: World, settings: Any) -> None:
    """Counted per replica and day; a refused order costs nothing and changes no state."""
    settings.AUDIT_TOKENS_A_DAY = 70_000
    first, second = world.audit_until_sure(), world.audit()
    assert (first.outcome, second.state) == ("pass", "refused")
    assert "tokens today" in second.reason
    assert world.replica().audit_tokens == first.tokens_spent
    assert world.replica().isolation_state == "isolated"


def test_what_an_engines_tokenizer_makes_too_dear_is_refused_and_paid(world: World, settings: Any) -> None:
    """The two probes that told it cost their tokens, and nothing is concluded: the state stays, and the replica is free."""
    assert world.audit_until_sure().outcome == "pass"
    before = world.replica().audit_tokens
    settings.AUDIT_TOKENS_A_DAY = before + 55_000
    run = world.audit({"timed_negatives": 500})
    assert (run.state, run.outcome) == ("finished", "pass")  # the control: so many tokens do for an engine that reports
    world.rig.mode(hide_cached_tokens=True)
    settings.AUDIT_TOKENS_A_DAY = world.replica().audit_tokens + 55_000
    run = world.audit()
    assert (run.state, run.outcome, run.probes) == ("refused", "", 0)
    assert "55000 are left" in run.reason
    replica = world.replica()
    assert (replica.isolation_state, replica.audit_busy_until) == ("isolated", None)
    assert 2000 < run.tokens_spent < 2500


def test_a_router_that_is_away_changes_nothing(world: World, settings: Any) -> None:
    """No verdict, no state; the replica is free for the next audit."""
    assert world.audit_until_sure().outcome == "pass"
    settings.DOOR_URL = "http://127.0.0.1:9"
    run = world.audit()
    assert (run.outcome, run.reason) == ("inconclusive", "the router did not answer")
    assert world.replica().isolation_state == "isolated"
    assert world.replica().audit_busy_until is None


def test_an_engine_in_trouble_changes_nothing(world: World) -> None:
    """Every request is answered by 503, as by an overloaded engine: incomplete, no suspicion."""
    assert world.audit_until_sure().outcome == "pass"
    world.rig.mode(status=503)
    assert world.audit().outcome == "inconclusive"
    assert world.replica().isolation_state == "isolated"


def test_a_process_without_the_evidence_key_audits_nothing(world: World, settings: Any) -> None:
    from routing.services.audits import running

    settings.EVIDENCE_KEY = None
    with pytest.raises(running.NotConfigured):
        running.run(world.tenant.id, world.order().id)
