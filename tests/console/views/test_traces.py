"""The page of traces: an empty state that teaches, sending a file, asking for each kind of job, progress, results, and what a role may."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.files import uploadedfile
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from routing.models import TraceFile, TraceJob
from routing.services.traces import files, running
from tenants.scoping import tenant_scope
from tests.console.rows import Town
from tests.routing.services.traces.made import found, mooncake

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
EVIL = "<img src=x onerror=alert(1)>"


def page(town: Town, who: str = "owner", path: str = "") -> str:
    response = getattr(town, who).get(f"/t/acorn/traces{path}")
    assert response.status_code == 200, path
    return str(response.content.decode())


def send(town: Town, content: bytes | None = None, name: str = "day.jsonl", who: str = "owner") -> Any:
    file = SimpleUploadedFile(name, mooncake() if content is None else content)
    return getattr(town, who).post("/t/acorn/traces", {"file": file, "name": ""})


def ask(town: Town, kind: str, who: str = "owner", **given: Any) -> Any:
    return getattr(town, who).post(f"/t/acorn/traces/new/{kind}", {"source": "file:day.jsonl", **given})


def alert_in(shown: str, form: str) -> str:
    """What is wrong, as it stands in the form it came from: nowhere else, and where the focus goes."""
    alerts = [part.split("</p>")[0] for part in shown.split('role="alert"')[1:]]
    assert len(alerts) == 1
    assert "autofocus" in alerts[0]
    assert f'id="{form}-title"' in shown.split('role="alert"', maxsplit=1)[0].rsplit("<form", 1)[1]
    return alerts[0]


def the_job(town: Town) -> TraceJob:
    with tenant_scope(town.acorn.tenant_id):
        return TraceJob.objects.get()


def test_before_the_first_trace_the_page_teaches(town: Town) -> None:
    shown = page(town)
    for said in ("No job yet", "endless cache", "switch on trace capture", "/api/v1/trace-files", "Send a trace", 'aria-current="page">Traces'):
        assert said in shown
    viewer = page(town, "viewer")
    assert "No job yet" in viewer
    assert "Send a trace" not in viewer


def test_from_a_file_to_plots(town: Town) -> None:
    """Sent, analysed, shown with plots as images and downloads."""
    assert send(town).status_code == 302
    assert "day.jsonl is read: 200 requests" in page(town)
    asked = ask(town, "analyze")
    job = the_job(town)
    assert (asked.status_code, asked.headers["Location"]) == (302, f"/t/acorn/traces/jobs/{job.id}")
    waiting = page(town, path=f"/jobs/{job.id}")
    assert "waits for a worker" in waiting
    assert 'hx-trigger="every 1s"' in waiting
    assert running.run(town.acorn.tenant_id, job.id) == "done"
    shown = page(town, "viewer", f"/jobs/{job.id}")
    assert "of the prompt tokens could be reused" in shown
    assert 'hx-trigger="every 1s"' not in shown
    assert "<svg" not in shown.split("<main", 1)[1]
    plots = re.findall(r'<img class="trace-plot" src="([^"]+)"', shown)
    assert len(plots) == 5
    for path in plots:
        image = town.viewer.get(path)
        assert (image.status_code, image.headers["Content-Type"]) == (200, "image/svg+xml; charset=utf-8")
        assert image.headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe-inline" not in image.headers["Content-Security-Policy"]
        assert b"<script" not in image.content
    html = town.viewer.get(f"/t/acorn/traces/jobs/{job.id}/report.html")
    assert html.headers["Content-Disposition"].startswith("attachment;")
    assert "sandbox" in html.headers["Content-Security-Policy"]
    values = town.viewer.get(f"/t/acorn/traces/jobs/{job.id}/report.json")
    assert values.json()["requests"] == 200
    assert "unsafe-inline" not in town.viewer.get(f"/t/acorn/traces/jobs/{job.id}").headers["Content-Security-Policy"]
    assert town.viewer.get(f"/t/acorn/traces/jobs/{job.id}/plots/nothing.svg").status_code == 404


def test_a_replay_and_a_review_in_figures(town: Town) -> None:
    send(town)
    ask(town, "replay", policy=["default"], document="policy: round_robin", slo_ttft_s="2", speeds="1, 0.5", cache_tokens="100,000")
    job = the_job(town)
    running.run(town.acorn.tenant_id, job.id)
    shown = page(town, path=f"/jobs/{job.id}")
    for said in ("default v1", "round_robin", "2 replicas, speed 1, 0.5, 100,000 tokens of cache each", "plots/ttft.svg", "plots/hits.svg"):
        assert said in shown
    with tenant_scope(town.acorn.tenant_id):
        TraceJob.objects.all().delete()
    ask(town, "review", endpoint="llama-chat", document="policy: round_robin", speeds="1,1", cache_tokens="100000")
    job = the_job(town)
    assert job.parameters["work"]["current"]["name"] == "default v1"
    running.run(town.acorn.tenant_id, job.id)
    shown = page(town, path=f"/jobs/{job.id}")
    for said in (found(the_job(town))["sentence"].split(":")[0], "95 % intervals", "Time to first token, p99", "plots/changes.svg", "default v1"):
        assert said in shown


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("analyze", {"source": ""}, "Choose a trace"),
        ("analyze", {"source": "file:none"}, "There is no such trace"),
        ("analyze", {"source": "endpoint:llama-chat", "hours": "24"}, "Switch on trace capture"),
        ("analyze", {"source": "endpoint:llama-chat", "hours": "soon"}, "Use a number."),
        ("replay", {}, "Give 1 to 8 policies"),
        ("replay", {"document": "policy: best"}, "Unknown policy"),
        ("replay", {"document": ": :"}, "This is no YAML"),
        ("replay", {"policy": "default", "speeds": "1,x"}, "Use a number."),
        ("replay", {"policy": "default", "speeds": "-1"}, "(speeds[0])"),
        ("review", {"endpoint": "llama-chat"}, "Choose a policy, or write one."),
        ("review", {"endpoint": "none", "policy": "default"}, "There is no such endpoint"),
    ],
)
def test_what_is_wrong_is_said_in_the_form(town: Town, kind: str, given: dict[str, str], said: str) -> None:
    send(town)
    answer = ask(town, kind, **given)
    assert answer.status_code in (400, 409)
    assert said in alert_in(answer.content.decode(), kind)
    with tenant_scope(town.acorn.tenant_id):
        assert not TraceJob.objects.exists()


def test_a_file_that_cannot_be_read_or_is_too_large(town: Town, settings: Any) -> None:
    bad = send(town, b'{"messages": 7}')
    assert bad.status_code == 400
    assert '<strong class="break">day.jsonl</strong>: Line 1, messages: must be a list' in alert_in(bad.content.decode(), "send")
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 1000
    large = send(town)
    assert large.status_code == 400
    assert f"Choose a file of at most {files.MAX_UPLOAD_BYTES >> 20} MiB" in large.content.decode()


def test_what_is_sent_touches_no_disk(town: Town, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """A form of some megabytes, which Django by itself puts into a temporary file."""
    made: list[object] = []
    real = uploadedfile.tempfile.NamedTemporaryFile  # type: ignore[attr-defined]  # what Django's upload handlers write into

    def noted(**given: Any) -> Any:
        made.append(given)
        return real(**given)

    monkeypatch.setattr(uploadedfile.tempfile, "NamedTemporaryFile", noted)  # type: ignore[attr-defined]  # as above
    content = json.dumps({"messages": [{"role": "user", "content": "much " * 1_000_000}]}).encode()
    assert send(town, content, "dialogue.jsonl").status_code == 302
    assert made == []
    with tenant_scope(town.acorn.tenant_id):
        assert TraceFile.objects.get().requests == 1
    settings.FILE_UPLOAD_HANDLERS = ["django.core.files.uploadhandler.TemporaryFileUploadHandler"]
    send(town, content, "again.jsonl")
    assert made  # so that the nothing above means something


def test_names_and_errors_are_shown_as_text(town: Town) -> None:
    send(town, name=EVIL.replace("/", ""))
    with tenant_scope(town.acorn.tenant_id):
        file = TraceFile.objects.get()
        TraceJob.objects.create(
            tenant_id=town.acorn.tenant_id, kind="analyze", state="failed", input_name=EVIL, parameters={}, error=EVIL, requested_by=EVIL
        )
    assert file.name == EVIL
    for shown in (page(town), page(town, path=f"/jobs/{the_job(town).id}")):
        assert EVIL not in shown
        assert "&lt;img src=x" in shown


def test_progress_is_shown_while_it_runs(town: Town) -> None:
    """A bar, the expected end and the attempt; the page asks again soon."""
    now = timezone.now()
    with tenant_scope(town.acorn.tenant_id):
        job = TraceJob.objects.create(
            tenant_id=town.acorn.tenant_id,
            kind="replay",
            state="running",
            input_name="day.jsonl",
            parameters={},
            done=500,
            total=2000,
            attempts=2,
            attempt_at=now - timedelta(seconds=20),
        )
    for shown in (page(town), page(town, path=f"/jobs/{job.id}")):
        for said in ('max="1000" value="250"', "25 %", "ends about", "attempt 2"):
            assert said in shown, said
    assert 'hx-trigger="every 2s"' in page(town)


def test_cancel_and_delete(town: Town) -> None:
    send(town)
    ask(town, "analyze")
    job = the_job(town)
    with tenant_scope(town.acorn.tenant_id):
        file = TraceFile.objects.get()
    assert town.owner.post(f"/t/acorn/traces/files/{file.id}/delete").status_code == 302
    assert "cancel it first" in page(town)
    assert town.owner.post(f"/t/acorn/traces/jobs/{job.id}/delete").status_code == 302
    assert the_job(town).state == "queued"
    town.owner.post(f"/t/acorn/traces/jobs/{job.id}/cancel")
    assert the_job(town).state == "cancelled"
    town.owner.post(f"/t/acorn/traces/jobs/{job.id}/delete")
    town.owner.post(f"/t/acorn/traces/files/{file.id}/delete")
    with tenant_scope(town.acorn.tenant_id):
        assert not TraceJob.objects.exists()
        assert not TraceFile.objects.exists()


def test_a_viewer_changes_nothing_and_a_stranger_sees_nothing(town: Town) -> None:
    send(town)
    ask(town, "analyze")
    job = the_job(town)
    assert send(town, who="viewer", name="other").status_code == 403
    assert ask(town, "analyze", who="viewer").status_code == 403
    for verb in ("cancel", "delete"):
        assert town.viewer.post(f"/t/acorn/traces/jobs/{job.id}/{verb}").status_code == 403
    running.run(town.acorn.tenant_id, job.id)
    for path in ("", f"/jobs/{job.id}", f"/jobs/{job.id}/report.html", f"/jobs/{job.id}/report.json", f"/jobs/{job.id}/plots/ceiling.svg"):
        assert town.viewer.get(f"/t/acorn/traces{path}").status_code == 200, path
        assert town.stranger.get(f"/t/acorn/traces{path}").status_code == 404, path
        assert path == "" or town.stranger.get(f"/t/birch/traces{path}").status_code == 404, path
    assert town.stranger.post(f"/t/birch/traces/jobs/{job.id}/cancel").status_code == 404
    assert the_job(town).state == "done"


def test_a_link_fills_in_the_form_of_a_review(town: Town) -> None:
    """From a policy's page, or from that of an endpoint; without either nothing is chosen beforehand."""
    plain, given = (town.owner.get(f"/t/acorn/traces{query}").content.decode() for query in ("", "?policy=default&endpoint=llama-chat"))
    assert ("<option selected>default" in plain, "<option selected>default" in given) == (False, True)
    assert "<option selected>llama-chat" in given
    assert town.viewer.get("/t/acorn/traces?policy=default").status_code == 200
