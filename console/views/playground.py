"""The playground: a chat with an endpoint as clients see it, and beside each answer why it went where it went.

The key is in the page's field and in the body of one request, nowhere else: not in a URL, a session, a log or a row. The answer passes through
here, so that the page's Content-Security-Policy stays ``connect-src 'self'`` and routers need to allow no origin.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_post_parameters

from console import why
from console.access import TenantPage
from console.reads import endpoints
from routing import queries
from routing.services.disclosure import disclose
from routing.services.playground import asked, passing_keys
from routing.services.playground.places import Busy, Place, Places
from routing.services.playground.talk import talk
from tenants import queries as who
from tenants.core.errors import NotFound, Refusal
from tenants.core.roles import Permission
from tenants.services import denials

MAX_SCOPES = 500  # offered; a key's own scope needs no choice
LOOKS = 25  # for a decision's record, one every 0.8 s
SEND_S = 20.0  # a reader that takes nothing for so long loses its answer, and its place is free again
places = Places(settings.PLAYGROUND_STREAMS)


class Playground(TenantPage):
    """The page; ``endpoint`` is the one that is chosen."""

    tab = "playground"

    def get(self, request: HttpRequest) -> HttpResponse:
        names = [name for name in sorted(endpoints.names(self.tenant_id).values()) if name]
        wanted = request.GET.get("endpoint", "")
        chosen = wanted if wanted in names else next(iter(names), "")
        context = {
            "names": names,
            "chosen": queries.endpoint(self.tenant_id, chosen) if chosen else None,
            "scopes": who.scopes(self.tenant_id).order_by("path")[:MAX_SCOPES],
            "router_url": settings.ROUTER_PUBLIC_URL,
            "key_minutes": int(passing_keys.KEY_LIFE.total_seconds() // 60),
            "most_tokens": asked.MAX_ANSWER_TOKENS,
            "usual_tokens": asked.DEFAULT_ANSWER_TOKENS,
            "open": places.limit > 0,
        }
        return self.page("console/playground.html", context)


class PlaygroundKey(TenantPage):
    """A key of a quarter of an hour for whoever may issue keys, told once, to the page that asks."""

    needs = {"POST": Permission.CONFIGURE}

    def post(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the port of a view
        with transaction.atomic():
            issued = passing_keys.issue(tenant_id=self.tenant_id, actor=self.actor, now=timezone.now())
        return JsonResponse({"key": issued.secret, "name": issued.key.name, "minutes": int(passing_keys.KEY_LIFE.total_seconds() // 60)})

    def refuse(self, refusal: Refusal, *, status: int) -> HttpResponse:
        return _said(refusal, status)


@method_decorator(sensitive_post_parameters("key", "messages"), name="dispatch")
class PlaygroundSend(TenantPage):
    """One request, answered with a line of JSON for each event as it comes. It changes nothing here, so whoever may read may send, with a key."""

    needs = {"POST": Permission.READ}

    def post(self, request: HttpRequest) -> HttpResponseBase:
        wanted = asked.read(request.POST.dict())
        if wanted.model not in endpoints.names(self.tenant_id).values():
            raise NotFound
        place = places.take(self.tenant_id)
        events = talk(wanted, slug=self.caller.seat.slug, router_url=settings.PLAYGROUND_ROUTER_URL)
        _let_go_of_silent_readers(request)
        return StreamingHttpResponse(_Lines(events, place), content_type="application/x-ndjson", headers={"X-Accel-Buffering": "no"})

    def _note(self, request: HttpRequest, refusal: Refusal) -> None:
        """Also that there was no place: no router hears of such a request, so no decision tells of it."""
        if isinstance(refusal, Busy):
            denials.record(tenant_id=self.tenant_id, actor=self.actor, method=str(request.method), path=request.path, code=refusal.code)
        super()._note(request, refusal)

    def refuse(self, refusal: Refusal, *, status: int) -> HttpResponse:
        return _said(refusal, status)


class PlaygroundDecision(TenantPage):
    """What is known of one answer: the record takes a moment to arrive, so the fragment asks again by itself, ``LOOKS`` times."""

    def get(self, request: HttpRequest, decision_id: UUID) -> HttpResponse:
        look = request.GET.get("look", "1")
        number = int(look) if look.isascii() and look.isdigit() and len(look) < 4 else LOOKS
        context: dict[str, Any] = {"decision_id": decision_id, "next_look": number + 1 if number < LOOKS else None}
        try:
            _, record = queries.decision(self.tenant_id, decision_id)
        except NotFound:
            return self.page("console/_playground_decision.html", context)
        seen = disclose(record, own_replica_ids=None if self.caller.seat.platform else queries.own_replica_ids(self.tenant_id))
        context |= {"record": record, "seen": seen, "sentence": why.sentence(record, seen), "tone": why.tone(record)}
        return self.page("console/_playground_decision.html", context)


class _Lines:
    """The body of an answer. Django closes it whether or not anybody began to read, so the place always comes back."""

    def __init__(self, events: Iterator[dict[str, Any]], place: Place) -> None:
        self._events, self._place = events, place

    def __iter__(self) -> Iterator[bytes]:
        with self._place.kept():
            for event in self._events:
                yield json.dumps(event).encode() + b"\n"

    def close(self) -> None:
        """End the request to the router, if it still runs."""
        close = getattr(self._events, "close", None)
        if close is not None:
            close()
        self._place.back()


def _said(refusal: Refusal, status: int) -> HttpResponse:
    found: dict[str, Any] = {"message": refusal.message, "field": refusal.field, "code": refusal.code}
    headers = {"Retry-After": "5"} if status == 429 else {}
    return JsonResponse({"error": found}, status=status, headers=headers)


def _let_go_of_silent_readers(request: HttpRequest) -> None:
    """gunicorn's threads write to a blocking socket: without a limit a reader that stops reading would hold thread and place for ever."""
    socket = request.META.get("gunicorn.socket")
    if socket is not None:
        socket.settimeout(SEND_S)
