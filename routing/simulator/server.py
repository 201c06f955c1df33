"""The HTTP side of a replica: vLLM's OpenAI-compatible routes, and a few of the simulator's own under /sim."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from routing.simulator import answers
from routing.simulator.answers import Answer, to_json
from routing.simulator.config import Faults
from routing.simulator.errors import ApiError, bad_request, busy, engine_dead, unsupported_media_type
from routing.simulator.metrics import render
from routing.simulator.ranks import Ranks
from routing.simulator.replica import Generation, RecordedRequest, Replica
from routing.simulator.requests import Call, Kind, checked_salt, parse_call, parse_object, rendered_chat, resolve_model

REPLICA = web.AppKey("replica", Replica)  # the first rank: what all ranks have in common is asked of it
RANKS = web.AppKey("ranks", Ranks)
MAX_BODY_BYTES = 64 * 1024 * 1024
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
_LOAD_FORMATS = ("JSON", "TEXT")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(*replicas: Replica) -> web.Application:
    """The application around a replica, or around all its data-parallel ranks. Run it with ``handler_cancellation=True``: a client that leaves
    aborts."""
    app = web.Application(middlewares=[_answer_like_vllm, _require_key], client_max_size=MAX_BODY_BYTES)
    app[RANKS] = Ranks(replicas)
    app[REPLICA] = app[RANKS].first
    app.on_response_prepare.append(_add_vary)
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat_completions),
            web.post("/v1/completions", completions),
            web.post("/v1/chat/completions/render", render_chat),
            web.post("/v1/completions/render", render_completions),
            web.get("/v1/models", models),
            web.post("/v1/load_lora_adapter", load_adapter),
            web.post("/v1/unload_lora_adapter", unload_adapter),
            web.post("/tokenize", tokenize),
            web.post("/detokenize", detokenize),
            web.get("/health", health),
            web.get("/ping", health),
            web.get("/version", version),
            web.get("/metrics", metrics),
            web.get("/load", load),
            web.get("/kv_event_sources", kv_event_sources),
            web.post("/reset_prefix_cache", reset_prefix_cache),
            web.post("/pause", pause),
            web.post("/resume", resume),
            web.get("/is_paused", is_paused),
            web.get("/sim/requests", sim_requests),
            web.get("/sim/mode", sim_mode),
            web.post("/sim/mode", sim_mode),
        ]
    )
    return app


@web.middleware
async def _answer_like_vllm(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Record what arrives; turn refusals and unknown paths into vLLM's bodies."""
    try:
        if request.method == "POST" and not request.path.startswith("/sim/"):
            headers = tuple((name.lower(), value) for name, value in request.headers.items())
            request.app[REPLICA].record(request.method, request.path, headers, await request.read())
        return await handler(request)
    except ApiError as error:
        return _json(error.body(), status=error.status)
    except web.HTTPNotFound:
        return _json({"detail": "Not Found"}, status=404)
    except web.HTTPMethodNotAllowed as error:
        return _json({"detail": "Method Not Allowed"}, status=405, headers={"Allow": error.headers["Allow"]})


@web.middleware
async def _require_key(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The API key guards the model routes alone; metrics, tokenize and the cache's switches stay open, as in vLLM."""
    key = request.app[REPLICA].config.api_key
    if key is not None and request.path.startswith(_GUARDED) and request.headers.get("Authorization") != f"Bearer {key}":
        return _json({"error": "Unauthorized"}, status=401)
    return await handler(request)


async def _add_vary(request: web.Request, response: web.StreamResponse) -> None:
    del request
    if response.status != 401:  # the key check sits in front of the CORS layer
        response.headers["Vary"] = "Origin"


def _json(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=to_json(value), status=status, headers=headers, content_type="application/json")


# -- inference ---------------------------------------------------------------------------------------------------------


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
        call = await _parse(request, kind, replica)
        headers = _answer_headers(replica, request, call)
        if faults.reject_in_stream:
            if not call.stream:
                raise busy()
            return await _stream(request, _only(answers.error_event(busy().body())), faults, headers)
        if replica.transfers is not None and call.fetches and call.transfer is not None:
            await replica.transfers.fetch(call.transfer)
        generation = replica.generate(call)
        try:
            answer = Answer(call, generation.choices, faults, answer_id=_answer_id(call), created=int(time.time()))
            if call.stream:
                return await _stream(request, _events(call, generation, answer, faults), faults, headers)
            return await _whole(request, replica, generation, answer, headers)
        finally:
            generation.close()
    finally:
        replica.inflight -= 1


async def _body(request: web.Request) -> dict[str, Any]:
    """The object that was sent. vLLM takes nothing that is not declared as JSON, on any route."""
    if request.content_type != "application/json":
        raise unsupported_media_type()
    return parse_object(await request.read())


async def _parse(request: web.Request, kind: Kind, replica: Replica) -> Call:
    body = await _body(request)
    try:
        return parse_call(kind, body, request.headers, replica.config, replica.tokenizer)
    except ApiError:
        params = body.get("kv_transfer_params")
        if replica.transfers is not None and isinstance(params, dict) and params.get("do_remote_prefill") is True:
            await replica.transfers.refuse(params)
        raise


def _answer_id(call: Call) -> str:
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
        return _json(answer.aborted_body(), headers=headers)
    while generation.unfinished:
        await generation.next()
    await asyncio.sleep(faults.first_byte_delay_s)
    if faults.die_after_chunks is not None:
        await _cut(request)
    if faults.error_after_chunks is not None:
        raise engine_dead()
    _hand_over(replica, generation, answer)
    return _json(answer.body(), headers=headers)


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


# -- tokens ------------------------------------------------------------------------------------------------------------


async def render_chat(request: web.Request) -> web.StreamResponse:
    call = await _parse(request, "chat", request.app[REPLICA])
    return _json(answers.rendered(call, call.prompts[0], call.max_tokens[0], _answer_id(call)))


async def render_completions(request: web.Request) -> web.StreamResponse:
    call = await _parse(request, "completion", request.app[REPLICA])
    prompts = zip(call.prompts, call.max_tokens, strict=True)
    return _json([answers.rendered(call, prompt, max_tokens, _answer_id(call)) for prompt, max_tokens in prompts])


async def tokenize(request: web.Request) -> web.StreamResponse:
    replica = request.app[REPLICA]
    body = await _body(request)
    resolve_model(body.get("model"), replica.config)
    checked_salt(body.get("cache_salt"))
    if "messages" in body:
        text = rendered_chat(body, replica.config, replica.tokenizer)
        add_special_tokens = body.get("add_special_tokens") is True
    elif isinstance(body.get("prompt"), str):
        text = body["prompt"]
        add_special_tokens = body.get("add_special_tokens") is not False
    else:
        raise bad_request("Either `prompt` or `messages` must be provided.")
    token_ids = replica.tokenizer.encode(text, add_special_tokens=add_special_tokens)
    strings = [replica.tokenizer.decode([token_id]) for token_id in token_ids] if body.get("return_token_strs") is True else None
    limit_tokens = replica.config.engine.max_model_len_tokens
    return _json({"count": len(token_ids), "max_model_len": limit_tokens, "tokens": token_ids, "token_strs": strings})


async def detokenize(request: web.Request) -> web.StreamResponse:
    """Words outside the answers' vocabulary come back as ``<id>`` from the built-in tokenizer."""
    replica = request.app[REPLICA]
    body = await _body(request)
    resolve_model(body.get("model"), replica.config)
    token_ids = body.get("tokens")
    if not isinstance(token_ids, list) or not all(isinstance(token_id, int) for token_id in token_ids):
        raise bad_request("tokens must be a list of token ids")
    return _json({"prompt": replica.tokenizer.decode(token_ids)})


# -- state -------------------------------------------------------------------------------------------------------------


async def models(request: web.Request) -> web.StreamResponse:
    return _json(answers.model_list(request.app[REPLICA].config))


async def load_adapter(request: web.Request) -> web.StreamResponse:
    name, path = await _adapter_asked(request, "lora_name", "lora_path")
    if not all(one.load_adapter(name, path) for one in request.app[RANKS].replicas):
        raise bad_request(f"The lora adapter '{name}' has already been loaded.")
    return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")


async def unload_adapter(request: web.Request) -> web.StreamResponse:
    (name,) = await _adapter_asked(request, "lora_name")
    if not all(one.unload_adapter(name) for one in request.app[RANKS].replicas):
        raise ApiError(404, f"The lora adapter '{name}' cannot be found.", kind="NotFoundError")
    return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")


async def _adapter_asked(request: web.Request, *members: str) -> tuple[str, ...]:
    if not request.app[REPLICA].config.runtime_adapters:
        raise web.HTTPNotFound
    body = await _body(request)
    found = tuple(body[member] for member in members if isinstance(body.get(member), str) and body[member])
    if len(found) != len(members):
        raise bad_request(f"{' and '.join(members)} must be provided.")
    return found


async def health(request: web.Request) -> web.StreamResponse:
    del request
    return web.Response()


async def version(request: web.Request) -> web.StreamResponse:
    del request
    return _json({"version": answers.VLLM_VERSION})


async def metrics(request: web.Request) -> web.StreamResponse:
    body = render([one.metrics for one in request.app[RANKS].replicas])
    return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def load(request: web.Request) -> web.StreamResponse:
    return _json({"server_load": sum(one.inflight for one in request.app[RANKS].replicas)})


async def kv_event_sources(request: web.Request) -> web.StreamResponse:
    """Where each rank publishes: each names its own ports, as vLLM 0.32 was seen to do with two ranks."""
    return _json({str(one.config.data_parallel_rank): _source(one) for one in request.app[RANKS].replicas if one.kv_ports[0] is not None})


def _source(replica: Replica) -> dict[str, object]:
    port, replay_port = replica.kv_ports
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{port}",
        "replay_endpoint": f"tcp://*:{replay_port}" if replay_port is not None else None,
        "buffer_steps": replica.config.kv_buffer_steps,
        "hwm": replica.config.kv_hwm_messages,
        "max_queue_size": 100_000,
        "topic": replica.config.topic,
    }


async def reset_prefix_cache(request: web.Request) -> web.StreamResponse:
    running = request.query.get("reset_running_requests", "").lower() in {"1", "true"}
    done = [one.engine.reset_prefix_cache(reset_running=running) for one in request.app[RANKS].replicas]
    return _json({"success": all(done)})


async def pause(request: web.Request) -> web.StreamResponse:
    for one in request.app[RANKS].replicas:
        one.pause()
    return _json({"status": "paused"})


async def resume(request: web.Request) -> web.StreamResponse:
    for one in request.app[RANKS].replicas:
        one.resume()
    return _json({"status": "resumed"})


async def is_paused(request: web.Request) -> web.StreamResponse:
    return _json({"is_paused": request.app[REPLICA].paused})


# -- the simulator's own -----------------------------------------------------------------------------------------------


async def sim_requests(request: web.Request) -> web.StreamResponse:
    """The last ``?last=N`` requests as they arrived (all that are kept, by default), oldest first."""
    kept = list(request.app[REPLICA].requests)
    last = request.query.get("last", "")
    if last.isdigit():
        kept = kept[-int(last) :] if int(last) else []
    return _json([_shown(recorded) for recorded in kept])


def _shown(recorded: RecordedRequest) -> dict[str, object]:
    return {
        "number": recorded.number,
        "method": recorded.method,
        "path": recorded.path,
        "headers": recorded.headers,
        "body": recorded.body.decode("utf-8", "replace"),
        "truncated": recorded.truncated,
    }


async def sim_mode(request: web.Request) -> web.StreamResponse:
    """Show the modes, or change those named in a JSON object."""
    changes = parse_object(await request.read()) if request.method == "POST" else {}
    try:
        modes = [one.set_mode(changes) for one in request.app[RANKS].replicas]  # of each rank the same
        return _json(modes[0])
    except ValueError as error:
        raise bad_request(str(error)) from None
