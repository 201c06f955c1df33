"""The HTTP side of a replica, where it answers: chat and completions, streamed and whole, with the faults that a test asks for."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from routing.simulator import answers
from routing.simulator.answers import Answer, to_json
from routing.simulator.config import Faults
from routing.simulator.errors import ApiError, busy, engine_dead, unsupported_media_type
from routing.simulator.ranks import Ranks
from routing.simulator.replica import Generation, Replica
from routing.simulator.requests import Call, Kind, parse_call, parse_object

REPLICA = web.AppKey("replica", Replica)  # the first rank: what all ranks have in common is asked of it
RANKS = web.AppKey("ranks", Ranks)
_LOAD_FORMATS = ("JSON", "TEXT")


def to_answer(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A body of JSON."""
    return web.Response(body=to_json(value), status=status, headers=headers, content_type="application/json")


async def chat_completions(request: web.Request) -> web.StreamResponse:
    return await _complete(request, "chat")


async def completions(request: web.Request) -> web.StreamResponse:
    return await _complete(request, "completion")


async def _complete(request: web.Request, kind: Kind) -> web.StreamResponse:
    replica = request.app[RANKS].of(request.headers, asyncio.get_running_loop().time())
    faults = replica.faults
    replica.inflight += 1
    try:
        if faults.status is not None:
            raise busy() if faults.status == 503 else ApiError(faults.status, "Simulated failure.", kind="InternalServerError")
        call = await parsed(request, kind, replica)
        headers = _answer_headers(replica, request, call)
        if faults.reject_in_stream:
            if not call.stream:
                raise busy()
            return await _stream(request, _only(answers.error_event(busy().body())), faults, headers)
        if replica.transfers is not None and call.fetches and call.transfer is not None:
            await replica.transfers.fetch(call.transfer)
        generation = replica.generate(call)
        try:
            answer = Answer(call, generation.choices, faults, answer_id=answer_id(call), created=int(time.time()))
            if call.stream:
                return await _stream(request, _events(call, generation, answer, faults), faults, headers)
            return await _whole(request, replica, generation, answer, headers)
        finally:
            generation.close()
    finally:
        replica.inflight -= 1


async def sent_object(request: web.Request) -> dict[str, Any]:
    """The object that was sent. vLLM takes nothing that is not declared as JSON, on any route."""
    if request.content_type != "application/json":
        raise unsupported_media_type()
    return parse_object(await request.read())


async def parsed(request: web.Request, kind: Kind, replica: Replica) -> Call:
    """The call that was sent; where it is refused, so is the prompt that another engine holds for it."""
    body = await sent_object(request)
    try:
        return parse_call(kind, body, request.headers, replica.config, replica.tokenizer)
    except ApiError:
        params = body.get("kv_transfer_params")
        if replica.transfers is not None and isinstance(params, dict) and params.get("do_remote_prefill") is True:
            await replica.transfers.refuse(params)
        raise


def answer_id(call: Call) -> str:
    """The id that the answer carries."""
    prefix = "chatcmpl" if call.kind == "chat" else "cmpl"
    return f"{prefix}-{call.request_id or uuid.uuid4().hex[:16]}"


def _answer_headers(replica: Replica, request: web.Request, call: Call) -> dict[str, str]:
    headers: dict[str, str] = {}
    if replica.config.echo_request_id:
        headers["X-Request-Id"] = request.headers.get("X-Request-Id") or uuid.uuid4().hex
    load_format = request.headers.get("endpoint-load-metrics-format", "").upper()
    if load_format in _LOAD_FORMATS and not call.stream:
        stats = replica.engine.stats()
        named = {"num_requests_waiting": float(stats.waiting), "kv_cache_usage_perc": stats.usage}
        if load_format == "JSON":
            shown = ", ".join(f'"{name}": {value}' for name, value in named.items())
            headers["endpoint-load-metrics"] = f'JSON {{"named_metrics": {{{shown}}}}}'
        else:
            headers["endpoint-load-metrics"] = "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in named.items())
    return headers


async def _whole(request: web.Request, replica: Replica, generation: Generation, answer: Answer, headers: dict[str, str]) -> web.StreamResponse:
    faults = replica.faults
    if faults.finish_with_abort:
        return to_answer(answer.aborted_body(), headers=headers)
    while generation.unfinished:
        await generation.next()
    await asyncio.sleep(faults.first_byte_delay_s)
    if faults.die_after_chunks is not None:
        await _cut(request)
    if faults.error_after_chunks is not None:
        raise engine_dead()
    _hand_over(replica, generation, answer)
    return to_answer(answer.body(), headers=headers)


def _hand_over(replica: Replica, generation: Generation, answer: Answer) -> None:
    """Say where the prompt's blocks are, if they are held for somebody."""
    blocks = replica.engine.held_blocks(generation.engine_ids[0])
    if replica.transfers is not None and blocks:
        choice = generation.choices[0]
        generation.handed = True
        answer.handed = replica.transfers.hand_over(
            answer.id, generation.engine_ids[0], blocks=blocks, prompt_tokens=len(choice.prompt), cached_tokens=choice.cached_tokens
        )


async def _events(call: Call, generation: Generation, answer: Answer, faults: Faults) -> AsyncIterator[bytes]:
    """The stream's events without the final [DONE]."""
    if faults.finish_with_abort:
        yield answer.aborted()
        return
    try:
        while generation.unfinished:
            choice, text = await generation.next()
            if call.kind == "chat" and len(choice.token_ids) == 1:
                yield answer.role_chunk(choice)
            yield answer.token_chunk(choice, text)
    except ApiError as error:
        yield answers.error_event(error.body())
        return
    if call.include_usage:
        yield answer.usage_chunk()


async def _only(event: bytes) -> AsyncIterator[bytes]:
    yield event


async def _stream(request: web.Request, events: AsyncIterator[bytes], faults: Faults, headers: dict[str, str]) -> web.StreamResponse:
    """Send the headers at once and each event as it comes; the status is 200 whatever happens later."""
    reply = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8", **headers})
    await reply.prepare(request)
    sent = 0
    async for event in events:
        if sent == 0:
            await asyncio.sleep(faults.first_byte_delay_s)
        if sent == faults.die_after_chunks:
            await _cut(request)
        if sent == faults.error_after_chunks:
            await reply.write(answers.error_event(engine_dead().body()))
            break
        await reply.write(event)
        sent += 1
    await reply.write(answers.DONE)
    await reply.write_eof()
    return reply


async def _cut(request: web.Request) -> None:
    """Reset the connection in the middle of an answer. The lost connection then cancels this handler."""
    if request.transport is not None:
        request.transport.abort()
    await asyncio.Event().wait()
