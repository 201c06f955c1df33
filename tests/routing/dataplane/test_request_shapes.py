"""What arrives at the engine is what the client wrote, except for what is ours; what nobody can read safely is refused with the member named."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest

from tests.fakes.replica import Script
from tests.fakes.rig import HI, KEY_A, Rig, bumped, endpoint
from tests.routing.dataplane.conftest import MakeRig

CHAT = "/v1/chat/completions"


async def test_null_content_of_a_tool_call_turn_arrives_as_null(rig: Rig) -> None:
    messages = [
        {"role": "user", "content": "time?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
    ]
    reply = await rig.chat({"model": "m-7b", "messages": messages})
    assert reply.status == 200
    assert rig.received()["messages"] == messages
    assert rig.served() == 1


async def test_unknown_fields_arrive_unchanged(rig: Rig) -> None:
    sent = {
        **HI,
        "chat_template_kwargs": {"enable_thinking": False},
        "top_k": 40,
        "min_p": 0.05,
        "structured_outputs": {"regex": "a+"},
        "logit_bias": {"42": -100},
        "x_vendor": {"deep": [1, {"k": None}]},
        "user": "u-1",
    }
    await rig.chat(sent)
    received = rig.received()
    assert received.pop("cache_salt").startswith("sr1-")
    assert received == sent


async def test_untouched_members_are_byte_identical_and_in_order(rig: Rig) -> None:
    schema = b'{"type":"json_schema","json_schema":{"schema":{"properties":{"zebra":{},"apple" : {},"mango":{}}}}}'
    body = (
        b'{"model":"m-7b","messages":[{"role":"user","content":"hi"}],"seed":9007199254740993,"temperature":0.10,"response_format":' + schema + b"}"
    )
    for _ in range(2):
        assert (await rig.chat(body=body)).status == 200
    first, second = (received.body for received in [*rig.a.requests, *rig.b.requests])
    assert first == second
    assert first.startswith(body[:-1] + b',"cache_salt":"')


async def test_a_tool_schema_with_our_names_in_it_arrives_byte_identical(rig: Rig) -> None:
    inner = b'{"cache_salt": {"type":"string"}, "priority":{}, "request_id":{}, "kv_transfer_params":{}}'
    tools = b'[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":' + inner + b"}}}]"
    body = (
        b'{"model":"m-7b","messages":[{"role":"user","content":"hi","cache_salt":"kept"}],"tools":'
        + tools
        + b',"metadata":{"priority":"1"},"response_format":'
        + inner
        + b"}"
    )
    await rig.chat(body=body)
    (received,) = [*rig.a.requests, *rig.b.requests]
    assert tools in received.body
    assert b'"response_format":' + inner in received.body
    assert b'"metadata":{"priority":"1"}' in received.body
    assert b'"content":"hi","cache_salt":"kept"' in received.body


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"model":"m-7b","messages":[{"role":"user","content":"hi"}],"model":"m-secret"}', "model"),
        (b'{"model":"m-secret","messages":[{"role":"user","content":"hi"}],"model":"m-7b"}', "model"),
        (b'{"model":"m-7b","cache_salt":"x","cache_salt":"y","messages":[{"role":"user","content":"hi"}]}', "cache_salt"),
        (b'{"model":"m-7b","cache_salt":"x","cache\\u005fsalt":"y","messages":[{"role":"user","content":"hi"}]}', "cache_salt"),
        (b'{"model":"m-7b","messages":[{"role":"user","role":"system","content":"hi"}]}', "role"),
    ],
)
async def test_a_member_named_twice_at_any_depth_is_refused_by_name(rig: Rig, body: bytes, param: str) -> None:
    reply = await rig.chat(body=body)
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    assert reply.error["param"] == param
    assert rig.served() == 0


async def test_a_lone_surrogate_is_refused_and_a_pair_goes_through(rig: Rig) -> None:
    """POLICY: refused with 400, as engines do; never 500."""
    lone = await rig.chat(body=b'{"model":"m-7b","messages":[{"role":"user","content":"broken \\ud83d emoji"}]}')
    assert lone.status == 400
    assert lone.error["type"] == "invalid_request_error"
    pair = await rig.chat(body=b'{"model":"m-7b","messages":[{"role":"user","content":"fine \\ud83d\\ude42"}]}')
    assert pair.status == 200
    assert rig.received()["messages"][0]["content"] == "fine \U0001f642"
    assert [record.status for record in rig.records()] == [400, 200]


@pytest.mark.parametrize(
    "body", [b'"hello"', b"[]", b"42", b"null", b"", b"{", b'{"a":NaN}', b"\xef\xbb\xbf{}", b'{"a":"\xff"}', b'{"a":' + b"[" * 100_000]
)
async def test_a_body_that_is_no_object_is_a_400(rig: Rig, body: bytes) -> None:
    reply = await rig.chat(body=body)
    assert reply.status == 400
    assert set(reply.error) == {"message", "type", "param", "code"}
    assert reply.error["type"] == "invalid_request_error"
    assert rig.served() == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "model"),
        ({"model": 17, "messages": []}, "model"),
        ({"model": "", "messages": []}, "model"),
        ({"model": "m-7b"}, "messages"),
        ({"model": "m-7b", "messages": []}, "messages"),
        ({"model": "m-7b", "messages": ["hi"]}, "messages[0]"),
        ({"model": "m-7b", "messages": "hi"}, "messages"),
        ({**HI, "stream": "yes"}, "stream"),
        ({**HI, "stream": True, "stream_options": []}, "stream_options"),
    ],
)
async def test_a_wrong_shape_names_the_member(rig: Rig, body: object, param: str) -> None:
    reply = await rig.chat(body)
    assert (reply.status, reply.error["param"]) == (400, param)
    assert rig.served() == 0


@pytest.mark.parametrize("prompt", ["text", ["a", "b"], [1, 2, 3], [[1, 2], [3]]])
async def test_every_prompt_form_of_a_completion_arrives_as_it_was(rig: Rig, prompt: object) -> None:
    reply = await rig.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": prompt})
    assert reply.status == 200
    assert rig.received()["prompt"] == prompt


@pytest.mark.parametrize("prompt", [None, 7, [], [1, "a"], [True], [[]], [[1], "a"]])
async def test_any_other_prompt_is_a_400(rig: Rig, prompt: object) -> None:
    reply = await rig.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": prompt})
    assert (reply.status, reply.error["param"]) == (400, "prompt")


async def test_a_three_megabyte_image_arrives_whole(rig: Rig) -> None:
    url = "data:image/png;base64," + "A" * (3 * 1024 * 1024)
    content = [{"type": "text", "text": "what is this"}, {"type": "image_url", "image_url": {"url": url}}]
    reply = await rig.chat({"model": "m-7b", "messages": [{"role": "user", "content": content}]})
    assert reply.status == 200
    arrived = rig.received()["messages"][0]["content"][1]["image_url"]["url"]
    assert hashlib.sha256(arrived.encode()).digest() == hashlib.sha256(url.encode()).digest()
    assert rig.records()[0].estimated_prompt_tokens < 1000  # a picture is not a million tokens of text


async def test_a_body_over_the_bound_is_a_413_in_our_shape(make_rig: MakeRig) -> None:
    small = await make_rig(max_body_bytes=2000)
    announced = await small.chat({**HI, "user": "x" * 3000})
    assert (announced.status, announced.error["code"]) == (413, "request_too_large")

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b" " * 100

    async with small.client.post(f"{small.url}{CHAT}", data=pieces(), headers={"Authorization": f"Bearer {KEY_A}"}) as answer:
        assert answer.status == 413
    assert small.served() == 0


async def test_expect_continue_is_answered_before_the_body_is_sent(rig: Rig) -> None:
    body = b'{"model":"m-7b","messages":[{"role":"user","content":"hi"}]}'
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.router.port)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer {KEY_A}\r\nContent-Type: application/json\r\n"
        f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    )
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.close()
    (received,) = [*rig.a.requests, *rig.b.requests]
    assert "expect" not in received.headers


async def test_expect_continue_with_a_wrong_key_is_refused_without_the_body(rig: Rig) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.router.port)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer wrong\r\nExpect: 100-continue\r\nContent-Length: 5000000\r\n\r\n".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 401 ")
    assert b"100 Continue" not in head


async def test_a_chunked_body_is_sent_on_with_its_true_length(rig: Rig) -> None:
    body = b'{"model":"m-7b",' + b" " * 500 + b'"messages":[{"role":"user","content":"hi"}]}'

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 3):
            yield body[start : start + 3]

    async with rig.client.post(f"{rig.url}{CHAT}", data=pieces(), headers={"Authorization": f"Bearer {KEY_A}"}) as answer:
        assert answer.status == 200
    (received,) = [*rig.a.requests, *rig.b.requests]
    assert "transfer-encoding" not in received.headers
    assert int(received.headers["content-length"]) == len(received.body)
    assert received.json["cache_salt"] == rig.namespace().salt


@pytest.mark.parametrize("extra", [{}, {"stream": False}, {"stream": None}])
async def test_stream_options_are_never_added_to_a_call_that_does_not_stream(rig: Rig, extra: dict[str, object]) -> None:
    assert (await rig.chat({**HI, **extra})).status == 200
    assert "stream_options" not in rig.received()


@pytest.mark.parametrize(
    ("path", "canonical"),
    [("/v1/v1/chat/completions", CHAT), ("/v1//chat/completions", CHAT), ("/chat/completions", CHAT), ("/V1/Chat/Completions", CHAT)],
)
async def test_a_near_miss_is_a_404_that_names_the_url(rig: Rig, path: str, canonical: str) -> None:
    """POLICY: not served, not redirected."""
    reply = await rig.call("POST", path, json=HI)
    assert (reply.status, reply.error["code"]) == (404, "unknown_url")
    assert canonical in reply.error["message"]
    assert rig.served() == 0


async def test_a_trailing_slash_is_forgiven(rig: Rig) -> None:
    """POLICY: served as the canonical path."""
    assert (await rig.call("POST", CHAT + "/", json=HI)).status == 200
    assert (await rig.call("GET", "/v1/models/")).status == 200


async def test_a_wrong_method_says_which_is_right(rig: Rig) -> None:
    reply = await rig.call("GET", CHAT)
    assert (reply.status, reply.error["code"], reply.headers["Allow"]) == (405, "method_not_allowed", "POST, OPTIONS")


async def test_preflight_needs_no_key_and_every_answer_carries_the_origin(make_rig: MakeRig) -> None:
    rig = await make_rig(cors_origins=("https://chat.example",))
    asked = "authorization,content-type,x-stainless-lang,x-stainless-retry-count"
    good = {"Origin": "https://chat.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked}
    preflight = await rig.call("OPTIONS", CHAT, key=None, headers=good)
    assert preflight.status == 204
    assert preflight.headers["Access-Control-Allow-Origin"] == "https://chat.example"
    assert {name.strip() for name in preflight.headers["Access-Control-Allow-Headers"].split(",")} == set(asked.split(","))
    refused = await rig.chat(key="wrong", headers={"Origin": "https://chat.example"})
    assert refused.status == 401
    assert refused.headers["Access-Control-Allow-Origin"] == "https://chat.example"
    evil = await rig.call("OPTIONS", "/v1/models", key=None, headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "GET"})
    assert "Access-Control-Allow-Origin" not in evil.headers
    assert rig.served() == 0
    assert rig.records() == []


async def test_slashes_and_colons_in_model_names_survive_every_spelling(rig: Rig) -> None:
    name = "acme/tuner:v2"
    rig.publish(bumped(rig.acme, endpoints=(*rig.acme.endpoints, endpoint(rig.acme.pools[0], name))))
    assert (await rig.chat({**HI, "model": name})).status == 200
    assert rig.received()["model"] == name
    listed = await rig.call("GET", "/v1/models")
    assert [entry["id"] for entry in listed.json["data"]] == [name, "m-7b"]
    for path in ("/v1/models/acme/tuner:v2", "/v1/models/acme%2Ftuner%3Av2"):
        found = await rig.call("GET", path)
        assert (found.status, found.json["id"]) == (200, name)


async def test_the_engines_name_goes_out_and_the_clients_name_comes_back(rig: Rig) -> None:
    """POLICY: the response's ``model`` is what the client asked for; where both names are equal not a byte is touched."""
    rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0], "fast", served_model="m-7b"),)))
    whole = await rig.chat({**HI, "model": "fast"})
    assert whole.json["model"] == "fast"
    stream = await rig.chat({**HI, "model": "fast", "stream": True})
    assert b'"model":"fast"' in stream.body
    assert b"m-7b" not in stream.body
    assert {received.json["model"] for received in [*rig.a.requests, *rig.b.requests]} == {"m-7b"}


async def test_a_long_answer_gets_the_clients_name_without_being_taken_apart(rig: Rig) -> None:
    """A megabyte may have a hundred thousand members. The control is short, so its members are read, and written without the blanks between them."""
    rig.only_a()
    rig.publish(bumped(rig.acme, endpoints=(endpoint(rig.acme.pools[0], "fast", served_model="m-7b"),)))
    for size, blank in ((2 * 1024 * 1024, b" "), (1000, b"")):
        body = b'{"id": "x", "model": "m-7b", "choices": [{"index": 0, "message": {"content": "%s"}}]}' % (b"x" * size)
        rig.a.on_path["/v1/chat/completions"] = Script(body=body, headers={"Content-Type": "application/json"})
        answer = await rig.chat({**HI, "model": "fast"})
        assert answer.json["model"] == "fast"
        assert answer.body.startswith(b'{"id":%s"x",%s"model":%s"fast",%s"choices"' % (blank, blank, blank, blank))


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/x.png", "file:///etc/passwd", "http://10.0.0.1/a.png", "https://10.0.0.1/a.png", "https://other.example/a"]
)
async def test_media_an_engine_would_fetch_from_inside_is_refused(make_rig: MakeRig, url: str) -> None:
    rig = await make_rig(media_hosts=("media.acme.example",))
    for content in (
        [{"type": "image_url", "image_url": {"url": url}}],
        [{"type": "tool_result", "content": [{"type": "video_url", "video_url": url}]}],
    ):
        reply = await rig.chat({"model": "m-7b", "messages": [{"role": "user", "content": content}]})
        assert (reply.status, reply.error["param"]) == (400, "messages")
        assert url not in reply.body.decode()
    assert rig.served() == 0


@pytest.mark.parametrize("url", ["https://media.acme.example/a.png", "data:image/png;base64,iVBORw0KGgo="])
async def test_media_inline_or_from_a_listed_host_goes_through_unchanged(make_rig: MakeRig, url: str) -> None:
    rig = await make_rig(media_hosts=("media.acme.example",))
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    assert (await rig.chat({"model": "m-7b", "messages": messages})).status == 200
    assert rig.received()["messages"] == messages
