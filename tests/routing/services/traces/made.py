"""Traces and jobs for tests: files as tenants send them, and jobs that are small enough to be carried out at once."""

from __future__ import annotations

import json
from typing import Any

from routing.models import TraceFile, TraceJob
from routing.services.traces import files, jobs, running
from routing.services.traces.jobs import Input
from tenants.actor import Actor
from tenants.scoping import tenant_scope
from tests.routing.services.made import Made

ACTOR = Actor(kind="user", id=None, label="owner@example.org", peer_address="")


def mooncake(count: int = 200, *, per_s: float = 4.0, sessions: int = 40) -> bytes:
    """Requests of some sessions, each with a prefix of its own behind one that all share."""
    lines = []
    for number in range(count):
        session = number % sessions
        ids = [0, 1, 10 + session, 1000 + session]
        line = {"timestamp": round(number * 1000 / per_s), "input_length": 2000, "output_length": 20, "hash_ids": ids, "session": f"s{session}"}
        lines.append(json.dumps(line))
    return "\n".join(lines).encode()


def text(said: str) -> bytes:
    """Two dialogues with ``said`` in them."""
    messages = [{"role": "system", "content": "You are a clerk. " * 40}, {"role": "user", "content": said}, {"role": "assistant", "content": "yes"}]
    return "\n".join(json.dumps({"messages": messages, "session": f"{said} {number}"}) for number in range(2)).encode()


def a_file(made: Made, name: str = "day.jsonl", content: bytes | None = None) -> TraceFile:
    with tenant_scope(made.id):
        return files.store(tenant_id=made.id, actor=ACTOR, name=name, content=mooncake() if content is None else content)


def an_analysis(made: Made, file: TraceFile, **options: Any) -> TraceJob:
    with tenant_scope(made.id):
        return jobs.analyze(tenant_id=made.id, actor=ACTOR, of=Input(file=file.name), **options)


def a_replay(made: Made, file: TraceFile, *wanted: Any, **options: Any) -> TraceJob:
    with tenant_scope(made.id):
        policies = list(wanted) or [{"policy": "ettft"}, {"policy": "round_robin"}]
        return jobs.replay(tenant_id=made.id, actor=ACTOR, of=Input(file=file.name), policies_wanted=policies, **options)


def run(made: Made, row: TraceJob) -> TraceJob:
    """Carry it out, as a worker does, and read it again."""
    running.run(made.id, row.id)
    return again(made, row)


def again(made: Made, row: TraceJob) -> TraceJob:
    with tenant_scope(made.id):
        return TraceJob.objects.get(tenant_id=made.id, id=row.id)


def found(row: TraceJob) -> dict[str, Any]:
    """What came of a job that is done."""
    assert row.result is not None, row.error
    return dict(row.result)
