"""Hand an answer on. Streams go event by event, as bytes; a slow client slows the engine's stream, not our memory.

Policy: after the first byte nothing is retried and nothing is invented. A stream that breaks ends with exactly one error event in OpenAI's shape
and no
``[DONE]``; a clean end without ``[DONE]`` or a finish reason counts as broken too, since a truncated answer must not look whole.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from types import TracebackType

import msgspec
from aiohttp import web

from routing.core import sse
from routing.core.stream import Rename, StreamMeter
from routing.dataplane import errors
from routing.dataplane.attempt import Attempt
from routing.dataplane.dispatch import Answer
from routing.dataplane.inflight import Flight
from routing.dataplane.state import Plane
from routing.dataplane.upstream import UpstreamFailed

ERROR_WRITE_S = 1.0
MAX_MEMBERS_BYTES = 1024 * 1024  # a longer answer is renamed as a stream's events are: it may have more members than can be taken apart at once
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class ClientStalled(Exception):
    """The client did not read for ``write_s``."""


def whole(flight: Flight, answer: Answer, headers: Mapping[str, str]) -> web.Response:
    """An answer that does not stream: already read, already judged."""
    if answer.said is not None:
        flight.usage.take(answer.said.usage)
    flight.end("ok", status=200)
    return web.Response(body=_renamed(flight, answer.body), status=200, headers={**headers, "Content-Type": "application/json"})


def _renamed(flight: Flight, body: bytes) -> bytes:
    """The body with the client's model name; byte-identical where the names are the same."""
    rename = _rename(flight)
    if rename is None:
        return body
    if len(body) > MAX_MEMBERS_BYTES:
        return rename.apply(body)
    members = _members.decode(body)
    if "model" not in members or flight.call is None:
        return body
    members["model"] = msgspec.Raw(msgspec.json.encode(_shown_model(flight) or flight.call.model))
    return msgspec.json.encode(members)


def _rename(flight: Flight) -> Rename | None:
    if flight.call is None or flight.endpoint is None:
        return None
    return Rename.between(flight.endpoint.entry.served_model, _shown_model(flight) or flight.call.model)


def _shown_model(flight: Flight) -> str | None:
    """The name of the endpoint that serves instead of the one asked for."""
    return flight.endpoint.entry.name if flight.asked is not None and flight.endpoint is not None else None


async def stream(plane: Plane, flight: Flight, answer: Answer, request: web.BaseRequest, headers: Mapping[str, str]) -> web.StreamResponse:
    """Relay a stream to its end, whatever end that is."""
    call, splitter = flight.call, answer.splitter
    if call is None or splitter is None:
        raise RuntimeError("not a stream")
    meter = StreamMeter(hide_usage=not call.wants_usage and flight.probe is None, rename=_rename(flight), usage=flight.usage)
    reply = web.StreamResponse(
        status=200,
        headers={**headers, "Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )
    if plane.draining:
        reply.force_close()
    broken: str | None = None
    try:
        await reply.prepare(request)
        broken = await _pump(plane, flight, answer, meter, reply)
    except asyncio.CancelledError:
        if not plane.cutting or request.transport is None or request.transport.is_closing():
            raise
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        broken = "router_draining"
    except ClientStalled:
        if request.transport is not None:
            request.transport.abort()  # what is buffered for it would never be read
        flight.end("client_cancelled", status=499, error_code="client_too_slow")
        return reply
    except ConnectionError:
        flight.end("client_cancelled", status=499)
        return reply
    finally:
        plane.metrics.hidden_usage.inc(meter.hidden)
        flight.usage.settle()
    if broken is None:
        if flight.attempt is not None and not meter.aborted:
            flight.attempt.succeeded()
        flight.end("ok" if not meter.aborted else "incomplete", status=200, error_code=None if not meter.aborted else "aborted")
        await reply.write_eof()
        return reply
    flight.end("incomplete", status=200, error_code=broken)
    await _say_broken(flight, reply, broken)
    return reply


async def _pump(plane: Plane, flight: Flight, answer: Answer, meter: StreamMeter, reply: web.StreamResponse) -> str | None:
    """Move events until the stream ends; None for a whole answer, else the code of what broke it.

    Raises:
        ClientStalled: the client does not read.
        ConnectionError: it is gone.
    """
    attempt = flight.attempt
    if attempt is None:
        raise RuntimeError("no attempt to relay")
    clock = _Clock(idle_s=plane.config.idle_s, write_s=plane.config.write_s)
    try:
        with clock:
            return await _move(flight, answer, meter, reply, clock)
    except TimeoutError:
        if clock.writing:
            raise ClientStalled from None
    finally:
        flight.unread_since_s = clock.reading_since_s
    attempt.failed("idle_timeout")
    return "upstream_timeout"


async def _move(flight: Flight, answer: Answer, meter: StreamMeter, reply: web.StreamResponse, clock: _Clock) -> str | None:
    """The loop of :func:`_pump`, by the clock: reads bounded by its ``idle_s``, writes by its ``write_s``."""
    attempt, splitter, events = flight.attempt, answer.splitter, answer.events
    if attempt is None or splitter is None:
        raise RuntimeError("not a stream")
    while True:
        kept = [piece for event in events if meter.error is None and (piece := meter.take(event)) is not None]
        if kept:
            clock.write()
            await reply.write(kept[0] if len(kept) == 1 else b"".join(kept))
        if meter.error is not None:
            if meter.error.kind not in ("client", "busy"):
                attempt.failed("error_event")
            return "upstream_error"
        clock.read()
        try:
            chunk = await answer.upstream.read()
        except UpstreamFailed as failed:
            if meter.complete:
                return None  # all was said before the connection broke
            attempt.failed(failed.cause)
            return "upstream_error"
        attempt.engine.words += 1
        if not chunk:
            clock.write()
            return await _end(attempt, meter, splitter, reply)
        events = splitter.feed(chunk)
        if not flight.held.passing(splitter.held_bytes):
            return "overloaded"


class _Clock:
    """``asyncio.timeout`` for a stream: one timer that looks now and then whether the deadline has moved, where two timers for every event would cost
    more than the event. A context manager, used once; on expiry the task is cancelled and leaves with TimeoutError."""

    __slots__ = ("_cancelling", "_deadline_s", "_due_s", "_expired", "_handle", "_idle_s", "_loop", "_task", "_write_s", "writing")

    def __init__(self, *, idle_s: float, write_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle_s, self._write_s = idle_s, write_s
        self._task = asyncio.current_task()
        self._cancelling = 0 if self._task is None else self._task.cancelling()
        self._handle: asyncio.TimerHandle | None = None
        self._deadline_s = self._due_s = math.inf
        self._expired = False
        self.writing = False

    def read(self) -> None:
        """From now on the engine has ``idle_s``."""
        self.writing = False
        self._until(self._loop.time() + self._idle_s)

    def write(self) -> None:
        """From now on the client has ``write_s``."""
        self.writing = True
        self._until(self._loop.time() + self._write_s)

    @property
    def reading_since_s(self) -> float | None:
        """Since when, monotonic, the engine's next word has been waited for; None: it is not."""
        return None if self.writing or math.isinf(self._deadline_s) else self._deadline_s - self._idle_s

    def _until(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        if deadline_s < self._due_s:
            self._arm()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._due_s = self._deadline_s
        self._handle = self._loop.call_at(self._due_s, self._look)

    def _look(self) -> None:
        self._handle = None
        if self._loop.time() < self._deadline_s:
            self._arm()
        elif self._task is not None:
            self._expired = True
            self._task.cancel()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self._expired and self._task is not None and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error


async def _end(attempt: Attempt, meter: StreamMeter, splitter: sse.EventSplitter, reply: web.StreamResponse) -> str | None:
    """The engine closed the stream cleanly: pass on a last event without its blank line, and see whether the answer is whole."""
    rest = splitter.rest()
    if rest:
        last = meter.take(rest)
        if last is not None and meter.error is None:
            await reply.write(last)
    if meter.done or meter.finished:
        return None
    attempt.failed("truncated")
    return "upstream_error"


async def _say_broken(flight: Flight, reply: web.StreamResponse, code: str) -> None:
    """One error event and a proper end of the chunked body, so that the client's connection stays usable: its headers promised that already."""
    message = {
        "upstream_timeout": "The model server stopped sending before the answer was complete.",
        "router_draining": "The router is shutting down and could not wait for the end of this answer.",
        "overloaded": "The router holds as many bytes of answers as it may.",
    }.get(code, "The model server failed before the answer was complete.")
    event = sse.event(errors.error_body(message, "server_error", None, code))
    try:
        async with asyncio.timeout(ERROR_WRITE_S):
            await reply.write(event)
            await reply.write_eof()
    except (TimeoutError, ConnectionError):
        flight.error_code = code
