from __future__ import annotations

import hashlib
import json
import os
import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from routing.prompts import prepare
from routing.prompts.service import NoTokens, PromptModel, Tokens
from routing.prompts.template import NamedTemplate, compile_artifact, render
from tests.routing.prompts import small, templates
from tests.routing.prompts.cases import by_hand, dialogues, generated, long
from tests.routing.prompts.conftest import NS, A, B, Service, running

USER = {"role": "user", "content": "Hello"}
CHAT = {"messages": [USER]}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
WHERE = [(), ("tokenizer",), ("template",), ("tokenizer", "template")]
VECTORS = Path(__file__).parents[2] / "vectors" / "prompts"


@cache
def compiled(source: bytes) -> NamedTemplate:
    return compile_artifact(source).named["default"]


@cache
def library(content: bytes) -> Tokenizer:
    return Tokenizer.from_str(content.decode())


def straight(source: str, tokenizer: small.Artifact, body: dict[str, Any], variables: dict[str, Any]) -> list[int] | None:
    """The ids by the shortest way: render, tokenise the whole text. None where the body or the template refuses."""
    template = compiled(source.encode())
    made = prepare.chat(body, content_format=template.content_format, knows_developer=template.knows_developer, max_characters=10_000_000)
    if isinstance(made, NoTokens):
        return None
    text = render(
        template, messages=made.messages, tools=made.tools, documents=made.documents, variables=made.variables | variables,
        add_generation_prompt=made.add_generation_prompt, continue_final_message=made.continue_final_message,
    )  # fmt: skip
    return list(library(tokenizer.content).encode(text, add_special_tokens=made.add_special_tokens).ids)


@pytest.mark.parametrize("catalogue", WHERE, ids="+".join)
@pytest.mark.parametrize(
    ("source", "tokenizer", "variables"),
    [
        (templates.CHATML, small.qwen_like, {}),
        (templates.HEADERS, small.llama_like, {"bos_token": "<|begin_of_text|>"}),
        (templates.PARTS, small.first_metaspace, {}),
    ],
    ids=["chatml", "headers", "parts, not cut"],
)
async def test_tokens_are_those_of_the_whole_text(catalogue: tuple[str, ...], source: str, tokenizer: Any, variables: dict[str, Any]) -> None:
    cases = [case for case in [*by_hand(), *generated(15), long(1000)] if case.api == "chat" and "truncate_prompt_tokens" not in case.body]
    async with running(tokenizer=tokenizer(), template=source, catalogue=catalogue) as service:
        for case in cases:
            expected = straight(source, tokenizer(), case.body, variables)
            result = await service.ask(case.body)
            assert isinstance(result, NoTokens) if expected is None else isinstance(result, Tokens), (case.name, result)
            assert expected is None or (isinstance(result, Tokens) and (list(result.ids), result.exact) == (expected, True)), case.name


@pytest.mark.parametrize("catalogue", [(), ("tokenizer",)], ids="+".join)
@pytest.mark.parametrize("tokenizer", [small.qwen_like, small.llama_like, small.first_metaspace])
async def test_completions_have_the_ids_of_their_text(catalogue: tuple[str, ...], tokenizer: Any) -> None:
    async with running(tokenizer=tokenizer(), catalogue=catalogue) as service:
        for case in [case for case in by_hand() if case.api == "completions" and isinstance(case.body["prompt"], str)]:
            if "truncate_prompt_tokens" not in case.body:
                special = case.body.get("add_special_tokens", True)
                assert await service.ids(case.body) == list(
                    library(tokenizer().content).encode(case.body["prompt"], add_special_tokens=special).ids
                ), case.name
        assert await service.ids({"prompt": [5, 6, 7]}) == [5, 6, 7]


async def test_truncation_keeps_the_end_and_the_bos() -> None:
    async with running(tokenizer=small.llama_like(), template=templates.HEADERS) as service:
        text = {"prompt": "The quick brown fox jumps over the lazy dog."}
        ids = await service.ids(text)
        assert await service.ids(text | {"truncate_prompt_tokens": 4}) == [ids[0], *ids[-3:]]
        assert await service.ids(text | {"truncate_prompt_tokens": 4, "truncation_side": "left"}) == ids[-4:]
        assert await service.ids(text | {"truncate_prompt_tokens": 4, "truncation_side": "right"}) == ids[:4]
        assert await service.ids(text | {"truncate_prompt_tokens": 4000}) == ids
        chat = await service.ids(CHAT)
        assert await service.ids(CHAT | {"truncate_prompt_tokens": 4}) == chat[-4:]


@pytest.mark.parametrize("catalogue", [(), ("tokenizer",)], ids="+".join)
async def test_a_growing_conversation_costs_its_new_text_only(catalogue: tuple[str, ...]) -> None:
    async with running(catalogue=catalogue) as service:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "turn 0"}]
        first = await service.ask({"messages": messages})
        assert isinstance(first, Tokens)
        assert first.segments_missed > 0
        for turn in range(1, 4):
            messages += [{"role": "assistant", "content": f"answer {turn}"}, {"role": "user", "content": f"turn {turn}"}]
            result = await service.ask({"messages": messages})
            assert isinstance(result, Tokens)
            assert result.segments_missed == 2  # the answer and the new question; the frame round them was seen before
            again = await service.ask({"messages": messages})
            assert isinstance(again, Tokens)
            assert (again.segments_missed, again.ids) == (0, result.ids)


async def test_what_is_cached_is_the_namespaces_own(service: Service) -> None:
    for owner, ns_key in ((A, NS), (A, b"m" * 16), (B, NS)):
        for missed in (True, False):
            result = await service.ask(CHAT, owner=owner, ns_key=ns_key)
            assert isinstance(result, Tokens)
            assert (result.segments_missed > 0) is missed


@pytest.mark.parametrize("catalogue", WHERE, ids="+".join)
async def test_media_leave_the_tokens_before_them_exact(catalogue: tuple[str, ...]) -> None:
    body = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE]}]}
    async with running(template=templates.PARTS, catalogue=catalogue) as service:
        result = await service.ask(body)
        assert isinstance(result, Tokens)
        before = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nsee"
        assert list(result.ids[: result.exact_tokens]) == library(small.qwen_like().content).encode(before).ids
        assert not result.exact
        # A template that takes text: the engine puts its placeholders before the message's text, so what is exact ends at the last special token.
        result = await service.ask(body, model=service.with_template(templates.CHATML))
        assert isinstance(result, Tokens)
        assert (
            list(result.ids[: result.exact_tokens])
            == library(small.qwen_like().content).encode("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>").ids
        )
        whole = await service.ask(
            {"messages": [body["messages"][0], {"role": "user", "content": "see"}]}, model=service.with_template(templates.CHATML)
        )
        assert isinstance(whole, Tokens)
        assert whole.exact


async def test_special_tokens_that_nothing_tells_are_not_guessed() -> None:
    async with running(template=templates.HEADERS) as service:
        assert await service.ask(CHAT) == NoTokens("special_tokens")
        configuration = {"chat_template": templates.HEADERS, "bos_token": "<|endoftext|>"}
        told = service.with_template(json.dumps(configuration))
        assert (await service.ids(CHAT, model=told))[0] == library(small.qwen_like().content).token_to_id("<|endoftext|>")
        own = "{{ image_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
        assert await service.ask(CHAT, model=service.with_template(own)) == NoTokens("special_tokens")
        told = service.with_template(json.dumps({"chat_template": own, "extra_special_tokens": {"image_token": "<|image_pad|>"}}))
        assert (await service.ids(CHAT, model=told))[0] == library(small.qwen_like().content).token_to_id("<|image_pad|>")
        lacking = configuration | {"added_tokens_decoder": {"9": {"content": "<|more|>"}}}
        assert await service.ask(CHAT, model=service.with_template(json.dumps(lacking))) == NoTokens("special_tokens")


async def test_a_template_for_tools_is_used_for_tools(service: Service) -> None:
    named = {"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}
    model = service.with_template(json.dumps(named))
    assert await service.ids(CHAT, model=model) == library(small.qwen_like().content).encode("a").ids
    assert (
        await service.ids(CHAT | {"tools": [{"type": "function", "function": {"name": "f"}}]}, model=model)
        == library(small.qwen_like().content).encode("b").ids
    )


async def test_why_there_are_no_tokens(service: Service) -> None:
    assert isinstance(await service.ask(CHAT), Tokens)
    other = b"x" * 32
    tokenizer = service.tokenizer.digest
    assert await service.ask(CHAT, model=PromptModel(tokenizer)) == NoTokens("no_template")
    assert await service.ask(CHAT, model=PromptModel(tokenizer, other)) == NoTokens("no_template")
    assert await service.ask({"prompt": "a"}, model=PromptModel(other)) == NoTokens("no_tokenizer")
    assert await service.ask(CHAT, model=service.with_template("{% if %}")) == NoTokens("bad_template")
    assert await service.ask({"prompt": "a"}, model=service.with_tokenizer(small.dropout())) == NoTokens("bad_tokenizer")
    assert await service.ask(CHAT, model=service.with_template("{{ raise_exception('no') }}")) == NoTokens("template_error")
    assert await service.ask(CHAT, model=service.with_template("{{ '\\ud800' }}")) == NoTokens("template_error")
    assert await service.ask(CHAT, model=service.with_template("{{ strftime_now('%d') }}")) == NoTokens("date")
    assert await service.ask(CHAT | {"documents": [{"n": 2**70}]}) == NoTokens("unsupported")
    assert await service.ask(CHAT, deadline_s=0.0) == NoTokens("deadline")
    counted = {name: value for name, value in service.prompts.stats().items() if name.startswith("result_") and value}
    assert counted == {
        "result_exact": 1, "result_no_template": 2, "result_no_tokenizer": 1, "result_bad_template": 1, "result_bad_tokenizer": 1,
        "result_template_error": 2, "result_date": 1, "result_unsupported": 1, "result_deadline": 1,
    }  # fmt: skip


async def test_admission_says_why_not(service: Service) -> None:
    assert await service.prompts.admit(service.template.digest, "chat_template", owner=A) is None
    assert await service.prompts.admit(service.tokenizer.digest, "tokenizer", owner=A) is None
    bad = service.with_template("{% if %}").template_digest
    assert bad is not None
    assert await service.prompts.admit(bad, "chat_template", owner=A) == "bad_template"
    assert await service.prompts.admit(b"x" * 32, "tokenizer", owner=A) == "no_tokenizer"


async def test_an_unloaded_artifact_is_forgotten_with_its_segments(service: Service) -> None:
    await service.ids(CHAT)
    assert service.prompts.stats()["segment_bytes"] > 0
    service.prompts.unload(service.tokenizer.digest, "tokenizer")
    assert not service.prompts.known(service.tokenizer.digest, "tokenizer")
    assert service.prompts.stats()["segment_bytes"] == 0
    assert await service.ask(CHAT) == NoTokens("no_tokenizer")


async def test_a_text_over_the_limit_has_no_tokens() -> None:
    for catalogue in WHERE:
        async with running(catalogue=catalogue, text_characters=200) as service:
            assert isinstance(await service.ask(CHAT), Tokens)
            assert await service.ask({"messages": [{"role": "user", "content": "a" * 200}]}) == NoTokens("too_long")
            assert await service.ask({"prompt": "a" * 201}) == NoTokens("too_long")


class Noting(dict[str, Any]):
    """A message or a document that notes in which threads a member of it is taken."""

    def __init__(self, **members: Any) -> None:
        super().__init__(members)
        self.threads: set[int] = set()

    def __getitem__(self, name: str) -> Any:
        self.threads.add(threading.get_ident())
        return super().__getitem__(name)


@pytest.mark.parametrize(
    ("beside", "short"),
    [
        ({}, True),
        ({"documents": [{"text": "ab " * 30_000}]}, False),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": [[]] * 4000}}}]}, False),
        ({"chat_template_kwargs": {"a": "x" * 70_000}}, False),
    ],
    ids=["short", "documents", "tools", "variables"],
)
async def test_what_is_long_is_prepared_and_rendered_beside_the_event_loop(beside: dict[str, Any], short: bool) -> None:
    """By a template of the catalogue, in this process; whatever it is that is long, of all that a template is given."""
    source = "{% for each in documents %}{{ each.text }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
    async with running(catalogue=("tokenizer", "template"), template=source) as service:
        message, document = Noting(role="user", content="hi"), Noting(text="a document")
        await service.ids({"messages": [message], **beside, "documents": [document, *beside.get("documents", ())]})
        for noted in (message, document):
            assert len(noted.threads) == 1
            assert (threading.get_ident() in noted.threads) is short


async def test_a_long_text_is_tokenised_in_the_sandbox_also_for_the_catalogue() -> None:
    async with running(catalogue=("tokenizer", "template"), here_characters=500, loop_characters=50) as service:
        for length in (10, 100, 1000):
            prompt = "ab " * length
            assert await service.ids({"prompt": prompt}) == library(small.qwen_like().content).encode(prompt).ids


def _real(name: str) -> Path:
    named = os.environ.get("SALTROUTE_TOKENIZERS")
    folder = Path(named or "/nonexistent") / name
    if not (folder / "tokenizer.json").exists():
        pytest.skip(f"$SALTROUTE_TOKENIZERS holds no {name}")
    return folder


@pytest.mark.parametrize("name", ["qwen2_5", "llama3"])
async def test_a_real_tokenizer_gives_the_ids_that_vllm_gave(name: str) -> None:
    folder = _real(name)
    tokenizer, configuration = ((folder / each).read_bytes() for each in ("tokenizer.json", "tokenizer_config.json"))
    vectors = json.loads((VECTORS / f"{name}.json").read_text())["prompts"]
    if name == "llama3":  # the recorded engine's had one, as the model's own has
        tokenizer = small.with_bos(library(tokenizer), "<|begin_of_text|>").to_str().encode()
    async with running(tokenizer=small.Artifact(tokenizer, hashlib.sha256(tokenizer).digest()), template=configuration) as service:
        for vector in vectors:
            assert await service.ids(vector["body"]) == vector["ids"], vector["name"]


async def test_dialogues_are_the_same_cut_and_whole() -> None:
    folder = _real("qwen2_5")
    tokenizer = (folder / "tokenizer.json").read_bytes()
    made = small.Artifact(tokenizer, hashlib.sha256(tokenizer).digest())
    async with running(tokenizer=made, catalogue=("tokenizer", "template")) as service:
        for case in dialogues(5):
            assert await service.ids(case.body) == straight(templates.CHATML, made, case.body, {})
