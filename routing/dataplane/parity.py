"""Parity: whether an engine makes the same tokens of a prompt as the router does.

The router renders and tokenises from the artifacts that a tenant declared; the engine uses the files it was started with. Where the engine tells
(vLLM's ``/tokenize``), samples of ours are compared: when an endpoint meets a replica for the first time, when either changes (other artifacts,
another served name, a restart), and every ``parity_s``. One difference, at any replica, and the endpoint is served from history until all agree:
a prediction of exact reuse from wrong tokens would be worse than none.

Samples are synthetic: never a client's text. A difference is told by the sample's name and the position of the first token that differs. A sample
that the engine refuses (a template without tools, say) says nothing. One that the engine has tokens of and this router has not is no agreement:
prompts like it are served from history, each by itself, and the reason is told.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from routing.core.parity import Pair, Parity, first_difference
from routing.dataplane.state import Plane
from routing.dataplane.tokens import model_of
from routing.dataplane.view import EndpointView, PlaneView, ReplicaView
from routing.outbound import guard
from routing.prompts.service import NoTokens, Prompts

OUR_TROUBLE = frozenset({"bad_tokenizer", "bad_template", "set_aside", "deadline", "memory", "queue_full", "worker", "stopped"})  # not the sample's
FAMILIES = frozenset({"vllm"})  # engines whose /tokenize takes chats and texts as their inference does
OURS_S = 5.0  # for our own side of a sample
MAX_ANSWER_BYTES = 1024 * 1024
AGAIN_S = 30.0  # after a check that could not be made
LOOK_S = 0.25
LOOK_AT = 500  # pairs at each look: with ten thousand each is looked at every five seconds
AT_ONCE = 4
AT_ONCE_SLOW = 2  # of them, for tenants whose last check ran into its deadline: they wait for one another, and for nobody else
ASK_S = 5.0  # for one answer
CHECK_S = 20.0  # for a whole check
log = logging.getLogger("saltroute.parity")

_TOOL = {
    "type": "function",
    "function": {
        "name": "weigh",
        "description": "Weigh some salt.",
        "parameters": {"type": "object", "properties": {"grams": {"type": "number"}}, "required": ["grams"]},
    },
}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "weigh", "arguments": '{"grams": 12.5, "kind": "flor de sal"}'}}
_ASK: dict[str, Any] = {"role": "user", "content": "How much salt is in a loaf?"}
SAMPLES: Mapping[str, dict[str, Any]] = {
    "text": {"prompt": "Salt, 12.5 g:  «fleur de sel»\n\n\tand 海塩 - as much as it takes… 🧂"},
    "question": {"messages": [_ASK]},
    "conversation": {
        "messages": [
            {"role": "system", "content": "You bake bread.\nAnswer briefly."},
            _ASK,
            {"role": "assistant", "content": "About ten grams."},
            {"role": "user", "content": "  And in a Brötchen, if I may ask?  "},
        ]
    },
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "One part."}, {"type": "text", "text": "Another."}]}]},
    "tools": {"messages": [_ASK], "tools": [_TOOL]},
    "tool call": {
        "messages": [
            _ASK,
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "12.5"},
        ],
        "tools": [_TOOL],
    },
}


class _Unavailable(Exception):
    """The engine's side cannot be had; the text is one word of ours."""


async def compare(plane: Plane, prompts: Prompts, endpoint: EndpointView, replica: ReplicaView, owner: bytes) -> Parity:
    """Compare every sample; stops at the first difference, which is graver than samples that have no tokens here."""
    at, compared = time.time(), 0
    unknown: tuple[str, str] | None = None  # the first sample without tokens here, and why
    model = model_of(endpoint.entry.model)
    if model is None or replica.entry.engine not in FAMILIES:
        return Parity("unavailable", at, why="engine")
    key = hashlib.sha256(b"parity" + endpoint.entry.id.bytes).digest()[:16]
    for name, sample in SAMPLES.items():
        ours = await prompts.tokens(
            sample, api="chat" if "messages" in sample else "completions", model=model, ns_key=key, owner=owner, deadline_s=OURS_S
        )
        if isinstance(ours, NoTokens) and ours.reason in OUR_TROUBLE:
            return Parity("unavailable", at, compared=compared, why="ours")
        try:
            theirs = await _ask(plane, replica, {"model": endpoint.entry.served_model, **sample})
        except _Unavailable as unavailable:
            return Parity("unavailable", at, compared=compared, why=str(unavailable))
        if theirs is None:
            continue
        if isinstance(ours, NoTokens):
            unknown = unknown or (name, ours.reason)
            continue
        compared += 1
        if (position := first_difference(list(ours.ids), theirs)) is not None:
            return Parity("different", at, sample=name, position=position, compared=compared)
    if unknown is not None:
        return Parity("inexact", at, sample=unknown[0], compared=compared, why=unknown[1])
    return Parity("ok", at, compared=compared) if compared else Parity("unavailable", at, why="samples")


async def _ask(plane: Plane, replica: ReplicaView, body: dict[str, Any]) -> list[int] | None:
    """The engine's ids; None where it refuses the sample.

    Raises:
        _Unavailable: it does not tell.
    """
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "saltroute"}  # the session adds none by itself
    if replica.credential is not None:
        headers["Authorization"] = f"Bearer {replica.credential}"
    try:
        async with asyncio.timeout(ASK_S):
            async with plane.session.post(f"{replica.url}/tokenize", json=body, headers=headers, allow_redirects=False) as answer:
                read = await answer.content.read(MAX_ANSWER_BYTES + 1)
                while len(read) <= MAX_ANSWER_BYTES and (more := await answer.content.read(MAX_ANSWER_BYTES)):
                    read += more
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise _Unavailable("blocked" if guard.was_refused(error) else "connection") from None
    if answer.status == 400:
        return None
    if answer.status != 200 or len(read) > MAX_ANSWER_BYTES:
        raise _Unavailable("none" if answer.status in (404, 405) else "answer")
    try:
        return msgspec.json.decode(read, type=_Answer).tokens
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise _Unavailable("answer") from None


class _Answer(msgspec.Struct):
    tokens: list[int]


@dataclass(slots=True)
class _Watched:
    """A pair under watch: what it depends on, and when it is due (monotonic)."""

    print_: tuple[object, ...]
    due_s: float = 0.0
    task: asyncio.Task[None] | None = None


Present = tuple[bytes, EndpointView, ReplicaView]  # with the tenant's id


def _pairs(view: PlaneView) -> Iterator[Present]:
    """Every endpoint that names a tokenizer, with every replica of its pool."""
    for tenant in view.tenants.values():
        for endpoint in () if tenant.snapshot.deleted else tenant.endpoints.values():
            for replica in endpoint.replicas if endpoint.entry.model.tokenizer.digest is not None else ():
                yield tenant.snapshot.tenant_id.bytes, endpoint, replica


class ParityFeed:
    """Keeps ``plane.tokens.parity`` and ``plane.tokens.mismatched`` as the engines are."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._watched: dict[Pair, _Watched] = {}
        self._view: PlaneView | None = None
        self._present: dict[Pair, Present] = {}
        self._turn: Iterator[Pair] = iter(())
        self._served: dict[bytes, float] = {}  # when a tenant's last check ended (monotonic)
        self._slow: set[bytes] = set()  # tenants whose last check ran into its deadline

    async def run(self) -> None:
        """Compare what is due, for ever."""
        try:
            while True:
                self.adjust()
                await asyncio.sleep(LOOK_S)
        finally:
            for watched in self._watched.values():
                if watched.task is not None:
                    watched.task.cancel()

    def adjust(self) -> None:
        """Look at the next few pairs, begin those that are due, forget those that are gone. One check at a time works for a tenant, and whoever
        was served longest ago comes first."""
        if self._plane.view is not self._view:
            self._view = self._plane.view
            self._present = {(endpoint.entry.id, replica.entry.id): (owner, endpoint, replica) for owner, endpoint, replica in _pairs(self._view)}
            self._turn = iter(())
            for pair in [pair for pair in self._watched if pair not in self._present]:
                self._forget(pair)
            owners = {owner for owner, _, _ in self._present.values()}
            self._served = {owner: at_s for owner, at_s in self._served.items() if owner in owners}
            self._slow &= owners
        due: list[Pair] = []
        for _ in range(min(LOOK_AT, len(self._present))):
            upcoming = next(self._turn, None)
            if upcoming is None:
                self._turn = iter(tuple(self._present))
                upcoming = next(self._turn)
            if self._look(upcoming):
                due.append(upcoming)
        running = [self._present[pair][0] for pair, watched in self._watched.items() if watched.task is not None]
        for pair in sorted(due, key=lambda pair: self._served.get(self._present[pair][0], -math.inf)):
            self._begin(pair, running)

    def _begin(self, pair: Pair, running: list[bytes]) -> None:
        owner, endpoint, replica = self._present[pair]
        if len(running) >= AT_ONCE or owner in running or (owner in self._slow and len(self._slow.intersection(running)) >= AT_ONCE_SLOW):
            return
        running.append(owner)
        watched = self._watched[pair]
        watched.task = asyncio.create_task(self._check(pair, watched, owner, endpoint, replica), name="parity")

    def _look(self, pair: Pair) -> bool:
        """Whether a check of the pair is due."""
        _, endpoint, replica = self._present[pair]
        if not self._ready(endpoint, replica):
            if pair in self._watched:
                self._forget(pair)
            return False
        depends_on = self._print(endpoint, replica)
        watched = self._watched.setdefault(pair, _Watched(depends_on))
        if watched.print_ != depends_on:
            watched.print_, watched.due_s = depends_on, 0.0
        return watched.task is None and watched.due_s <= time.monotonic()

    def _ready(self, endpoint: EndpointView, replica: ReplicaView) -> bool:
        """Whether the endpoint's artifacts are loaded and the replica can be reached."""
        model, prompts = model_of(endpoint.entry.model), self._plane.tokens.prompts
        if model is None or not prompts.known(model.tokenizer_digest, "tokenizer"):
            return False
        if model.template_digest is not None and not prompts.known(model.template_digest, "chat_template"):
            return False
        engine = self._plane.engines.get(replica.url)
        return engine is not None and engine.reachable()

    def _forget(self, pair: Pair) -> None:
        if (task := self._watched.pop(pair).task) is not None:
            task.cancel()
        self._keep(pair, None)

    def _keep(self, pair: Pair, found: Parity | None) -> None:
        parity = self._plane.tokens.parity
        if found is None:
            parity.pop(pair, None)
        else:
            parity[pair] = found
        mismatched = frozenset(endpoint for (endpoint, _), one in parity.items() if one.state == "different")
        if mismatched != self._plane.tokens.mismatched:
            self._plane.tokens.mismatched = mismatched
            self._plane.tokens.settle(self._plane)

    def _print(self, endpoint: EndpointView, replica: ReplicaView) -> tuple[object, ...]:
        """What the answer depends on: whenever it changes, the pair is compared again."""
        model, engine = endpoint.entry.model, self._plane.engine(replica.url)
        return model.revision, model.tokenizer, model.chat_template, endpoint.entry.served_model, replica.url, engine.started_at, replica.credential

    async def _check(self, pair: Pair, watched: _Watched, owner: bytes, endpoint: EndpointView, replica: ReplicaView) -> None:
        print_ = watched.print_
        self._slow.add(owner)  # until it ends in time
        try:
            async with asyncio.timeout(CHECK_S):
                found = await compare(self._plane, self._plane.tokens.prompts, endpoint, replica, owner)
            if found.why != "connection":
                self._slow.discard(owner)
        except TimeoutError:
            found = Parity("unavailable", time.time(), why="connection")
        except Exception as error:  # noqa: BLE001 - a mistake here must not end the watch; the type alone is named
            log.error("comparing tokens failed: %s", type(error).__name__)  # noqa: TRY400 - as above
            found = Parity("unavailable", time.time(), why="mistake")
        self._served[owner] = time.monotonic()
        before = self._plane.tokens.parity.get(pair)
        if found.state == "unavailable" and found.why in ("connection", "answer", "ours") and before is not None and watched.print_ == print_:
            found = before  # silence does not take back what an engine said before
            watched.due_s = time.monotonic() + AGAIN_S
        else:
            again = self._plane.config.parity_s if found.state != "unavailable" or found.why in ("none", "engine") else AGAIN_S
            watched.due_s = time.monotonic() + again if watched.print_ == print_ else 0.0
        watched.task = None
        self._keep(pair, found)
        self._plane.metrics.parity_checks.labels(result=found.state).inc()
        if found.state == "different" and (before is None or before.state != "different"):
            log.warning(
                "template mismatch: endpoint %s on replica %s: sample %r differs at token %d; the endpoint is served from history",
                *(pair[0], pair[1], found.sample, found.position),
            )
        elif found.state == "inexact" and (before is None or (before.state, before.why) != (found.state, found.why)):
            log.warning(
                "endpoint %s on replica %s: sample %r has no exact tokens here (%s); prompts like it are served from history",
                *(pair[0], pair[1], found.sample, found.why),
            )
        elif before is not None and before.state in ("different", "inexact") and found.state == "ok":
            log.info("endpoint %s on replica %s: the tokens agree again", *pair)
