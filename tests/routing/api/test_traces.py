"""Traces and jobs over the API: sent, asked for, followed, cancelled, read as figures and as a page; who may, and that nobody reads another's."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import pytest

from routing.models import TraceFile, TraceJob
from routing.services.traces import files, running
from tenants.core.roles import Role
from tests.routing.services.traces.made import mooncake

if TYPE_CHECKING:
    from tests.tenants.houses import Api, House

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]


def send(api: Api, name: str = "day.jsonl", content: bytes | None = None) -> Any:
    headers = {"Authorization": f"Bearer {api.token}"}
    content = mooncake() if content is None else content
    return api.client.generic("POST", f"/api/v1/trace-files?name={name}", content, content_type="application/octet-stream", headers=headers)


def test_from_a_trace_to_its_report(acorn: House) -> None:
    api = acorn.api(Role.OPERATOR)
    sent = send(api, content=gzip.compress(mooncake()))
    assert sent.status_code == 201, sent.content
    assert (sent.json()["name"], sent.json()["requests"], sent.json()["created_by"]) == ("day.jsonl", 200, "operator-token")
    assert [one["id"] for one in api.get("trace-files").json()["results"]] == [sent.json()["id"]]
    assert api.get("trace-files/day.jsonl").json() == sent.json()
    asked = api.post("trace-jobs/analyze", {"file": "day.jsonl"})
    assert (asked.status_code, asked.json()["state"], asked.json()["share"]) == (202, "queued", None)
    job = f"trace-jobs/{asked.json()['id']}"
    for part in ("result", "report"):
        none = api.get(f"{job}/{part}")
        assert (none.status_code, none.json()["error"]["message"]) == (409, "There is no result: the job is queued.")
    with acorn.scope():
        row = TraceJob.objects.get()
    assert running.run(acorn.id, row.id) == "done"
    done = acorn.api(Role.VIEWER).get(job).json()
    assert (done["state"], done["share"], done["done"], done["total"], done["input"]) == ("done", 1.0, 200, 200, "day.jsonl")
    assert api.get(f"{job}/result").json()["ceiling_in_session"] > 0.5
    page = acorn.api(Role.VIEWER).get(f"{job}/report")
    assert page.headers["Content-Disposition"].startswith('attachment; filename="saltroute-analyze-')
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "sandbox" in page.headers["Content-Security-Policy"]
    assert "script-src" not in page.headers["Content-Security-Policy"]
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Cache-Control"] == "private, no-store"
    assert b"<svg" in page.content
    assert api.delete("trace-files/day.jsonl").status_code == 200
    assert api.get(job).json()["file_id"] is None
    assert api.delete(job).status_code == 200
    assert api.get(job).status_code == 404


def test_a_replay_is_followed_and_cancelled(acorn: House) -> None:
    api = acorn.api(Role.OPERATOR)
    send(api)
    asked = api.post("trace-jobs/replay", {"file": "day.jsonl", "policies": [{"policy": "ettft"}, {"policy": "session"}], "speeds": [1.0]})
    assert asked.status_code == 202, asked.content
    assert asked.json()["parameters"]["work"]["fleet"]["speeds"] == [1.0]
    ended = api.post(f"trace-jobs/{asked.json()['id']}/cancel")
    assert (ended.status_code, ended.json()["state"]) == (200, "cancelled")
    assert api.post(f"trace-jobs/{asked.json()['id']}/cancel").json()["finished_at"] == ended.json()["finished_at"]
    assert [one["kind"] for one in api.get("trace-jobs?state=cancelled&kind=replay").json()["results"]] == ["replay"]
    assert api.get("trace-jobs?state=queued").json()["results"] == []
    wrong = api.get("trace-jobs?kind=nonsense")
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (400, "kind")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("analyze", {}, "file"),
        ("analyze", {"file": "none"}, "file"),
        ("analyze", {"file": "day.jsonl", "limit_blocks": 9}, "limit_blocks"),
        ("analyze", {"file": "day.jsonl", "colour": "red"}, "colour"),
        ("analyze", {"file": "day.jsonl", "hours": 5}, "hours"),
        ("replay", {"file": "day.jsonl"}, "policies"),
        ("replay", {"file": "day.jsonl", "policies": []}, "policies"),
        (
            "replay",
            {"file": "day.jsonl", "policies": [{"policy": "ettft"}, {"policy": "ettft", "price_of_recomputation": -1}]},
            "policies[1].price_of_recomputation",
        ),
        ("replay", {"file": "day.jsonl", "policies": ["none"]}, "policies[0]"),
        ("replay", {"file": "day.jsonl", "policies": [{"policy": "ettft"}], "speeds": [1, 0]}, "speeds[1]"),
        ("replay", {"file": "day.jsonl", "policies": [{"policy": "ettft"}], "speeds": [1], "cache_tokens": "much"}, "cache_tokens"),
        ("review", {"candidate": "x"}, "endpoint"),
        ("review", {"endpoint": "none", "candidate": "x"}, "endpoint"),
    ],
)
def test_what_is_wrong_is_named(acorn: House, path: str, body: dict[str, Any], field: str) -> None:
    send(acorn.api())
    wrong = acorn.api().post(f"trace-jobs/{path}", body)
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (400, field)
    with acorn.scope():
        assert not TraceJob.objects.exists()


def test_a_trace_that_cannot_be_read_is_refused_by_its_line(acorn: House, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = send(acorn.api(), content=mooncake(2) + b'\n{"timestamp": 1}')
    assert wrong.status_code == 400
    assert wrong.json()["error"] == {**wrong.json()["error"], "code": "invalid", "field": "content"}
    assert "Line 3, " in wrong.json()["error"]["message"]
    assert send(acorn.api(), name="").json()["error"]["field"] == "name"
    monkeypatch.setattr(files, "MAX_UPLOAD_BYTES", 100)
    assert send(acorn.api()).status_code == 413
    with acorn.scope():
        assert not TraceFile.objects.exists()


def test_a_viewer_reads_and_changes_nothing(acorn: House) -> None:
    owner, viewer = acorn.api(), acorn.api(Role.VIEWER)
    send(owner)
    job = owner.post("trace-jobs/analyze", {"file": "day.jsonl"}).json()["id"]
    assert send(viewer, "other").status_code == 403
    for method, path, body in (
        ("POST", "trace-jobs/analyze", {"file": "day.jsonl"}),
        ("POST", "trace-jobs/replay", {"file": "day.jsonl", "policies": [{"policy": "ettft"}]}),
        ("POST", "trace-jobs/review", {"endpoint": "chat", "candidate": "x"}),
        ("POST", f"trace-jobs/{job}/cancel", None),
        ("DELETE", f"trace-jobs/{job}", None),
        ("DELETE", "trace-files/day.jsonl", None),
    ):
        assert viewer.call(method, path, body).status_code == 403, path
    for path in ("trace-files", "trace-files/day.jsonl", "trace-jobs", f"trace-jobs/{job}"):
        assert viewer.get(path).status_code == 200, path


def test_another_tenants_are_absent(acorn: House, birch: House) -> None:
    """Byte for byte what nobody's is, on every path."""
    send(acorn.api())
    theirs = acorn.api().post("trace-jobs/analyze", {"file": "day.jsonl"}).json()
    with acorn.scope():
        running.run(acorn.id, TraceJob.objects.get().id)
    api, nobody = birch.api(), "00000000-0000-4000-8000-000000000000"
    for method, path in (
        ("GET", "trace-jobs/{}"),
        ("GET", "trace-jobs/{}/result"),
        ("GET", "trace-jobs/{}/report"),
        ("POST", "trace-jobs/{}/cancel"),
        ("DELETE", "trace-jobs/{}"),
    ):
        found, absent = (api.call(method, path.format(one)) for one in (theirs["id"], nobody))
        assert (found.status_code, found.content) == (absent.status_code, absent.content) == (404, absent.content), path
    found, absent = (api.get(f"trace-files/{one}") for one in (theirs["file_id"], nobody))
    assert (found.status_code, found.content) == (404, absent.content)
    assert api.get("trace-jobs").json()["results"] == api.get("trace-files").json()["results"] == []
    assert acorn.api().get(f"trace-jobs/{theirs['id']}/report").status_code == 200


def test_without_captured_traffic_a_review_says_how_to_get_some(acorn: House) -> None:
    api = acorn.api()
    for path, body in (
        ("models", {"name": "m", "revision": "r1"}),
        ("pools", {"name": "gpu"}),
        ("endpoints", {"name": "chat", "pool": "gpu", "model": "m"}),
    ):
        assert api.post(path, body).status_code == 201, path
    refused = api.post("trace-jobs/review", {"endpoint": "chat", "candidate": {"policy": "round_robin"}})
    assert refused.status_code == 409
    assert "Switch on trace capture" in refused.json()["error"]["message"]
    assert "/api/v1/endpoints/chat/capture" in refused.json()["error"]["message"]
    send(api)
    asked = api.post("trace-jobs/review", {"endpoint": "chat", "candidate": {"policy": "round_robin"}, "file": "day.jsonl", "replays": 2})
    assert (asked.status_code, asked.json()["kind"]) == (202, "review")
    assert asked.json()["parameters"]["work"]["current"]["name"] == "chat v1"
