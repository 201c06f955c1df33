"""The token step: the exact ids of a request's prompt within a deadline, or a reason why there are none.

Exact tokens make the router's beliefs comparable with what engines publish; nothing depends on them. A missing artifact, a deadline, a template that
fails, an engine that renders otherwise: the request goes on with the byte chain alone (residency from history), and the reason is counted.

Policy: an artifact serves those tenants alone whose snapshot names it, since only a snapshot's digests are ever asked for. All that is cached on the
way is keyed by the namespace and counts against its owner (``routing.prompts``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from uuid import UUID

from routing.core import parity
from routing.core.artifact import Kind
from routing.core.parity import Pair, Parity
from routing.core.residency_state import TokenReason
from routing.core.snapshot import ModelEntry
from routing.prompts.service import NoTokens, PromptModel, Prompts, Reason, Tokens

if TYPE_CHECKING:
    from routing.dataplane.inflight import Flight
    from routing.dataplane.metrics import Metrics
    from routing.dataplane.state import Plane
    from routing.dataplane.view import EndpointView, PlaneView

WAITED_BYTES_PER_S = 1_000_000  # a longer prompt may take longer: about 5 % of what its prefill would take where nothing of it is cached
GRACE_S = 0.05  # beyond the deadline that the service was given: it keeps it, this makes sure
log = logging.getLogger("saltroute.tokens")

# Why a prompt has no exact tokens: the service's reasons, and those of this step. Closed, since they are label values.
Why = Reason | Literal["undeclared", "template_mismatch", "mistake"]
Inexact = Why | Literal["media"]  # why not all of a prompt's ids are exact: with media those before it are


@dataclass(frozen=True, slots=True)
class Found:
    """What the step found: exact ids (of a prompt with media up to the first of it), or why not."""

    ids: array[int] | None = field(default=None, repr=False)
    whole: bool = False  # the ids are all of the prompt
    why_not: Why | None = None

    @property
    def inexact(self) -> Inexact | None:
        """Why not all of the prompt's ids are known; None: they are."""
        return self.why_not or (None if self.whole else "media")


NOTHING_FOUND = Found()


@dataclass(slots=True)
class TokenDesk:
    """What the step works with. ``mismatched`` holds the endpoints whose engines make other tokens of our samples (``parity.py``), ``ready`` the
    artifacts that are loaded and compiled (``feeds/artifacts.py``); both are replaced whole, and only where they change."""

    prompts: Prompts
    mismatched: frozenset[UUID] = frozenset()
    ready: frozenset[tuple[Kind, bytes]] = frozenset()
    parity: dict[Pair, Parity] = field(default_factory=dict)  # by endpoint and replica
    artifacts: Callable[[], dict[str, object]] = dict  # what the artifact feed says of itself, for the router's report

    _settled: tuple[PlaneView, frozenset[UUID], frozenset[tuple[Kind, bytes]]] | None = None

    def settle(self, plane: Plane) -> None:
        """Note of each engine, where anything changed, why no prompt that this router sends there can have exact tokens: its events decide nothing
        then. One endpoint whose prompts can is enough.

        Policy: of an engine that tenants share this depends on all of them. Like the state that it is part of, it is told to the pool's owner alone.
        """
        known = self._settled
        if known is not None and known[0] is plane.view and known[1] is self.mismatched and known[2] is self.ready:
            return
        self._settled = (plane.view, self.mismatched, self.ready)
        endpoints = [endpoint for tenant in plane.view.tenants.values() for endpoint in tenant.endpoints.values() if endpoint.entry.enabled]
        lacks = {endpoint.entry.id: self._lack(endpoint) for endpoint in endpoints}
        found: dict[str, TokenReason] = {}
        for url, ids in plane.used_by.items():
            here = {lacks[one] for one in ids if one in lacks}
            if here and None not in here:
                found[url] = "parity" if "parity" in here else "no_tokens"
        plane.residency.set_lacking(found, time.monotonic())

    def _lack(self, endpoint: EndpointView) -> TokenReason | None:
        """Why no prompt of an endpoint can have exact tokens, but those that are given as token ids."""
        if endpoint.entry.id in self.mismatched:
            return "parity"
        model = model_of(endpoint.entry.model)
        if model is None or ("tokenizer", model.tokenizer_digest) not in self.ready:
            return "no_tokens"
        return None if model.template_digest is None or ("chat_template", model.template_digest) in self.ready else "no_tokens"

    def report(self) -> dict[str, object]:
        """What the router's report says of exact tokens."""
        return {"artifacts": self.artifacts(), "parity": parity.report(self.parity)}


def owner_of(flight: Flight) -> bytes:
    """Whose workers and budget a prompt takes: its tenant's. An audit's are apart from those of the tenant's requests and of other tenants' audits,
    since a worker that has run one tenant's template must never see another's text."""
    if flight.caller is None:
        raise RuntimeError("nobody is calling")
    tenant = flight.caller.grant.tenant.snapshot.tenant_id.bytes
    return tenant if flight.probe is None else b"audit" + tenant


def model_of(entry: ModelEntry) -> PromptModel | None:
    """The artifacts that a model names; None where it names no tokenizer."""
    if entry.tokenizer.digest is None:
        return None
    return PromptModel(tokenizer_digest=entry.tokenizer.digest, template_digest=entry.chat_template.digest)


async def find(plane: Plane, flight: Flight) -> Found:
    """The exact tokens of the flight's prompt. Never fails, and never takes longer than the deadline and a little."""
    began_s = time.monotonic()
    found = await _find(plane, flight)
    _count(plane.metrics, found, time.monotonic() - began_s)
    return found


async def _find(plane: Plane, flight: Flight) -> Found:
    call, endpoint, namespace = flight.call, flight.endpoint, flight.namespace
    if call is None or endpoint is None or namespace is None:
        raise RuntimeError("nothing to tokenise")
    if call.token_ids is not None:
        return Found(ids=call.token_ids, whole=True)
    model = model_of(endpoint.entry.model)
    if model is None:
        return Found(why_not="undeclared")
    if endpoint.entry.id in plane.tokens.mismatched:
        return Found(why_not="template_mismatch")
    deadline_s = plane.config.tokens_s + len(call.prompt) / WAITED_BYTES_PER_S
    try:
        async with asyncio.timeout(deadline_s + GRACE_S):
            result = await plane.tokens.prompts.tokens(
                call.body.value, api=call.api, model=model, ns_key=namespace.key, owner=owner_of(flight), deadline_s=deadline_s
            )
    except TimeoutError:
        return Found(why_not="deadline")
    except Exception as error:  # noqa: BLE001 - a mistake here must cost no request; the type alone is named, since a message may quote a prompt
        log.error("the token step failed: %s", type(error).__name__)  # noqa: TRY400 - the traceback may quote a prompt
        return Found(why_not="mistake")
    return _found(result)


def _found(result: Tokens | NoTokens) -> Found:
    if isinstance(result, NoTokens):
        return Found(why_not=result.reason)
    return Found(ids=result.ids if result.exact else result.ids[: result.exact_tokens], whole=result.exact)


def _count(metrics: Metrics, found: Found, took_s: float) -> None:
    result = found.why_not or ("exact" if found.whole else "exact_prefix")
    metrics.tokenised.labels(result=result).inc()
    metrics.tokenise.observe(took_s)
