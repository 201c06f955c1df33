"""What was used under quotas, told to Valkey and heard from there: in the background, never while a request waits.

One transaction writes what this process has used and reads what all have, at one instant. Written are whole numbers of this process's own, in fields
of its own: repeating them changes nothing, so a transaction whose answer was lost is simply sent again. *Why no script*: who may run scripts may hold
up everybody's Valkey; this takes six plain commands on these keys alone. Each process also says that it is there: between how many the slices are
divided is counted by that. Slots are numbered by Valkey's clock, whatever routers' own say. While Valkey does not answer the desk is *lost*: the
last slice is used up, then this router goes by its share of each limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from routing.core import quota
from routing.core.quota import MinuteMeter, MonthMeter
from routing.dataplane.quotas import Name
from routing.dataplane.state import Plane

BATCH = 200  # limits told in one transaction
BEAT_S = 1.0  # how often a router without traffic says that it is there, and asks anew about limits that were in use
PAUSE_S = 0.02  # between two exchanges
RETRY_S = 0.25
RETRY_MAX_S = 2.0
EXCHANGE_S = 0.5
LEAVE_S = 2.0
ROUTER_S = 15  # after which a router that says nothing is not counted any more
log = logging.getLogger("saltroute.quotas")


class QuotaFeed:
    """Exchanges what the desk's meters hold. One task of the router's."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._process = os.urandom(8).hex()
        self._next = 0  # where the next batch begins among the overdue
        self._over: dict[str, list[str]] = {}  # fields that mean nothing any more, by key
        self._fewer_s = math.inf  # since when fewer routers were counted than the desk goes by
        plane.quotas.routers = plane.config.quota_routers
        plane.quotas.lost = plane.config.valkey_url is None

    async def run(self, valkey: Redis) -> None:
        """Exchange whenever something was used, and every ``BEAT_S`` anyway, for ever."""
        wake, pause_s = self._plane.quotas.wake, RETRY_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await wake.wait()
            wake.clear()
            if await self.exchange(valkey):
                pause_s = RETRY_S
                if any(True for _ in self._plane.quotas.overdue(self._plane.quotas.now_s())):
                    wake.set()
                await asyncio.sleep(PAUSE_S)
                continue
            wake.set()
            await asyncio.sleep(pause_s)
            pause_s = min(RETRY_MAX_S, pause_s * 2)

    async def exchange(self, valkey: Redis) -> bool:
        """Tell and hear once, ``BATCH`` limits at most, each in its turn; False: Valkey did not answer."""
        desk = self._plane.quotas
        now_s = desk.now_s()
        overdue = list(desk.overdue(now_s))
        start = self._next % len(overdue) if len(overdue) > BATCH else 0
        batch = (overdue[start:] + overdue[:start])[:BATCH]
        self._next = start + BATCH
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(EXCHANGE_S):
                answer = await self._transaction(valkey, batch, now_s).execute()
        except (RedisError, OSError, TimeoutError) as error:
            if not desk.lost:
                log.warning("quotas are kept by this router's share alone: %s", type(error).__name__)
            desk.lost = True
            self._plane.metrics.quota_exchanges.labels(result="failed").inc()
            return False
        if desk.lost:
            log.info("quotas are kept together with the other routers again")
            for meter in desk.meters.values():
                meter.heard_at_s = -math.inf
        self._heard(batch, answer, began_s)
        self._plane.metrics.quota_exchanges.labels(result="ok").inc()
        return True

    def _transaction(self, valkey: Redis, batch: list[tuple[Name, MinuteMeter | MonthMeter]], now_s: float) -> Pipeline:
        """The clock, the routers, and for each limit what was used."""
        pipe = valkey.pipeline(transaction=True)
        pipe.time()
        pipe.hset(quota.ROUTERS, self._process, str(int(now_s)))
        pipe.hgetall(quota.ROUTERS)
        for name, meter in batch:
            key, fields = quota.key_of(*name), meter.report(now_s, self._process)
            if fields:
                pipe.hset(key, items=[part for field in fields.items() for part in field])
                pipe.expire(key, quota.MONTH_KEPT_S if name[2] else quota.MINUTE_KEPT_S)
            pipe.hgetall(key)
        for key, names in self._over.items():
            pipe.hdel(key, *names)
        self._over = {}
        return pipe

    def _heard(self, batch: list[tuple[Name, MinuteMeter | MonthMeter]], answer: list[Any], began_s: float) -> None:
        """Take an answer in: every HGETALL of it is a mapping, and nothing else is."""
        desk = self._plane.quotas
        seconds, microseconds = answer[0]
        desk.ahead_s = seconds + microseconds / 1e6 - (began_s + time.monotonic()) / 2
        now_s = desk.now_s()
        routers, *found = (_text(one) for one in answer if isinstance(one, dict))
        silent = [process for process, at in routers.items() if not at.isdecimal() or abs(now_s - int(at)) > ROUTER_S]
        desk.lost = False
        self._count(max(1, len(routers) - len(silent)), now_s)
        if silent:
            self._over[quota.ROUTERS] = silent[:BATCH]
        for (name, meter), fields in zip(batch, found, strict=True):
            if over := meter.heard(now_s, self._process, fields):
                self._over[quota.key_of(*name)] = over[:BATCH]
        month = quota.month_of(now_s)
        for name in [name for name, meter in desk.meters.items() if isinstance(meter, MonthMeter) and meter.month != month and meter.done]:
            del desk.meters[name]

    def _count(self, routers: int, now_s: float) -> None:
        """More routers share at once; fewer only once that has stood for a while: a Valkey that was emptied knows one after the other."""
        desk = self._plane.quotas
        if routers >= desk.routers:
            desk.routers, self._fewer_s = routers, math.inf
        elif self._fewer_s == math.inf:
            self._fewer_s = now_s
        elif now_s - self._fewer_s > ROUTER_S:
            desk.routers = routers

    async def prime(self, valkey: Redis) -> None:
        """Before the first request: hear what was used under every limit, as far as that takes no longer than ``LEAVE_S``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                while await self.exchange(valkey) and any(True for _ in self._plane.quotas.overdue(self._plane.quotas.now_s())):
                    pass

    async def leave(self, valkey: Redis) -> None:
        """Tell what is left to tell, put this process's part of the months with that of those that are gone, and say that this router is.

        What cannot be told in time the usage will say.
        """
        await self.prime(valkey)
        pipe = valkey.pipeline(transaction=True)
        for name, meter in self._plane.quotas.meters.items():
            if isinstance(meter, MonthMeter) and meter.done and meter.settled:
                key = quota.key_of(*name)
                pipe.hincrby(key, quota.GONE, meter.settled)
                pipe.hdel(key, self._process)
        pipe.hdel(quota.ROUTERS, self._process)
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await pipe.execute()


def _text(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}
