"""The stock ``openai`` client sees an OpenAI server: answers, streams, models, and errors as its own exceptions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from tests.fakes.replica import Script, chunk
from tests.fakes.rig import KEY_A, Rig


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key=KEY_A, max_retries=0) as made:
        yield made


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="m-7b", messages=[{"role": "user", "content": "hi"}])
    assert answer.choices[0].message.content == "hello"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 12


@pytest.mark.parametrize("asked", [True, False])
async def test_stream(client: openai.AsyncOpenAI, asked: bool) -> None:
    stream = await client.chat.completions.create(
        model="m-7b",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True} if asked else openai.omit,
    )
    chunks = [one async for one in stream]
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == "hello"
    assert [one.usage.completion_tokens for one in chunks if one.usage] == ([2] if asked else [])


async def test_completion(client: openai.AsyncOpenAI, rig: Rig) -> None:
    body = {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "m-7b",
        "choices": [{"index": 0, "text": "ok", "finish_reason": "stop"}],
    }
    rig.a.script = rig.b.script = Script(body=body)
    answer = await client.completions.create(model="m-7b", prompt="hi")
    assert answer.choices[0].text == "ok"


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["m-7b"]
    assert (await client.models.retrieve("m-7b")).owned_by == "acme"


async def test_a_wrong_key_is_an_authentication_error(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as raised:
        await client.with_options(api_key="sk-wrong").models.list()
    assert raised.value.code == "invalid_api_key"


async def test_an_unknown_model_is_a_not_found_error(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        await client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "hi"}])
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")


async def test_a_body_that_is_not_json_is_a_bad_request(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await client.post("/chat/completions", cast_to=object, content=b"{not json")
    assert raised.value.type == "invalid_request_error"


async def test_a_stream_that_breaks_raises_while_it_is_read(client: openai.AsyncOpenAI, rig: Rig) -> None:
    rig.a.script = rig.b.script = Script(sse=[chunk("one "), chunk("two ")], then="rst")
    stream = await client.chat.completions.create(model="m-7b", messages=[{"role": "user", "content": "hi"}], stream=True)
    got: list[str | None] = []

    async def read() -> None:
        async for one in stream:
            got.append(one.choices[0].delta.content)  # noqa: PERF401 - what came before the error is the point

    with pytest.raises(openai.APIError):
        await read()
    assert got == ["one ", "two "]
