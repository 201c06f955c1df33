from __future__ import annotations

import copy
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.prompts import prepare
from routing.prompts.messages import MARK, MAX_PIECES, ContentFormat
from routing.prompts.prepare import VALUE_CHARACTERS, Conversation, Cut, Ids, Text, within
from routing.prompts.types import NoTokens
from tests.routing.prompts.cases import by_hand, generated

USER = {"role": "user", "content": "Hi"}
MANY = 10_000_000
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def chat(content_format: str = "string", *, knows_developer: bool = True, **body: Any) -> Conversation | NoTokens:
    asked = {"messages": [USER], **body}
    return prepare.chat(asked, content_format=content_format, knows_developer=knows_developer, max_characters=MANY)  # type: ignore[arg-type]


def messages(*given: dict[str, Any], content_format: str = "string", knows_developer: bool = True) -> list[dict[str, Any]]:
    prepared = chat(content_format, knows_developer=knows_developer, messages=list(given))
    assert isinstance(prepared, Conversation)
    return prepared.messages


@pytest.mark.parametrize("case", [*by_hand(), *generated(20)], ids=lambda case: case.name)
def test_a_body_is_not_changed(case: Any) -> None:
    before = copy.deepcopy(case.body)
    prepare.completion(case.body)
    for content_format in get_args(ContentFormat):
        prepare.chat(case.body, content_format=content_format, knows_developer=False, max_characters=MANY)
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


@pytest.mark.parametrize("other", [1, 0, 1.0, "yes", "true", []])
@pytest.mark.parametrize("place", ["strict", "defer_loading", "defer_loading beside"])
def test_a_flag_of_a_tool_is_true_or_false(place: str, other: object) -> None:
    """The engine's own schema makes one of them of other words, and writes that."""
    name, beside = place.partition(" ")[0], place.endswith("beside")

    def asked(flag: object) -> Conversation | NoTokens:
        flags = {name: flag}
        return chat(tools=[{"type": "function", "function": {"name": "f", **({} if beside else flags)}, **(flags if beside else {})}])

    assert asked(other) == NoTokens("request")
    for flag in (True, False, None):
        assert isinstance(asked(flag), Conversation)


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


HI = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}


def _calling(calls: list[Any]) -> list[dict[str, Any]]:
    return [HI, {"role": "assistant", "content": None, "tool_calls": calls}]


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize(
    "of",
    [
        lambda pieces: {"messages": [HI] * pieces},
        lambda pieces: {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * (pieces - 1)}]},
        lambda pieces: {"messages": _calling([CALL] * (pieces - 2))},
        lambda pieces: {"messages": [HI], "tools": [TOOL] * (pieces - 1)},
        lambda pieces: {"messages": _calling([CALL] * (pieces - 3)), "tools": [TOOL]},
    ],
    ids=["messages", "parts", "tool calls", "tools", "together"],
)
def test_a_conversation_of_very_many_pieces_goes_without_tokens(of: Callable[[int], dict[str, Any]], over: int) -> None:
    made = chat(**of(MAX_PIECES + over))
    assert isinstance(made, NoTokens) is bool(over)
    assert not over or made == NoTokens("too_long")


def _extent(value: object) -> int:
    """What a value counts, said plainly."""
    if isinstance(value, list):
        return VALUE_CHARACTERS + len(value) + sum(map(_extent, value))
    if isinstance(value, dict):
        arguments = value.get("arguments")
        signs = [one for one in arguments if one in ",[{"] if isinstance(arguments, str) else []
        return VALUE_CHARACTERS * (1 + len(signs)) + len(value) + sum(map(len, value)) + sum(map(_extent, value.values()))
    return VALUE_CHARACTERS + (len(value) if isinstance(value, str) else 0)


_names = st.sampled_from(["arguments", "function", "content", "a"])
_leaves = st.none() | st.booleans() | st.integers() | st.text(",[{}]x", max_size=8)
_values = st.recursive(_leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3))


@given(_values, st.sampled_from(["messages", "tools", "documents", "chat_template_kwargs"]))
def test_all_that_a_template_is_given_counts(value: object, member: str) -> None:
    """Every value, text and name, and the values in arguments of tool calls before these are read. What no template sees counts for nothing."""
    extent = 3 * VALUE_CHARACTERS + _extent(value)
    assert within({member: value}, extent)
    assert not within({member: value}, extent - 1)
    assert within({"metadata": value}, 4 * VALUE_CHARACTERS)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "x" * 4000}]},
        {"messages": _calling([CALL | {"function": {"name": "f", "arguments": '{"a": "' + "x" * 4000 + '"}'}}])},
        {"messages": _calling([CALL | {"function": {"name": "f", "arguments": '{"a": [' + "[]," * 200 + "0]}"}}])},
        {"messages": _calling([CALL | {f"k{number}": 0 for number in range(300)}])},
        {"messages": [HI], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": [[]] * 300}}}]},
        {"messages": [HI], "documents": [{"text": "x" * 4000}]},
        {"messages": [HI], "chat_template_kwargs": {"a": [[]] * 300}},
    ],
    ids=["text", "arguments", "lists in arguments", "members", "tools", "documents", "variables"],
)
def test_a_conversation_over_its_bound_goes_without_tokens(body: dict[str, Any]) -> None:
    """The control has room for it."""
    asked = partial(prepare.chat, body, content_format="string", knows_developer=True)
    assert asked(max_characters=4000) == NoTokens("too_long")
    assert isinstance(asked(max_characters=20_000), Conversation)
