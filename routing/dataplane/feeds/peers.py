"""Routers of one installation tell one another what they placed and how busy they keep the engines: through a Valkey channel, and never
on a request's path.

    tell     every ``BEAT_S``, and ``BATCH_S`` after something happened: loads as they stand, placements and settlements since the last beat
    listen   siblings' beats go into the history index and beside the ledgers (:mod:`routing.core.siblings`)
    warm     a router that begins late, or was cut off, asks one sibling for its history and estimates and takes them in at less confidence
    without  Valkey nothing of it happens: siblings' loads fade within a second, their open placements soon after, and the router goes by its own view

Messages are sealed under a key that only holders of the root derive, so Valkey and whoever reads it learn sizes and times alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Iterator
from uuid import UUID

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from redis.asyncio import Redis
from redis.exceptions import RedisError

from routing.core import peering, warmup
from routing.core.peering import ANSWER, ASK, BEAT, PART, Answer, Ask, Beat, Body, Head, Load, PeeringError
from routing.core.siblings import Effects, Here
from routing.dataplane.engine import Engine
from routing.dataplane.keys import KeyringError, Keys, SiblingSeal
from routing.dataplane.ranks import Rank
from routing.dataplane.state import Plane

CHANNEL = "saltroute:peers"
PART_KEY = "saltroute:peers:warm:{}:{}"
PART_EX_S = 10
BEAT_S = 0.25
BATCH_S = 0.01
WARM_S = 1.0
ASK_AGAIN_S = 30.0
ORPHANS = 16  # placements without a known beginning after which history is asked for again
CALL_S = 1.0
RETRY_S = 0.25
MAX_SEALS = 128
_GONE = (RedisError, OSError, TimeoutError)
log = logging.getLogger("saltroute.peers")


class PeerFeed:
    """One router process among its siblings."""

    def __init__(self, plane: Plane, keys: Keys) -> None:
        self.process = os.urandom(peering.PROCESS_BYTES)
        self._plane = plane
        self._keys = keys
        self._seal = keys.sibling_seal(self.process)
        self._seals: OrderedDict[bytes, SiblingSeal] = OrderedDict()
        self._counter = 0
        self._wake = asyncio.Event()
        self._first_try = asyncio.Event()  # the channel was subscribed to, or cannot be
        self._subscribed = False
        self._believed = asyncio.Event()
        self._wants_warmth = True
        self._asked_at_s: float | None = None
        self._orphans = 0
        self._asking: tuple[bytes, bytes, asyncio.Future[int]] | None = None  # of whom, the question's name, how many parts
        self._answering: asyncio.Task[None] | None = None
        self._questions: set[asyncio.Task[int]] = set()
        self._table: Here | None = None
        self._table_of: tuple[object, object, object] = (None, None, None)
        plane.siblings.process = self.process

    # -- telling ------------------------------------------------------------------------------------------------------------------

    async def tell(self, valkey: Redis) -> None:
        """Send beats, for ever."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BEAT_S):
                        await self._wake.wait()
                        await asyncio.sleep(BATCH_S)  # what happens at once goes in one message
                self._wake.clear()
                self._tick(time.monotonic())
                if not await self._beat(valkey):
                    await asyncio.sleep(RETRY_S)
                elif self._plane.outbox.backlog():
                    self._wake.set()
        finally:
            for task in (*self._questions, *([self._answering] if self._answering else [])):
                task.cancel()

    async def _beat(self, valkey: Redis, *, leaving: bool = False) -> bool:
        plane, now_s = self._plane, time.monotonic()
        places: dict[str, Engine | Rank] = {**plane.engines, **plane.ranks}
        plane.outbox.keep(places)
        loads = []
        for key, place in places.items():
            queued_tokens, waiting = place.ledger.queued(now_s)
            ranks = place.ranks if isinstance(place, Engine) else ()  # these say theirs
            in_flight = place.in_flight - sum([rank.in_flight for rank in ranks])
            more_answers = place.more_answers - sum([rank.more_answers for rank in ranks])
            if in_flight or waiting or plane.outbox.asked(key):
                loads.append(Load(peering.engine_id(key), queued_tokens, waiting, in_flight, plane.outbox.asked(key), more_answers))
        heard, blocks = plane.siblings.heard(), sum(size for size, _ in plane.index.sizes().values())
        beat = plane.outbox.beat(plane.config.router_id, loads=loads, heard=heard, now_s=now_s, blocks=blocks, leaving=leaving)
        return await self._send(valkey, BEAT, beat)

    def _sealed(self, kind: int, plaintext: bytes, more: bytes = b"") -> bytes:
        self._counter += 1
        clear = peering.head(kind, self.process, self._counter)
        return clear + self._seal.seal(self._counter, plaintext, clear + more)

    async def _send(self, valkey: Redis, kind: int, body: Body) -> bool:
        try:
            async with asyncio.timeout(CALL_S):
                await valkey.publish(CHANNEL, self._sealed(kind, peering.encode(body)))
        except _GONE:
            self._plane.siblings.counts["unsent"] += 1
            return False
        return True

    async def leave(self, valkey: Redis) -> None:
        """Say goodbye, so that siblings let go of this router's placements at once."""
        await self._beat(valkey, leaving=True)

    def _tick(self, now_s: float) -> None:
        siblings = self._plane.siblings
        self._apply(siblings.tick(now_s, self._here()))
        if self._plane.outbox.listening and not siblings.heard():
            self._plane.outbox.silent()
            self._plane.outbox.wake = peering.nobody
        if siblings.counts["orphaned"] >= self._orphans + ORPHANS:
            self._orphans = siblings.counts["orphaned"]
            self._wants_warmth = True

    def _apply(self, effects: Effects) -> None:
        """What siblings asked of an engine explains what it finished; what they asked without a word leaves its history with gaps."""
        for key, count in effects.asked.items():
            if (engine := self._plane.known_engine(key)) is not None:
                engine.sequences += count
        for key in effects.unexplained:
            if (engine := self._plane.known_engine(key)) is not None:
                engine.served_others = True

    # -- listening ----------------------------------------------------------------------------------------------------------------

    async def listen(self, valkey: Redis) -> None:
        """Take in what siblings say, for ever."""
        heard = True
        while True:
            try:
                async with valkey.pubsub(ignore_subscribe_messages=True) as subscription:
                    await subscription.subscribe(CHANNEL)
                    self._subscribed = heard = True
                    self._first_try.set()
                    self._wake.set()
                    async for message in subscription.listen():
                        if isinstance(data := message.get("data"), bytes):
                            await self._heard(valkey, data)
                            await asyncio.sleep(0)  # requests come between two messages
            except _GONE as error:
                if heard:  # once for each time that it is away
                    log.warning("siblings cannot be heard: %s", type(error).__name__)
                heard = False
            self._subscribed, self._wants_warmth = False, True
            self._first_try.set()
            await asyncio.sleep(RETRY_S)

    def open(self, message: bytes) -> tuple[Head, Body] | None:
        """Verify and read a message; None, counted, for one that is not a sibling's or is not new."""
        siblings = self._plane.siblings
        try:
            head = peering.read_head(message)
            if head.process == self.process:
                siblings.own_heard_at_s = time.monotonic()
                return None
            plaintext = self._seal_of(head.process).open(head.counter, message[peering.HEAD_BYTES :], message[: peering.HEAD_BYTES])
            body = peering.decode(head.kind, plaintext)
        except (PeeringError, KeyringError) as error:
            siblings.counts["forged" if isinstance(error, KeyringError) else "malformed"] += 1
            return None
        return (head, body) if siblings.admit(head) else None

    def _seal_of(self, process: bytes) -> SiblingSeal:
        seal = self._seals.get(process)
        if seal is None:
            seal = self._seals[process] = self._keys.sibling_seal(process)
            if len(self._seals) > MAX_SEALS:
                self._seals.popitem(last=False)
        else:
            self._seals.move_to_end(process)
        return seal

    async def _heard(self, valkey: Redis, message: bytes) -> None:
        opened = self.open(message)
        if opened is None:
            return
        head, body = opened
        if isinstance(body, Beat):
            self.take(head, body)
            if self._wants_warmth and self._may_ask():
                self._wants_warmth = False
                self._background(valkey)
        elif body.to != self.process:
            return
        elif isinstance(body, Ask):
            if self._answering is None or self._answering.done():
                self._answering = asyncio.create_task(self._answer(valkey, head.process, body.ask), name="answer to a sibling")
        elif self._asking is not None and self._asking[:2] == (head.process, body.ask) and not self._asking[2].done():
            self._asking[2].set_result(min(body.parts, warmup.MAX_PARTS))

    def take(self, head: Head, beat: Beat) -> None:
        """Merge a sibling's beat."""
        plane, siblings, now_s = self._plane, self._plane.siblings, time.monotonic()
        known = head.process in siblings.heard()
        believed = siblings.hear(head, beat, now_s)
        if not known:  # it is to hear at once that it was heard
            plane.outbox.listening = True
            plane.outbox.wake = self._wake.set
            self._wake.set()
        if believed:
            self._apply(siblings.take(head, beat, now_s, self._here()))
            self._believed.set()

    def _here(self) -> Here:
        """This router's tenants, and its engines by their names between routers."""
        view, replicas, ranks = self._plane.view, self._plane.replicas, self._plane.ranks
        if self._table is None or any(old is not new for old, new in zip(self._table_of, (view, replicas, ranks), strict=True)):
            owners = frozenset(tenant_id.bytes for tenant_id, tenant in view.tenants.items() if not tenant.snapshot.deleted)
            self._table = Here(index=self._plane.index, owners=owners, engines={peering.engine_id(key): key for key in (*replicas, *ranks)})
            self._table_of = (view, replicas, ranks)
        return self._table

    # -- beginning late -----------------------------------------------------------------------------------------------------------

    def _may_ask(self) -> bool:
        now_s = time.monotonic()
        due = self._asked_at_s is None or now_s - self._asked_at_s > ASK_AGAIN_S
        return due and self._asking is None and bool(self._plane.siblings.believed(now_s))

    def _background(self, valkey: Redis) -> None:
        task = asyncio.create_task(self._ask(valkey), name="ask a sibling")
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    async def warm(self, valkey: Redis) -> int:
        """Take over a sibling's knowledge, within a second; returns how many blocks. Without siblings it returns at once."""
        try:
            async with asyncio.timeout(WARM_S):
                await self._first_try.wait()
                others = dict(await valkey.pubsub_numsub(CHANNEL)).get(CHANNEL.encode(), 0) - 1 if self._subscribed else 0
                if others < 1:
                    return 0
                self._wants_warmth = False
                await self._believed.wait()
                asked_by_s = time.monotonic() + WARM_S / 4
                while len(self._plane.siblings.believed(now_s := time.monotonic())) < others and now_s < asked_by_s:  # noqa: ASYNC110 - each is counted by its own beat
                    await asyncio.sleep(BATCH_S)  # who answers first may be new itself
                return await self._ask(valkey)
        except _GONE:
            self._wants_warmth = True  # when one is heard after all
            return 0

    async def _ask(self, valkey: Redis) -> int:
        """Ask the sibling that knows most, and merge its answer."""
        candidates = self._plane.siblings.believed(time.monotonic())
        if not candidates:
            return 0
        self._asked_at_s = time.monotonic()
        name = os.urandom(16)
        answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._asking = (candidates[0], name, answered)
        blocks = 0
        try:
            async with asyncio.timeout(WARM_S):
                await self._send(valkey, ASK, Ask(to=candidates[0], ask=name))
                keys = [PART_KEY.format(name.hex(), number) for number in range(await answered)]
                for number, key in enumerate(keys):
                    part = self._open_part(await valkey.get(key), candidates[0], name, number)
                    blocks += await self._merge(part)
                if keys:
                    await valkey.delete(*keys)
        except _GONE:
            self._plane.siblings.counts["unanswered"] += 1
        except (PeeringError, KeyringError) as error:
            self._plane.siblings.counts["forged" if isinstance(error, KeyringError) else "malformed"] += 1
        finally:
            self._asking = None
        self._plane.siblings.counts["warmed"] += blocks
        log.info("%d blocks of history from a sibling", blocks)
        return blocks

    def _open_part(self, message: object, process: bytes, name: bytes, number: int) -> warmup.Part:
        """Verify one part of an answer.

        Raises:
            PeeringError, KeyringError: it is not part ``number`` of the answer of that process to that question.
        """
        if not isinstance(message, bytes):
            raise PeeringError("a part is missing")
        head = peering.read_head(message)
        if head.kind != PART or head.process != process:
            raise PeeringError("not a part of the answer")
        bound = message[: peering.HEAD_BYTES] + name + number.to_bytes(2, "big")
        return warmup.decode(self._seal_of(process).open(head.counter, message[peering.HEAD_BYTES :], bound))

    async def _merge(self, part: warmup.Part) -> int:
        plane = self._plane
        here = self._here()
        owners, engines = here.owners, here.engines
        others = set()
        for known in part.known:
            url = engines.get(known.engine)
            if url is None:
                continue
            engine = plane.known_engine(url) or plane.engine(url)
            if engine.started_at is not None and known.started_at is not None and abs(engine.started_at - known.started_at) > 0.5:
                others.add(known.engine)  # another process by now
                continue
            engine.started_at = engine.started_at or known.started_at
            warmup.adopt_rate(engine.calibration, known, time.monotonic())
            if 1 <= known.mean_uncached_tokens < 1e7:
                engine.mean_uncached_tokens = known.mean_uncached_tokens
        live = {endpoint.entry.id for tenant in plane.view.tenants.values() for endpoint in tenant.endpoints.values()}
        for ratio in part.ratios:
            if len(ratio.endpoint) == 16 and (endpoint_id := UUID(bytes=ratio.endpoint)) in live:
                warmup.adopt_ratio(plane.endpoint_state(endpoint_id).ratio, ratio)
        blocks = 0
        for holding in part.holdings:
            if holding.engine in engines and holding.engine not in others and holding.owner in owners:
                blocks += warmup.restore(plane.index, holding, engines[holding.engine], time.monotonic())
                await asyncio.sleep(0)
        return blocks

    async def _answer(self, valkey: Redis, to: bytes, name: bytes) -> None:
        """Lay down what this router knows, in sealed parts that expire, and say how many."""
        plane, now_s = self._plane, time.monotonic()
        here = self._here()
        engines = here.engines
        known = [
            warmup.Known(
                name_here,
                engine.calibration.own_rate,
                engine.calibration.fixed_s if engine.calibration.fixed else None,
                engine.mean_uncached_tokens,
                engine.started_at,
            )
            for name_here, key in engines.items()
            if (engine := plane.known_engine(key)) is not None
        ]
        ratios = [warmup.Ratio(one.bytes, state.ratio.bytes_per_token, state.ratio.samples) for one, state in plane.endpoints.items()]
        count = 0
        try:
            async with asyncio.timeout(WARM_S):
                pieces = warmup.holdings(plane.index, list(engines.values()), here.owners, now_s)
                for part in warmup.parts(known, ratios, pieces):
                    bound = name + count.to_bytes(2, "big")
                    await valkey.set(PART_KEY.format(name.hex(), count), self._sealed(PART, warmup.encode(part), bound), ex=PART_EX_S)
                    count += 1
        except _GONE:
            plane.siblings.counts["unsent"] += 1
        if count:
            await self._send(valkey, ANSWER, Answer(to=to, ask=name, parts=count))
            plane.siblings.counts["answered"] += 1


class PeerCollector(Collector):
    """Metrics of what passes between routers; without labels that name a router."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def collect(self) -> Iterator[Metric]:
        """Read from the running state."""
        siblings, outbox, now_s = self._plane.siblings, self._plane.outbox, time.monotonic()
        yield GaugeMetricFamily("saltroute_siblings", "Other routers heard within the last second", value=len(siblings.believed(now_s)))
        age_s = siblings.last_word_age_s(now_s)
        yield GaugeMetricFamily(
            "saltroute_siblings_last_word_age_seconds", "Age of the oldest last word of a sibling; -1: none", value=-1.0 if age_s is None else age_s
        )
        yield GaugeMetricFamily("saltroute_siblings_open_placements", "Siblings' placements not yet settled", value=siblings.open_placements())
        events = CounterMetricFamily("saltroute_siblings_events", "What became of messages and placements between routers", labels=["event"])
        for event in EVENTS:
            events.add_metric([event], siblings.counts[event])
        events.add_metric(["dropped"], outbox.dropped)
        events.add_metric(["cut"], outbox.cut)
        yield events


EVENTS = (
    *("believed", "unproven", "forged", "malformed", "replayed", "too_many", "unsent"),
    *("placed", "parked", "lost", "orphaned", "expired", "unknown_engine", "unknown_owner"),
    *("warmed", "answered", "unanswered"),
)
