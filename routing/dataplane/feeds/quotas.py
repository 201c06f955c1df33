"""What was used under quotas, told to Valkey and heard from there: in the background, never while a request waits.

One transaction writes what this process has used and reads what all have, at one instant. Written are whole numbers of this process's own, in fields
of its own: repeating them changes nothing, so a transaction whose answer was lost is simply sent again. *Why no script*: who may run scripts may hold
up everybody's Valkey; this takes six plain commands on these keys alone. Each process also says that it is there: between how many the slices are
divided is counted by that. Slots are numbered by Valkey's clock, whatever routers' own say. While Valkey does not answer the desk is *lost*: the
last slice is used up, then this router goes by its share of each limit. Where a key holds something else than a hash, that limit alone is lost: the
others of the transaction are told and heard.
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
        self._blind = False  # the routers cannot be counted
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
                clock, routers, *found = await self._transaction(valkey, batch, now_s)
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
        desk.ahead_s = clock[0] + clock[1] / 1e6 - (began_s + time.monotonic()) / 2
        desk.lost = False
        self._heard_routers(routers)
        for (name, meter), fields in zip(batch, found, strict=True):
            self._heard(name, meter, fields)
        self._forget_months()
        self._plane.metrics.quota_exchanges.labels(result="ok").inc()
        return True

    async def _transaction(self, valkey: Redis, batch: list[tuple[Name, MinuteMeter | MonthMeter]], now_s: float) -> list[Any]:
        """The clock, the routers, and for each limit what was used. What Valkey refuses of it stands at its place as an error.

        Raises:
            RedisError, OSError: Valkey did not answer, or took nothing of it.
        """
        pipe = valkey.pipeline(transaction=True)
        pipe.time()
        pipe.hset(quota.ROUTERS, self._process, str(int(now_s)))
        wanted = [0, len(pipe)]
        pipe.hgetall(quota.ROUTERS)
        for name, meter in batch:
            key, fields = quota.key_of(*name), meter.report(now_s, self._process)
            if fields:
                pipe.hset(key, items=[part for field in fields.items() for part in field])
                pipe.expire(key, quota.MONTH_KEPT_S if name[2] else quota.MINUTE_KEPT_S)
            wanted.append(len(pipe))
            pipe.hgetall(key)
        for key, names in self._over.items():
            pipe.hdel(key, *names)
        self._over = {}
        answers = await pipe.execute(raise_on_error=False)
        if isinstance(answers[0], RedisError):
            raise answers[0]
        return [answers[place] for place in wanted]

    def _heard_routers(self, found: dict[bytes, bytes] | RedisError) -> None:
        """Count who is there. Where that cannot be read, as many are there as were counted last."""
        if isinstance(found, RedisError):
            if not self._blind:
                log.warning("routers cannot be counted: %s holds something else (%s)", quota.ROUTERS, type(found).__name__)
            self._blind = True
            return
        self._blind = False
        now_s = self._plane.quotas.now_s()
        routers = _text(found)
        silent = [process for process, at in routers.items() if (at_s := quota.whole(at)) is None or abs(now_s - at_s) > ROUTER_S]
        self._count(max(1, len(routers) - len(silent)), now_s)
        if silent:
            self._over[quota.ROUTERS] = silent[:BATCH]

    def _heard(self, name: Name, meter: MinuteMeter | MonthMeter, found: dict[bytes, bytes] | RedisError) -> None:
        """Take in what all used under one limit."""
        now_s = self._plane.quotas.now_s()
        if isinstance(found, RedisError):
            if not meter.spoilt:
                log.warning("quota %s is kept by this router's share alone: %s holds something else (%s)", name[0], name[1], type(found).__name__)
            meter.spoilt_at_s = now_s
        elif over := meter.heard(now_s, self._process, _text(found)):
            self._over[quota.key_of(*name)] = over[:BATCH]

    def _forget_months(self) -> None:
        """Drop meters of months that are over and told."""
        desk = self._plane.quotas
        month = quota.month_of(desk.now_s())
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
