"""The two doors: what a connection on the public or the internal port can get, and the one place where errors become answers."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from routing.dataplane import cors, errors, health, models, routes
from routing.dataplane.authenticate import Caller, authenticate, request_id
from routing.dataplane.checks import PATH as CHECK_PATH
from routing.dataplane.checks import CheckDoor
from routing.dataplane.connections import Connections
from routing.dataplane.errors import ApiError
from routing.dataplane.feeds.snapshots import SnapshotFeed
from routing.dataplane.probes import ProbeDoor
from routing.dataplane.request_path import serve, snapshot
from routing.dataplane.routes import MODEL, MODELS, PROBE_ROUTES
from routing.dataplane.state import Plane
from routing.dataplane.upstream import HOP_HEADER
from routing.dataplane.view import PlaneView

DECISION = "x-saltroute-decision"
SERVER = "saltroute"
KEEPALIVE_S = 75.0
LINGER_FOR_BODY_S = 1.0
log = logging.getLogger("saltroute.router")
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Protocol(RequestHandler):
    """aiohttp's HTTP/1.1, with our answer to what is not HTTP. The offending bytes are not logged: they may hold a key. Bodies are never inflated,
    whatever their headers say."""

    __slots__ = ("_connections",)

    def __init__(self, server: web.Server, connections: Connections | None) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type] # aiohttp takes None for "no access log", its annotation does not say so
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_FOR_BODY_S,
            auto_decompress=False,
        )
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._connections is not None:
            self._connections.came(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._connections is not None:
            self._connections.left(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """aiohttp queues its word on a broken body behind the very request that waits for that body, until it is taken for stalled: tell it now."""
        super().data_received(data)
        if self._messages and isinstance(self._messages[-1][0], _ErrInfo):
            current = None if self._current_request is None else self._current_request.content
            unfinished = self._messages[-2][1] if len(self._messages) > 1 else current
            if unfinished is not None and not unfinished.is_eof():
                unfinished.set_exception(web.RequestPayloadError("malformed"))

    @property
    def silent(self) -> bool:
        return self._request_count == 0

    @property
    def idle(self) -> bool:
        return not self._request_in_progress and not self._messages

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 - aiohttp's signature
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it quotes the offending bytes
    ) -> web.StreamResponse:
        error = errors.bad_request("The request is not well-formed HTTP.") if status < 500 else errors.internal()
        if exc is not None and status >= 500:
            log_mistake(exc)
        answer = _answer(error, {DECISION: str(uuid.uuid4()), "Server": SERVER})
        answer.force_close()
        return answer


class Server(web.Server):
    """aiohttp's low-level server: handlers are cancelled when their client leaves, nothing is logged per request."""

    def __init__(self, handler: Handler, *, max_body_bytes: int, connections: Connections | None = None) -> None:
        self._clients = connections
        loop = asyncio.get_running_loop()

        def make_request(
            message: RawRequestMessage, payload: StreamReader, protocol: RequestHandler, writer: AbstractStreamWriter, task: asyncio.Task[None]
        ) -> web.BaseRequest:
            return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=max_body_bytes)

        super().__init__(handler, request_factory=make_request, handler_cancellation=True)

    def __call__(self) -> RequestHandler:
        return Protocol(self, self._clients)


Serve = Callable[[web.BaseRequest, uuid.UUID, dict[str, str]], Awaitable[web.StreamResponse]]


def public_door(plane: Plane) -> Handler:
    """The handler of the public port."""

    async def serve_public(request: web.BaseRequest, decision_id: uuid.UUID, headers: dict[str, str]) -> web.StreamResponse:
        headers.update(cors.answer_headers(request.headers, plane.config.cors_origins))
        return await _serve_public(plane, request, decision_id, headers)

    return _door(plane, serve_public)


def internal_door(plane: Plane, feed: SnapshotFeed, probes: ProbeDoor, checks: CheckDoor) -> Handler:
    """The handler of the internal port: health, metrics, status, the probes of audits, and looks at engines that are not added yet."""

    async def serve_internal(request: web.BaseRequest, decision_id: uuid.UUID, headers: dict[str, str]) -> web.StreamResponse:
        route = PROBE_ROUTES.get(request.path)
        if route is not None and request.method == route.method:
            return await serve(
                plane, request, route, decision_id, headers, identify=lambda view: probes.caller(view, request.headers, now=time.time())
            )
        if request.path == CHECK_PATH and request.method == "POST":
            found = await checks.serve(request)
            found.headers.update(headers)
            return found
        page = health.internal_page(plane, feed, request.path)
        if page is None:
            raise errors.unknown_url(None)
        page.headers.update(headers)
        return page

    return _door(plane, serve_internal)


def _door(plane: Plane, serve_one: Serve) -> Handler:
    """What both ports have in common: a decision id on every answer, and errors as answers."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        decision_id = uuid.uuid4()
        headers = {DECISION: str(decision_id), "Server": SERVER}
        if (own_id := request_id(request.headers)) is not None:
            headers["X-Request-Id"] = own_id
        try:
            answer = await serve_one(request, decision_id, headers)
        except ApiError as error:
            answer = _answer(error, headers)
            if not request.content.is_eof():
                answer.force_close()  # what is left of the body is not read as a next request
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001 - the outermost edge: a mistake of ours becomes a 500 and a page
            log_mistake(error)
            answer = _answer(errors.internal(), headers)
        if plane.draining and not answer.prepared:
            answer.force_close()
        return answer

    return handle


async def _serve_public(plane: Plane, request: web.BaseRequest, decision_id: uuid.UUID, headers: dict[str, str]) -> web.StreamResponse:
    if request.method == "OPTIONS":
        preflight = cors.preflight_headers(request.headers, plane.config.cors_origins)
        return web.Response(status=204, headers={**headers, "Allow": "GET, POST, OPTIONS", **preflight})
    target = request.raw_path
    if target in ("/healthz", "/readyz") and (page := health.public_page(plane, target)) is not None:
        page.headers.update(headers)
        return page
    match = routes.resolve(request.method, target)
    if match.route.engine_path is not None:
        if HOP_HEADER in request.headers:
            raise errors.loop_detected()

        def identify(view: PlaneView) -> Caller:
            return authenticate(view, request.headers, tenant_slug=match.tenant_slug, now=time.time())

        return await serve(plane, request, match.route, decision_id, headers, identify=identify)
    caller = authenticate(snapshot(plane), request.headers, tenant_slug=match.tenant_slug, now=time.time())
    if match.route is MODELS:
        found = models.listing(caller)
    elif match.route is MODEL and match.model is not None:
        found = models.one(caller, match.model)
    else:
        raise errors.unknown_url(None)
    return web.Response(body=msgspec.json.encode(found), headers={**headers, "Content-Type": errors.JSON})


def _answer(error: ApiError, headers: dict[str, str]) -> web.Response:
    return web.Response(status=error.status, body=error.body(), headers={**headers, "Content-Type": errors.JSON, **error.headers})


def log_mistake(error: BaseException) -> None:
    """Log where a mistake happened, never what the data was: messages of exceptions can quote prompts, keys and addresses."""
    frames = traceback.extract_tb(error.__traceback__)
    place = " < ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in reversed(frames[-8:]))
    log.error("mistake: %s at %s", type(error).__name__, place)
