"""The token step: exact ids where they can be had, counted reasons where not, and never a request that fails or waits for it."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from namespaces.core.salts import Namespace
from routing.core import blocks
from routing.core.prefix import BLOCK_BYTES
from routing.dataplane import choose, openai
from routing.dataplane.choice import Prompt
from routing.dataplane.tokens import Found
from routing.prompts.service import NoTokens, Prompts, Tokens
from tests.fakes.artifacts import TEMPLATE, TOKENIZER, chatml, digest, ids_of, naming
from tests.fakes.rig import KEY_A, KEY_A_EMEA, KEY_B, Rig, bumped, until
from tests.routing.dataplane.conftest import MakeRig
from tests.routing.dataplane.test_probes import ask

CHAT = {"model": "m-7b", "messages": [{"role": "user", "content": "Tell me about salt, and bread, and water. " * 20}]}


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    """A rig whose token step has time enough on a busy machine."""
    return await make_rig(tokens_s=30.0, poll_s=0.02)


async def load(rig: Rig) -> None:
    """Give the router the demo's artifacts without a Valkey, and let both tenants name them."""
    prompts = rig.router.plane.tokens.prompts
    prompts.load(digest(TOKENIZER), TOKENIZER, "tokenizer")
    prompts.load(digest(TEMPLATE), TEMPLATE, "chat_template")
    rig.publish(naming(rig.acme))
    rig.publish(naming(rig.globex))
    await until(lambda: rig.router.plane.tokens.artifacts()["ready"] == 2)


def results(rig: Rig) -> dict[str, float]:
    """How often each result was counted."""
    family = next(one for one in rig.router.plane.metrics.registry.collect() if one.name == "saltroute_tokenised")
    return {sample.labels["result"]: sample.value for sample in family.samples if sample.name.endswith("_total")}


def call(body: Mapping[str, Any], shape: Any = openai.check_completion) -> openai.Call:
    return openai.read(msgspec.json.encode(body), shape, ())


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ([5, 6, 7], [5, 6, 7]),
        ([[5, 6, 7]], [5, 6, 7]),
        ([2**32 - 1], [2**32 - 1]),
        ([2**32], None),
        ([-1], None),
        ([[5], [6]], None),
        ("text", None),
        (["text"], None),
    ],
)
def test_token_ids_need_no_tokenizer(prompt: Any, ids: list[int] | None) -> None:
    """One prompt given as ids is exact as it is; several prompts, texts, and ids that no engine can have are not."""
    found = call({"model": "m", "prompt": prompt}).token_ids
    assert (None if found is None else list(found)) == ids


@pytest.mark.parametrize("member", [{"truncate_prompt_tokens": 2}, {"prompt_embeds": "x"}])
def test_ids_that_the_engine_would_change_are_not_exact(member: dict[str, Any]) -> None:
    assert call({"model": "m", "prompt": [1, 2, 3], **member}).token_ids is None
    assert call({"model": "m", "prompt": [1, 2, 3], **dict.fromkeys(member)}).token_ids is not None


async def test_ids_are_counted_exactly(rig: Rig) -> None:
    reply = await rig.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": list(range(100))})
    assert reply.status == 200
    assert results(rig) == {"exact": 1}
    assert rig.records()[-1].estimated_prompt_tokens == 100


async def test_a_prompt_knows_its_chains(rig: Rig) -> None:
    """The chain of the exact tokens, under the namespace's seed, once for each block size; none where nothing is exact."""
    namespace = rig.namespace()
    body = call({"model": "m", "prompt": list(range(100))})
    prompt = choose.measure(body, namespace, 4.0, Found(ids=body.token_ids, whole=True), (16, 32))
    assert prompt.exact
    assert (prompt.tokens, prompt.exact_tokens) == (100, 100)
    for block_tokens in (16, 32, 7):
        assert prompt.chain(block_tokens) == blocks.token_chain(namespace.index_seed, range(100), block_tokens)
    assert prompt.chain(16) is prompt.chain(16)
    vague = choose.measure(call({"model": "m", "prompt": "x" * 400}), namespace, 4.0, Found(why_not="deadline"), (16,))
    assert not vague.exact
    assert (vague.tokens, vague.exact_tokens, vague.chain(16)) == (100, 0, ())


def test_a_prompt_exact_up_to_its_first_image_keeps_its_estimate() -> None:
    """What is known is exact, how long the whole is remains an estimate, and never less than what is known."""
    namespace = Namespace(salt="sr1-" + "a" * 43, index_seed=bytes(32), public_id="ns-" + "0" * 32)
    long = call({"model": "m", "prompt": "x" * 10 * BLOCK_BYTES})
    prompt = choose.measure(long, namespace, 4.0, Found(ids=array("I", range(50))))
    assert (prompt.exact_tokens, prompt.tokens, prompt.bytes_per_token) == (50, 320, 4.0)
    short = call({"model": "m", "prompt": "x" * 8})
    assert choose.measure(short, namespace, 4.0, Found(ids=array("I", range(50)))).tokens == 50


def test_ids_are_in_no_repr() -> None:
    """What is printed of a prompt by mistake shows neither ids nor the seed."""
    shown = repr(Prompt((), (), 3, 4.0, seed=b"seed-of-ns", token_ids=array("I", [123456, 234567]))) + repr(Found(ids=array("I", [123456])))
    assert "123456" not in shown
    assert "seed-of-ns" not in shown


class Slow(Prompts):
    """A service that never answers, whatever the deadline."""

    async def tokens(self, body: Any, **more: Any) -> Tokens | NoTokens:
        await asyncio.Event().wait()
        raise AssertionError


class Wrong(Prompts):
    """A service with a mistake in it, whose message quotes the prompt."""

    async def tokens(self, body: Any, **more: Any) -> Tokens | NoTokens:
        raise RuntimeError(str(body))


@pytest.mark.parametrize(("service", "reason"), [(Slow, "deadline"), (Wrong, "mistake")])
async def test_no_request_fails_or_waits_for_its_tokens(
    make_rig: MakeRig, service: type[Prompts], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = await make_rig(tokens_s=0.01, poll_s=0.02)
    await load(rig)
    rig.router.plane.tokens.prompts = service()
    reply = await rig.chat(CHAT)
    assert reply.status == 200
    assert results(rig) == {reason: 1}
    record = rig.records()[-1]
    assert (record.inexact, record.estimated_prompt_tokens > 1) == (reason, True)
    assert "Tell me about salt" not in caplog.text


async def test_an_endpoint_whose_template_differs_is_history(rig: Rig) -> None:
    await load(rig)
    rig.router.plane.tokens.mismatched = frozenset({rig.acme.endpoints[0].id})
    assert (await rig.chat(CHAT)).status == 200
    assert results(rig) == {"template_mismatch": 1}
    assert (await rig.chat(CHAT, key=KEY_B)).status == 200
    assert results(rig) == {"template_mismatch": 1, "exact": 1}
    assert [one.inexact for one in rig.records()] == ["template_mismatch", None]


async def test_a_chat_is_what_the_template_makes_of_it(rig: Rig) -> None:
    await load(rig)
    assert (await rig.chat(CHAT)).status == 200
    assert results(rig) == {"exact": 1}
    assert rig.records()[-1].estimated_prompt_tokens == len(ids_of(chatml(CHAT["messages"])))  # type: ignore[arg-type]


async def test_a_chat_with_an_image_is_known_up_to_it(rig: Rig) -> None:
    await load(rig)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
    content = [{"type": "text", "text": "What is on it?"}, image]
    assert (await rig.chat({"model": "m-7b", "messages": [{"role": "user", "content": content}]})).status == 200
    assert results(rig) == {"exact_prefix": 1}
    assert rig.records()[-1].inexact == "media"


async def test_several_prompts_are_history(rig: Rig) -> None:
    await load(rig)
    for prompt in ([[1, 2], [3, 4]], ["one", "two"]):
        assert (await rig.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": prompt})).status == 200
    assert results(rig) == {"many_prompts": 2}
    assert [one.inexact for one in rig.records()] == ["many_prompts", "many_prompts"]


async def test_nothing_is_asked_where_no_tokenizer_is_named(rig: Rig) -> None:
    await load(rig)
    rig.publish(naming(rig.acme, None, None))
    rig.publish(bumped(rig.globex))
    assert (await rig.chat(CHAT)).status == 200
    assert results(rig) == {"undeclared": 1}
    assert rig.records()[-1].inexact == "undeclared"


class Seen(Prompts):
    """A service that notes for whom it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.owners: list[bytes] = []
        self.ns_keys: list[bytes] = []

    async def tokens(self, body: Any, *, owner: bytes, ns_key: bytes, **more: Any) -> Tokens | NoTokens:
        self.owners.append(owner)
        self.ns_keys.append(ns_key)
        return NoTokens("deadline")


async def test_each_tenant_and_each_tenants_audits_are_owners_of_their_own(rig: Rig) -> None:
    """A process of the sandbox serves one owner, so no template of one tenant ever runs where another's text was, in audits neither."""
    await load(rig)
    rig.router.plane.tokens.prompts = seen = Seen()
    for key in (KEY_A, KEY_A_EMEA, KEY_B):
        await rig.chat(CHAT, key=key)
    assert (await ask(rig)).status == 200  # acme's audit
    acme, globex = rig.acme.tenant_id.bytes, rig.globex.tenant_id.bytes
    assert seen.owners == [acme, acme, globex, b"audit" + acme]
    assert len(set(seen.ns_keys)) == 4
