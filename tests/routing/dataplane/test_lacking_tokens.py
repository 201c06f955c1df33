"""An engine's events decide nothing where no prompt comes whose tokens are known: its residency says so, and why, until one can come."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from routing.core.snapshot import TenantSnapshot
from tests.fakes.artifacts import RANGE, TEMPLATE, TOKENIZER, digest, naming
from tests.fakes.events import FakeSource
from tests.fakes.replica import Script
from tests.fakes.rig import Rig, bumped, until
from tests.routing.dataplane.conftest import MakeRig
from tests.routing.dataplane.feeds import test_kv as kv

OTHER = Script(body={"tokens": [1], "count": 1})  # another tokenizer's, whatever was asked


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    return await equipped(make_rig)


async def equipped(make_rig: MakeRig, *, poll_s: float = 0.02) -> Rig:
    """The demo's artifacts are at hand; who names them is the test's matter."""
    rig = await make_rig(tokens_s=30.0, poll_s=poll_s, **kv.FAST)
    for content, kind in ((TOKENIZER, "tokenizer"), (TEMPLATE, "chat_template"), (b"{{ 1", "chat_template")):
        rig.router.plane.tokens.prompts.load(digest(content), content, kind)  # type: ignore[arg-type]
    return rig


async def followed(rig: Rig, source: FakeSource) -> None:
    """A's events are read, and nothing stands against them."""
    kv.speak(rig.a, source.said())
    await kv.check(rig)
    await kv.becomes(rig, rig.a, "exact")


def told(rig: Rig) -> tuple[str, str]:
    """What the router's report says of A."""
    mine = msgspec.json.decode(rig.router.snapshots.status())["replicas"][rig.a.url]
    assert f'saltroute_replicas_by_residency{{state="{mine["residency"]}"}}' in rig.router.plane.metrics.page().decode()
    return mine["residency"], mine["residency_reason"]


async def tells(rig: Rig, state: str, reason: str) -> None:
    await until(lambda: told(rig) == (state, reason), 30)


def of_nobody(document: TenantSnapshot) -> TenantSnapshot:
    """The next version, in which no request can come."""
    return bumped(document, endpoints=tuple(msgspec.structs.replace(one, enabled=False) for one in document.endpoints))


async def test_an_endpoint_without_files_makes_it_history_until_it_has_them(rig: Rig, source: FakeSource) -> None:
    """And again when they are taken away, or a template does not compile. A tenant's endpoint that is out of service neither helps nor harms."""
    rig.publish(of_nobody(naming(rig.globex)))
    await followed(rig, source)
    await tells(rig, "history", "no_tokens")
    rig.publish(naming(rig.acme))
    await tells(rig, "exact", "ok")
    rig.publish(naming(rig.acme, TOKENIZER, b"{{ 1"))
    await tells(rig, "history", "no_tokens")
    rig.publish(naming(rig.acme, TOKENIZER, None))
    await tells(rig, "exact", "ok")
    rig.publish(naming(rig.acme, None, None))
    await tells(rig, "history", "no_tokens")
    changes = [(one["after"], one["reason"]) for one in msgspec.json.decode(rig.router.snapshots.status())["residency_changes"]]
    assert changes[-2:] == [("exact", "ok"), ("history", "no_tokens")]


async def test_an_artifact_that_a_router_does_not_get_is_none(rig: Rig, source: FakeSource) -> None:
    rig.publish(of_nobody(rig.globex))
    rig.publish(naming(rig.acme, TOKENIZER, RANGE))
    await followed(rig, source)
    await until(lambda: ("tokenizer", digest(TOKENIZER)) in rig.router.plane.tokens.ready, 30)
    assert told(rig) == ("history", "no_tokens")
    rig.router.plane.tokens.prompts.load(digest(RANGE), RANGE, "chat_template")
    await tells(rig, "exact", "ok")


async def test_tokens_that_differ_make_it_history_until_they_agree(make_rig: MakeRig, source: FakeSource) -> None:
    """Beside an endpoint without files too; one whose prompts can have tokens is enough, also another tenant's. Nobody has to look for it."""
    rig = await equipped(make_rig, poll_s=3600.0)
    rig.a.on_path["/tokenize"] = OTHER
    await followed(rig, source)
    rig.publish(naming(rig.acme))
    await tells(rig, "history", "parity")
    rig.publish(naming(rig.globex))
    await tells(rig, "history", "parity")
    del rig.a.on_path["/tokenize"]
    rig.publish(msgspec.structs.replace(naming(rig.globex), endpoints=tuple(renamed(one) for one in rig.globex.endpoints)))
    await tells(rig, "exact", "ok")


def renamed(endpoint: Any) -> Any:
    """Compared anew: an engine serves it under another name."""
    return msgspec.structs.replace(endpoint, served_model="m-7b-again")


async def test_one_tenants_tokens_are_enough_and_a_restart_changes_nothing(rig: Rig, source: FakeSource) -> None:
    await followed(rig, source)
    await tells(rig, "history", "no_tokens")
    kv.speak(rig.a, source.said(), started=2000.0)
    await kv.check(rig)
    rig.router.plane.residency.restarted((rig.a.url, 0), 5.0)
    assert told(rig) == ("history", "no_tokens")
    rig.router.plane.residency.drop((rig.a.url, 0), "restart", now_s=6.0)
    rig.publish(naming(rig.globex))
    await tells(rig, "exact", "ok")


async def test_an_engine_without_events_says_that_first(rig: Rig) -> None:
    await until(lambda: rig.a.url in rig.router.plane.residency.lacking)
    assert told(rig) == ("history", "no_events")


async def test_token_ids_are_placed_by_events_all_the_same_and_text_is_told_as_history(rig: Rig, source: FakeSource) -> None:
    """What is not known is how texts become tokens, and of ids that is no question."""
    rig.only_a()
    await followed(rig, source)
    await tells(rig, "history", "no_tokens")
    source.say(kv.chain(20, await kv.known(rig)))
    await until(lambda: kv.held(rig, rig.a) == 20)
    seen = (await kv.asked(rig, kv.prompt(20)))["A"]
    assert (seen.evidence, seen.residency) == ("event", "exact")
    seen = (await kv.asked(rig, {"model": "m-7b", "prompt": "a text"}))["A"]
    assert (seen.evidence, seen.residency) == ("none", "history")
    rig.publish(naming(rig.acme))
    await tells(rig, "exact", "ok")
    seen = (await kv.asked(rig, {"model": "m-7b", "prompt": "a text"}))["A"]
    assert seen.residency == "exact"
