"""The router as its own process, started as in production: imports, start, drain, exit."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from routing.dataplane import __main__ as command
from routing.dataplane.config import from_environment
from settings.env import EnvError
from tests.fakes.replica import FakeReplica, Script, chunk, event
from tests.fakes.rig import HI, KEY_A, ROOT, SECRETS, standard_rig, until

STREAM = {**HI, "stream": True}
AUTH = {"Authorization": f"Bearer {KEY_A}"}
ROOT_FOLDER = Path(__file__).parents[3]


def test_the_data_plane_imports_no_django_celery_or_sql() -> None:
    code = (
        "import sys, routing.dataplane.app, routing.dataplane.__main__; "
        "print([name for name in ('django', 'celery', 'psycopg', 'rest_framework') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT_FOLDER, check=True, timeout=60)
    assert answer.stdout.strip() == "[]"


def _environment(folder: Path, **more: str) -> dict[str, str]:
    for name, value in (("root", ROOT), ("publish", SECRETS.publish_public_key), ("records", SECRETS.records_key)):
        (folder / name).write_bytes(value)
    return {
        "SALTROUTE_ROOT_KEY_FILE": str(folder / "root"),
        "SALTROUTE_PUBLISH_PUBLIC_KEY_FILE": str(folder / "publish"),
        "SALTROUTE_RECORDS_KEY_FILE": str(folder / "records"),
        "SALTROUTE_STATE_DIR": str(folder / "state"),
        "SALTROUTE_ALLOWED_RANGES": "127.0.0.0/8",
        "VALKEY_URL": "redis://127.0.0.1:1/0",
        "PATH": os.environ["PATH"],
        **more,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SALTROUTE_ROOT_KEY_FILE", "/nowhere"),
        ("SALTROUTE_ALLOWED_RANGES", "10.0.0.1/8"),
        ("ROUTER_PORT", "70000"),
        ("ROUTER_FIRST_BYTE_S", "soon"),
        ("VALKEY_URL", ""),
        ("SALTROUTE_STATE_DIR", ""),
        ("ROUTER_CATALOGUE", "ab12"),
        ("ROUTER_CATALOGUE", "words"),
        ("ROUTER_ARTIFACT_BYTES", "9999999999999"),
    ],
)
def test_a_setting_that_is_wrong_is_named_at_start(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(EnvError, match=name):
        from_environment({**_environment(tmp_path), name: value})


def test_settings_are_read_into_one_value(tmp_path: Path) -> None:
    config, secrets = from_environment(
        _environment(
            tmp_path, ROUTER_ID="r7", ROUTER_IDLE_S="0.5", ROUTER_CORS_ORIGINS="https://a.example, https://b.example", ROUTER_CATALOGUE="ab" * 32
        )
    )
    assert config.catalogue == {b"\xab" * 32}
    assert (config.router_id, config.idle_s, config.cors_origins) == ("r7", 0.5, ("https://a.example", "https://b.example"))
    assert (config.max_body_bytes, config.first_byte_s) == (32 * 1024 * 1024, 30.0)
    assert "records key" not in repr(secrets) + repr(config)


def test_a_wrong_setting_ends_the_process_with_a_clear_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "from_environment", lambda: (_ for _ in ()).throw(EnvError("VALKEY_URL is not set")))
    assert command.main() == 2
    assert capsys.readouterr().err == "router: VALKEY_URL is not set\n"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def _process(tmp_path: Path, a: FakeReplica, b: FakeReplica, **more: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A router process whose configuration an earlier router left on disk; Valkey is away."""
    async with standard_rig(tmp_path / "state", fakes=(a, b)) as rig:
        await rig.router.snapshots.save()
        for fake in (a, b):
            await fake.stop()
    for fake in (a, b):
        await fake.start(fake.port)
    port = _free_port()
    env = _environment(tmp_path, ROUTER_PORT=str(port), ROUTER_INTERNAL_PORT=str(_free_port()), **more)
    log = (tmp_path / "router.log").open("wb")
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "routing.dataplane", env=env, cwd=ROOT_FOLDER, stderr=log, stdout=log)
    log.close()
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as client, asyncio.timeout(30):
            while True:
                try:
                    async with client.get(f"{url}/readyz") as answer:
                        if answer.status == 200:
                            break
                except aiohttp.ClientConnectorError:
                    assert process.returncode is None, (tmp_path / "router.log").read_text()
                await asyncio.sleep(0.05)
        yield process, url
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        for fake in (a, b):
            await fake.stop()


async def test_sigterm_drains_streams_serves_late_comers_and_exits_with_0(tmp_path: Path) -> None:
    a, b = FakeReplica("A"), FakeReplica("B")
    gate = asyncio.Event()
    async with _process(tmp_path, a, b, ROUTER_LINGER_S="0.2", ROUTER_DRAIN_S="20") as (process, url), aiohttp.ClientSession() as client:
        a.scripts = b.scripts = [Script(sse=[chunk("one"), chunk(finish="stop"), "[DONE]"], gates={1: gate})]
        async with client.post(f"{url}/v1/chat/completions", json=STREAM, headers=AUTH) as stream:
            first = await stream.content.readuntil(b"\n\n")
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(10):
                while True:
                    async with client.get(f"{url}/readyz") as ready:
                        if ready.status == 503:
                            assert (await ready.json())["status"] == "draining"
                            break
            async with client.get(f"{url}/healthz") as health:
                assert health.status == 200
            async with client.post(f"{url}/v1/chat/completions", json=HI, headers=AUTH) as late:
                assert (late.status, late.headers["Connection"]) == (200, "close")
            gate.set()
            rest = await stream.content.read()
        assert first + rest == event(chunk("one")) + event(chunk(finish="stop")) + event("[DONE]")
        assert await asyncio.wait_for(process.wait(), 10) == 0
    log = (tmp_path / "router.log").read_text()
    assert KEY_A not in log
    assert "Traceback" not in log


async def test_at_the_drain_deadline_every_answer_gets_an_end(tmp_path: Path) -> None:
    a, b = FakeReplica("A"), FakeReplica("B")
    async with _process(tmp_path, a, b, ROUTER_LINGER_S="0.1", ROUTER_DRAIN_S="0.5") as (process, url), aiohttp.ClientSession() as client:
        a.script = b.script = Script(sse=[chunk("one"), chunk("two")], gates={1: asyncio.Event()})
        async with client.post(f"{url}/v1/chat/completions", json=STREAM, headers=AUTH) as stream:
            await stream.content.readuntil(b"\n\n")
            a.script = b.script = Script(hold=asyncio.Event())
            waiting = asyncio.create_task(client.post(f"{url}/v1/chat/completions", json=HI, headers=AUTH))
            await until(lambda: len(a.requests) + len(b.requests) == 2)
            process.send_signal(signal.SIGTERM)
            rest = await stream.content.read()
            assert b"router_draining" in rest
            assert b"[DONE]" not in rest
            answer = await waiting
            assert (answer.status, (await answer.json())["error"]["code"]) == (503, "router_draining")
        assert await asyncio.wait_for(process.wait(), 10) == 0


async def test_a_port_that_is_taken_is_a_clear_message(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        env = _environment(tmp_path, ROUTER_PORT=str(taken.getsockname()[1]))
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "routing.dataplane", env=env, cwd=ROOT_FOLDER, stderr=subprocess.PIPE)
        _, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 1
    assert b"router: cannot listen: Address already in use" in err


@pytest.mark.parametrize("half_close", [False, True])
async def test_a_client_that_leaves_aborts_the_engine_in_the_real_process_too(tmp_path: Path, half_close: bool) -> None:
    a, b = FakeReplica("A"), FakeReplica("B")
    async with _process(tmp_path, a, b) as (_, url):
        a.script = b.script = Script(hold=asyncio.Event())
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        body = msgspec.json.encode(STREAM)
        writer.write(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer {KEY_A}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        )
        writer.write(body)
        await until(lambda: len(a.requests) + len(b.requests) == 1)
        if half_close:
            writer.write_eof()
        else:
            writer.close()
        (received,) = [*a.requests, *b.requests]
        async with asyncio.timeout(1):
            await received.closed.wait()
        writer.close()
