"""Parity against simulated engines that tokenise for themselves, through the router's own feed."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace as changed
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from namespaces.core import keyring
from routing.core.snapshot import TenantSnapshot
from routing.dataplane import parity as parity_module
from routing.dataplane.parity import SAMPLES, ParityFeed
from routing.simulator.config import ReplicaConfig
from routing.simulator.fleet import Fleet, running_fleet
from tests.fakes.artifacts import DEMO, TEMPLATE, TOKENIZER, digest, naming
from tests.fakes.replica import Script
from tests.fakes.rig import ROOT, Rig, bumped, replica_entry, until
from tests.routing.dataplane.conftest import MakeRig

ENGINE = ReplicaConfig(model="m-7b", tokenizer_path=str(DEMO / "tokenizer.json"), chat_template_path=str(DEMO / "chat_template.jinja"))
ASK = {"model": "m-7b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """Two engines with the demo's files."""
    async with running_fleet(ENGINE, replicas=2) as running:
        yield running


def on(document: TenantSnapshot, *urls: str, **more: Any) -> TenantSnapshot:
    """The next version of a snapshot whose pool is these engines."""
    replicas = tuple(replica_entry(url, f"r{number}", **more) for number, url in enumerate(urls))
    return bumped(document, pools=(msgspec.structs.replace(document.pools[0], replicas=replicas),))


async def compared(make_rig: MakeRig, *urls: str, template: bytes = TEMPLATE, **settings: Any) -> Rig:
    """A rig whose tenant acme names the demo's artifacts and sits on the given engines."""
    rig = await make_rig(**{"tokens_s": 30.0, "poll_s": 0.02, **settings})
    prompts = rig.router.plane.tokens.prompts
    prompts.load(digest(TOKENIZER), TOKENIZER, "tokenizer")
    prompts.load(digest(template), template, "chat_template")
    rig.publish(naming(on(rig.acme, *urls), TOKENIZER, template))
    return rig


def parity(rig: Rig) -> dict[str, Any]:
    """Parity in the router's own report."""
    found: dict[str, Any] = msgspec.json.decode(rig.router.snapshots.status())["tokens"]["parity"]
    return found


def states(rig: Rig) -> dict[str, int]:
    found: dict[str, int] = parity(rig)["states"]
    return found


def tokenised(rig: Rig, result: str) -> float:
    return rig.router.plane.metrics.registry.get_sample_value("saltroute_tokenised_total", {"result": result}) or 0.0


async def test_engines_with_the_same_files_agree(make_rig: MakeRig, fleet: Fleet) -> None:
    rig = await compared(make_rig, fleet[0].url, fleet[1].url)
    await until(lambda: states(rig) == {"ok": 2}, 30)
    assert {one.compared for one in rig.router.plane.tokens.parity.values()} == {len(SAMPLES)}
    assert (await rig.chat(ASK)).status == 200
    assert tokenised(rig, "exact") == 1
    assert rig.router.plane.metrics.registry.get_sample_value("saltroute_parity", {"state": "ok"}) == 2


async def test_another_template_is_named_and_the_endpoint_goes_back_to_history(
    make_rig: MakeRig, fleet: Fleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One engine of two was started with another template: that is enough, until it is started with the right one."""
    other = tmp_path / "other.jinja"
    other.write_bytes(TEMPLATE.replace(b"tools\\n", b"functions\\n"))
    async with running_fleet(changed(ENGINE, chat_template_path=str(other))) as odd:
        with caplog.at_level(logging.WARNING, logger="saltroute.parity"):
            rig = await compared(make_rig, fleet[0].url, odd[0].url)
            await until(lambda: states(rig) == {"ok": 1, "different": 1}, 30)
        (row,) = parity(rig)["others"]
        assert row["sample"] in ("tools", "tool call")
        assert row["position"] >= 1
        assert "template mismatch" in caplog.text
        await until(lambda: rig.acme.endpoints[0].id in rig.router.plane.tokens.mismatched)
        assert (await rig.chat(ASK)).status == 200
        assert (tokenised(rig, "template_mismatch"), tokenised(rig, "exact")) == (1, 0)
        rig.publish(on(rig.acme, fleet[0].url, fleet[1].url))
        await until(lambda: states(rig) == {"ok": 2} and not rig.router.plane.tokens.mismatched, 30)
        assert (await rig.chat(ASK)).status == 200
        assert tokenised(rig, "exact") == 1


@pytest.mark.parametrize(
    ("template", "why"),
    [(b"{{ pad_token }}" + TEMPLATE, "special_tokens"), (b'{{ raise_exception("no") }}', "template_error"), (None, "no_template")],
)
async def test_samples_that_have_no_tokens_here_are_no_agreement(
    make_rig: MakeRig, fleet: Fleet, caplog: pytest.LogCaptureFixture, template: bytes | None, why: str
) -> None:
    """Nor do they end the one that there was: chats have tokens at the engine and none here. What does agree is counted, and used."""
    rig = await compared(make_rig, fleet[0].url)
    await until(lambda: states(rig) == {"ok": 1}, 30)
    if template is not None:
        rig.router.plane.tokens.prompts.load(digest(template), template, "chat_template")
    with caplog.at_level(logging.INFO, logger="saltroute.parity"):
        rig.publish(naming(rig.acme, TOKENIZER, template))
        await until(lambda: states(rig) == {"inexact": 1}, 30)
    (row,) = parity(rig)["others"]
    assert (row["sample"], row["why"], row["compared"]) == ("question", why, 1)
    assert f"sample 'question' has no exact tokens here ({why})" in caplog.text
    assert "agree" not in caplog.text
    assert (await rig.chat(ASK)).status == 200
    assert (await rig.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": "hi", "max_tokens": 1})).status == 200
    assert (tokenised(rig, why), tokenised(rig, "exact")) == (1, 1)


async def test_a_sample_that_the_engine_refuses_as_well_says_nothing(make_rig: MakeRig, tmp_path: Path) -> None:
    """Both have a template that refuses tools, say."""
    narrow = b'{% if tools %}{{ raise_exception("no tools") }}{% endif %}' + TEMPLATE
    (tmp_path / "narrow.jinja").write_bytes(narrow)
    async with running_fleet(changed(ENGINE, chat_template_path=str(tmp_path / "narrow.jinja"))) as same:
        rig = await compared(make_rig, same[0].url, template=narrow)
        await until(lambda: states(rig) == {"ok": 1}, 30)
    (one,) = rig.router.plane.tokens.parity.values()
    assert one.compared == len(SAMPLES) - 2


async def test_a_difference_is_graver_than_samples_without_tokens(make_rig: MakeRig, fleet: Fleet) -> None:
    """The first samples of chats have no tokens here, those with tools have others."""
    mixed = b'{% if not tools %}{{ raise_exception("no") }}{% endif %}' + TEMPLATE.replace(b"tools\\n", b"functions\\n")
    assert mixed.count(b"functions") > TEMPLATE.count(b"functions")
    rig = await compared(make_rig, fleet[0].url, template=mixed)
    await until(lambda: states(rig) == {"different": 1}, 30)


async def test_a_change_is_compared_again(make_rig: MakeRig, fleet: Fleet) -> None:
    """Other artifacts for the same engine: no hour goes by."""
    rig = await compared(make_rig, fleet[0].url)
    await until(lambda: states(rig) == {"ok": 1}, 30)
    other = TEMPLATE.replace(b"<|im_end|>\\n", b"<|im_end|>")
    rig.router.plane.tokens.prompts.load(digest(other), other, "chat_template")
    rig.publish(naming(rig.acme, TOKENIZER, other))
    await until(lambda: states(rig) == {"different": 1}, 30)


async def test_a_restart_is_compared_again(make_rig: MakeRig, fleet: Fleet) -> None:
    rig = await compared(make_rig, fleet[0].url, scrape_s=0.02)
    checks = "saltroute_parity_checks_total"
    count = rig.router.plane.metrics.registry.get_sample_value

    def settled() -> bool:
        """Compared with the process that is known to run, and not due again for an hour."""
        started_at = rig.router.plane.engine(fleet[0].url).started_at
        return started_at is not None and any(
            started_at in watched.print_ and watched.task is None and watched.due_s > time.monotonic() + 60
            for watched in rig.router.parity._watched.values()
        )

    await until(settled, 30)
    before = count(checks, {"result": "ok"}) or 0
    await fleet[0].restart()
    await until(lambda: (count(checks, {"result": "ok"}) or 0) > before, 30)


async def test_an_engine_that_does_not_tell_costs_nothing(make_rig: MakeRig) -> None:
    """The rig's fakes have no /tokenize: exact tokens go on unproved, and that is shown."""
    rig = await make_rig(tokens_s=30.0, poll_s=0.02)
    for content, kind in ((TOKENIZER, "tokenizer"), (TEMPLATE, "chat_template")):
        rig.router.plane.tokens.prompts.load(digest(content), content, kind)  # type: ignore[arg-type]
    rig.publish(naming(rig.acme))
    await until(lambda: states(rig) == {"unavailable": 2}, 30)
    assert {row["why"] for row in parity(rig)["others"]} == {"none"}
    assert (await rig.chat(ASK)).status == 200
    assert tokenised(rig, "exact") == 1


async def test_samples_travel_with_the_replicas_credential_and_hold_nobodys_words(make_rig: MakeRig) -> None:
    rig = await make_rig(tokens_s=30.0, poll_s=0.02)
    rig.a.on_path["/tokenize"] = Script(body={"tokens": [1], "count": 1})
    replica = replica_entry(rig.a)
    info = keyring.credential_info(rig.acme.tenant_id, replica.id)
    sealed = keyring.seal(keyring.seal_public_key(ROOT), b"engine-secret", info=info)
    for content, kind in ((TOKENIZER, "tokenizer"), (TEMPLATE, "chat_template")):
        rig.router.plane.tokens.prompts.load(digest(content), content, kind)  # type: ignore[arg-type]
    await rig.chat({"model": "m-7b", "messages": [{"role": "user", "content": "the client's own words"}]})
    pool = msgspec.structs.replace(rig.acme.pools[0], replicas=(msgspec.structs.replace(replica, credential=sealed),))
    rig.publish(naming(bumped(rig.acme, pools=(pool,))))
    await until(lambda: states(rig) == {"different": 1}, 30)
    asked = [received for received in rig.a.probes if received.path == "/tokenize"]
    assert asked
    assert {received.headers["authorization"] for received in asked} == {"Bearer engine-secret"}
    bodies = [json.loads(received.body) for received in asked]
    assert all({name: value for name, value in body.items() if name != "model"} in SAMPLES.values() for body in bodies)


async def test_an_address_that_is_not_allowed_is_not_asked(make_rig: MakeRig, fleet: Fleet) -> None:
    rig = await compared(make_rig, fleet[0].url, allowed_ranges=())
    await until(lambda: states(rig) == {"unavailable": 1}, 30)
    assert parity(rig)["others"][0]["why"] == "blocked"
    assert list(fleet[0].replica.requests) == []


async def test_engines_that_never_answer_keep_no_other_tenant_from_being_compared(
    make_rig: MakeRig, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One check at a time for everybody, and a tenant with many engines that take the question and say nothing: its next one waits for its turn."""
    monkeypatch.setattr(parity_module, "AT_ONCE", 1)
    monkeypatch.setattr(parity_module, "ASK_S", 1.0, raising=False)
    never = asyncio.Event()
    rig = await compared(make_rig, idle_s=600.0)
    rig.a.on_path["/tokenize"] = Script(hold=never)
    hanging = [f"http://127.0.0.{host}:{rig.a.port}" for host in range(1, 6)]
    rig.publish(naming(on(rig.acme, *hanging), TOKENIZER, TEMPLATE))
    await until(lambda: any(request.path == "/tokenize" for request in rig.a.probes))
    rig.publish(naming(on(rig.globex, fleet[0].url), TOKENIZER, TEMPLATE))
    await until(lambda: states(rig).get("ok") == 1, 30)
    never.set()


def test_tenants_whose_engines_hang_wait_for_one_another_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four places two at most are theirs; a tenant that was never slow finds one, the one who was served longest ago first."""
    begun: list[bytes] = []
    feed = ParityFeed(plane=None)  # type: ignore[arg-type] # never asked
    monkeypatch.setattr(ParityFeed, "_check", lambda self, pair, watched, owner, *_: begun.append(owner))
    monkeypatch.setattr(asyncio, "create_task", lambda made, name: made)
    pairs = {(UUID(int=number), UUID(int=number)): bytes((number,)) for number in range(6)}
    for pair, owner in pairs.items():
        feed._present[pair] = (owner, None, None)  # type: ignore[assignment]
        feed._watched[pair] = parity_module._Watched(())
    feed._slow = {b"\0", b"\1", b"\2", b"\3"}
    running: list[bytes] = []
    for pair in pairs:
        feed._begin(pair, running)
    assert begun == running == [b"\0", b"\1", b"\4", b"\5"]


async def test_what_agrees_is_compared_again_when_it_is_time(make_rig: MakeRig, fleet: Fleet) -> None:
    """An engine may change its files without a restart that we see."""
    rig = await compared(make_rig, fleet[0].url, parity_s=0.05)
    count = rig.router.plane.metrics.registry.get_sample_value
    await until(lambda: (count("saltroute_parity_checks_total", {"result": "ok"}) or 0) >= 3, 30)


async def test_a_template_that_never_ends_keeps_nobody_from_being_compared(make_rig: MakeRig, fleet: Fleet) -> None:
    """Acme's own side of the samples cannot be made: that is no difference, and globex's are made meanwhile."""
    endless = b"{% for one in range(99999) %}{% for two in range(99999) %}{% endfor %}{% endfor %}"
    rig = await compared(make_rig, fleet[0].url, fleet[1].url, template=endless)
    rig.router.plane.tokens.prompts.load(digest(TEMPLATE), TEMPLATE, "chat_template")
    rig.publish(naming(on(rig.globex, fleet[0].url, fleet[1].url)))
    await until(lambda: states(rig).get("ok") == 2 and states(rig).get("unavailable", 0) >= 1, 60)
    assert {row["why"] for row in parity(rig)["others"]} == {"ours"}
    assert not rig.router.plane.tokens.mismatched
