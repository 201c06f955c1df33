"""Decisions: the filterable list, and one decision that answers "why was this slow?"."""

from __future__ import annotations

from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from console import charts, why
from console.access import TenantPage
from console.reads import decisions, endpoints, keys
from routing import queries
from routing.core.cause import MISSES
from routing.core.policy import SCORERS
from routing.core.record import DecisionRecord
from routing.services.disclosure import CandidateOut, Disclosed, disclose

IN_ORDER = (
    "router",
    "queue_router",
    "retry",
    "no_answer",
    "queue_engine",
    "replica",
    "transfer",
    "ideal",
    *(f"missed_{miss}" for miss in MISSES),
    "slow_replica",
    "unexplained",
    "generation",
)
EXPECTED = "expected time to first token"  # the one bar of a policy that scores no seconds
_FILTERS = ("within", "from", "to", "endpoint", "key", "replica", "namespace", "outcome", "slower", "missed", "audits")


MAX_REPLICAS = 2000  # to choose from


class Decisions(TenantPage):
    """What the routers decided, newest first."""

    tab = "decisions"

    def get(self, request: HttpRequest) -> HttpResponse:
        wanted = decisions.as_uuid(request.GET.get("id", ""))
        if wanted:
            return HttpResponseRedirect(reverse("console:decision", args=[self.caller.seat.slug, wanted]))
        now = timezone.now()
        asked = decisions.parse(request.GET.dict(), now=now)
        page = decisions.listed(self.tenant_id, asked, now=now)
        kept = {name: request.GET[name] for name in _FILTERS if request.GET.get(name)}
        context = {
            "rows": page.rows,
            "asked": asked,
            "ranges": decisions.RANGES,
            "ends": [
                ("from", "From, UTC", asked.filter.since if asked.within == decisions.BETWEEN else None, asked.wrong.get("from")),
                ("to", "To, UTC", asked.filter.until, asked.wrong.get("to")),
            ],
            "outcomes": decisions.OUTCOMES,
            "endpoint_names": endpoints.names(self.tenant_id),
            "replica_of": decisions.replicas_of(self.tenant_id, page.rows),
            "keys": keys.listed(self.tenant_id),
            "replicas": queries.replicas(self.tenant_id).only("id", "name", "pool__name").order_by("pool__name", "name", "id")[:MAX_REPLICAS],
            "next_query": urlencode({**kept, "before": page.next}) if page.next else "",
            "later": bool(asked.before),
            "first_query": urlencode(kept),
            "bad_id": bool(request.GET.get("id")),
            "router_url": settings.ROUTER_PUBLIC_URL,
        }
        return self.page("console/decisions.html", context, status=400 if asked.wrong else 200)


class DecisionPage(TenantPage):
    """One decision."""

    tab = "decisions"

    def get(self, request: HttpRequest, decision_id: UUID) -> HttpResponse:  # noqa: ARG002 - the port of a view
        _, record = queries.decision(self.tenant_id, decision_id)
        own = queries.own_replica_ids(self.tenant_id)
        seen = disclose(record, own_replica_ids=None if self.caller.seat.platform else own)
        terms = [name for name in SCORERS if any(name in one.terms for one in seen.candidates)]
        terms += sorted({name for one in seen.candidates for name in one.terms} - set(terms))
        counting = [name for name in terms if any(one.terms.get(name) for one in seen.candidates)]
        context = {
            "record": record,
            "seen": seen,
            "unsent": not record.attempts and record.outcome != "ok",
            "partly": any(one.replica_id is None for one in seen.candidates),
            "started_at": decisions.started_at(record),
            "sentence": why.sentence(record, seen),
            "tone": why.tone(record),
            "terms": terms,
            "counting": counting,
            "silent": [name for name in terms if name not in counting],
            "weighted": record.policy == "weighted",
            "left_s": why.left_s(record),
            "in_any_case": _in_any_case(record),
            "candidates": [(one, [(name, one.terms.get(name)) for name in counting]) for one in seen.candidates],
            "chart": _chart(seen),
            "time_chart": _time_chart(seen),
            "key_name": keys.name(self.tenant_id, record.key_id),
            "own_replicas": own,
            "namespace_page": not record.audit and decisions.NAMESPACE.fullmatch(record.namespace or "") is not None,
            "endpoint_known": record.endpoint_id in endpoints.names(self.tenant_id),
        }
        return self.page("console/decision.html", context)


def _in_any_case(record: DecisionRecord) -> int | None:
    """Prompt tokens that even a warm replica computes. With the missed ones they add up to what was not cached; None where either is not known."""
    if record.cause is None or not record.cause.warm_tokens or record.prompt_tokens is None or record.cached_tokens is None:
        return None
    return record.prompt_tokens - max(record.cached_tokens, record.cause.warm_tokens)


def _chart(seen: Disclosed) -> charts.StackedBars | None:
    """The terms of every candidate that was scored, as stacked bars; the marker is its expected time to first token, where it may be read."""
    scored = [one for one in seen.candidates if one.refusal is None and (one.terms or one.expected_ttft_s is not None)]
    if not scored:
        return None
    rows = [(one.replica, one.chosen, _terms(one), one.expected_ttft_s) for one in scored]
    return charts.stacked_bars(rows, slots=(*SCORERS, EXPECTED))


def _time_chart(seen: Disclosed) -> charts.StackedBars | None:
    """The request's time from left to right as it passed; the marker is where a warm and idle replica would have had its first token."""
    if seen.cause is None or not seen.cause.parts:
        return None
    spent = {one.part: one.seconds for one in seen.cause.parts}
    ordered = [(part, spent[part]) for part in IN_ORDER if part in spent]
    return charts.stacked_bars([("this request", True, ordered, spent.get("ideal"))], slots=IN_ORDER)


def _terms(candidate: CandidateOut) -> list[tuple[str, float]]:
    """In the order of the register. A policy that scores no seconds still has an estimate, which is then the one bar."""
    ordered = [(name, candidate.terms[name]) for name in SCORERS if candidate.terms.get(name)]
    ordered += sorted((name, value) for name, value in candidate.terms.items() if name not in SCORERS)
    return ordered or [(EXPECTED, candidate.expected_ttft_s or 0.0)]
