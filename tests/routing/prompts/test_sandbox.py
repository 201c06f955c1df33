"""Hostile templates and tokenizers: their request has no tokens, everybody else's is as before."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from routing.prompts.pool import STRIKES, PoolLimits
from routing.prompts.service import NoTokens, Tokens
from tests.routing.prompts import small
from tests.routing.prompts.conftest import PATIENT_S, A, B, Service, running

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
GREEDY = "{{ (messages[0].content * 1000000000) | length }}"
COMPILES_FOR_EVER = "{{ 9 ** (9 ** 9) }}"


def limits(**more: Any) -> PoolLimits:
    return PoolLimits(**{"load_s": PATIENT_S, **more})


async def serves(service: Service, owner: bytes) -> None:
    """Positive control: the tenant's own template works."""
    assert isinstance(await service.ask(CHAT, owner=owner), Tokens)


@pytest.mark.parametrize(
    ("source", "reason"), [(ENDLESS, "deadline"), (GREEDY, "memory"), ("{% for x in range(10**9) %}x{% endfor %}", "template_error")]
)
async def test_a_hostile_template_costs_its_own_request(source: str, reason: str) -> None:
    async with running(render_s=2.0, pool=limits(memory_bytes=512 * 1024 * 1024)) as service:
        await serves(service, A)
        assert await service.ask(CHAT, owner=B, model=service.with_template(source)) == NoTokens(reason)  # type: ignore[arg-type]
        await serves(service, B)
        await serves(service, A)


async def test_a_template_that_never_compiles_is_not_admitted() -> None:
    async with running(pool=limits(load_s=6.0, memory_bytes=512 * 1024 * 1024)) as service:
        await serves(service, A)
        model = service.with_template(COMPILES_FOR_EVER)
        assert model.template_digest is not None
        assert await service.prompts.admit(model.template_digest, "chat_template", owner=A, deadline_s=PATIENT_S) in (
            "deadline",
            "bad_template",
            "memory",
        )
        await serves(service, A)


async def test_a_catastrophic_pattern_is_ended() -> None:
    async with running(encode_s=2.0, pool=limits()) as service:
        model = service.with_tokenizer(small.catastrophic())
        assert isinstance(await service.ask({"prompt": "harmless A"}, model=model), Tokens)
        # The library gives up by itself on one line, if it is quicker than the limit.
        assert await service.ask({"prompt": "a" * 60 + "!"}, model=model) in (NoTokens("worker"), NoTokens("deadline"))
        kills = service.prompts.stats()["sandbox_deadline_kills"]
        assert await service.ask({"prompt": ("a" * 26 + "!\n") * 5000}, model=model) == NoTokens("deadline")
        assert service.prompts.stats()["sandbox_deadline_kills"] == kills + 1
        await serves(service, A)


async def test_others_are_served_while_one_hangs() -> None:
    async with running(render_s=PATIENT_S, pool=limits(workers=3)) as service:
        await serves(service, A)
        hanging = [asyncio.create_task(service.ask(CHAT, owner=B, model=service.with_template(ENDLESS))) for _ in range(3)]
        for turn in range(30):
            assert isinstance(await service.ask({"messages": [{"role": "user", "content": f"turn {turn}"}]}, owner=A, deadline_s=20.0), Tokens)
        assert not any(task.done() for task in hanging)
        assert service.prompts.stats()["sandbox_workers_busy"] >= 1
        for task in hanging:
            task.cancel()


async def test_whoever_hangs_waits_for_himself() -> None:
    """One tenant's second request waits for the first; a caller that leaves does not end the worker, a worker's own limit does."""
    async with running(render_s=2.0, pool=limits()) as service:
        await serves(service, B)
        endless = service.with_template(ENDLESS)
        assert await service.prompts.admit(endless.template_digest or b"", "chat_template", owner=B, deadline_s=PATIENT_S) is None
        first = asyncio.create_task(service.ask(CHAT, owner=B, model=endless, deadline_s=0.1))
        assert await first == NoTokens("deadline")
        assert service.prompts.stats()["sandbox_deadline_kills"] == 0
        await serves(service, B)
        assert service.prompts.stats()["sandbox_deadline_kills"] == 1


async def test_an_artifact_that_kills_is_set_aside_for_its_tenant() -> None:
    async with running(render_s=1.5, pool=limits()) as service:
        endless = service.with_template(ENDLESS)
        for _ in range(STRIKES):
            assert await service.ask(CHAT, owner=A, model=endless) == NoTokens("deadline")
        assert await service.ask(CHAT, owner=A, model=endless) == NoTokens("set_aside")
        assert service.prompts.stats()["sandbox_artifacts_aside"] == 1
        assert await service.ask(CHAT, owner=B, model=endless) == NoTokens("deadline")
        await serves(service, A)


async def test_a_queue_is_bounded_for_each_tenant() -> None:
    async with running(render_s=PATIENT_S, pool=limits(owner_queue=2)) as service:
        await serves(service, A)
        await serves(service, B)
        endless = service.with_template(ENDLESS)
        assert await service.prompts.admit(endless.template_digest or b"", "chat_template", owner=B, deadline_s=PATIENT_S) is None
        hanging = [asyncio.create_task(service.ask(CHAT, owner=B, model=endless)) for _ in range(3)]  # one runs, two wait
        await asyncio.wait(hanging, timeout=0)
        while service.prompts.stats()["sandbox_waiting"] < 2:
            await asyncio.wait(hanging, timeout=0.01)
        assert await service.ask(CHAT, owner=B) == NoTokens("queue_full")
        assert service.prompts.stats()["sandbox_queue_dropped"] == 1
        await serves(service, A)
        for task in hanging:
            task.cancel()
        await asyncio.wait(hanging)
        assert service.prompts.stats()["sandbox_waiting"] == 0


async def test_a_worker_serves_one_tenant_and_gives_way_to_another() -> None:
    async with running(pool=limits(workers=1)) as service:
        await serves(service, A)
        (pid,) = service.prompts._pool.pids()
        await serves(service, A)
        assert service.prompts._pool.pids() == [pid]
        await serves(service, B)
        assert pid not in service.prompts._pool.pids()
        assert service.prompts.stats()["sandbox_workers_retired"] == 1
        await serves(service, A)


async def test_a_worker_that_dies_idle_is_replaced(service: Service) -> None:
    await serves(service, A)
    handle = next(each for each in service.prompts._pool._handles if each.owner == A)
    os.kill(handle.process.pid, signal.SIGKILL)
    await handle.process.wait()
    await serves(service, A)


async def test_a_worker_holds_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALTROUTE_ROOT_KEY", "secret")
    await serves(service, A)
    await serves(service, B)
    workers = [handle.process.pid for handle in service.prompts._pool._handles if handle.owner is not None]
    assert len(workers) == 2
    for pid in workers:
        process = Path(f"/proc/{pid}")
        assert (process / "environ").read_bytes() == b"TOKENIZERS_PARALLELISM=false\0"
        assert sorted(os.listdir(process / "fd")) == ["0", "1", "2"]
        assert os.readlink(process / "fd" / "2") == "/dev/null"
        assert {os.readlink(process / "fd" / each).split(":")[0] for each in "01"} <= {"pipe", "socket"}
        assert os.listdir(process / "cwd") == []
        limited = {line[:26].strip(): line[26:].split()[:2] for line in (process / "limits").read_text().splitlines()[1:]}
        assert limited["Max file size"] == ["0", "0"]
        assert limited["Max open files"] == ["3", "3"]
        assert limited["Max processes"] == ["0", "0"]
        assert limited["Max core file size"] == ["0", "0"]
        assert limited["Max address space"] == [str(1024**3)] * 2
        assert limited["Max cpu time"][0] != "unlimited"


async def test_stop_ends_the_workers_and_tells_those_who_wait() -> None:
    async with running(render_s=PATIENT_S) as service:
        await serves(service, B)
        endless = service.with_template(ENDLESS)
        assert await service.prompts.admit(endless.template_digest or b"", "chat_template", owner=B, deadline_s=PATIENT_S) is None
        hanging = [asyncio.create_task(service.ask(CHAT, owner=B, model=endless)) for _ in range(2)]
        while service.prompts.stats()["sandbox_waiting"] < 1:
            await asyncio.wait(hanging, timeout=0.01)
        handles = list(service.prompts._pool._handles)
        await service.prompts.stop()
        assert [await task for task in hanging] == [NoTokens("stopped")] * 2
        assert all(handle.process.returncode is not None for handle in handles)
        assert await service.ask(CHAT) == NoTokens("stopped")
