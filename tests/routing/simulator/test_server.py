"""The HTTP side over real sockets: caching, streams, disconnects, refusals, switches."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import aiohttp
import openai
import pytest

from routing.simulator.config import Adapter
from tests.routing.simulator.wire import RECORDED, RECORDED_ENGINE, SLOW_DECODE, Wire, eventually, sse, wired

DOCUMENT = "The refund policy says that customers may return goods within thirty days of purchase if unopened. " * 8


def cached(body: dict[str, Any]) -> int:
    tokens: int = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


async def test_second_turn_hits_the_first_turn_and_its_answer() -> None:
    """Sent back as text, as clients do: the answer's tokens are the same again, so its full blocks are found."""
    async with wired() as wire:
        first = await wire.chat(DOCUMENT, max_tokens=100, ignore_eos=True)
        said = first["choices"][0]["message"]["content"]
        messages = [{"role": "user", "content": DOCUMENT}, {"role": "assistant", "content": said}, {"role": "user", "content": "Why?"}]
        status, second = await wire.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
    assert status == 200
    known = first["usage"]["total_tokens"] - 1  # the last sampled token has no KV
    assert cached(second) == known // 32 * 32


async def test_same_prompt_has_the_same_answer() -> None:
    """A demo that can be repeated; another seed says something else."""
    async with wired() as wire:
        texts = [(await wire.chat("Tell me.", max_tokens=12, **more))["choices"][0]["message"]["content"] for more in ({}, {}, {"seed": 7})]
    assert texts[0] == texts[1] != texts[2]


async def test_salts_keep_tenants_apart() -> None:
    """The identical prompt is cold for another salt, warm for its own."""
    async with wired() as wire:
        hits = [cached(await wire.chat(DOCUMENT, cache_salt=salt)) > 0 for salt in ("a", "a", "b", "b")]
    assert hits == [False, True, False, True]


async def test_xargs_and_headers_do_not_set_the_salt() -> None:
    """Only the body's cache_salt counts, as in the recorded engine."""
    async with wired() as wire:
        await wire.chat(DOCUMENT)
        status, body = await wire.post(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": DOCUMENT}], "max_tokens": 1, "vllm_xargs": {"cache_salt": "x"}},
            **{"X-Cache-Salt": "x"},
        )
    assert status == 200
    assert cached(body) > 0


async def test_several_prompts_report_the_last_ones_hit() -> None:
    """prompt_tokens is the sum; cached_tokens is the last prompt's alone."""
    known, other = list(range(2000, 2100)), list(range(5000, 5100))
    async with wired() as wire:
        await wire.post("/v1/completions", {"prompt": known, "max_tokens": 1})
        _, first = await wire.post("/v1/completions", {"prompt": [known, list(range(7000, 7100))], "max_tokens": 1})
        _, last = await wire.post("/v1/completions", {"prompt": [other, known], "max_tokens": 1})
    assert (first["usage"]["prompt_tokens"], cached(first)) == (200, 0)
    assert (last["usage"]["prompt_tokens"], cached(last)) == (200, 96)


async def test_render_tells_the_ids_that_are_used() -> None:
    """/tokenize, the render route, the answer and the KV event speak of the same tokens."""
    parts = [{"type": "text", "text": text} for text in ("One.", "Two.")]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    async with wired() as wire:
        _, tokenized = await wire.post("/tokenize", {"messages": messages})
        _, rendered = await wire.post("/v1/chat/completions/render", {"messages": messages, "cache_salt": "tA", "max_tokens": 1})
        _, answer = await wire.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1, "return_token_ids": True})
    assert tokenized["tokens"] == rendered["token_ids"] == answer["prompt_token_ids"]
    assert tokenized["count"] == answer["usage"]["prompt_tokens"]
    assert rendered["cache_salt"] == "tA"


async def test_headers_leave_before_the_first_token_exists() -> None:
    """Time to first token is the first body byte, never the headers."""
    async with wired() as wire:
        await wire.post("/pause", {})
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "stream": True}
        async with wire.session.post(wire.running.url + "/v1/chat/completions", json=body) as answer:
            assert answer.status == 200  # although the engine stands still
            await wire.post("/resume", {})
            events = sse((await answer.read()).decode())
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-1] == "[DONE]"


@pytest.mark.parametrize("streaming", [False, True])
async def test_mode_first_byte_delay_changes_nothing_but_time(streaming: bool) -> None:
    """The same answer, later."""
    async with wired() as wire:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "stream": streaming}
        at_once = await wire.post("/v1/chat/completions", body)
        await wire.mode(first_byte_delay_s=0.01)
        later = await wire.post("/v1/chat/completions", body)
    assert len(str(later)) == len(str(at_once))


async def test_client_that_leaves_a_stream_aborts_the_request() -> None:
    """Nothing runs on, the prompt stays cached, and no finished request is counted."""
    async with wired(SLOW_DECODE) as wire:
        engine = wire.running.replica.engine
        body = {"messages": [{"role": "user", "content": DOCUMENT}], "max_tokens": 3000, "ignore_eos": True, "stream": True}
        async with wire.session.post(wire.running.url + "/v1/chat/completions", json=body) as answer:
            await answer.content.readany()
            assert engine.unfinished_requests == 1
            answer.close()
        await eventually(lambda: not engine.has_work)
        assert engine.pool.used_blocks == 0
        assert cached(await wire.chat(DOCUMENT, max_tokens=1)) > 0
        _, metrics = await wire.get("/metrics")
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in metrics
    assert 'finished_reason="abort",model_name="tiny"} 0.0' in metrics


async def test_client_that_leaves_a_whole_answer_aborts_the_request() -> None:
    """Without a stream too."""
    async with wired(SLOW_DECODE) as wire:
        engine = wire.running.replica.engine
        task = asyncio.create_task(wire.chat(DOCUMENT, max_tokens=3000, ignore_eos=True))
        await eventually(lambda: engine.unfinished_requests == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: not engine.has_work)
        assert wire.running.replica.inflight == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_full_queue_is_a_503(stream: bool) -> None:
    """Counted, without Retry-After, and other requests go on."""
    async with wired(replace(SLOW_DECODE, max_num_queued_reqs=1)) as wire:
        running = asyncio.create_task(wire.chat("Hi", max_tokens=3000, ignore_eos=True))
        await eventually(lambda: wire.running.replica.engine.unfinished_requests == 1)
        body = {"messages": [{"role": "user", "content": "Hi"}], "stream": stream}
        async with wire.session.post(wire.running.url + "/v1/chat/completions", json=body) as answer:
            assert answer.status == 503
            assert "Retry-After" not in answer.headers
            refusal = await answer.json()
        _, metrics = await wire.get("/metrics")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert refusal["error"]["type"] == "Service Unavailable"
    assert 'vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 1.0' in metrics


async def test_prefill_backlog_is_a_503() -> None:
    """The token limit counts whole prompts that have produced nothing yet."""
    async with wired(replace(RECORDED, max_num_queued_tokens=100)) as wire:
        await wire.post("/pause", {})
        waiting = asyncio.create_task(wire.chat(DOCUMENT))
        await eventually(lambda: wire.running.replica.engine.unfinished_requests == 1)
        status, body = await wire.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        await wire.post("/resume", {})
        await waiting
    assert status == 503
    assert "prefill token backlog" in body["error"]["message"]


async def test_paused_replica_looks_healthy_and_answers_nobody() -> None:
    """Until it is resumed."""
    async with wired() as wire:
        await wire.post("/pause", {})
        waiting = asyncio.create_task(wire.chat("Hi"))
        await eventually(lambda: wire.running.replica.engine.has_work)
        assert (await wire.get("/health"))[0] == 200
        assert (await wire.get("/is_paused"))[1] == '{"is_paused":true}'
        assert (await wire.get("/load"))[1] == '{"server_load":1}'
        assert not waiting.done()
        await wire.post("/resume", {})
        assert (await waiting)["choices"][0]["finish_reason"] == "length"


async def test_requests_are_recorded_as_they_arrived() -> None:
    """Raw body and headers, bounded, so that a test can see which salts a router sent."""
    async with wired(replace(RECORDED, recorded_requests=3, recorded_body_bytes=200)) as wire:
        for salt in ("s0", "s1", "s2", "s3"):
            await wire.chat("Hi", cache_salt=salt)
        await wire.chat(DOCUMENT)
        _, text = await wire.get("/sim/requests")
        _, last = await wire.get("/sim/requests?last=1")
        assert len(wire.running.replica.requests) == 3
    rows = json.loads(text)
    assert [json.loads(row["body"])["cache_salt"] for row in rows[:2]] == ["s2", "s3"]
    assert ["content-type", "application/json"] in rows[0]["headers"]
    assert rows[2]["truncated"]
    assert len(rows[2]["body"]) == 200
    assert [row["number"] for row in json.loads(last)] == [5]


async def test_key_guards_the_model_routes_alone() -> None:
    """Metrics, tokenize and the event sources stay open, as in vLLM."""
    async with wired(replace(RECORDED, api_key="sekret")) as wire:
        refused = [(await wire.post("/v1/completions", {}))[0], (await wire.get("/v1/models"))[0]]
        opened = [(await wire.get(path))[0] for path in ("/metrics", "/health", "/kv_event_sources")]
        status, _ = await wire.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, Authorization="Bearer sekret")
    assert refused == [401, 401]
    assert opened == [200, 200, 200]
    assert status == 200


async def test_adapters_are_models_of_their_own() -> None:
    """Listed under their parent, separate in the cache, named by the answer."""
    config = replace(RECORDED, adapters=(Adapter("ad1", "/srv/ad1", 1), Adapter("ad2", "/srv/ad2", 2)))
    async with wired(config) as wire:
        _, listed = await wire.get("/v1/models")
        first, second, again = [await wire.chat(DOCUMENT, model=name) for name in ("ad1", "ad2", "ad1")]
        status, unknown = await wire.post("/v1/completions", {"model": "ad3", "prompt": "x"})
    rows = {row["id"]: (row["parent"], row["root"]) for row in json.loads(listed)["data"]}
    assert rows == {"tiny": (None, "tiny"), "ad1": ("tiny", "/srv/ad1"), "ad2": ("tiny", "/srv/ad2")}
    assert [cached(body) > 0 for body in (first, second, again)] == [False, False, True]
    assert first["model"] == "ad1"
    assert (status, unknown["error"]["message"]) == (404, "The model `ad3` does not exist. Valid aliases: tiny, ad1, ad2.")


@pytest.mark.parametrize(
    ("body", "reason", "text_ends"),
    [
        ({"max_tokens": 5}, "length", True),
        ({"max_tokens": 3000}, "stop", True),
        ({"max_tokens": 3000, "stop": ["."]}, "stop", False),
    ],
    ids=["length", "end of sequence", "stop string"],
)
async def test_finish_reasons(body: dict[str, Any], reason: str, text_ends: bool) -> None:
    """An answer ends at its limit, by itself, or before a stop string, which is left out and named."""
    async with wired() as wire:
        answer = await wire.chat("Say something.", **body)
        ask = {"messages": [{"role": "user", "content": "Say something."}], "stream": True, **body}
        streamed = sse((await wire.post("/v1/chat/completions", ask))[1])
    choice = answer["choices"][0]
    assert choice["finish_reason"] == reason
    assert choice["stop_reason"] == body.get("stop", [None])[0]
    assert (not choice["message"]["content"].endswith(".")) or text_ends
    parts = [event["choices"][0]["delta"]["content"] for event in streamed[:-1]]
    assert "".join(parts) == choice["message"]["content"]


async def test_context_that_is_nearly_full_shortens_the_answer() -> None:
    """Silently, with finish_reason length, as vLLM does."""
    async with wired() as wire:
        _, body = await wire.post("/v1/completions", {"prompt": list(range(2000, 6090)), "max_tokens": 100, "ignore_eos": True})
    assert (body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]) == (6, "length")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": ""}, "cannot be empty"),
        ({"prompt": [-1]}, "out of vocabulary"),
        ({"prompt": [10**9]}, "out of vocabulary"),
        ({"prompt": {"a": 1}}, "valid string"),
        ({"prompt": "x", "max_tokens": "many"}, "valid integer"),
        ({"prompt": "x", "temperature": "hot"}, "valid number"),
        ({"prompt": "x", "n": 0}, "at least 1"),
        ({"prompt": "x", "n": 10**6}, "at most"),
        ({"prompt": "x", "min_tokens": float("inf")}, "valid number"),
    ],
)
async def test_malformed_bodies_are_400(body: dict[str, Any], message: str) -> None:
    """Never a 500, whatever a client sends."""
    async with wired() as wire:
        status, answer = await wire.post("/v1/completions", body)
    assert status == 400
    assert message in answer["error"]["message"]


async def test_lone_surrogates_do_not_kill_the_engine() -> None:
    """In every field that is encoded again: the answer's id, the events' session, the refused model's name."""
    async with wired() as wire:
        body = {"prompt": list(range(2000, 2040)), "max_tokens": 1, "request_id": "a\ud800", "session_id": "b\udfff"}
        status, answer = await wire.post("/v1/completions", body)
        again, _ = await wire.post("/v1/completions", body)
        unknown, _ = await wire.post("/v1/completions", {"prompt": "x", "model": "\ud800"})
    assert (status, again, unknown) == (200, 200, 404)
    assert answer["id"] == "cmpl-a?"


async def test_dead_engine_is_a_500_and_not_a_hang(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake inside the loop fails what runs and what comes, and is logged."""
    async with wired() as wire:
        monkeypatch.setattr(wire.running.replica.engine, "step", None)
        running, _ = await wire.post("/v1/completions", {"prompt": "x"})
        later, body = await wire.post("/v1/completions", {"prompt": "x"})
    assert (running, later) == (500, 500)
    assert body["error"]["message"].startswith("EngineCore encountered an issue")
    assert "the simulated engine died" in caplog.text


async def test_body_that_is_not_utf8_is_400() -> None:
    """Nor for bytes that are no text."""
    async with wired() as wire:
        headers = {"Content-Type": "application/json"}
        async with wire.session.post(wire.running.url + "/v1/completions", data=b'{"prompt": "\xff"}', headers=headers) as answer:
            assert answer.status == 400


# -- misbehaviour ------------------------------------------------------------------------------------------------------


async def stream(wire: Wire) -> list[Any]:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "ignore_eos": True, "stream": True}
    status, text = await wire.post("/v1/chat/completions", body)
    assert status == 200
    return sse(text)


async def test_mode_status_refuses() -> None:
    """And can be switched off again while running."""
    async with wired() as wire:
        await wire.mode(status=503)
        refused, _ = await wire.post("/v1/completions", {"prompt": "x"})
        await wire.mode(status=None)
        served, _ = await wire.post("/v1/completions", {"prompt": "x"})
    assert (refused, served) == (503, 200)


async def test_mode_die_after_chunks_cuts_the_connection() -> None:
    """After so many events a stream breaks, and an answer without a stream never comes."""
    async with wired() as wire:
        await wire.mode(die_after_chunks=2)
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "ignore_eos": True, "stream": True}
        lines: list[bytes] = []

        async def read(answer: aiohttp.ClientResponse) -> None:
            while line := await answer.content.readline():
                lines.append(line)

        async with wire.session.post(wire.running.url + "/v1/chat/completions", json=body) as answer:
            with pytest.raises(aiohttp.ClientError):
                await read(answer)
        assert len([line for line in lines if line.startswith(b"data: ")]) == 2
        with pytest.raises(aiohttp.ClientError):
            await wire.chat("Hi")
        await eventually(lambda: wire.running.replica.inflight == 0)
        assert not wire.running.replica.engine.has_work


async def test_mode_error_after_chunks_looks_like_success() -> None:
    """vLLM's dying core: HTTP 200, an error event, [DONE], a clean end; 500 without a stream."""
    async with wired() as wire:
        await wire.mode(error_after_chunks=1)
        events = await stream(wire)
        status, whole = await wire.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert [list(event) if isinstance(event, dict) else event for event in events[1:]] == [["error"], "[DONE]"]
    assert events[1]["error"]["code"] == 500
    assert (status, whole["error"]["type"]) == (500, "InternalServerError")


async def test_mode_reject_in_stream() -> None:
    """vLLM's lost admission race: 200 with nothing but the 503 inside."""
    async with wired() as wire:
        await wire.mode(reject_in_stream=True)
        events = await stream(wire)
    assert events[0]["error"]["code"] == 503
    assert events[1:] == ["[DONE]"]


async def test_mode_finish_with_abort() -> None:
    """vLLM while draining: 200 and an empty answer."""
    async with wired() as wire:
        await wire.mode(finish_with_abort=True)
        choice = (await wire.chat("Hi"))["choices"][0]
        events = await stream(wire)
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "abort")
    assert events[0]["choices"][0]["finish_reason"] == "abort"


async def test_modes_of_cached_tokens() -> None:
    """Hidden and forged, in streams too; the cache itself is unimpressed."""
    async with wired() as wire:
        await wire.mode(hide_cached_tokens=True)
        hidden = await wire.chat(DOCUMENT)
        body = {"messages": [{"role": "user", "content": DOCUMENT}], "max_tokens": 1, "stream": True}
        body |= {"stream_options": {"include_usage": True}}
        hidden_stream = sse((await wire.post("/v1/chat/completions", body))[1])
        await wire.mode(hide_cached_tokens=False, forge_cached_tokens=77)
        forged = await wire.chat("Something new.")
        forged_stream = sse((await wire.post("/v1/chat/completions", body))[1])
    assert hidden["usage"]["prompt_tokens_details"] is None
    assert "prompt_tokens_details" not in hidden_stream[-2]["usage"]
    assert cached(forged) == 77
    assert cached(forged_stream[-2]) == 77


async def test_client_can_forge_cached_tokens() -> None:
    """kv_transfer_params on a plain engine: a router that lets the field through bills a lie."""
    async with wired() as wire:
        body = await wire.chat("Hi", kv_transfer_params={"do_remote_prefill": True, "remote_prefill_cached_tokens": 99999})
    assert cached(body) == 99999


async def test_salt_mode_can_be_broken_while_running() -> None:
    """An engine that stops reading salts shares between tenants."""
    async with wired() as wire:
        await wire.mode(salt_mode="ignore_salt")
        await wire.chat(DOCUMENT, cache_salt="a")
        leaked = cached(await wire.chat(DOCUMENT, cache_salt="b"))
    assert leaked > 0


@pytest.mark.parametrize("changes", [{"no_such_mode": 1}, {"salt_mode": "off"}, {"die_after_chunks": "x"}, {"status": 200}])
async def test_unknown_modes_are_refused(changes: dict[str, Any]) -> None:
    """And change nothing."""
    async with wired() as wire:
        _, before = await wire.get("/sim/mode")
        status, _ = await wire.post("/sim/mode", {"hide_cached_tokens": True} | changes)
        _, after = await wire.get("/sim/mode")
    assert status == 400
    assert before == after


async def test_stock_openai_client() -> None:
    """Chat, stream with usage, completions and models, as a customer calls them."""
    async with wired() as wire, openai.AsyncOpenAI(base_url=wire.running.url + "/v1", api_key="none") as client:
        chat = await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
        stream_of_chunks = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream_of_chunks]
        completion = await client.completions.create(model="tiny", prompt="Once", max_tokens=4)
        models = [model.id async for model in client.models.list()]
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "Hi"}])
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == chat.choices[0].message.content
    assert chunks[-1].usage is not None
    assert completion.choices[0].text
    assert models == ["tiny"]


async def test_concurrent_requests_share_a_batch() -> None:
    """Continuous batching: sixteen answers at once, within eight running sequences, all complete."""
    config = replace(RECORDED, engine=replace(RECORDED_ENGINE, blocks=160, max_num_batched_tokens=64))
    async with wired(config) as wire:
        bodies = await asyncio.gather(*(wire.chat(f"{number} {DOCUMENT}", max_tokens=40, ignore_eos=True) for number in range(16)))
        assert wire.running.replica.engine.pool.references() == 0
    assert [body["usage"]["completion_tokens"] for body in bodies] == [40] * 16
