"""A request on two replicas: the first call, what is made of its answer, and what becomes of the second.

The order is fixed: the prefill replica computes the prompt and answers one token; what it hands over is checked; the decode replica gets the request
as it was, with that. Both calls carry the namespace's salt, and both replicas passed the filters for the namespace when the pair was chosen. Whatever
goes wrong but a 4xx of the decode replica, which is the client's own, the request is sent again as a plain one, without a word of a transfer, to
whoever is best then. It is tried once for a request.

Who hands over and is then not fetched from keeps the blocks until its lease ends; no call gives them back earlier. That is counted as an orphan.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from routing.core import tracecontext
from routing.core import transfer as wire
from routing.core.breaker import Breaker
from routing.core.pairs import Pair
from routing.core.record import TransferRecord, TransferResult
from routing.core.stream import Usage
from routing.core.verdict import Said, Verdict, judge, parse
from routing.dataplane import learn, outgoing, upstream
from routing.dataplane.patience import UNREACHABLE, Patience
from routing.dataplane.upstream import Upstream, UpstreamFailed

if TYPE_CHECKING:
    from routing.dataplane.attempt import Attempt
    from routing.dataplane.choice import Choice
    from routing.dataplane.inflight import Flight
    from routing.dataplane.metrics import Metrics
    from routing.dataplane.state import Plane

_UNREACHED = frozenset({"connect", "connect_timeout", "blocked", "no_socket", UNREACHABLE})


@dataclass(slots=True)
class Transfer:
    """What became of a request's one try on two replicas. ``handed_at_s`` (monotonic): when the prefill replica had answered and
    held blocks for us."""

    pair: Pair
    prefill: Choice
    decode_url: str
    result: TransferResult = "abandoned"
    prefill_s: float | None = None
    handed_at_s: float | None = None
    called_at_s: float | None = None
    fetched: bool = False  # the decode replica took the call: the blocks are its own to release
    first_byte_s: float | None = None
    cached_tokens: int | None = None

    @property
    def orphaned(self) -> bool:
        return self.handed_at_s is not None and not self.fetched

    def count(self, metrics: Metrics) -> None:
        metrics.transfers.labels(result=self.result).inc()
        metrics.transfer_orphans.inc(self.orphaned)
        if self.first_byte_s is not None:
            metrics.transfer.observe(self.first_byte_s)

    def record(self) -> TransferRecord:
        entry, pair = self.prefill.replica.entry, self.pair
        return TransferRecord(
            replica_id=str(entry.id),
            replica_name=entry.name,
            result=self.result,
            expected_prefill_s=pair.prefill_s,
            expected_transfer_s=pair.transfer_s + pair.admit_s,
            expected_local_ttft_s=pair.local_s,
            moved_tokens=pair.moved_tokens,
            prefill_s=self.prefill_s,
            first_byte_s=self.first_byte_s,
            cached_tokens=self.cached_tokens,
            orphaned=self.orphaned,
        )


@dataclass(frozen=True, slots=True)
class Handed:
    """What the first call came to. ``params``: raw JSON for the second one, None: go on plainly. ``broke``: the breaker of a prefill replica that
    answered this body with a failure of its own."""

    params: bytes | None = None
    broke: Breaker | None = None


NOTHING = Handed()


async def hand_over(plane: Plane, flight: Flight, *, path: str, trace_parents: list[str]) -> Handed:
    """Have the prompt computed where the flight's pair says, if it has one; the prefill replica's part of the guard is released before it returns.

    Raises:
        ApiError: no salt can be put in, or there is no room for the answer.
    """
    attempt, transfer, call = flight.prefill, flight.transfer, flight.call
    if attempt is None or transfer is None or call is None:
        return NOTHING
    flight.alone = True
    replica = attempt.choice.replica
    trace_id, rank = flight.decision_id.hex, attempt.choice.rank
    headers = upstream.request_headers(replica, stream=False, presented_parents=trace_parents, trace_id=trace_id, rank=rank)
    attempt.span_id = tracecontext.span_id(headers["traceparent"])
    written, left_out = wire.of_prefill(call.body.value)
    body = outgoing.body_for(flight, attempt, written=written, left_out=left_out, transfer=wire.PREFILL)
    try:
        answer, whole = await _ask(plane, attempt, path=path, body=body, headers=headers, keep=flight.held.keep)
    except UpstreamFailed as failed:
        if failed.cause == "blocked":
            attempt.engine.health = "blocked"
        attempt.failed(failed.cause, breaker=failed.cause != "no_socket")
        transfer.result = "prefill_failed"
        flight.end_prefill()
        return NOTHING
    said = parse(whole)
    verdict = judge(answer.status, said)
    if verdict.kind != "ok" or said is None:
        return _refused(flight, attempt, transfer, verdict)
    _computed(plane, flight, attempt, transfer, said)
    hosts = [host for host in (urlsplit(replica.url).hostname, answer.peer) if host]
    try:
        params = wire.believe(said.transfer, hosts=hosts, request_id=headers["X-Request-Id"])
    except wire.TransferError as error:
        attempt.error = f"handed_{error.reason}"
        plane.metrics.attempts_failed.labels(cause=attempt.error).inc()
        _link(flight, transfer).failed(time.monotonic(), probe=True)
        transfer.result = "not_believed"
        if error.reason == "absent":  # it knows of no transfers, so it holds nothing for one
            transfer.handed_at_s = None
        flight.end_prefill()
        return NOTHING
    flight.end_prefill()
    transfer.called_at_s = time.monotonic()
    return Handed(params=params)


async def _ask(
    plane: Plane, attempt: Attempt, *, path: str, body: bytes, headers: dict[str, str], keep: Callable[[int], None]
) -> tuple[Upstream, bytes]:
    """The first call: one token, whole.

    Raises:
        UpstreamFailed: the replica did not answer, or not within the time for a first byte, or fell silent.
        ApiError: there is no room for its answer.
    """
    attempt.sent = True
    async with Patience(attempt.engine, asyncio.get_running_loop().time() + plane.config.first_byte_s):
        attempt.upstream = opened = await upstream.deliver(
            plane.session, plane.fresh_session, attempt.choice.replica, path, body=body, headers=headers
        )
        attempt.headers_seen(opened.status)
        begun = await opened.read()
    whole = await opened.read_all(begun, limit_bytes=plane.config.max_answer_bytes, idle_s=plane.config.idle_s, keep=keep)
    return opened, whole


def _refused(flight: Flight, attempt: Attempt, transfer: Transfer, verdict: Verdict) -> Handed:
    """The prefill replica answered, but no prompt was computed. A client's own 4xx is the decode replica's to say."""
    broke: Breaker | None = None
    if verdict.kind == "client":
        attempt.succeeded()
        attempt.error = "client_error"
        transfer.result = "prefill_refused"
    else:
        status = verdict.status if verdict.kind != "ok" else 502  # a page of some proxy's under 200 is no answer
        attempt.failed(f"status_{status}" if verdict.kind != "aborted" else "aborted", breaker=verdict.kind != "busy")
        transfer.result = "prefill_refused" if verdict.kind == "busy" else "prefill_failed"
        broke = attempt.engine.breaker if verdict.kind in ("replica", "ok") else None
    flight.end_prefill()
    return Handed(broke=broke)


def _computed(plane: Plane, flight: Flight, attempt: Attempt, transfer: Transfer, said: Said) -> None:
    """The prompt is resident at the prefill replica, and held there for whoever fetches it; what its answer says is said of that replica."""
    now_s = time.monotonic()
    attempt.first_byte(now_s)
    attempt.succeeded()
    plane.waiting.bursts.first_byte(flight)
    usage = Usage()
    usage.take(said.usage)
    transfer.handed_at_s, transfer.prefill_s, transfer.cached_tokens = now_s, now_s - attempt.started_s, usage.cached_tokens
    learn.learn_prefill(flight, attempt, usage, now_s)


def answered(flight: Flight, verdict: Verdict) -> bool:
    """Note what the decode replica made of the transfer. True: its failure may be the transfer's and not its own, so a plain request may go there."""
    transfer = flight.transfer
    if transfer is None:
        return False
    transfer.fetched = True
    if verdict.kind == "ok":
        transfer.result = "ok"
        _link(flight, transfer).succeeded(probe=True)
        if flight.call is not None and flight.call.stream and flight.first_byte_s is not None and transfer.called_at_s is not None:
            transfer.first_byte_s = flight.first_byte_s - transfer.called_at_s
        return False
    if verdict.kind == "client":
        transfer.result = "decode_refused"
        return False
    transfer.result = "decode_failed"
    if verdict.kind != "replica":
        return False
    _link(flight, transfer).failed(time.monotonic(), probe=True)
    return True


def unanswered(flight: Flight, cause: str) -> bool:
    """Note that the decode replica did not answer at all. True: it may be the transfer that it waited for."""
    transfer = flight.transfer
    if transfer is None:
        return False
    transfer.result = "decode_failed"
    transfer.fetched = cause not in _UNREACHED
    if transfer.fetched:
        _link(flight, transfer).failed(time.monotonic(), probe=True)
    return transfer.fetched


def _link(flight: Flight, transfer: Transfer) -> Breaker:
    return flight.plane.links.take(transfer.prefill.replica.url, transfer.decode_url).breaker
