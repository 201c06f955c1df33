"""The HTTP side of a replica: vLLM's routes (answers are made in :mod:`routing.simulator.inference`), and a few of the simulator's own under /sim."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from routing.simulator import answers
from routing.simulator.errors import ApiError, bad_request
from routing.simulator.inference import RANKS, REPLICA, answer_id, chat_completions, completions, parsed, sent_object, to_answer
from routing.simulator.metrics import render
from routing.simulator.ranks import Ranks
from routing.simulator.replica import RecordedRequest, Replica
from routing.simulator.requests import checked_salt, parse_object, rendered_chat, resolve_model

MAX_BODY_BYTES = 64 * 1024 * 1024
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
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
        return to_answer(error.body(), status=error.status)
    except web.HTTPNotFound:
        return to_answer({"detail": "Not Found"}, status=404)
    except web.HTTPMethodNotAllowed as error:
        return to_answer({"detail": "Method Not Allowed"}, status=405, headers={"Allow": error.headers["Allow"]})


@web.middleware
async def _require_key(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The API key guards the model routes alone; metrics, tokenize and the cache's switches stay open, as in vLLM."""
    key = request.app[REPLICA].config.api_key
    if key is not None and request.path.startswith(_GUARDED) and request.headers.get("Authorization") != f"Bearer {key}":
        return to_answer({"error": "Unauthorized"}, status=401)
    return await handler(request)


async def _add_vary(request: web.Request, response: web.StreamResponse) -> None:
    del request
    if response.status != 401:  # the key check sits in front of the CORS layer
        response.headers["Vary"] = "Origin"


# -- tokens ------------------------------------------------------------------------------------------------------------


async def render_chat(request: web.Request) -> web.StreamResponse:
    call = await parsed(request, "chat", request.app[REPLICA])
    return to_answer(answers.rendered(call, call.prompts[0], call.max_tokens[0], answer_id(call)))


async def render_completions(request: web.Request) -> web.StreamResponse:
    call = await parsed(request, "completion", request.app[REPLICA])
    prompts = zip(call.prompts, call.max_tokens, strict=True)
    return to_answer([answers.rendered(call, prompt, max_tokens, answer_id(call)) for prompt, max_tokens in prompts])


async def tokenize(request: web.Request) -> web.StreamResponse:
    replica = request.app[REPLICA]
    body = await sent_object(request)
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
    return to_answer({"count": len(token_ids), "max_model_len": limit_tokens, "tokens": token_ids, "token_strs": strings})


async def detokenize(request: web.Request) -> web.StreamResponse:
    """Words outside the answers' vocabulary come back as ``<id>`` from the built-in tokenizer."""
    replica = request.app[REPLICA]
    body = await sent_object(request)
    resolve_model(body.get("model"), replica.config)
    token_ids = body.get("tokens")
    if not isinstance(token_ids, list) or not all(isinstance(token_id, int) for token_id in token_ids):
        raise bad_request("tokens must be a list of token ids")
    return to_answer({"prompt": replica.tokenizer.decode(token_ids)})


# -- state -------------------------------------------------------------------------------------------------------------


async def models(request: web.Request) -> web.StreamResponse:
    return to_answer(answers.model_list(request.app[REPLICA].config))


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
    body = await sent_object(request)
    found = tuple(body[member] for member in members if isinstance(body.get(member), str) and body[member])
    if len(found) != len(members):
        raise bad_request(f"{' and '.join(members)} must be provided.")
    return found


async def health(request: web.Request) -> web.StreamResponse:
    del request
    return web.Response()


async def version(request: web.Request) -> web.StreamResponse:
    del request
    return to_answer({"version": answers.VLLM_VERSION})


async def metrics(request: web.Request) -> web.StreamResponse:
    body = render([one.metrics for one in request.app[RANKS].replicas])
    return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def load(request: web.Request) -> web.StreamResponse:
    return to_answer({"server_load": sum(one.inflight for one in request.app[RANKS].replicas)})


async def kv_event_sources(request: web.Request) -> web.StreamResponse:
    """Where each rank publishes: each names its own ports, as vLLM 0.32 was seen to do with two ranks."""
    return to_answer({str(one.config.data_parallel_rank): _source(one) for one in request.app[RANKS].replicas if one.kv_ports[0] is not None})


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
    return to_answer({"success": all(done)})


async def pause(request: web.Request) -> web.StreamResponse:
    for one in request.app[RANKS].replicas:
        one.pause()
    return to_answer({"status": "paused"})


async def resume(request: web.Request) -> web.StreamResponse:
    for one in request.app[RANKS].replicas:
        one.resume()
    return to_answer({"status": "resumed"})


async def is_paused(request: web.Request) -> web.StreamResponse:
    return to_answer({"is_paused": request.app[REPLICA].paused})


# -- the simulator's own -----------------------------------------------------------------------------------------------


async def sim_requests(request: web.Request) -> web.StreamResponse:
    """The last ``?last=N`` requests as they arrived (all that are kept, by default), oldest first."""
    kept = list(request.app[REPLICA].requests)
    last = request.query.get("last", "")
    if last.isdigit():
        kept = kept[-int(last) :] if int(last) else []
    return to_answer([_shown(recorded) for recorded in kept])


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
        return to_answer(modes[0])
    except ValueError as error:
        raise bad_request(str(error)) from None
