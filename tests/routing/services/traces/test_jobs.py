"""Jobs over traces: asked for within limits, carried out once whoever dies, cancelled at once, and nobody else's."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone

from routing.models import Endpoint, TraceJob
from routing.services import captures, policies
from routing.services.captures import NothingCaptured
from routing.services.traces import child, jobs, reading, running
from routing.services.traces.jobs import Input
from tenants.core.errors import Conflict, Invalid, LimitReached, NotFound
from tenants.scoping import tenant_scope
from tests.routing.services.captured import keep, packed, record
from tests.routing.services.made import Made
from tests.routing.services.rows import ACTOR, actions, an_endpoint
from tests.routing.services.traces.made import a_file, a_replay, again, an_analysis, found, mooncake, run

SMALL: dict[str, Any] = {"speeds": [1.0, 0.5], "cache_tokens": 100_000}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is renewed at every look, and nobody waits for a busy worker."""
    monkeypatch.setattr(running, "RENEW_S", 0.0)
    monkeypatch.setattr(running, "BUSY_S", 0.0)


def test_an_analysis_from_asking_to_its_report(acorn: Made) -> None:
    file = a_file(acorn)
    row = an_analysis(acorn, file)
    assert (row.kind, row.state, row.input_name, row.requested_by) == ("analyze", "queued", "day.jsonl", "owner@example.org")
    done = run(acorn, row)
    assert (done.state, done.error, done.done, done.total, done.attempts) == ("done", "", 200, 200, 1)
    assert found(done)["requests"] == 200
    assert found(done)["ceiling_in_session"] > 0.5
    assert found(done)["advice"]["advice"]
    assert set(done.plots) == {"ceiling", "capacity", "gaps", "concentration", "parting"}
    assert done.html.startswith("<!doctype html>")
    assert (done.holder, done.lease_until, done.checkpoint) == (None, None, None)
    assert reading.share(done) == 1.0
    assert running.run(acorn.id, row.id) is None  # delivered again
    assert again(acorn, row).finished_at == done.finished_at
    with tenant_scope(acorn.id):
        assert actions(acorn.id) == ["trace_file.store", "trace_job.create"]


def test_a_replay_takes_stored_policies_and_documents(acorn: Made) -> None:
    with tenant_scope(acorn.id):
        policies.create(tenant_id=acorn.id, actor=ACTOR, kind="routing", name="turns", spec={"policy": "round_robin"})
    row = a_replay(acorn, a_file(acorn), "turns", {"name": "turns", "version": 1}, {"policy": "ettft", "pressure": 0}, slo_ttft_s=2.0, **SMALL)
    done = run(acorn, row)
    assert (done.state, done.error) == ("done", "")
    assert [one["name"] for one in found(done)["runs"]] == ["turns v1", "turns v1", "ettft (pressure 0)"]
    assert found(done)["fleet"].startswith("2 replicas, speed 1, 0.5, 100,000 tokens")
    assert (done.done, done.total) == (600, 600)


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"policies_wanted": []}, "policies"),
        ({"policies_wanted": [{"policy": "ettft"}] * 9}, "policies"),
        ({"policies_wanted": ["none"]}, "policies[0]"),
        ({"policies_wanted": [{"policy": "ettft"}, {"policy": "best"}]}, "policies[1].policy"),
        ({"policies_wanted": [{"policy": "ettft", "pressure": 99}]}, "policies[0].pressure"),
        ({"policies_wanted": [7]}, "policies[0]"),
        ({"speeds": []}, "speeds"),
        ({"speeds": [1.0, 0.0]}, "speeds[1]"),
        ({"speeds": [1.0] * 65}, "speeds"),
        ({"cache_tokens": 100}, "cache_tokens"),
        ({"residency": "psychic"}, "residency"),
        ({"slo_ttft_s": -1.0}, "slo_ttft_s"),
        ({"speedup": 0.0}, "speedup"),
        ({"seed": 0}, "seed"),
        ({"of": Input()}, "file"),
        ({"of": Input(file="day.jsonl", endpoint="chat")}, "file"),
        ({"of": Input(file="none")}, "file"),
        ({"of": Input(file="day.jsonl", hours=2)}, "hours"),
        ({"of": Input(endpoint="none")}, "endpoint"),
        ({"of": Input(endpoint="chat", hours=0)}, "hours"),
        ({"of": Input(endpoint="chat", hours=15 * 24)}, "hours"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_field(acorn: Made, wanted: dict[str, Any], field: str) -> None:
    """And nothing is stored; the same without the fault is."""
    a_file(acorn)
    given: dict[str, Any] = {"of": Input(file="day.jsonl"), "policies_wanted": [{"policy": "ettft"}], **SMALL}
    with tenant_scope(acorn.id):
        an_endpoint(acorn.id)
        with pytest.raises(Invalid) as refused:
            jobs.replay(tenant_id=acorn.id, actor=ACTOR, **{**given, **wanted})
        assert refused.value.field == field
        assert not TraceJob.objects.exists()
        assert jobs.replay(tenant_id=acorn.id, actor=ACTOR, **given).state == "queued"


def test_jobs_are_bounded_in_number_and_size(acorn: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    file = a_file(acorn)
    with monkeypatch.context() as patched:
        patched.setattr(jobs, "MAX_REPLAY_REQUESTS", 199)
        with pytest.raises(Invalid, match="at most 199 requests"):
            a_replay(acorn, file)
        an_analysis(acorn, file)  # is not bounded by it
    monkeypatch.setattr(jobs, "MAX_WAITING", 2)
    second = an_analysis(acorn, file)
    with pytest.raises(LimitReached, match="At most 2 jobs"):
        an_analysis(acorn, file)
    with tenant_scope(acorn.id):
        jobs.cancel(tenant_id=acorn.id, actor=ACTOR, job_id=second.id)
    an_analysis(acorn, file)


def test_what_is_over_is_forgotten_in_time_and_number(acorn: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go first; what waits stays, however old."""
    now = timezone.now()
    with tenant_scope(acorn.id):
        for age_days, state in ((31, "done"), (29, "failed"), (3, "cancelled"), (2, "done"), (99, "queued")):
            at = now - timedelta(days=age_days)
            row = TraceJob.objects.create(tenant_id=acorn.id, kind="analyze", state=state, input_name=f"{age_days}", parameters={}, finished_at=at)
            TraceJob.objects.filter(id=row.id).update(created_at=at)
        assert jobs.forget(acorn.id, now) == 1
        monkeypatch.setattr(jobs, "MAX_KEPT", 2)
        assert jobs.forget(acorn.id, now) == 1
        assert sorted(TraceJob.objects.values_list("input_name", flat=True)) == ["2", "3", "99"]


# ---- who holds a job ---------------------------------------------------------------------------------------------------


class _Killed(BaseException):
    """What kill -9 looks like from inside: nothing catches it, nothing is written after it."""


def _killed_after(monkeypatch: pytest.MonkeyPatch, checkpoints: int) -> None:
    """The worker dies just after so many checkpoints were written."""
    renew, seen = running._Held.renew, []

    def dies(held: Any, **given: Any) -> None:
        renew(held, **given)
        if given.get("checkpoint") is not None:
            seen.append(1)
            if len(seen) == checkpoints:
                raise _Killed

    monkeypatch.setattr(running._Held, "renew", dies)


def _expire(acorn: Made, row: TraceJob) -> None:
    """As if the lease had run out."""
    with tenant_scope(acorn.id):
        TraceJob.objects.filter(id=row.id).update(lease_until=timezone.now() - timedelta(seconds=1))


def test_a_job_whose_worker_died_goes_on_from_its_checkpoint(acorn: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before the lease has run out; then from the policy that was not replayed yet, to the same figures as without the death."""
    file = a_file(acorn)
    whole = run(acorn, a_replay(acorn, file, **SMALL))
    row = a_replay(acorn, file, **SMALL)
    with monkeypatch.context() as patched:
        _killed_after(patched, 1)
        with pytest.raises(_Killed):
            running.run(acorn.id, row.id)
    dead = again(acorn, row)
    assert (dead.state, dead.attempts, dead.done) == ("running", 1, 200)
    assert dead.checkpoint is not None
    assert running.run(acorn.id, row.id) is None  # somebody may still work at it
    assert again(acorn, row).attempts == 1
    _expire(acorn, row)
    begun: list[int] = []
    renew = running._Held.renew

    def told(held: Any, **given: Any) -> None:
        begun.append(held.done)
        renew(held, **given)

    monkeypatch.setattr(running._Held, "renew", told)
    assert running.run(acorn.id, row.id) == "done"
    done = again(acorn, row)
    assert (done.attempts, done.done, done.total) == (2, 400, 400)
    assert min(begun) >= 200
    assert done.result == whole.result
    assert done.html == whole.html


def test_who_lost_the_lease_writes_nothing_any_more(acorn: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was slow, not dead: another took the job meanwhile; the first stops, and the job ends once."""
    row = a_replay(acorn, a_file(acorn), **SMALL)
    renew, taken = running._Held.renew, list[Any]()

    def overtaken(held: Any, **given: Any) -> None:
        if not taken:
            taken.append(held.holder)
            _expire(acorn, row)
            with monkeypatch.context() as patched:
                patched.setattr(running, "_one", threading.BoundedSemaphore(1))  # another worker
                assert running.run(acorn.id, row.id) == "done"
        renew(held, **given)

    monkeypatch.setattr(running._Held, "renew", overtaken)
    assert running.run(acorn.id, row.id) is None
    done = again(acorn, row)
    assert (done.state, done.attempts) == ("done", 2)
    assert len(found(done)["runs"]) == 2


def test_who_lost_the_lease_to_one_that_still_works_leaves_it_alone(acorn: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another holds the job and is not done: nothing of its progress, its checkpoint or its lease is written over."""
    row = a_replay(acorn, a_file(acorn), **SMALL)
    other, until = uuid.uuid4(), timezone.now() + timedelta(minutes=1)
    renew, written = running._Held.renew, list[bytes]()

    def overtaken(held: Any, **given: Any) -> None:
        with tenant_scope(acorn.id):
            TraceJob.objects.filter(id=row.id).update(holder=other, lease_until=until, done=7, checkpoint=b"theirs")
        written.append(b"")
        renew(held, **given)

    monkeypatch.setattr(running._Held, "renew", overtaken)
    assert running.run(acorn.id, row.id) is None
    now = again(acorn, row)
    assert (now.state, now.holder, now.lease_until, now.done, bytes(now.checkpoint or b"")) == ("running", other, until, 7, b"theirs")
    assert len(written) == 1  # it stopped at the first look


def test_a_cancelled_job_stops_its_worker(acorn: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a look or two, its process with it; what it would have found is nowhere."""
    row = a_replay(acorn, a_file(acorn), **SMALL)
    renew, pids = running._Held.renew, list[int]()
    opened = child.Child.__enter__

    def noted(one: child.Child) -> child.Child:
        pids.append(one._process.pid)
        return opened(one)

    monkeypatch.setattr(child.Child, "__enter__", noted)

    def cancelled(held: Any, **given: Any) -> None:
        with tenant_scope(acorn.id):
            jobs.cancel(tenant_id=acorn.id, actor=ACTOR, job_id=row.id)
        renew(held, **given)

    monkeypatch.setattr(running._Held, "renew", cancelled)
    assert running.run(acorn.id, row.id) is None
    over = again(acorn, row)
    assert (over.state, over.result, over.html, over.checkpoint, over.holder) == ("cancelled", None, "", None, None)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    monkeypatch.undo()
    assert running.run(acorn.id, row.id) is None  # it stays so
    with tenant_scope(acorn.id):
        assert actions(acorn.id)[-1] == "trace_job.cancel"
        jobs.cancel(tenant_id=acorn.id, actor=ACTOR, job_id=row.id)
        assert actions(acorn.id).count("trace_job.cancel") == 1


def test_a_process_that_is_killed_costs_an_attempt_and_no_more_than_five(acorn: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is given back at once; the last attempt's end is the job's, in words."""
    row = an_analysis(acorn, a_file(acorn))
    answers = child.Child.answers

    def killed(one: Any, *, within_s: float) -> Iterator[Any]:
        one._process.kill()
        one._process.wait()
        yield from answers(one, within_s=within_s)

    monkeypatch.setattr(child.Child, "answers", killed)
    for attempt in range(1, running.MAX_ATTEMPTS + 1):
        assert running.run(acorn.id, row.id) is None
        assert (again(acorn, row).state, again(acorn, row).attempts) == ("running", attempt)
    running.run(acorn.id, row.id)
    over = again(acorn, row)
    assert (over.state, over.error) == ("failed", "It was begun 5 times and did not end.")


def test_a_job_that_takes_too_long_ends_in_words(acorn: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    row = a_replay(acorn, a_file(acorn), **SMALL)
    monkeypatch.setattr(running, "MAX_SPENT_S", 0.0)
    run(acorn, row)
    over = again(acorn, row)
    assert over.state == "failed"
    assert "longer than 0 minutes" in over.error


def test_work_that_the_trace_forbids_ends_in_words(acorn: Made) -> None:
    """Blocks that do not fit into the cache of the fleet."""
    line = b'{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [0], "block_tokens": 4096}'
    done = run(acorn, a_replay(acorn, a_file(acorn, content=line), speeds=[1.0], cache_tokens=2048))
    assert (done.state, done.result) == ("failed", None)
    assert "cache_tokens" in done.error


def test_one_job_of_a_tenant_runs_at_a_time(acorn: Made, birch: Made) -> None:
    """Another tenant's goes on."""
    file = a_file(acorn)
    first, second = an_analysis(acorn, file), an_analysis(acorn, file)
    with tenant_scope(acorn.id):
        TraceJob.objects.filter(id=first.id).update(state="running", lease_until=timezone.now() + timedelta(minutes=1))
    assert running.run(acorn.id, second.id) is None
    assert again(acorn, second).state == "queued"
    theirs = an_analysis(birch, a_file(birch))
    assert running.run(birch.id, theirs.id) == "done"
    _expire(acorn, first)
    assert running.run(acorn.id, second.id) == "done"


def test_a_busy_worker_leaves_a_job_to_others(acorn: Made) -> None:
    row = an_analysis(acorn, a_file(acorn))
    with running._one:
        assert running.run(acorn.id, row.id) is None
    assert again(acorn, row).state == "queued"
    assert running.run(acorn.id, row.id) == "done"


def test_the_sweep_wakes_workers_for_what_waits_and_what_was_left(acorn: Made, birch: Made, valkey_url: str) -> None:
    """The oldest of each tenant; nobody for a job that is held."""
    file = a_file(acorn)
    waits, held, left = an_analysis(acorn, file), an_analysis(acorn, file), an_analysis(birch, a_file(birch))
    with tenant_scope(acorn.id):
        TraceJob.objects.filter(id=held.id).update(
            state="running", lease_until=timezone.now() + timedelta(minutes=1), created_at=timezone.now() - timedelta(days=1)
        )
    with tenant_scope(birch.id):
        TraceJob.objects.filter(id=left.id).update(state="running", lease_until=timezone.now() - timedelta(seconds=1))
    assert running.sweep() == 2
    with redis.Redis.from_url(valkey_url) as client:
        sent = b"".join(client.lrange("celery:bulk\x06\x169", 0, -1))
    assert str(waits.id).encode() in sent
    assert str(left.id).encode() in sent
    assert str(held.id).encode() not in sent


def test_who_was_served_longest_ago_is_woken_for_first(acorn: Made, birch: Made, valkey_url: str) -> None:
    """Acorn comes first by name and always has a job waiting; birch, which waits for its first, is before it once acorn was served."""
    file = a_file(acorn)
    done, more, first = an_analysis(acorn, file), an_analysis(acorn, file), an_analysis(birch, a_file(birch))

    def order() -> list[str]:
        assert running.sweep() == 2
        with redis.Redis.from_url(valkey_url) as client:
            sent = client.lrange("celery:bulk\x06\x169", 0, 1)  # the newest first
        return [next(str(row.id) for row in (done, more, first) if str(row.id).encode() in one) for one in reversed(sent)]

    assert order() == [str(done.id), str(first.id)]
    with tenant_scope(acorn.id):
        TraceJob.objects.filter(id=done.id).update(state="done", attempt_at=timezone.now(), finished_at=timezone.now())
    assert order() == [str(first.id), str(more.id)]


def test_jobs_are_their_tenants_alone(acorn: Made, birch: Made) -> None:
    """For reading, cancelling, deleting and carrying out; and a job may not be over another tenant's trace."""
    file = a_file(acorn)
    row = an_analysis(acorn, file)
    with tenant_scope(birch.id):
        for asked in (
            lambda: jobs.job(birch.id, str(row.id)),
            lambda: jobs.cancel(tenant_id=birch.id, actor=ACTOR, job_id=row.id),
            lambda: jobs.delete(tenant_id=birch.id, actor=ACTOR, job_id=row.id),
        ):
            with pytest.raises(NotFound):
                asked()
        assert not TraceJob.objects.filter(id=row.id).exists()
        for reference in (str(file.id), file.name):
            with pytest.raises(Invalid, match="no such trace"):
                jobs.analyze(tenant_id=birch.id, actor=ACTOR, of=Input(file=reference))
    assert running.run(birch.id, row.id) is None
    assert again(acorn, row).state == "queued"


def test_what_waits_is_not_deleted_and_what_is_over_is(acorn: Made) -> None:
    row = an_analysis(acorn, a_file(acorn))
    with tenant_scope(acorn.id):
        with pytest.raises(Conflict, match="cancel it first"):
            jobs.delete(tenant_id=acorn.id, actor=ACTOR, job_id=row.id)
        with pytest.raises(Conflict, match="There is no result: the job is queued"):
            reading.whole(row)
    run(acorn, row)
    with tenant_scope(acorn.id):
        jobs.delete(tenant_id=acorn.id, actor=ACTOR, job_id=row.id)
        assert not TraceJob.objects.exists()
        assert actions(acorn.id)[-1] == "trace_job.delete"


def test_an_end_is_foretold_from_the_pace_of_the_attempt() -> None:
    now = timezone.now()
    row = TraceJob(state="running", done=300, total=1000, attempt_at=now - timedelta(seconds=10), attempt_done=100)
    assert reading.expected_end(row, now) == now + timedelta(seconds=35)
    assert reading.share(row) == 0.3
    for other in (
        TraceJob(state="queued", done=0, total=0),
        TraceJob(state="running", done=100, total=1000, attempt_at=now, attempt_done=100),
        TraceJob(state="running", done=5, total=0, attempt_at=now - timedelta(seconds=9)),
    ):
        assert reading.expected_end(other, now) is None
    assert reading.share(TraceJob(state="queued", total=0)) is None


# ---- captured traffic --------------------------------------------------------------------------------------------------


def _captured(acorn: Made, count: int = 160, *, conversations: int = 32) -> Endpoint:
    """An endpoint with captured requests of the last half hour."""
    now = timezone.now()
    with tenant_scope(acorn.id):
        endpoint = an_endpoint(acorn.id)
        began = now - timedelta(hours=1)
        status = captures.enable(tenant_id=acorn.id, actor=ACTOR, endpoint_id=endpoint.id, days=3, share=1.0, now=began)
    assert status.running is not None
    capture_id = status.running.id
    keep(
        *(
            record(
                acorn.id,
                capture_id,
                now - timedelta(minutes=30) + timedelta(seconds=number * 0.2),
                prompt_tokens=4000,
                blocks=packed(*range(7 * (number % conversations), 7 * (number % conversations) + 7)),
                session=1 + number % conversations,
                scope=1 + number % 2,
                serial=number + 1,
            )
            for number in range(count)
        )
    )
    return endpoint


def _review(acorn: Made, candidate: Any, **options: Any) -> TraceJob:
    with tenant_scope(acorn.id):
        return jobs.review(tenant_id=acorn.id, actor=ACTOR, endpoint="chat", candidate=candidate, **{"replays": 2, "hours": 1.0, **SMALL, **options})


def test_the_same_policy_twice_makes_no_difference(acorn: Made) -> None:
    """The interval of every figure holds zero, and the sentence says that nothing can be told."""
    _captured(acorn)
    done = run(acorn, _review(acorn, {"policy": "ettft"}))
    assert (done.state, done.error) == ("done", "")
    compared = found(done)["comparison"]
    assert (compared["requests"], compared["groups"]) == (160, 32)
    for name in ("mean_change", "p99_change", "hit_points", "tokens_saved"):
        assert compared[name]["low"] <= 0.0 <= compared[name]["high"]
    assert found(done)["verdict"] == "none"
    assert found(done)["sentence"].startswith("No difference can be told")


def test_a_worse_candidate_is_told_with_its_interval(acorn: Made) -> None:
    """Round robin loses the conversations' caches: later first tokens, fewer hits; the page says the same sentence."""
    _captured(acorn)
    done = run(acorn, _review(acorn, {"policy": "round_robin"}))
    assert found(done)["verdict"] == "slower"
    assert found(done)["comparison"]["mean_change"]["low"] > 0
    assert found(done)["comparison"]["tokens_saved"]["high"] < 0
    assert found(done)["sentence"] in done.html
    assert (found(done)["current"]["name"], found(done)["candidate"]["name"]) == ("chat v1", "round_robin")
    assert set(done.plots) == {"ttft", "hits", "changes"}


def test_a_candidate_is_a_version_too(acorn: Made) -> None:
    _captured(acorn)
    with tenant_scope(acorn.id):
        policies.create(tenant_id=acorn.id, actor=ACTOR, kind="routing", name="turns", spec={"policy": "round_robin"})
    for wanted, name in (("turns", "turns v1"), ({"version": 1}, "chat v1")):
        assert _review(acorn, wanted).parameters["work"]["candidate"]["name"] == name
    with pytest.raises(Invalid) as refused:
        _review(acorn, {"version": 9})
    assert refused.value.field is not None
    assert refused.value.field.startswith("candidate")


def test_without_captured_traffic_it_says_how_to_get_some(acorn: Made) -> None:
    """Also where what was captured is older than what is asked for."""
    with tenant_scope(acorn.id):
        an_endpoint(acorn.id)
    with pytest.raises(NothingCaptured, match="Switch on trace capture"):
        _review(acorn, {"policy": "ettft"})
    file = a_file(acorn)
    assert _review(acorn, {"policy": "ettft"}, file=file.name, hours=None).input_name == file.name


def test_captured_scopes_share_nothing(acorn: Made) -> None:
    """Two scopes send the same blocks: the ceiling is that of each alone, as an engine with salts has it."""
    _captured(acorn, 160, conversations=1)
    with tenant_scope(acorn.id):
        row = jobs.replay(tenant_id=acorn.id, actor=ACTOR, of=Input(endpoint="chat", hours=1), policies_wanted=[{"policy": "ettft"}], **SMALL)
    done = run(acorn, row)
    assert (done.state, done.error) == ("done", "")
    assert found(done)["runs"][0]["ceiling"] == pytest.approx(158 / 160 * 3584 / 4000, abs=0.001)


def test_of_much_captured_traffic_the_newest_is_replayed(acorn: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "CHUNK_REQUESTS", 20)
    monkeypatch.setattr("routing.traces.stored.CHUNK_REQUESTS", 20)
    monkeypatch.setattr(jobs, "MAX_REPLAY_REQUESTS", 100)
    _captured(acorn)
    done = run(acorn, _review(acorn, {"policy": "ettft"}))
    assert (done.state, done.error, found(done)["requests"]) == ("done", "", 100)


def test_a_capture_that_is_deleted_meanwhile_ends_the_job_in_words(acorn: Made) -> None:
    endpoint = _captured(acorn)
    row = _review(acorn, {"policy": "ettft"})
    with tenant_scope(acorn.id):
        captures.delete(tenant_id=acorn.id, actor=ACTOR, endpoint_id=endpoint.id, now=timezone.now())
    done = run(acorn, row)
    assert done.state == "failed"
    assert "Nothing was captured" in done.error


def test_mooncake_is_what_it_says() -> None:
    assert mooncake(3).count(b"\n") == 2
