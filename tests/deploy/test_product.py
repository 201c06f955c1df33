"""The whole product on one machine, started as a person starts it."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from deploy.local.process import started_at
from tests.product import POLL_S, START_S, STOP_S, Product

pytestmark = pytest.mark.journey


def _status(url: str) -> int:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status
    finally:
        connection.close()


def _shell(command: str) -> str:
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="the printed commands need curl")
def test_the_printed_commands_answer_with_a_stream_and_with_the_reason(product: Product) -> None:
    chat, why = (f"curl {text}" for text in product.output.read_text().partition("\n\nUp after")[0].split("\n  curl ")[1:])
    head, _, stream = _shell(chat).replace("\r", "").partition("\n\n")
    assert head.startswith("HTTP/1.1 200")
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line]
    assert events[-1] == "[DONE]"
    assert "".join(choice["delta"].get("content") or "" for event in events[:-1] for choice in json.loads(event)["choices"])
    decision_id = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:])["x-saltroute-decision"]
    why = why.replace("/ID ", f"/{decision_id} ")
    deadline = time.monotonic() + 60  # the record travels by a stream
    while "candidates" not in (answer := _shell(why)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    assert [row for row in json.loads(answer)["decision"]["candidates"] if row["chosen"]], answer


def test_the_printed_pages_open(product: Product) -> None:
    printed = product.output.read_text()
    for path in ("/login", "/api/docs/", "/api/schema/"):
        assert _status(product.control_url + path) == 200
    assert f"{product.control_url}/api/docs/" in printed
    assert f"sign in as {product.email} with {product.password}" in printed


def test_logs_and_terminal_hold_no_key_but_the_ones_meant_to_be_shown(product: Product) -> None:
    held = product.home.secrets
    shown = {product.password, product.key, product.token}
    hidden = [path.read_text().strip() for path in held.iterdir() if path.name.endswith(".password") or path.name.startswith("demo_")]
    hidden = [value for value in hidden if value not in shown]
    assert len(hidden) > 8
    logs = "\n".join(path.read_text(errors="replace") for path in product.home.logs.glob("*.log"))
    assert not [value for value in {*hidden, *shown} if value in logs]
    assert not [value for value in hidden if value in product.output.read_text()]


def test_no_process_shows_a_secret_in_its_environment_or_command_line(product: Product) -> None:
    values = [path.read_bytes().strip() for path in product.home.secrets.glob("*.password")]
    for pid, *_ in json.loads((product.home.run / "children.json").read_text()).values():
        process = Path(f"/proc/{pid}")
        seen = (process / "cmdline").read_bytes() + _environment(process)
        assert not [value for value in values if value in seen]


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except PermissionError:  # PostgreSQL under another account, when the tests are an ordinary user's
        return b""


@pytest.mark.timeout(2 * (START_S + STOP_S))
def test_a_second_start_keeps_keys_and_data_and_a_stop_leaves_no_process(product: Product) -> None:
    """The product of the session is stopped and started again: whoever comes after finds it as it was."""
    before = (product.key, product.password, product.token)
    pids = [row[0] for row in json.loads((product.home.run / "children.json").read_text()).values()]
    assert len(pids) > 8
    assert all(started_at(pid) for pid in pids)
    assert product.stop() == 0, product.output.read_text()
    assert [pid for pid in pids if started_at(pid)] == []
    product.start_again()
    assert (product.key, product.password, product.token) == before
    assert (product.home.logs / "apply.log").read_text().endswith("no changes\n")
