"""A capture is switched on for a time, ends by itself, is deleted at once, and shows nobody else's requests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import DatabaseError, connection, transaction

from namespaces.core.captures import capture_key
from namespaces.core.keyring import TenantKey
from routing.core import capture
from routing.models import CapturedRequest, TraceCapture, TraceJob
from routing.services import captures, publishing
from routing.services.traces import jobs
from routing.services.traces.jobs import Input
from routing.traces.analysis import analyse
from routing.traces.request import TraceRequest
from tenants.actor import Actor
from tenants.core.errors import Conflict, Forbidden, Invalid, LimitReached, NotFound
from tenants.core.roles import Role, permissions
from tenants.scoping import tenant_scope
from tests.routing.services.captured import keep, packed, record
from tests.routing.services.made import Made
from tests.routing.services.rows import ACTOR, a_model, a_pool, actions, an_endpoint, version
from tests.routing.services.traces.made import a_file, an_analysis

pytestmark = pytest.mark.django_db
NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)


def endpoint(tenant: Made, name: str = "chat") -> UUID:
    with tenant_scope(tenant.id):
        return an_endpoint(tenant.id, name).id


def enable(tenant: Made, endpoint_id: UUID, *, days: int = 3, share: float = 0.5, now: datetime = NOW) -> captures.Captured:
    with tenant_scope(tenant.id):
        found = captures.enable(tenant_id=tenant.id, actor=ACTOR, endpoint_id=endpoint_id, days=days, share=share, now=now)
    assert found.running is not None
    return found.running


def status(tenant: Made, endpoint_id: UUID, now: datetime = NOW) -> captures.Status:
    with tenant_scope(tenant.id):
        return captures.status(tenant_id=tenant.id, endpoint_id=endpoint_id, now=now)


def delete(tenant: Made, endpoint_id: UUID) -> captures.Status:
    with tenant_scope(tenant.id):
        return captures.delete(tenant_id=tenant.id, actor=ACTOR, endpoint_id=endpoint_id, now=NOW)


def tend(tenant: Made, now: datetime) -> int:
    with tenant_scope(tenant.id):
        return captures.tend(tenant.id, now)


def read(tenant: Made, endpoint_id: UUID, *, since: datetime = NOW - HOUR, until: datetime = NOW + 2 * HOUR) -> list[TraceRequest]:
    return list(captures.read_trace(tenant=tenant.id, endpoint_id=endpoint_id, since=since, until=until).requests)


def count(tenant: Made) -> int:
    with tenant_scope(tenant.id):
        return CapturedRequest.objects.count()


def seeds(tenant: Made) -> list[bytes | None]:
    with tenant_scope(tenant.id):
        return [None if row.seed is None else bytes(row.seed) for row in TraceCapture.objects.order_by("began_at")]


def snapshot_capture(tenant: Made, now: datetime = NOW) -> Any:
    with tenant_scope(tenant.id):
        (one,) = publishing.build_snapshot(tenant.id, now_s=now.timestamp()).endpoints
    return one.capture


def test_off_is_the_state_of_every_endpoint(acorn: Made) -> None:
    """Nothing is captured, published or kept before somebody says so."""
    chat = endpoint(acorn)
    assert (status(acorn, chat).state, status(acorn, chat).captures) == ("off", ())
    assert snapshot_capture(acorn) is None
    running = enable(acorn, chat)
    assert status(acorn, chat).state == "running"
    published = snapshot_capture(acorn)
    assert (published.id, published.share, published.until) == (running.id, 0.5, (NOW + timedelta(days=3)).timestamp())
    assert published.seed == seeds(acorn)[0]
    assert len(published.seed) == 32


def test_it_is_published_and_in_the_audit_log(acorn: Made) -> None:
    chat = endpoint(acorn)
    with tenant_scope(acorn.id):
        before = version(acorn.id)
    enable(acorn, chat)
    with tenant_scope(acorn.id):
        assert version(acorn.id) == before + 1
        captures.disable(tenant_id=acorn.id, actor=ACTOR, endpoint_id=chat, now=NOW)
        captures.disable(tenant_id=acorn.id, actor=ACTOR, endpoint_id=chat, now=NOW)
        assert version(acorn.id) == before + 2  # the repeat changed nothing
        captures.delete(tenant_id=acorn.id, actor=ACTOR, endpoint_id=chat, now=NOW)
        assert version(acorn.id) == before + 3
        assert actions(acorn.id)[-3:] == ["capture.begin", "capture.end", "capture.delete"]


@pytest.mark.parametrize(("wanted", "field"), [({"days": 0}, "days"), ({"days": 15}, "days"), ({"share": 0.0}, "share"), ({"share": 1.01}, "share")])
def test_a_time_without_bound_and_no_share_are_refused(acorn: Made, wanted: dict[str, Any], field: str) -> None:
    chat = endpoint(acorn)
    with pytest.raises(Invalid) as refused:
        enable(acorn, chat, **wanted)
    assert refused.value.field == field
    assert status(acorn, chat).state == "off"


def test_one_capture_of_an_endpoint_runs_at_a_time(acorn: Made) -> None:
    chat = endpoint(acorn)
    enable(acorn, chat)
    with pytest.raises(Conflict):
        enable(acorn, chat)
    later = NOW + timedelta(days=3)
    assert enable(acorn, chat, now=later).began_at == later  # the first had ended by itself
    assert [one.end_reason for one in status(acorn, chat, later).captures] == ["", "time"]


def test_it_ends_by_itself(acorn: Made) -> None:
    """By the clock, before any task has looked: the snapshot leaves it out, the state says so; then the task writes it down."""
    chat = endpoint(acorn)
    enable(acorn, chat, days=1)
    almost, over = NOW + timedelta(days=1, seconds=-1), NOW + timedelta(days=1)
    assert snapshot_capture(acorn, almost) is not None
    assert snapshot_capture(acorn, over) is None
    assert status(acorn, chat, over).state == "ended"
    tend(acorn, over)
    (one,) = status(acorn, chat, over).captures
    assert (one.end_reason, one.ended_at) == ("time", over)


def test_what_was_captured_is_read_by_time_with_ids_numbered_anew(acorn: Made) -> None:
    """Two requests that share two blocks; no id, session or scope of the rows is in the trace."""
    chat = endpoint(acorn)
    running = enable(acorn, chat)
    keep(
        record(acorn.id, running.id, NOW + timedelta(seconds=2.5), blocks=packed(11, 12, 99), session=77, named=True, turn=1, kind="conversation"),
        record(acorn.id, running.id, NOW, session=77, named=True, serial=2),
        record(acorn.id, running.id, NOW + HOUR, blocks=packed(5), prompt_tokens=40, output_tokens=0, scope=6, exact=False, serial=3),
    )
    assert read(acorn, chat, until=NOW + HOUR) == [
        TraceRequest(0.0, 1100, 60, (0, 1, 2), session="s1", scope="n1", kind="single"),
        TraceRequest(2.5, 1100, 60, (0, 1, 3), session="s1", scope="n1", kind="conversation", after_s=1.6),
    ]
    assert read(acorn, chat)[2] == TraceRequest(3600.0, 40, 1, (4,), scope="n2", kind="single")
    found = status(acorn, chat)
    assert (found.requests, found.captures[0].estimated, found.captures[0].lost) == (3, 1, 0)
    assert found.size_bytes == 3 * captures.ROW_BYTES + 7 * 8


def test_reading_goes_page_by_page(acorn: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where many requests came at one instant."""
    chat = endpoint(acorn)
    running = enable(acorn, chat)
    keep(*(record(acorn.id, running.id, NOW + timedelta(seconds=number // 4), blocks=packed(number)) for number in range(23)))
    monkeypatch.setattr("routing.services.capture_read.PAGE", 5)
    assert sorted(one.blocks for one in read(acorn, chat)) == [(number,) for number in range(23)]


def test_without_a_capture_the_answer_says_how_to_get_one(acorn: Made) -> None:
    chat = endpoint(acorn)
    with pytest.raises(captures.NothingCaptured, match="Switch on trace capture"):
        read(acorn, chat)
    enable(acorn, chat)
    with pytest.raises(captures.NothingCaptured, match="chat"):
        read(acorn, chat)
    with pytest.raises(Invalid):
        read(acorn, chat, since=NOW, until=NOW)


def test_deleting_destroys_the_key_and_the_rows(acorn: Made) -> None:
    """At once: the seed, what is read, the rows. What was still on its way then never shows, and goes with the next tending."""
    chat = endpoint(acorn)
    running = enable(acorn, chat)
    keep(record(acorn.id, running.id, NOW))
    assert len(read(acorn, chat)) == 1
    found = delete(acorn, chat)
    assert (found.state, found.captures, found.used_bytes) == ("off", (), 0)
    assert (seeds(acorn), count(acorn), snapshot_capture(acorn)) == ([None], 0, None)
    keep(record(acorn.id, running.id, NOW))
    with pytest.raises(captures.NothingCaptured):
        read(acorn, chat)
    assert tend(acorn, NOW) == 1
    assert (count(acorn), status(acorn, chat).used_bytes) == (0, 0)


def test_many_rows_go_in_steps_and_are_read_no_more(acorn: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = endpoint(acorn)
    running = enable(acorn, chat)
    keep(*(record(acorn.id, running.id, NOW, serial=number) for number in range(1, 6)))
    monkeypatch.setattr(captures, "DELETE_ROWS", 2)
    delete(acorn, chat)
    assert count(acorn) == 3
    with pytest.raises(captures.NothingCaptured):
        read(acorn, chat)
    assert [tend(acorn, NOW), tend(acorn, NOW)] == [2, 1]


def test_a_deleted_capture_cannot_keep_its_seed(acorn: Made) -> None:
    """The database holds that, whatever the code does."""
    chat = endpoint(acorn)
    enable(acorn, chat)
    with tenant_scope(acorn.id):
        assert TraceCapture.objects.update(deleted_at=None) == 1
        with pytest.raises(DatabaseError, match="trace_capture_deleted_has_no_seed"), transaction.atomic():
            TraceCapture.objects.update(deleted_at=NOW)


def test_it_is_deleted_by_itself_after_its_time(acorn: Made) -> None:
    chat = endpoint(acorn)
    running = enable(acorn, chat, days=1)
    keep(record(acorn.id, running.id, NOW))
    kept = NOW + timedelta(days=1 + captures.KEEP_DAYS)
    assert tend(acorn, kept) == 0
    assert seeds(acorn)[0] is not None
    assert tend(acorn, kept + HOUR) == 1
    assert (seeds(acorn), count(acorn)) == ([None], 0)
    tend(acorn, kept + timedelta(days=captures.GONE_DAYS + 1))
    assert seeds(acorn) == []


def test_a_tenant_s_budget_ends_what_runs(acorn: Made, settings: Any) -> None:
    """And nothing new begins until something is deleted."""
    settings.CAPTURE_BUDGET_BYTES = 2 * captures.ROW_BYTES
    chat = endpoint(acorn)
    running = enable(acorn, chat)
    keep(record(acorn.id, running.id, NOW))
    tend(acorn, NOW)
    assert status(acorn, chat).state == "running"
    keep(record(acorn.id, running.id, NOW, serial=2))
    tend(acorn, NOW)
    assert status(acorn, chat).captures[0].end_reason == "budget"
    with pytest.raises(Conflict, match="Delete"):
        enable(acorn, chat)
    delete(acorn, chat)
    enable(acorn, chat)


def test_captures_that_are_kept_are_bounded(acorn: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "MAX_KEPT", 1)
    chat = endpoint(acorn)
    enable(acorn, chat, days=1)
    with pytest.raises(LimitReached, match="1 captures"):
        enable(acorn, chat, days=1, now=NOW + timedelta(days=1))


def test_numbers_that_never_came_are_lost(acorn: Made) -> None:
    """By router process; the same after its accounts were summed up."""
    chat = endpoint(acorn)
    running = enable(acorn, chat)
    for serial, router in ((1, "r1"), (4, "r1"), (2, "r2")):
        keep(record(acorn.id, running.id, NOW, serial=serial, router_id=router))
    for _ in range(2):
        (one,) = status(acorn, chat).captures
        assert (one.requests, one.lost) == (3, 3)
        tend(acorn, NOW)


def test_another_tenant_sees_and_changes_nothing(acorn: Made, birch: Made) -> None:
    """Neither by service nor by SQL; acorn's own answers are the control."""
    chat = endpoint(acorn)
    running = enable(acorn, chat)
    keep(record(acorn.id, running.id, NOW))
    with pytest.raises(captures.NothingCaptured):
        read(birch, chat)
    assert status(birch, chat).state == "off"
    with pytest.raises(NotFound):
        enable(birch, chat)
    assert delete(birch, chat).captures == ()
    with tenant_scope(birch.id), connection.cursor() as cursor:
        for table in ("routing_tracecapture", "routing_capturedrequest", "routing_captureaccount"):
            cursor.execute(f"DELETE FROM {table}")
            assert cursor.rowcount == 0
            cursor.execute(f"SELECT count(*) FROM {table}")
            assert cursor.fetchone() == (0,)
    assert len(read(acorn, chat)) == 1
    assert status(acorn, chat).requests == 1


def test_nobody_changes_a_captured_request_and_ingest_reads_none(acorn: Made) -> None:
    chat = endpoint(acorn)
    running = enable(acorn, chat)
    keep(record(acorn.id, running.id, NOW))
    with tenant_scope(acorn.id), pytest.raises(DatabaseError, match="permission denied"), transaction.atomic():
        CapturedRequest.objects.update(prompt_tokens=1)
    with tenant_scope(acorn.id), pytest.raises(DatabaseError, match="permission denied"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE saltroute_ingest; SELECT count(*) FROM routing_capturedrequest")


def test_partitions_are_made_and_dropped_by_their_own_door(acorn: Made) -> None:
    """And guarded like the table: tests/contracts hold that for every table with a tenant."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'routing_capturedrequest'::regclass")
        names = {row[0] for row in cursor.fetchall()}
    assert f"routing_capturedrequest_p{datetime.now(UTC):%Y%m%d}" in names
    assert captures.keep_partitions() == (0, 0, 0)


def test_ids_of_two_captures_cannot_be_joined(acorn: Made) -> None:
    """One prompt, two captures of one endpoint: no id in common, also with the tenant's key at hand, and none can be made again without the seed."""
    chat = endpoint(acorn)
    key = TenantKey(tenant_id=acorn.id, version=1, secret=b"k" * 32)
    prompt = list(range(2000))
    found = []
    for number in range(2):
        running = enable(acorn, chat, now=NOW + timedelta(days=number * 3))
        seed = seeds(acorn)[-1]
        assert seed is not None
        own = capture_key(key, running.id, seed)
        assert capture.token_blocks(own, prompt) == capture.token_blocks(own, prompt)  # the control: in one capture they are equal
        found.append(capture.token_blocks(own, prompt))
        keep(record(acorn.id, running.id, NOW, blocks=found[-1], prompt_tokens=2000, serial=number + 1))
    assert not set(capture.ids(found[0])) & set(capture.ids(found[1]))
    assert [one.blocks for one in read(acorn, chat, until=NOW + timedelta(days=9))] in ([(0, 1, 2, 3), (4, 5, 6, 7)], [(4, 5, 6, 7), (0, 1, 2, 3)])
    assert analyse(iter(read(acorn, chat)), capture.BLOCK_TOKENS).ceiling == 0.0
    delete(acorn, chat)
    assert seeds(acorn) == [None, None]


@pytest.mark.parametrize("change", ["enable", "disable", "delete"])
def test_a_role_that_does_not_configure_is_refused_by_the_service_too(acorn: Made, change: str) -> None:
    """Whatever page or program it came through; nothing is changed then. An admin is the control."""
    chat = endpoint(acorn)
    if change != "enable":
        enable(acorn, chat)
    before = status(acorn, chat)
    more: dict[str, Any] = {"days": 1, "share": 1.0} if change == "enable" else {}
    operator, admin = (Actor(kind="user", label="somebody", permissions=permissions(role)) for role in (Role.OPERATOR, Role.ADMIN))
    with pytest.raises(Forbidden), tenant_scope(acorn.id):
        getattr(captures, change)(tenant_id=acorn.id, actor=operator, endpoint_id=chat, now=NOW, **more)
    assert status(acorn, chat) == before
    with tenant_scope(acorn.id):
        getattr(captures, change)(tenant_id=acorn.id, actor=admin, endpoint_id=chat, now=NOW, **more)
    assert status(acorn, chat) != before


def test_deleting_ends_the_jobs_that_read_it_and_no_others(acorn: Made) -> None:
    """A job may have read all that was captured; one over another endpoint goes on, and one over a trace that was sent waits on."""
    chat = endpoint(acorn)
    with tenant_scope(acorn.id):
        other = an_endpoint(acorn.id, "other", pool=a_pool(acorn.id, "others"), model=a_model(acorn.id, "another")).id
    for one in (chat, other):
        keep(record(acorn.id, enable(acorn, one, share=1.0).id, NOW))
    with tenant_scope(acorn.id):
        reading = jobs.analyze(tenant_id=acorn.id, actor=ACTOR, of=Input(endpoint="chat"))
        TraceJob.objects.filter(id=reading.id).update(state="running", holder=uuid4(), checkpoint=b"what it had read")
        elsewhere = jobs.analyze(tenant_id=acorn.id, actor=ACTOR, of=Input(endpoint="other"))
        TraceJob.objects.filter(id=elsewhere.id).update(state="running", holder=uuid4())
    sent = an_analysis(acorn, a_file(acorn))
    delete(acorn, chat)
    with tenant_scope(acorn.id):
        states = {row.id: (row.state, row.holder, row.checkpoint) for row in TraceJob.objects.filter(tenant_id=acorn.id)}
        assert states[reading.id] == ("cancelled", None, None)
        assert (states[elsewhere.id][0], states[sent.id][0]) == ("running", "queued")
        assert actions(acorn.id).count("trace_job.cancel") == 1
