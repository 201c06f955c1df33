"""The router's parity check against the ``/tokenize`` of two real engines: agreement with the files they run, and another template named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routing.core.snapshot import ReplicaEntry
from routing.dataplane.parity import SAMPLES
from tests.engine.installation import Installation
from tests.engine.vllm_cpu import MODEL_NAME, Replica
from tests.fakes.artifacts import digest, naming
from tests.fakes.rig import KEY_A, Rig, bumped, endpoint, named, standard_rig, until

pytestmark = pytest.mark.engine
SETTLED_S = 120.0  # a busy machine compiles the tokenizer in the sandbox first
ASK: dict[str, Any] = {"model": "m-7b", "messages": [{"role": "user", "content": "How much salt?"}], "max_tokens": 1}


def report(rig: Rig) -> dict[str, Any]:
    """Parity as the router tells it."""
    found: dict[str, Any] = msgspec.json.decode(rig.router.snapshots.status())["tokens"]["parity"]
    return found


def tokenised(rig: Rig, result: str) -> float:
    return rig.router.plane.metrics.registry.get_sample_value("saltroute_tokenised_total", {"result": result}) or 0.0


def declare(rig: Rig, replicas: list[Replica], tokenizer: bytes, template: bytes) -> None:
    """Publish an endpoint over the engines that names these artifacts."""
    rig.router.plane.tokens.prompts.load(digest(tokenizer), tokenizer, "tokenizer")
    rig.router.plane.tokens.prompts.load(digest(template), template, "chat_template")
    entries = tuple(ReplicaEntry(id=named(f"replica {each.name}"), name=each.name, url=each.url, engine="vllm") for each in replicas)
    pool = msgspec.structs.replace(rig.acme.pools[0], name="real", isolation="declared", replicas=entries)
    rig.publish(naming(bumped(rig.acme, pools=(pool,), endpoints=(endpoint(pool, served_model=MODEL_NAME),)), tokenizer, template))


async def test_real_engines_agree_sample_by_sample_and_another_template_is_found(tmp_path: Path, replicas: list[Replica]) -> None:
    """The files that the engines run: every sample equal at both. A template that differs in one word: named, and the endpoint goes by history."""
    folder = Installation.default().model
    tokenizer, configuration = ((folder / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json"))
    async with standard_rig(tmp_path / "state", poll_s=0.05, tokens_s=30.0) as rig:
        declare(rig, replicas, tokenizer, configuration)
        await until(lambda: report(rig)["states"] == {"ok": 2}, within_s=SETTLED_S)
        print("compared", {one.compared for one in rig.router.plane.tokens.parity.values()}, "of", len(SAMPLES))  # noqa: T201
        assert {one.compared for one in rig.router.plane.tokens.parity.values()} == {len(SAMPLES)}
        assert (await rig.call("POST", "/v1/chat/completions", key=KEY_A, json=ASK)).status == 200
        assert tokenised(rig, "exact") == 1

        settings = json.loads(configuration)
        other = settings["chat_template"].replace("<tools>", "<functions>")
        assert other != settings["chat_template"]
        declare(rig, replicas, tokenizer, json.dumps({**settings, "chat_template": other}).encode())
        await until(lambda: report(rig)["states"] == {"different": 2}, within_s=SETTLED_S)
        assert {row["sample"] for row in report(rig)["others"]} <= {"tools", "tool call"}
        print("found", report(rig)["others"])  # noqa: T201
        assert (await rig.call("POST", "/v1/chat/completions", key=KEY_A, json=ASK)).status == 200
        assert (tokenised(rig, "template_mismatch"), tokenised(rig, "exact")) == (1, 1)
