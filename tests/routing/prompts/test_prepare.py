from __future__ import annotations

import copy
from array import array
from typing import Any, get_args

import pytest

from routing.prompts import prepare
from routing.prompts.messages import MARK, MAX_ARGUMENTS_CHARACTERS, MAX_PIECES, ContentFormat
from routing.prompts.prepare import Conversation, Cut, Ids, Text
from routing.prompts.types import NoTokens
from tests.routing.prompts.cases import by_hand, generated

USER = {"role": "user", "content": "Hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def chat(content_format: str = "string", *, knows_developer: bool = True, **body: Any) -> Conversation | NoTokens:
    return prepare.chat({"messages": [USER], **body}, content_format=content_format, knows_developer=knows_developer)  # type: ignore[arg-type]


def messages(*given: dict[str, Any], content_format: str = "string", knows_developer: bool = True) -> list[dict[str, Any]]:
    prepared = chat(content_format, knows_developer=knows_developer, messages=list(given))
    assert isinstance(prepared, Conversation)
    return prepared.messages


@pytest.mark.parametrize("case", [*by_hand(), *generated(20)], ids=lambda case: case.name)
def test_a_body_is_not_changed(case: Any) -> None:
    before = copy.deepcopy(case.body)
    prepare.completion(case.body)
    for content_format in get_args(ContentFormat):
        prepare.chat(case.body, content_format=content_format, knows_developer=False)
    assert case.body == before


def test_text_parts_are_joined_for_templates_that_take_text() -> None:
    parts = {
        "role": "user",
        "content": [
            {"type": "text", "text": "a"},
            "b",
            {"type": "refusal", "refusal": "c"},
            {"type": "text", "text": None},
            {"type": "text", "text": ""},
        ],
    }
    assert messages(parts) == [{"role": "user", "content": "a\nb\nc"}]
    shown = [{"type": "text", "text": each} for each in ("a", "b", "c", "")]
    assert messages(parts, content_format="openai") == [{"role": "user", "content": shown}]


def test_a_tools_answer_is_text_for_every_template() -> None:
    answer = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    for content_format in ("string", "openai"):
        assert messages(USER, answer, content_format=content_format)[1] == {"role": "tool", "content": "a\nb", "tool_call_id": "c1"}


@pytest.mark.parametrize(
    ("arguments", "shown"), [('{"b": 1, "a": 2}', {"b": 1, "a": 2}), ("", {}), (None, {}), ("[1]", {}), ("oops", {}), ({"a": 1}, {"a": 1})]
)
def test_tool_call_arguments_become_objects(arguments: object, shown: object) -> None:
    call = {"type": "function", "index": 0, "id": "c1", "function": {"name": "f", "arguments": arguments}}
    (written,) = messages({"role": "assistant", "content": None, "tool_calls": [call]})[0]["tool_calls"]
    assert written == {"id": "c1", "function": {"arguments": shown, "name": "f"}, "type": "function", "index": 0}
    assert (list(written), list(written["function"])) == (["id", "function", "type", "index"], ["arguments", "name"])


def test_tools_are_written_in_the_order_of_the_schema() -> None:
    tool = {"function": {"parameters": {"z": 1, "a": 2}, "name": "f", "unknown": 1, "strict": True}, "type": "function", "unknown": 1}
    prepared = chat(tools=[tool])
    assert isinstance(prepared, Conversation)
    assert prepared.tools == [{"type": "function", "function": {"name": "f", "description": None, "parameters": {"z": 1, "a": 2}, "strict": True}}]
    assert prepared.tools is not None
    assert list(prepared.tools[0]["function"]) == ["name", "description", "parameters", "strict"]


def test_tools_are_shown_also_when_none_may_be_called() -> None:
    prepared = chat(tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="none")
    assert isinstance(prepared, Conversation)
    assert prepared.tools


def test_a_developer_is_a_system_where_the_template_knows_none() -> None:
    given = ({"role": "system", "content": "a"}, USER, {"role": "developer", "content": "b"})
    assert messages(*given, knows_developer=False) == [{"role": "system", "content": "a\n\nb"}, USER]
    assert messages(*given)[2] == {"role": "developer", "content": "b", "tools": None}


def test_media_part_two_renderings() -> None:
    spoken = {"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE]}
    prepared = chat("openai", messages=[spoken])
    assert isinstance(prepared, Conversation)
    assert prepared.messages[0]["content"][1] == {"type": "image"}
    assert prepared.marked is not None
    assert prepared.marked[0]["content"][1] == {"type": "text", "text": MARK}
    joined = chat("string", messages=[USER, spoken])
    assert isinstance(joined, Conversation)
    assert joined.marked is not None
    assert [message["content"] for message in joined.marked] == ["Hi", MARK + "see"]
    assert joined.messages[1]["content"] == "see"


def test_variables_that_are_null_or_auto_do_not_reach_the_template() -> None:
    prepared = chat(chat_template_kwargs={"a": None, "b": "auto", "c": 0, "add_generation_prompt": False}, reasoning_effort="none")
    assert isinstance(prepared, Conversation)
    assert prepared.variables == {"c": 0, "reasoning_effort": "none", "enable_thinking": False}
    assert prepared.add_generation_prompt is True


def test_apis_differ_in_special_tokens() -> None:
    prepared = chat()
    assert isinstance(prepared, Conversation)
    assert prepared.add_special_tokens is False
    assert prepare.completion({"prompt": "a"}) == Text("a", add_special_tokens=True, cut=None)
    assert prepare.completion({"prompt": "a", "add_special_tokens": False}) == Text("a", add_special_tokens=False, cut=None)


def test_token_ids_are_taken_as_they_are() -> None:
    assert prepare.completion({"prompt": [1, 2]}) == Ids(array("I", [1, 2]), None)
    assert prepare.completion({"prompt": [[1, 2]]}) == Ids(array("I", [1, 2]), None)
    assert prepare.completion({"prompt": [1, 2], "truncate_prompt_tokens": 1}) == Ids(array("I", [1, 2]), Cut(1, "left", explicit=False))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"prompt": ["a", "b"]}, "many_prompts"),
        ({"prompt": [[1], [2]]}, "many_prompts"),
        ({"prompt": [-1, 2]}, "request"),
        ({"prompt": [2**32]}, "request"),
        ({"prompt": [True, 1]}, "request"),
        ({"prompt": []}, "request"),
        ({}, "request"),
        ({"prompt": "a", "suffix": "b"}, "unsupported"),
        ({"prompt": "a", "truncate_prompt_tokens": -1}, "unsupported"),
        ({"prompt": "a", "truncate_prompt_tokens": "7"}, "request"),
        ({"prompt": "a", "truncate_prompt_tokens": 7, "truncation_side": "middle"}, "request"),
    ],
)
def test_completions_without_tokens(body: dict[str, Any], reason: str) -> None:
    assert prepare.completion(body) == NoTokens(reason)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"messages": []}, "request"),
        ({"messages": [7]}, "request"),
        ({"messages": [{"content": "no role"}]}, "request"),
        ({"messages": [{"role": "user", "content": 7}]}, "request"),
        ({"messages": [{"role": "user", "content": [7]}]}, "request"),
        ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "unsupported"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]}, "request"),
        ({"messages": [{"role": "user", "content": [IMAGE]}], "continue_final_message": True, "add_generation_prompt": False}, "unsupported"),
        ({"continue_final_message": True}, "request"),
        ({"chat_template": "{{ 1 }}"}, "unsupported"),
        ({"chat_template_kwargs": {"messages": []}}, "unsupported"),
        ({"chat_template_kwargs": []}, "request"),
        ({"tools": []}, "request"),
        ({"tools": [{"type": "function"}]}, "request"),
        ({"documents": ["a"]}, "request"),
        ({"mm_processor_kwargs": {"a": 1}}, "unsupported"),
        ({"kv_transfer_params": {"prompt_token_ids": [1]}}, "unsupported"),
    ],
)
def test_chats_without_tokens(body: dict[str, Any], reason: str) -> None:
    assert isinstance(chat(), Conversation)
    assert chat(**body) == NoTokens(reason)  # type: ignore[arg-type]


@pytest.mark.parametrize("over", [0, 1])
def test_what_would_hold_up_others_goes_without_tokens(over: int) -> None:
    hi = {"role": "user", "content": "hi"}
    parts = {"role": "user", "content": [{"type": "text", "text": "x"}] * (MAX_PIECES - 1 + over)}
    padding = "x" * (MAX_ARGUMENTS_CHARACTERS - len('{"a": ""}') + over)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "' + padding + '"}'}}
    bodies: list[dict[str, Any]] = [
        {"messages": [hi] * (MAX_PIECES + over)},
        {"messages": [parts]},
        {"messages": [hi, {"role": "assistant", "content": None, "tool_calls": [call]}]},
    ]
    for body in bodies:
        made = prepare.chat(body, content_format="string", knows_developer=True)
        assert isinstance(made, NoTokens) is bool(over)
        assert not over or made == NoTokens("too_long")
