"""The command: ready lines, clean end, clear refusals."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys

import aiohttp
import pytest

COMMAND = (sys.executable, "-m", "routing.simulator")
FREE = ("--port", "0", "--kv-port", "0", "--replay-port", "0")
READY = re.compile(r"ready replica=(\d) url=(http://127\.0\.0\.1:\d+) kv=tcp://127\.0\.0\.1:\d+ replay=tcp://127\.0\.0\.1:\d+\n")


async def started(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(*COMMAND, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
async def test_fleet_says_when_it_is_ready_and_ends_with_0(stop_signal: signal.Signals) -> None:
    """One line for each replica; each answers; a signal ends all, in the middle of a stream too."""
    process = await started("--replicas", "2", "--model", "demo", "--adapter", "ad1=/srv/ad1", *FREE)
    assert process.stdout is not None
    lines = [(await process.stdout.readline()).decode() for _ in range(2)]
    ready = [READY.fullmatch(line) for line in lines]
    urls = [match[2] for match in ready if match]
    assert [match[1] for match in ready if match] == ["0", "1"]
    async with aiohttp.ClientSession() as session:
        for url in urls:
            async with session.get(f"{url}/v1/models") as answer:
                assert [row["id"] for row in (await answer.json())["data"]] == ["demo", "ad1"]
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4000, "ignore_eos": True, "stream": True}
        async with session.post(f"{urls[0]}/v1/chat/completions", json=body) as answer:
            await answer.content.readany()
            process.send_signal(stop_signal)
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
    _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--replicas", "0"), b"--replicas must be at least 1"),
        (("--adapter", "nameless"), b"NAME=PATH expected"),
        (("--blocks", "10", "--max-model-len", "8192"), b"exceeds the cache"),
        (("--speed", "0"), b"must be positive"),
    ],
)
async def test_impossible_options_are_told(arguments: tuple[str, ...], message: bytes) -> None:
    """One line and status 2, no traceback."""
    process = await started(*arguments, *FREE)
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert message in errors
    assert errors.count(b"\n") == 1


@pytest.mark.parametrize("option", ["--port", "--kv-port", "--replay-port"])
async def test_taken_port_is_told(option: str) -> None:
    """Status 1 and the reason, whichever of the three it is."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = await started(*FREE, option, str(taken.getsockname()[1]))
        output, errors = await process.communicate()
    assert process.returncode == 1
    assert b"in use" in errors
    assert b"Traceback" not in errors
    assert output == b""
