"""A request, top to bottom, in one function. Each line is one step; the steps are in the modules beside this one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from urllib.parse import quote
from uuid import UUID

from aiohttp import HttpVersion11, web
from multidict import CIMultiDictProxy

from namespaces.core.salts import Namespace
from routing.core.body import VALUE_BYTES, signs
from routing.core.overload import OVERLOADED
from routing.dataplane import errors, openai, quotas, relay, tokens, upstream
from routing.dataplane.authenticate import Caller, request_context, request_id, session
from routing.dataplane.choose import measure, work_bytes
from routing.dataplane.dispatch import first_answer
from routing.dataplane.errors import ApiError
from routing.dataplane.holdings import Held
from routing.dataplane.inflight import Flight
from routing.dataplane.openai import Call
from routing.dataplane.routes import Route
from routing.dataplane.state import Plane
from routing.dataplane.view import EndpointView, PlaneView

MODEL_HEADER = "X-Saltroute-Model"  # on an answer of another model than the one asked for


async def serve(
    plane: Plane, request: web.BaseRequest, route: Route, decision_id: UUID, headers: dict[str, str], *, identify: Callable[[PlaneView], Caller]
) -> web.StreamResponse:
    """Answer one request that an engine is to serve. ``headers`` go on every answer, errors too, and are added to; ``identify`` is the door: it says
    who is calling.

    Raises:
        ApiError: any answer but a success.
    """
    with Flight(plane, route=route.name, decision_id=decision_id, request_id=request_id(request.headers)) as flight:
        try:
            view = snapshot(plane)
            flight.caller = caller = identify(view)
            flight.session = session(request.headers)
            flight.held = held = plane.holdings.admit(flight.owner)
            raw = await receive(plane, request, held)
            held.keep(VALUE_BYTES * signs(raw))
            flight.call = call = await understand(plane, raw, route, flight.owner)
            endpoint = find_endpoint(caller, call.model)
            quotas.admit(plane, flight, endpoint)
            await prepare(plane, flight, endpoint, request.headers)
            quotas.reserve(plane, flight, headers)
            trace_parents = plane.tracing.begin(flight, request.headers.getall("traceparent", []))
            try:
                answer = await first_answer(plane, flight, engine_path=route.engine_path or "", trace_parents=trace_parents)
            except ApiError as refusal:
                headers = {**headers, **await other_model(plane, flight, request.headers, refusal)}
                answer = await first_answer(plane, flight, engine_path=route.engine_path or "", trace_parents=trace_parents)
            if answer.splitter is None:
                return relay.whole(flight, answer, headers)
            return await relay.stream(plane, flight, answer, request, headers)
        except ApiError:
            quotas.show(plane, flight, headers)
            raise
        except asyncio.CancelledError:
            refuse_if_cut(plane, request)
            raise


def snapshot(plane: Plane) -> PlaneView:
    """The configuration for the whole of this request.

    Raises:
        ApiError: 503 before the first configuration, or when the last one is too old to trust: fail closed.
    """
    if not plane.feed.loaded:
        raise errors.unavailable("configuration_unavailable", "The router has no configuration yet.")
    contact_at = plane.feed.contact_at
    if contact_at is not None and time.time() - contact_at > plane.config.expired_s:
        raise errors.unavailable("configuration_expired", "The router's configuration is too old to be trusted.")
    return plane.view


async def receive(plane: Plane, request: web.BaseRequest, held: Held) -> bytes:
    """Read the body, bounded in size, in what all bodies may hold, and in the time between two pieces. ``100 Continue`` is sent only now: the caller
    may speak.

    Raises:
        ApiError: 415 for a compressed body, whose size no header tells.
            413 for a body over the bound (before reading it, where its length is announced), 408 for a client that stopped sending, 503 where no room
            is left.
    """
    limit_bytes = plane.config.max_body_bytes
    if any(encoding.strip().lower() != "identity" for encoding in request.headers.getall("Content-Encoding", [])):
        raise errors.encoding_refused()
    if request.content_length is not None and request.content_length > limit_bytes:
        raise errors.body_too_large(limit_bytes)
    if request.headers.get("Expect", "").lower() == "100-continue" and request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    whole: bytes | bytearray = b""
    while True:
        try:
            if request.content.is_eof():  # it is all there, as most bodies are when their headers are read: no timer for what will not wait
                piece = request.content.read_nowait()
            else:
                async with asyncio.timeout(plane.config.idle_s):
                    piece = await request.content.readany()
        except TimeoutError:
            raise errors.ApiError(408, "request_timeout", "The request body did not arrive in time.") from None
        except web.RequestPayloadError:
            raise errors.bad_request("The request body is malformed or was cut off.") from None
        if not piece:
            return bytes(whole)
        held.keep(len(piece))
        whole = upstream.joined(whole, piece)
        if len(whole) > limit_bytes:
            raise errors.body_too_large(limit_bytes)


async def understand(plane: Plane, raw: bytes, route: Route, owner: bytes) -> Call:
    """Parse a copy of the body.

    Raises:
        ApiError: 400.
    """
    if route.shape is None:
        raise RuntimeError("route takes no body")
    return await plane.workshop.run(owner, len(raw), openai.read, raw, route.shape, plane.config.media_hosts)


async def prepare(plane: Plane, flight: Flight, endpoint: EndpointView, headers: CIMultiDictProxy[str]) -> None:
    """Name the flight's cache at an endpoint, and measure its prompt there.

    Raises:
        ApiError: 400 for a context version that the endpoint does not take, 503 if no namespace can be derived.
    """
    caller, call = flight.caller, flight.call
    if caller is None or call is None:
        raise RuntimeError("nothing to prepare")
    namespace = name_cache(plane, caller, endpoint, call, request_context(endpoint.entry, headers))
    flight.endpoint, flight.namespace = endpoint, namespace
    found = await tokens.find(plane, flight)
    flight.inexact = found.inexact
    ratio = plane.endpoint_state(endpoint.entry.id).ratio.bytes_per_token
    sizes = plane.block_sizes(endpoint)
    flight.prompt = await plane.workshop.run(flight.owner, work_bytes(call, found, sizes), measure, call, namespace, ratio, found, sizes)


async def other_model(plane: Plane, flight: Flight, headers: CIMultiDictProxy[str], refusal: ApiError) -> dict[str, str]:
    """Turn a flight that its own endpoint has no time for to the one that its policy names; returns the headers that say so.

    The request is then that endpoint's in every respect: identity, pool, policy, and the key must be allowed to use it. It never turns twice.

    Raises:
        ApiError: ``refusal``, where the policy names none, or that one cannot take it.
    """
    home, caller = flight.endpoint, flight.caller
    named = None if home is None or home.slo is None else home.slo.spill_model
    if home is None or caller is None or named is None or flight.probe is not None or flight.attempts or refusal.code not in OVERLOADED:
        raise refusal
    plane.waiting.bursts.turned_away(flight)
    try:
        await prepare(plane, flight, find_endpoint(caller, named), headers)
    except ApiError:
        flight.endpoint = home
        raise refusal from None
    flight.asked, flight.spilled = home, "model"
    plane.metrics.spilled.labels(to="model").inc()
    return {MODEL_HEADER: quote(named, safe="/:@+~")}


def find_endpoint(caller: Caller, model: str) -> EndpointView:
    """The endpoint of a model name, spelled exactly.

    Raises:
        ApiError: 404; absent, switched off and not for this key are one answer.
    """
    endpoint = caller.grant.tenant.endpoints.get(model)
    allowed = caller.grant.key.endpoints
    if endpoint is None or not endpoint.entry.enabled or (allowed is not None and model not in allowed):
        raise errors.model_not_found(model)
    return endpoint


def name_cache(plane: Plane, caller: Caller, endpoint: EndpointView, call: Call, context: Mapping[str, str]) -> Namespace:
    """The namespace of this request.

    Raises:
        ApiError: 503 if none can be derived; nothing leaves without a salt.
    """
    try:
        namespace = caller.grant.tenant.namespace(
            endpoint.entry,
            scope_path=caller.scope_path,
            key_id=caller.grant.key.id,
            context=context,
            subdivision=call.subdivision if endpoint.entry.client_subdivision else None,
            lookups=plane.names,
        )
    except (ValueError, KeyError):
        raise errors.isolation_unavailable() from None
    return namespace if caller.probe is None else replace(namespace, salt=caller.probe.engine_salt(namespace.salt))


def refuse_if_cut(plane: Plane, request: web.BaseRequest) -> None:
    """At the drain deadline a request without an answer gets one.

    Raises:
        ApiError: 503 ``router_draining``, unless it was the client that left.
    """
    task = asyncio.current_task()
    if plane.cutting and task is not None and request.transport is not None and not request.transport.is_closing():
        task.uncancel()
        raise errors.unavailable("router_draining", "The router is shutting down.")
