from __future__ import annotations

import json
from typing import Any

import pytest

from routing.prompts import template as templating
from routing.prompts.messages import MARK
from routing.prompts.template import TemplateRefused, choose, compile_artifact, render, rendered
from tests.routing.prompts import templates

USER = [{"role": "user", "content": "Hi"}]


def draw(source: str, messages: list[dict[str, Any]] | None = None, *, tools: Any = None, continued: bool = False, **variables: Any) -> str:
    template = compile_artifact(source.encode()).named["default"]
    return render(
        template, messages=messages or USER, tools=tools, documents=None, variables=variables,
        add_generation_prompt=not continued, continue_final_message=continued,
    )  # fmt: skip


def test_blocks_are_trimmed_and_stripped() -> None:
    assert draw("a\n    {% if true %}\nb\n    {% endif %}\nc\n") == "a\nb\nc"


def test_json_is_written_as_hugging_face_writes_it() -> None:
    value = {"b": "é<'&>", "a": [1, 2.0, None]}
    assert draw("{{ x | tojson }}", x=value) == '{"b": "é<\'&>", "a": [1, 2.0, null]}'
    assert draw("{{ x | tojson(indent=2) }}", x=value) == json.dumps(value, ensure_ascii=False, indent=2)
    assert draw("{{ x | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=True) }}", x=value) == '{"a":[1,2.0,null],"b":"\\u00e9<\'&>"}'


def test_loop_controls_and_generation_blocks_are_known() -> None:
    assert draw("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}") == "1"
    assert draw("a{% generation %}b{% endgeneration %}c") == "abc"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('no') }}", "template_error"),
        ("{{ messages.x.y }}", "template_error"),
        ("{{ 1 // 0 }}", "template_error"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "template_error"),
        ("{{ messages.append(1) }}", "template_error"),
        ("{{ strftime_now('%d') }}", "date"),
        ("{{ [1, 2] | random }}", "date"),
        ("{% for x in range(10**9) %}{% endfor %}", "template_error"),  # the library's own bound on ranges
    ],
)
def test_refusals(source: str, reason: str) -> None:
    assert draw("{{ messages[0].content }}") == "Hi"
    with pytest.raises(TemplateRefused) as refused:
        draw(source)
    assert refused.value.reason == reason


def test_a_date_that_is_not_asked_for_does_no_harm() -> None:
    assert draw(templates.DATED) == "Hi"
    assert draw("{% if strftime_now is defined %}yes{% endif %}") == "yes"


@pytest.mark.parametrize(
    "content", [b"{% if %}", b"{{", b"\xff", b'{"chat_template": 7}', b'{"eos_token": "x"}', b'{"chat_template": [{"name": "x", "template": ""}]}']
)
def test_what_is_no_template_is_refused(content: bytes) -> None:
    with pytest.raises(TemplateRefused) as refused:
        compile_artifact(content)
    assert refused.value.reason == "bad_template"


def test_a_tokenizer_configuration_tells_special_tokens_and_named_templates() -> None:
    configuration = {
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "</s>",
        "pad_token": None,
        "added_tokens_decoder": {"1": {"content": "<s>"}},
        "chat_template": [{"name": "default", "template": "{{ bos_token }}"}, {"name": "tool_use", "template": "{{ tools }}"}],
    }
    template = compile_artifact(json.dumps(configuration).encode())
    assert (dict(template.specials or {}), template.added) == ({"bos_token": "<s>", "eos_token": "</s>"}, ("<s>",))
    assert template.named["default"].special_names == ("bos_token",)
    assert [choose(list(template.named), tools=tools) for tools in (False, True)] == ["default", "tool_use"]
    assert choose(["default"], tools=True) == "default"


TOKEN = {"__type": "AddedToken", "content": "<|own|>", "lstrip": False}


@pytest.mark.parametrize(
    ("told", "specials"),
    [
        ({"image_token": "<i>", "add_bos_token": True, "token": "x"}, {"image_token": "<i>"}),
        ({"extra_special_tokens": {"eot_token": TOKEN, "boi": "<b>", "number": 7}}, {"eot_token": "<|own|>", "boi": "<b>"}),
        ({"additional_special_tokens": {"boi": "<b>"}}, {"boi": "<b>"}),
        ({"extra_special_tokens": {"boi": "<b>"}, "additional_special_tokens": {"eoi": "<e>", "boi": "<a>"}}, {"boi": "<b>", "eoi": "<e>"}),
        ({"eot_token": "<top>", "extra_special_tokens": {"eot_token": TOKEN, "eos_token": "<e>"}}, {"eot_token": "<|own|>", "eos_token": "<e>"}),
        ({"model_specific_special_tokens": {"boi": "<b>"}}, {"boi": "<b>"}),
        ({"model_specific_special_tokens": {"boi": "<b>"}, "image_token": "<i>"}, {"image_token": "<i>"}),
        ({"extra_special_tokens": ["<b>"], "additional_special_tokens": {"eoi": "<e>"}}, {}),
    ],
)
def test_a_models_own_special_tokens_are_told_as_transformers_tells_them(told: dict[str, Any], specials: dict[str, str]) -> None:
    """Each seen with Transformers 5.19, which vLLM 0.32 runs."""
    configuration = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ boi }}{{ eot_token }}{{ add_bos_token }}"} | told
    template = compile_artifact(json.dumps(configuration).encode())
    assert template.specials == {"bos_token": "<s>", "eos_token": "</s>"} | specials
    assert template.named["default"].special_names == ("add_bos_token", "eot_token")


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        ("MAX_SPECIALS", {"extra_special_tokens": {"a": "<>", "b": "<>", "c": "<>"}}),
        ("MAX_SPECIALS_CHARACTERS", {"bos_token": "<s>"}),
        ("MAX_ADDED_TOKENS", {"added_tokens_decoder": {str(number): {"content": "<>"} for number in range(3)}}),
        ("MAX_ADDED_CHARACTERS", {"added_tokens_decoder": {"1": {"content": "<s>"}}}),
    ],
)
def test_more_tokens_than_are_taken_are_refused(monkeypatch: pytest.MonkeyPatch, bound: str, told: dict[str, Any]) -> None:
    content = json.dumps({"chat_template": "a"} | told).encode()
    monkeypatch.setattr(templating, bound, 3)
    assert compile_artifact(content)
    monkeypatch.setattr(templating, bound, 2)
    with pytest.raises(TemplateRefused) as refused:
        compile_artifact(content)
    assert refused.value.reason == "bad_template"


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (templates.CHATML, "string"),
        (templates.HEADERS, "string"),
        (templates.PARTS, "openai"),
        ("{% for m in messages %}{% for c in m['content'] %}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages[1:] %}{% for c in m.content | list %}{% endfor %}{% endfor %}", "openai"),
        ("{% set ms = messages %}{% for m in ms %}{% for c in m.content %}{% endfor %}{% endfor %}", "openai"),
        ("{% for content in contents %}{% for c in content %}{% endfor %}{% endfor %}", "openai"),
        ("{% macro show(x) %}{% for c in x %}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(m.content) }}{% endfor %}", "openai"),
        ("{% macro show(x) %}{% for c in x %}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(x=m.content) }}{% endfor %}", "openai"),
        ("{% macro show(content) %}{% for c in content %}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(m.role) }}{% endfor %}", "string"),
        ("{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}", "string"),
        ("{% for a, b in messages %}{% endfor %}{% for c in content %}{% endfor %}", "string"),
    ],
)
def test_the_content_format_is_read_from_the_template(source: str, form: str) -> None:
    assert compile_artifact(source.encode()).named["default"].content_format == form


def test_a_message_is_continued_where_it_ends() -> None:
    spoken = [*USER, {"role": "assistant", "content": "Well, "}]
    assert draw("{% for m in messages %}[{{ m.content }}]{% endfor %}", spoken, continued=True) == "[Hi][Well, "
    assert draw("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}", spoken, continued=True) == "[Hi][Well,"
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "Well"}]}]
    assert draw("{% for m in messages %}{% for c in m.content %}[{{ c.text }}]{% endfor %}{% endfor %}", parts, continued=True) == "[Well"
    assert spoken[1]["content"] == "Well, "


def test_a_message_that_the_template_drops_cannot_be_continued() -> None:
    for source in ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "{{ messages[-1].role }}"):
        with pytest.raises(TemplateRefused) as refused:
            draw(source, [*USER, {"role": "assistant", "content": "Well"}], continued=True)
        assert refused.value.reason == "request"


def test_the_exact_part_ends_where_the_renderings_part() -> None:
    template = compile_artifact(templates.PARTS.encode())
    content = [{"type": "text", "text": "see"}, {"type": "image"}]
    marked = [{"type": "text", "text": "see"}, {"type": "text", "text": MARK}]
    given: dict[str, Any] = {
        "messages": [{"role": "user", "content": content}], "marked": [{"role": "user", "content": marked}],
        "tools": None, "documents": None, "variables": {}, "add_generation_prompt": True, "continue_final_message": False,
    }  # fmt: skip
    text, exact = rendered(template, "default", given, 1000)
    assert text[:exact] == "<|im_start|>user\nsee"
    assert text[exact:].startswith("<|vision_start|>")
    assert rendered(template, "default", {**given, "marked": None}, 1000)[1] == -1
    with pytest.raises(TemplateRefused) as refused:
        rendered(template, "default", given, 10)
    assert refused.value.reason == "too_long"
