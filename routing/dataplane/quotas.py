"""Quotas where requests meet them: what a request will use is reserved before it is dispatched, and settled by what the engine says it used.

Policy. All quotas that apply must hold: the tenant's, the platform's for the tenant, those of the acting scope and of every scope above it, the key's
and the endpoint's (of the endpoint that was asked for, also where another model answers). Reserved are one request, and the prompt's tokens, known or
estimated, with as many tokens of answers as the body allows at most; where it names no bound, as many as the endpoint's answers have of late.
Settled is what the engine reports. What it could not report any more counts by the router's own count: the prompt of a request that was dispatched
and then left by its client, and the chunks that were relayed. Failures of ours and of engines cost no tokens; what reached no engine costs no
request. Cached tokens count like others: whether a prompt is cached is not the client's doing. Audits are nobody's use.

Nothing here waits or asks anybody: see :mod:`routing.dataplane.feeds.quotas` for how routers hear of one another.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from routing.core import quota
from routing.core.pairs import OUTPUT_TOKENS
from routing.core.quota import Measure, MinuteMeter, MonthMeter, Terms
from routing.core.snapshot import QuotaEntry
from routing.dataplane import errors
from routing.dataplane.openai import Call, counted
from tenants.core.scopes import ancestors

if TYPE_CHECKING:
    from routing.dataplane.authenticate import Caller
    from routing.dataplane.inflight import Flight
    from routing.dataplane.state import Plane
    from routing.dataplane.view import EndpointView, PlaneView, TenantView

TOKEN_MEASURES: tuple[Measure, ...] = ("tokens_per_minute", "tokens_per_month")
HEADERS: dict[Measure, tuple[str, str, str]] = {
    "requests_per_minute": ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    "tokens_per_minute": ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    "tokens_per_month": ("x-ratelimit-limit-tokens-month", "x-ratelimit-remaining-tokens-month", "x-ratelimit-reset-tokens-month"),
}
_LEARNED = 16  # answers over which the expected length of one is averaged
MAX_RESERVED = 2**40  # tokens of one request; more than any engine takes
Name = tuple[UUID, Measure, str]


@dataclass(slots=True)
class Held:
    """What a request holds under one limit."""

    meter: MinuteMeter | MonthMeter
    measure: Measure
    stamp: int
    reserved: int


@dataclass(slots=True)
class Reservation:
    """The quotas that a request must keep, and what it holds of them."""

    quotas: list[QuotaEntry] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    shown: bool = False  # what is left stands on the answer


@dataclass(slots=True)
class QuotaDesk:
    """The meters of every quota in the view, and how far the others are out of hearing."""

    routers: int = 1  # that share the limits, as far as was heard last
    lost: bool = False  # Valkey does not answer
    ahead_s: float = field(default_factory=lambda: time.time() - time.monotonic())  # Valkey's clock, less the monotonic one
    meters: dict[Name, MinuteMeter | MonthMeter] = field(default_factory=dict)
    expected: dict[UUID, float] = field(default_factory=dict)  # tokens of an answer, by endpoint
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def now_s(self) -> float:
        """Unix seconds by Valkey's clock, as far as that was heard."""
        return time.monotonic() + self.ahead_s

    def swapped(self, view: PlaneView) -> None:
        """Another configuration is in force: forget what no quota names, make known what is new."""
        month = quota.month_of(self.now_s())
        named = {
            _name(entry, measure, month)
            for tenant in view.tenants.values()
            if not tenant.snapshot.deleted
            for entry in tenant.snapshot.quotas
            for measure in quota.MEASURES
            if getattr(entry, measure) is not None
        }
        for name in named - self.meters.keys():
            self._make(name)
        self.forget(named)
        live = {endpoint.entry.id for tenant in view.tenants.values() for endpoint in tenant.endpoints.values()}
        self.expected = {endpoint_id: tokens for endpoint_id, tokens in self.expected.items() if endpoint_id in live}
        if named:
            self.wake.set()

    def forget(self, named: set[Name]) -> None:
        """Drop meters that are not named, months that are over among them, once they have nothing left to tell."""
        for name in [name for name in self.meters if name not in named]:
            meter = self.meters[name]
            if isinstance(meter, MinuteMeter) or meter.done:
                del self.meters[name]

    def _make(self, name: Name) -> MinuteMeter | MonthMeter:
        made = MonthMeter(name[2]) if name[2] else MinuteMeter()
        self.meters[name] = made
        return made

    def meter(self, entry: QuotaEntry, measure: Measure, month: str) -> MinuteMeter | MonthMeter:
        """The meter of one limit; a month's is made when it begins."""
        name = _name(entry, measure, month)
        return self.meters.get(name) or self._make(name)

    def terms(self, limit: int, meter: MinuteMeter | MonthMeter) -> Terms:
        """What holds for ``meter`` at the moment."""
        return Terms(limit=limit, routers=self.routers, lost=self.lost or meter.spoilt)

    def answer_tokens(self, endpoint_id: UUID) -> float:
        """How long an answer of the endpoint is expected to be."""
        return self.expected.get(endpoint_id, OUTPUT_TOKENS)

    def learn(self, endpoint_id: UUID, tokens: float) -> None:
        known = self.answer_tokens(endpoint_id)
        self.expected[endpoint_id] = known + (tokens - known) / _LEARNED

    def overdue(self, now_s: float) -> Iterator[tuple[Name, MinuteMeter | MonthMeter]]:
        """The meters of which the others have to hear, or that have not heard from them yet."""
        return ((name, meter) for name, meter in self.meters.items() if now_s - meter.spoilt_at_s > quota.SPOILT_S and meter.due(now_s))


def _name(entry: QuotaEntry, measure: Measure, month: str) -> Name:
    return entry.id, measure, month if measure == "tokens_per_month" else ""


def applying(tenant: TenantView, *, key: str, scope_path: str, endpoint: str | None) -> list[QuotaEntry]:
    """Every quota that a request must keep."""
    if not tenant.quotas:
        return []
    asked = [("tenant", ""), ("platform", ""), *(("scope", path) for path in ancestors(scope_path)), ("key", key)]
    if endpoint is not None:
        asked.append(("endpoint", endpoint))
    return [entry for one in asked if (entry := tenant.quotas.get(one)) is not None]


def _of(caller: Caller, endpoint: EndpointView | None) -> list[QuotaEntry]:
    if caller.probe is not None:
        return []
    name = None if endpoint is None else endpoint.entry.name
    return applying(caller.grant.tenant, key=caller.grant.key.name, scope_path=caller.scope_path, endpoint=name)


# ---- a request ---------------------------------------------------------------------------------------------------------


def show(plane: Plane, flight: Flight, headers: dict[str, str]) -> None:
    """Put what is left on an answer, once: of several quotas of one kind the one that has least left. A stranger is told nothing."""
    reservation = flight.reservation
    if reservation.shown or flight.caller is None:
        return
    reservation.shown = True
    entries = reservation.quotas or _of(flight.caller, None)
    desk = plane.quotas
    now_s = desk.now_s()
    month = quota.month_of(now_s)
    for measure, (limit_header, left_header, reset_header) in HEADERS.items():
        least: tuple[int, int, MinuteMeter | MonthMeter] | None = None
        for entry in entries:
            limit = getattr(entry, measure)
            if limit is None:
                continue
            meter = desk.meter(entry, measure, month)
            left = meter.left(now_s, desk.terms(limit, meter))
            if least is None or left < least[0]:
                least = left, limit, meter
        if least is not None:
            left, limit, meter = least
            reset_s = meter.reset_s(now_s) if isinstance(meter, MinuteMeter) else quota.month_ends_at(month) - now_s
            headers[limit_header], headers[left_header], headers[reset_header] = str(limit), str(left), quota.reset_text(reset_s)


def admit(plane: Plane, flight: Flight, endpoint: EndpointView) -> None:
    """Take the request into the quotas of requests, before anything is done for it.

    Raises:
        ApiError: 429, naming the quota.
    """
    if flight.caller is None:
        raise RuntimeError("nobody is calling")
    entries = flight.reservation.quotas = _of(flight.caller, endpoint)
    if not entries:
        return
    flight.endpoint = endpoint  # the record of a refusal names it
    _take(plane, flight, ("requests_per_minute",), 1)


def reserve(plane: Plane, flight: Flight, headers: dict[str, str]) -> None:
    """Reserve the tokens of the request, and put what is left then on its answer.

    Raises:
        ApiError: 429, naming the quota.
    """
    if not flight.reservation.quotas:
        return
    _take(plane, flight, TOKEN_MEASURES, _expected(plane, flight))
    show(plane, flight, headers)


def _expected(plane: Plane, flight: Flight) -> int:
    """Prompt and answers of a request, in tokens."""
    call, prompt, endpoint = flight.call, flight.prompt, flight.endpoint
    if call is None or prompt is None or endpoint is None:
        raise RuntimeError("nothing to reserve for")
    window = endpoint.entry.model.context_window_tokens
    tokens = answer_bound(call, math.ceil(plane.quotas.answer_tokens(endpoint.entry.id)))
    if window is not None:
        tokens = min(tokens, max(1, window - prompt.tokens))
    return min(MAX_RESERVED, prompt.tokens + tokens * max(1, call.sequences))


def answer_bound(call: Call, usual: int) -> int:
    """As many tokens as each answer may have by the body; ``usual`` where it does not say.

    Of two members that say so the larger, and no less than usual where one is no plain whole number: which counts is a matter of engine and route.
    """
    said = [call.body.value.get(name) for name in ("max_completion_tokens", "max_tokens")]
    bounds = [(value, number) for value in said if (number := counted(value)) is not None and number > 0]
    plain = bool(bounds) and all(isinstance(value, int) for value, _ in bounds)
    return min(MAX_RESERVED, max([*(number for _, number in bounds), *([] if plain else [usual])]))


def _take(plane: Plane, flight: Flight, measures: tuple[Measure, ...], amount: int) -> None:
    """Reserve ``amount`` of every limit of these kinds, or of none."""
    desk = plane.quotas
    now_s = desk.now_s()
    month = quota.month_of(now_s)
    wanted: list[tuple[Measure, MinuteMeter | MonthMeter]] = []
    refused: Measure | None = None
    retry_s, why, lost = 0.0, "slice", False
    for measure in measures:
        for entry in flight.reservation.quotas:
            limit = getattr(entry, measure)
            if limit is None:
                continue
            meter = desk.meter(entry, measure, month)
            terms = desk.terms(limit, meter)
            if meter.fits(now_s, amount, terms):
                wanted.append((measure, meter))
                continue
            refused = refused or measure
            lost |= terms.lost
            wait_s = meter.wait_s(now_s, amount, terms)
            if wait_s is None:
                wait_s = quota.month_ends_at(month) - now_s if measure == "tokens_per_month" else float(quota.WINDOW_S)
            if wait_s > 0:
                why = "limit"
            retry_s = max(retry_s, wait_s)
    if refused is not None:
        plane.metrics.quota_refused.labels(quota=refused, why="share" if lost else why).inc()
        desk.wake.set()
        raise errors.quota_refused(f"quota_{refused}", max(1, math.ceil(retry_s)), amount)
    for measure, meter in wanted:
        flight.reservation.held.append(Held(meter, measure, meter.take(now_s, amount), amount))
    if wanted:
        desk.wake.set()


def settle(plane: Plane, flight: Flight) -> None:
    """Put what was used in the place of what was reserved, when the request is over; safe to repeat."""
    usage, now_s = flight.usage, plane.quotas.now_s()
    requests = 1 if flight.attempts else 0  # none where no engine was asked
    tokens = (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
    held, flight.reservation.held = flight.reservation.held, []
    for one in held:
        one.meter.settle(now_s, one.stamp, one.reserved, requests if one.measure == "requests_per_minute" else tokens)
    if held:
        plane.quotas.wake.set()
        if flight.outcome == "ok" and flight.endpoint is not None and flight.call is not None and usage.completion_tokens:
            plane.quotas.learn(flight.endpoint.entry.id, usage.completion_tokens / max(1, flight.call.sequences))


def count(flight: Flight) -> None:
    """Count what the engine did not come to say: the prompt of a request that was dispatched and that its client left, or whose answer broke off.

    The record says that this is no word of the engine's.
    """
    usage, prompt = flight.usage, flight.prompt
    if usage.prompt_tokens is not None or prompt is None or flight.probe is not None or flight.outcome not in ("client_cancelled", "incomplete"):
        return
    if flight.attempts or (flight.attempt is not None and flight.attempt.sent):
        usage.prompt_tokens, usage.counted = prompt.tokens, True
