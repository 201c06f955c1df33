"""Why an artifact cannot be compiled, in words. That it is said over the API, out of the sandbox: tests/routing/api/test_catalogue.py."""

from __future__ import annotations

import json

import pytest

from routing.prompts.faults import MAX_CHARACTERS, fault, tidied
from routing.prompts.types import Kind
from tests.fakes.artifacts import SMALL

CONFIGURATION = {"tokenizer_class": "X", "chat_template": "{{ messages }}", "added_tokens_decoder": {}}
WITH_DROPOUT = json.dumps({"version": "1.0", "model": {"type": "BPE", "dropout": 0.1, "vocab": {"a": 0}, "merges": []}, "added_tokens": []}).encode()


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        ("chat_template", "{% for x in %}", "line 1: Expected an expression, got 'end of statement block'"),
        ("chat_template", "a\n\n{% frob %}", "line 3: Encountered unknown tag 'frob'"),
        ("chat_template", json.dumps({"chat_template": "a\n{{ x | nope }}"}), "line 2: No filter named 'nope'"),
        ("chat_template", "{{" + "(" * 5000 + ")" * 5000 + "}}", "it is nested too deeply"),
        ("chat_template", json.dumps({"chat_template": [{"name": "rag", "template": "x"}]}), "its chat_template is neither the text of a"),
        ("chat_template", json.dumps(CONFIGURATION | {f"t{number}_token": "x" for number in range(300)}), "it lists more tokens than are taken"),
        ("chat_template", json.dumps({"chat_template": 7}), "its chat_template is neither the text of a template nor a list of named ones"),
        ("chat_template", SMALL.decode(), "this is a tokenizer.json; give the template's text, or the tokenizer_config.json beside it"),
        ("chat_template", '{"eos_token": "x"}', "it is JSON without a chat_template"),
        ("tokenizer", json.dumps(CONFIGURATION), "this is a tokenizer_config.json, which goes where the chat template goes"),
        ("tokenizer", '{"vocab": {}}', "it has no member model, which every tokenizer.json has"),
        ("tokenizer", '{"model": 3}', "Expected object, got int"),
        ("tokenizer", '{"model": {}}', "data did not match any variant"),
        ("tokenizer", WITH_DROPOUT.decode(), "it leaves out merges at random (model.dropout)"),
        ("tokenizer", "nonsense", "it is no JSON object"),
    ],
)
def test_what_is_wrong_is_said(kind: Kind, content: str, said: str) -> None:
    """With the line where there is one; of the wrong file of a model, which it is. Both files in their places are not at fault."""
    assert fault(kind, content.encode()).startswith(said)
    assert fault("chat_template", json.dumps(CONFIGURATION).encode()) == fault("tokenizer", SMALL) == ""


def test_foreign_words_are_one_short_line() -> None:
    """A name in a template is its author's to choose, and a worker's answer is whatever foreign code made of it."""
    said = fault("chat_template", ("{{ x | " + "n" * 2 * MAX_CHARACTERS + " }}").encode())
    assert said.startswith("line 1: No filter named 'nnn")
    assert len(said) == MAX_CHARACTERS
    assert tidied("a\n\x1b[31m  b\u202e.") == "a [31m b"
    assert tidied(None) == tidied(["x"]) == ""
