"""The built-in tokenizer's laws, and a real one from its files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import tokenizers
from hypothesis import given

from routing.simulator.language import KNOWN_WORDS
from routing.simulator.tokenizer import FileTokenizer, Message, Tokenizer, UnrenderableConversationError, WordTokenizer, load_tokenizer
from tests.routing.simulator.wire import RECORDED, wired

TEMPLATE = """{%- for message in messages %}
{%- if message.role == 'bad' %}{{ raise_exception('no such role') }}{% endif %}
<|im_start|>{{ message.role }}
{{ message.content }}{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}<|im_end|>
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
words = WordTokenizer(KNOWN_WORDS)
PINNED = [1, 36105, 62723, 14578, 76878, 1783, 37971, 2]


def render(tokenizer: Tokenizer, messages: list[Message], **more: Any) -> str:
    given: dict[str, Any] = {"tools": None, "add_generation_prompt": True, "template_kwargs": {}}
    return tokenizer.render(messages, **(given | more))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A byte-level BPE trained on a few words, with ChatML markers."""
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator([" ".join(KNOWN_WORDS)], trainer)
    model.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    (folder / "template.jinja").write_text(TEMPLATE)
    return str(folder / "tokenizer.json"), str(folder / "template.jinja")


@given(st.text())
def test_pieces_join_to_the_text(text: str) -> None:
    """Nothing is lost, and pieces and encode agree."""
    pieces = words.pieces(text)
    assert "".join(part for _, part in pieces) == text
    assert [token_id for token_id, _ in pieces] == words.encode(text, add_special_tokens=True)
    assert all(0 < token_id < words.vocabulary_size for token_id, _ in pieces)


@given(st.text(st.characters(categories=["L", "N"]), min_size=1), st.text())
def test_a_message_does_not_change_the_tokens_before_it(first: str, second: str) -> None:
    """Turns are closed by a special token, so a longer conversation begins with the shorter one's ids."""
    one: list[Message] = [{"role": "user", "content": first}]
    two: list[Message] = [*one, {"role": "assistant", "content": second}]
    short = words.encode(render(words, one, add_generation_prompt=False), add_special_tokens=False)
    long = words.encode(render(words, two, add_generation_prompt=False), add_special_tokens=False)
    assert long[: len(short) - 1] == short[:-1]


def test_ids_are_the_same_in_every_process() -> None:
    """They come from the bytes alone: these numbers must never change, or recorded traces lose their meaning."""
    assert words.encode("<|im_start|>user\nHello, world!<|im_end|>", add_special_tokens=False) == PINNED


def test_users_can_type_special_tokens() -> None:
    """They become real ones, as in the recorded engine."""
    assert words.encode("<|im_end|>", add_special_tokens=False) == [words.eos_id]


def test_decode_knows_the_answers_words() -> None:
    """And says so where it does not."""
    text = "Reason name would once look. Today"
    assert words.decode(words.encode(text, add_special_tokens=False)) == text
    assert words.decode([7]) == "<7>"


def test_tools_come_first_and_calls_are_written() -> None:
    """Both change the prompt."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    text = render(words, [{"role": "assistant", "content": None, "tool_calls": [call]}], tools=[{"type": "function"}])
    assert text.startswith('<|im_start|>tools\n[{"type": "function"}]<|im_end|>\n')
    assert '"arguments": {"a": 1}' in text  # an object, no longer a string


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": 7},
        {"role": "user", "content": [{"type": "odd"}]},
        {"role": "assistant", "tool_calls": 7},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
    ],
)
def test_unrenderable_messages_are_refused(message: Message) -> None:
    """With an error that is the client's."""
    with pytest.raises(UnrenderableConversationError):
        render(words, [message])


def test_text_parts_are_joined_with_a_newline() -> None:
    """As the recorded engine joins them."""
    parts = [{"type": "text", "text": "Part one."}, {"type": "text", "text": "Part two."}]
    assert render(words, [{"role": "user", "content": parts}]) == render(words, [{"role": "user", "content": "Part one.\nPart two."}])


def test_final_message_can_be_continued() -> None:
    """It stays open."""
    messages: list[Message] = [{"role": "assistant", "content": "Hel"}]
    text = render(words, messages, add_generation_prompt=False, template_kwargs={"continue_final_message": True})
    assert text == "<|im_start|>assistant\nHel"


def test_file_tokenizer_round_trip(files: tuple[str, str]) -> None:
    """Pieces join to the text and carry the ids of encode; specials are found."""
    tokenizer = load_tokenizer(*files, KNOWN_WORDS)
    text = "Careful reason, étude and 東京."
    pieces = tokenizer.pieces(text)
    assert "".join(part for _, part in pieces) == text
    assert [token_id for token_id, _ in pieces] == tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode([tokenizer.eos_id]) == "<|im_end|>"


def test_template_errors_are_the_clients(files: tuple[str, str]) -> None:
    """raise_exception in a template, and a missing template."""
    with pytest.raises(UnrenderableConversationError, match="no such role"):
        render(FileTokenizer(*files), [{"role": "bad", "content": "x"}])
    with pytest.raises(UnrenderableConversationError, match="template"):
        render(FileTokenizer(files[0], None), [{"role": "user", "content": "x"}])


async def test_replica_with_a_real_tokenizer(files: tuple[str, str]) -> None:
    """Chat, and a second turn that finds the first one and its answer."""
    config = replace(RECORDED, tokenizer_path=files[0], chat_template_path=files[1])
    async with wired(config) as wire:
        first = await wire.chat("Careful reason and repeat. " * 10, max_tokens=70, ignore_eos=True)
        messages = [
            {"role": "user", "content": "Careful reason and repeat. " * 10},
            {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
            {"role": "user", "content": "Why?"},
        ]
        _, second = await wire.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
        _, refused = await wire.post("/v1/chat/completions", {"messages": [{"role": "bad", "content": "x"}]})
    known = first["usage"]["total_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == known // 32 * 32
    assert refused["error"]["type"] == "BadRequestError"
