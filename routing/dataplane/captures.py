"""Captured requests on their way out, in a stream of their own (:mod:`routing.dataplane.outlet`).

Whether a request is captured is asked when its answer has gone, and first of the endpoint: where no capture runs, that is all that happens. Of one
that runs, a share of the conversations is taken, told by the capture's key, so that every turn and every router gives the same answer. Only what an
engine began to answer is kept; isolation audits are not the tenant's traffic.

Bounds: the queue and the stream by number, each tenant by ``BYTES_PER_S``, long prompts whose ids are being made by ``MAX_BUSY``. What exceeds one is
counted by its name, here and by the numbers that ingest never sees.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from routing.core import capture, prefix
from routing.core.capture import CaptureRecord
from routing.dataplane import learn
from routing.dataplane.metrics import Metrics
from routing.dataplane.outlet import Outlet

if TYPE_CHECKING:
    from routing.dataplane.inflight import Flight
    from routing.dataplane.view import Capture

STREAM = "saltroute:captures"
BYTES_PER_S = 256 * 1024  # of one tenant's captured requests, from one router
BURST_S = 4.0
MAX_BUSY = 8  # long prompts whose ids are being made in worker threads
OFF_LOOP_BYTES = 256 * 1024
MAX_COUNTED = 10_000  # captures and tenants that are remembered
log = logging.getLogger("saltroute.captures")
ANSWERED = frozenset({"ok", "client_cancelled", "incomplete", "timeout"})
MAX_TOKENS = 1 << 26  # of one answer: an engine may say anything


class CaptureDesk(Outlet):
    """The captures' outlet. One event loop owns it."""

    def __init__(self, *, router_id: str, records_key: bytes, queue_bound: int, stream_maxlen: int, metrics: Metrics) -> None:
        super().__init__(
            stream=STREAM,
            router_id=router_id,
            key=capture.stream_key(records_key),
            queue_bound=queue_bound,
            stream_maxlen=stream_maxlen,
            sent=metrics.captures_sent,
            dropped=metrics.captures_dropped.labels(reason="queue"),
        )
        self._metrics = metrics
        self._boot_ms = time.time_ns() // 1_000_000
        self._serials: OrderedDict[UUID, int] = OrderedDict()
        self._left: OrderedDict[UUID, tuple[float, float]] = OrderedDict()  # by tenant: bytes, as of when
        self._busy = 0

    def waiting(self) -> list[CaptureRecord]:
        """What is not sent yet, oldest first; for status and tests."""
        return [capture.decode(data) for _, data in self._queue]

    def note(self, flight: Flight) -> None:
        """Capture a flight that has ended, where its endpoint's capture says so."""
        running = None if flight.endpoint is None else flight.endpoint.capture
        if running is None or flight.probe is not None or flight.first_byte_s is None or flight.outcome not in ANSWERED:
            return
        if time.time() >= running.entry.until:
            return
        try:
            self._note(flight, running)
        except Exception as error:  # noqa: BLE001 - a mistake here must cost no answer; the type alone is named, since a message may quote a prompt
            log.error("a request was not captured: %s", type(error).__name__)  # noqa: TRY400 - the traceback may quote a prompt
            self._metrics.captures_dropped.labels(reason="mistake").inc()

    def _note(self, flight: Flight, running: Capture) -> None:
        if flight.call is None:
            raise RuntimeError("nothing to capture")
        conversation, how = _conversation(flight)
        if not capture.sampled(running.key, conversation, running.entry.share):
            return
        ids, call = _whole_ids(flight), flight.call
        work = partial(capture.text_blocks, running.key, call.prompt) if ids is None else partial(capture.token_blocks, running.key, ids)
        made = partial(self._made, self._record(flight, running, conversation if how else None, named=how == "named", exact=ids is not None))
        if len(call.prompt) <= OFF_LOOP_BYTES:
            made(work())
        elif self._busy < MAX_BUSY:
            self._busy += 1
            asyncio.get_running_loop().run_in_executor(flight.plane.workers, work).add_done_callback(partial(self._late, made))
        else:
            self._metrics.captures_dropped.labels(reason="busy").inc()

    def _record(self, flight: Flight, running: Capture, conversation: bytes | None, *, named: bool, exact: bool) -> CaptureRecord:
        """Everything but the blocks."""
        if flight.caller is None or flight.call is None or flight.prompt is None or flight.namespace is None:
            raise RuntimeError("nothing to capture")
        serial = self._serials.pop(running.entry.id, 0) + 1
        self._serials[running.entry.id] = serial
        if len(self._serials) > MAX_COUNTED:
            self._serials.popitem(last=False)
        messages = flight.call.body.value.get("messages")
        answers = sum(1 for one in messages if isinstance(one, dict) and one.get("role") == "assistant") if isinstance(messages, list) else 0
        return CaptureRecord(
            id=uuid4(),
            tenant_id=flight.caller.grant.tenant.snapshot.tenant_id,
            capture_id=running.entry.id,
            at=flight.started_at,
            prompt_tokens=flight.prompt.exact_tokens if exact else capture.text_tokens(flight.call.prompt),
            output_tokens=min(MAX_TOKENS, max(0, flight.usage.completion_tokens or 0)),
            blocks=b"",
            exact=exact,
            session=0 if conversation is None else capture.session_id(running.key, conversation),
            named=named,
            turn=answers,
            scope=capture.scope_id(running.key, flight.namespace.key),
            kind=learn.workload_of(flight.call),
            duration_ms=min(MAX_TOKENS, round((time.monotonic() - flight.started_s) * 1000)),
            router_id=self._router_id,
            boot_ms=self._boot_ms,
            serial=serial,
        )

    def _late(self, made: partial[None], ended: asyncio.Future[bytes]) -> None:
        self._busy -= 1
        if ended.cancelled() or ended.exception() is not None:
            self._metrics.captures_dropped.labels(reason="busy").inc()
        else:
            made(ended.result())

    def _made(self, record: CaptureRecord, blocks: bytes) -> None:
        data = capture.encode(capture.with_blocks(record, blocks))
        if self._may(record.tenant_id, len(data)):
            self.put(str(record.tenant_id), data)
        else:
            self._metrics.captures_dropped.labels(reason="rate").inc()

    def _may(self, tenant_id: UUID, size_bytes: int) -> bool:
        """Take ``size_bytes`` out of what the tenant may still send."""
        now_s = time.monotonic()
        left, at_s = self._left.pop(tenant_id, (BYTES_PER_S * BURST_S, now_s))
        left = min(BYTES_PER_S * BURST_S, left + (now_s - at_s) * BYTES_PER_S)
        allowed = left >= size_bytes
        self._left[tenant_id] = (left - size_bytes if allowed else left, now_s)
        if len(self._left) > MAX_COUNTED:
            self._left.popitem(last=False)
        return allowed


def _conversation(flight: Flight) -> tuple[bytes, str]:
    """What tells a conversation from others of the same key, and how it is known: by the client's own word ("named"), by how the user opened it
    ("opened"), or not at all (""), where a prompt's beginning must do for the sample."""
    if flight.caller is None or flight.call is None:
        raise RuntimeError("nobody is calling")
    whose = flight.caller.grant.key.id.bytes
    if flight.session is not None:
        return whose + b"session" + flight.session, "named"
    if opening := flight.call.opening:
        return whose + b"opening" + opening, "opened"
    return whose + b"head" + flight.call.prompt[: prefix.BLOCK_BYTES], ""


def _whole_ids(flight: Flight) -> Sequence[int] | None:
    """The exact tokens of the whole prompt. Of a prompt with media only those before the first of it are known: they are not the prompt."""
    prompt, call = flight.prompt, flight.call
    if prompt is None or call is None or prompt.token_ids is None or not (call.learns or call.token_ids is not None):
        return None
    return prompt.token_ids if prompt.tokens == len(prompt.token_ids) else None
