"""Traces that tenants send: read in a process with limits, kept as numbers, refused by line and field."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path

import pytest

from routing.models import TraceFile
from routing.services.traces import child, files
from routing.services.traces.child import Child, ChildEnded
from routing.traces.stored import split, unpack
from tenants.core.errors import Conflict, Invalid, LimitReached, NotFound, Unavailable
from tenants.scoping import tenant_scope
from tests.routing.services.made import Made
from tests.routing.services.rows import actions
from tests.routing.services.traces.made import ACTOR, a_file, a_replay, an_analysis, mooncake, text

SECRET = "Mister Fox owes nine thousand crowns"


def _store(made: Made, name: str, content: bytes) -> TraceFile:
    with tenant_scope(made.id):
        return files.store(tenant_id=made.id, actor=ACTOR, name=name, content=content)


def test_every_format_is_read_plain_and_packed(acorn: Made) -> None:
    session = json.dumps({"id": "x", "block_size": 64, "requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [7]}]}).encode()
    for name, content, requests, block_tokens in (
        ("day.jsonl", mooncake(), 200, 512),
        ("export.jsonl.gz", gzip.compress(mooncake()), 200, 512),
        ("agent.json", session, 1, 64),
        ("packed agent", gzip.compress(session), 1, 64),
        ("dialogues", text(SECRET), 2, 64),
    ):
        row = _store(acorn, name, content)
        assert (row.requests, row.block_tokens, row.name) == (requests, block_tokens, name)
        assert row.timed is (name != "dialogues")
    with tenant_scope(acorn.id):
        assert actions(acorn.id) == ["trace_file.store"] * 5
        day = TraceFile.objects.get(name="day.jsonl")
    kept = [one for chunk in split(bytes(day.content)) for one in unpack(chunk)]
    assert (len(kept), day.prompt_tokens, day.span_s) == (200, 400_000, 49.75)
    assert kept[40].session == kept[0].session != kept[1].session


def test_text_is_read_and_not_kept(acorn: Made) -> None:
    """Nothing of what was said is in the row, unpacked or not; that it was said twice is."""
    row = _store(acorn, "dialogues", text(SECRET))
    with tenant_scope(acorn.id):
        content = bytes(TraceFile.objects.get(id=row.id).content)
    raw = b"".join(zlib.decompress(chunk) for chunk in split(content))
    for part in ("Fox", "crowns", "clerk", SECRET):
        assert part.encode() not in content + raw
    first, second = (one for chunk in split(content) for one in unpack(chunk))
    assert first.blocks[:2] == second.blocks[:2]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b"no json", r"Line 1, \(line\): is not JSON"),
        (mooncake(3) + b'\n{"timestamp": 99000, "input_length": 0, "output_length": 1, "hash_ids": []}', r"Line 4, input_length: must be a whole"),
        (b'{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": ["x"]}', r"Line 1, hash_ids\[0\]"),
        (b'{"messages": [7]}', r"Line 1, messages\[0\]: must be an object"),
        (b'{"question": "why"}', "not a format that is known"),
        (gzip.compress(mooncake())[:-9], "not whole gzip data"),
        (b'{"id": 1, "block_size": 64, "requests": []}', "holds no request"),
    ],
)
def test_what_does_not_keep_to_its_format_is_refused_by_line_and_field(acorn: Made, content: bytes, said: str) -> None:
    with pytest.raises(Invalid, match=said) as refused:
        _store(acorn, "bad", content)
    assert refused.value.field == "content"
    with tenant_scope(acorn.id):
        assert not TraceFile.objects.exists()


def test_every_limit_is_named(acorn: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes as sent and unpacked, requests, blocks, traces and all bytes together; one below the limit passes."""
    for name, limit, content, said in (
        ("MAX_UPLOAD_BYTES", 100, mooncake(), "at most 100 bytes as it is sent"),
        ("MAX_UNPACKED_BYTES", 5000, gzip.compress(mooncake()), "longer than 5000 bytes when unpacked"),
        ("MAX_REQUESTS", 199, mooncake(), "more than 199 requests"),
        ("MAX_BLOCKS", 799, mooncake(), "more than 799 blocks"),
        ("MAX_STORED_BYTES", 500, mooncake(), "more than 500 bytes when it is kept"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(files, name, limit)
            with pytest.raises(Invalid, match=said):
                _store(acorn, "much", content)
    monkeypatch.setattr(files, "MAX_REQUESTS", 200)
    monkeypatch.setattr(files, "MAX_FILES", 1)
    row = _store(acorn, "fits", mooncake())
    with pytest.raises(LimitReached, match="at most 1 traces"):
        _store(acorn, "second", mooncake())
    monkeypatch.setattr(files, "MAX_FILES", 2)
    monkeypatch.setattr(files, "MAX_TOTAL_BYTES", row.size_bytes + 1)
    with pytest.raises(LimitReached, match="in all"):
        _store(acorn, "second", mooncake())


def test_a_bomb_ends_its_reader_and_nothing_else(acorn: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that becomes gigabytes of objects: refused within the reader's memory; the next trace is read."""
    monkeypatch.setattr(files, "READ_MEMORY_BYTES", 600 << 20)
    bomb = gzip.compress(b'{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [' + b"[]," * 10_000_000 + b"[]]}", 1)
    with pytest.raises(Invalid):
        _store(acorn, "bomb", bomb)
    deep = b"[" * 1_000_000
    with pytest.raises(Invalid):
        _store(acorn, "deep", deep)
    assert _store(acorn, "good", mooncake()).requests == 200


def test_names_are_unique_and_checked(acorn: Made, birch: Made) -> None:
    a_file(acorn)
    with pytest.raises(Conflict, match="of this name"):
        a_file(acorn)
    a_file(birch)
    with pytest.raises(Invalid) as refused:
        _store(acorn, "a\u202eb", mooncake())
    assert refused.value.field == "name"


def test_a_trace_is_its_tenants_alone(acorn: Made, birch: Made) -> None:
    """By id and by name, for reading and deleting, and in the database itself."""
    row = a_file(acorn)
    with tenant_scope(birch.id):
        for reference in (str(row.id), row.name):
            with pytest.raises(NotFound):
                files.file(birch.id, reference)
        with pytest.raises(NotFound):
            files.delete(tenant_id=birch.id, actor=ACTOR, file_id=row.id)
        assert not TraceFile.objects.filter(id=row.id).exists()
    with tenant_scope(acorn.id):
        assert files.file(acorn.id, row.name).id == files.file(acorn.id, str(row.id)).id == row.id


def test_a_trace_that_a_job_needs_stays(acorn: Made) -> None:
    from routing.services.traces import jobs

    row = a_file(acorn)
    job = an_analysis(acorn, row)
    a_replay(acorn, row)
    with tenant_scope(acorn.id):
        with pytest.raises(Conflict, match="cancel it first"):
            files.delete(tenant_id=acorn.id, actor=ACTOR, file_id=row.id)
        for one in jobs.jobs(acorn.id):
            jobs.cancel(tenant_id=acorn.id, actor=ACTOR, job_id=one.id)
        files.delete(tenant_id=acorn.id, actor=ACTOR, file_id=row.id)
        assert not TraceFile.objects.exists()
        left = jobs.job(acorn.id, str(job.id))
        assert (left.file_id, left.input_name) == (None, "day.jsonl")


def test_few_are_read_at_once(acorn: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    gate = threading.BoundedSemaphore(1)
    monkeypatch.setattr(files, "_reading", gate)
    gate.acquire()
    with pytest.raises(Unavailable):
        a_file(acorn)
    gate.release()
    a_file(acorn)
    assert gate.acquire(blocking=False)  # given back


def test_a_tenant_has_one_place_and_leaves_the_other(acorn: Made, birch: Made) -> None:
    """While one of a tenant's is read its next waits, and another tenant's is read."""
    files._readers.add(acorn.id)
    with pytest.raises(Unavailable, match="of this tenant"):
        a_file(acorn)
    a_file(birch)
    assert files._readers == {acorn.id}
    files._readers.discard(acorn.id)
    a_file(acorn)
    assert not files._readers


# ---- the process itself ------------------------------------------------------------------------------------------------


def test_the_process_holds_nothing_of_ours() -> None:
    """No setting, key, address or open connection: its environment names fonts and threads, its files are its pipes."""
    with Child(memory_bytes=2 << 30, processor_s=60) as one:
        folder = Path(f"/proc/{one._process.pid}")
        held = (folder / "environ").read_bytes()
        names = {part.split(b"=")[0].decode() for part in held.split(b"\0") if part}
        assert names == {"MPLCONFIGDIR", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"}
        kinds = {os.readlink(path).split(":")[0] for path in (folder / "fd").iterdir() if int(path.name) <= 2}
        assert kinds <= {"pipe", "/dev/null"}
        assert "socket" not in {os.readlink(path).split(":")[0] for path in (folder / "fd").iterdir()}


def test_a_process_that_is_left_is_ended() -> None:
    with Child(memory_bytes=2 << 30, processor_s=60) as one:
        pid = one._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_that_says_nothing_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is told as None, so that its caller can look at other things; then the time is over."""
    monkeypatch.setattr(child, "WAIT_S", 0.01)
    with Child(memory_bytes=2 << 30, processor_s=60) as one:
        heard: list[object] = []
        with pytest.raises(ChildEnded, match="too long"):
            heard.extend(one.answers(within_s=0.1))
        assert set(heard) <= {None}


def test_a_process_that_dies_is_noticed() -> None:
    with Child(memory_bytes=2 << 30, processor_s=60) as one:
        one._process.kill()
        one._process.wait()
        with pytest.raises(ChildEnded) as ended:
            list(one.answers(within_s=60))
        assert "too long" not in str(ended.value)
        with pytest.raises(ChildEnded):
            one.ask(["read", "x", [1, 1, 1]], [b"x" * (1 << 20)])
