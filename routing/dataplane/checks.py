"""A look at an engine that nobody has added yet, on order of the control plane: what it serves, how its cache is cut, whether it keeps salts apart.

Done here and not by the web or a worker, since routers alone stand where requests will come from, and they alone can open a credential. Everything
goes through the guarded session: an address that may not be connected to is one that does not answer. Prompts are words in random order under two
salts drawn for this check: no namespace has them, so nothing that is tried can be found by anybody.
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import time
import uuid
from collections.abc import Collection, Mapping
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from namespaces.core import check as orders
from namespaces.core.check import Order
from namespaces.core.signed import TokenRefused
from routing.core import build
from routing.core.engines import ENGINES
from routing.core.exposition import EngineLoad, read_load
from routing.core.ranks import addressable
from routing.core.replica_check import MAX_CHARACTERS, MAX_MODELS, UNANSWERED, CheckReport, Events, ParityFound, SaltsFound, Use, salts
from routing.core.snapshot import ReplicaEntry
from routing.dataplane import errors, outgoing, parity
from routing.dataplane.feeds import kv_sources
from routing.dataplane.keys import Keys
from routing.dataplane.state import Plane
from routing.dataplane.upstream import HOP_HEADER
from routing.dataplane.view import ReplicaView

PATH = "/internal/check"
AT_ONCE = 4  # checks of one router; one more is told to come again
PAGE_S = 5.0  # for each page
PROBE_S = 10.0  # for each prompt
PARITY_S = 15.0
MAX_PAGE_BYTES = 4 * 1024 * 1024
MAX_NONCES = 1000  # remembered for their orders' life
WORDS = 400  # of a prompt: two dozen blocks of 16 at least
DEFAULT_BLOCK_TOKENS = 16
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class CheckDoor:
    """Verifies orders, bounds how many are carried out, and carries them out."""

    def __init__(self, plane: Plane, keys: Keys, publish_public_key: bytes) -> None:
        self._plane = plane
        self._keys = keys
        self._publish_public_key = publish_public_key
        self._used: dict[str, float] = {}  # nonce -> when it may be forgotten
        self._running = 0

    async def serve(self, request: web.BaseRequest) -> web.Response:
        """Carry out the order in the body; the answer is a :class:`CheckReport`.

        Raises:
            ApiError: 401 for an order that is not good, 503 where as many run as may.
        """
        order = self._order((await request.content.read(orders.MAX_ORDER_CHARACTERS + 1)).decode("ascii", "replace"), time.time())
        if self._running >= AT_ONCE:
            self._plane.metrics.replica_checks.labels(result="busy").inc()
            raise errors.unavailable("overloaded", "The router checks as many engines as it may.")
        self._running += 1
        try:
            found = await look(self._plane, self._keys, order)
        finally:
            self._running -= 1
        self._plane.metrics.replica_checks.labels(result=found.salts.verdict if found.answered else "unanswered").inc()
        return web.Response(body=msgspec.json.encode(found), headers={"Content-Type": errors.JSON})

    def _order(self, text: str, now: float) -> Order:
        try:
            order = orders.verify(text, self._publish_public_key, now_s=now)
        except TokenRefused:
            raise errors.invalid_probe() from None
        self._used = {nonce: ends for nonce, ends in self._used.items() if ends > now}
        if order.nonce in self._used or len(self._used) >= MAX_NONCES or order.engine not in ENGINES:
            raise errors.invalid_probe()
        self._used[order.nonce] = order.exp
        return order


async def look(plane: Plane, keys: Keys, order: Order) -> CheckReport:
    """Ask the engine. Never raises for what it does."""
    credential = None if order.credential is None else keys.open_credential(order.tenant, order.check, order.credential)
    entry = ReplicaEntry(id=order.check, name="check", url=order.url, engine=order.engine)  # type: ignore[arg-type]  # the door checked the family
    replica = ReplicaView(entry=entry, engine=ENGINES[order.engine], credential=credential, credential_opens=True)
    models = await _get(plane, replica, "/v1/models")
    if models is None:
        return UNANSWERED
    status, models_page = models
    if status in (401, 403):
        return CheckReport(answered=True, refused_status=status)
    listed = build.read_models(models_page)
    if status != 200 or not listed.served:
        return UNANSWERED  # whatever else lives there is not the caller's to learn
    version, metrics, sources = await asyncio.gather(*(_get(plane, replica, path) for path in ("/version", "/metrics", "/kv_event_sources")))
    endpoint = next((one for one in _endpoints(plane, order)), None)
    asked = order.served_model or (None if endpoint is None else endpoint.entry.served_model)
    model = asked if asked is not None else listed.base[0].partition("\n")[0] if listed.base else None
    _, block_tokens = build.read_settings(_ok(metrics))
    ranks, load = kv_sources.read(_ok(sources)), read_load(order.engine, _ok(metrics))
    named = _rank_to_name(plane, replica, load, [one.rank for one in ranks])
    events: Events = "published" if ranks else "drained" if replica.engine.events_path is not None else "none"
    return CheckReport(
        answered=True,
        family=_family(listed.owner),
        version=build.read_version(_ok(version)) or None,
        models=[name[:MAX_CHARACTERS] for name in listed.served[:MAX_MODELS]],
        served_model=model,
        served=None if asked is None else asked in listed.served,
        block_tokens=block_tokens,
        capacity_tokens=load.capacity_tokens,
        events=events,
        event_ranks=len(ranks),
        event_replay=any(one.replay_port is not None for one in ranks),
        salts=await _salts(plane, replica, model, block_tokens or DEFAULT_BLOCK_TOKENS, named),
        parity=await _parity(plane, replica, endpoint, order),
    )


def _endpoints(plane: Plane, order: Order) -> list[Any]:
    tenant = plane.view.tenants.get(order.tenant)
    if tenant is None or tenant.snapshot.deleted or order.endpoint is None:
        return []
    return [one for one in tenant.endpoints.values() if one.entry.id == order.endpoint]


def _rank_to_name(plane: Plane, replica: ReplicaView, load: EngineLoad, published: Collection[int]) -> str | None:
    """The data-parallel rank that all probes are for, where requests can name one: each of them would meet another cache otherwise, and no repeat
    would ever hit. Ranks are started with the same arguments, so any of them speaks for all."""
    rows = None if load.ranks is None else [one.number for one in load.ranks]
    several = plane.config.name_ranks and replica.engine.rank_header is not None and addressable(rows, published) > 0
    return "0" if several else None


async def _salts(plane: Plane, replica: ReplicaView, model: str | None, block_tokens: int, rank: str | None) -> SaltsFound:
    if replica.engine.salt_field is None:
        return SaltsFound(verdict="unsupported")
    if model is None:
        return SaltsFound(verdict="not tried")
    rng = secrets.SystemRandom()
    prompt = " ".join("".join(rng.choices(_LETTERS, k=4)) for _ in range(WORDS))
    one, other = _salt(), _salt()
    uses = []
    for salt in (one, one, other):
        uses.append(await _use(plane, replica, model, prompt, salt, rank=rank))
        if uses[-1].status != 200:
            return SaltsFound(verdict="not tried", status=uses[-1].status or None)
    return salts(*uses, block_tokens=block_tokens)


def _salt() -> str:
    """As long as a namespace's and in its form, drawn: no namespace has it."""
    return "sr1-" + base64.urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()


async def _use(plane: Plane, replica: ReplicaView, model: str, prompt: str, salt: str, *, rank: str | None) -> Use:
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": False}
    headers = {"Content-Type": "application/json", HOP_HEADER: "1", "X-Request-Id": f"sr-{uuid.uuid4().hex}"}
    if rank is not None and replica.engine.rank_header is not None:
        headers[replica.engine.rank_header] = rank
    outgoing_body = outgoing.checked(body, engine=replica.engine, salt=salt, served_model=model)
    answer = await _ask(plane, replica, "POST", "/v1/completions", body=outgoing_body, headers=headers, timeout_s=PROBE_S)
    if answer is None:
        return Use(status=0)
    status, page = answer
    try:
        said = msgspec.json.decode(page, type=_Completion).usage if status == 200 else _Usage()
    except (msgspec.MsgspecError, RecursionError):
        return Use(status=status)
    return Use(status=status, cached_tokens=said.prompt_tokens_details.cached_tokens, prompt_tokens=said.prompt_tokens)


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details = msgspec.field(default_factory=_Details)


class _Completion(msgspec.Struct):
    usage: _Usage = msgspec.field(default_factory=_Usage)


async def _parity(plane: Plane, replica: ReplicaView, endpoint: Any, order: Order) -> ParityFound:
    if order.endpoint is None:
        return ParityFound(state="not asked")
    if endpoint is None:
        return ParityFound(state="unavailable", why="endpoint")
    try:
        async with asyncio.timeout(PARITY_S):
            found = await parity.compare(plane, plane.tokens.prompts, endpoint, replica, order.tenant.bytes)
    except TimeoutError:
        return ParityFound(state="unavailable", why="connection")
    return ParityFound(state=found.state, sample=found.sample, position=found.position, compared=found.compared, why=found.why)


def _family(owner: str | None) -> str | None:
    """What the engine says that it is, from ``owned_by`` of its first model."""
    return owner[:MAX_CHARACTERS] if owner is not None and owner.isprintable() else None


def _ok(answer: tuple[int, bytes] | None) -> bytes:
    return answer[1] if answer is not None and answer[0] == 200 else b""


async def _get(plane: Plane, replica: ReplicaView, path: str) -> tuple[int, bytes] | None:
    return await _ask(plane, replica, "GET", path, headers={}, timeout_s=PAGE_S)


async def _ask(
    plane: Plane, replica: ReplicaView, method: str, path: str, *, headers: Mapping[str, str], timeout_s: float, body: bytes | None = None
) -> tuple[int, bytes] | None:
    """Status and page; None: nothing came, or too much. A connection of its own, which nobody uses after it."""
    sent = {"Accept": "application/json, text/plain", "Accept-Encoding": "identity", "User-Agent": "saltroute", **headers}
    if replica.credential is not None:
        sent["Authorization"] = f"Bearer {replica.credential}"
    try:
        async with asyncio.timeout(timeout_s):
            async with plane.fresh_session.request(method, replica.url + path, data=body, headers=sent, allow_redirects=False) as answer:
                read = b""
                async for part in answer.content.iter_any():
                    read += part
                    if len(read) > MAX_PAGE_BYTES:
                        return None
                return answer.status, read
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None
