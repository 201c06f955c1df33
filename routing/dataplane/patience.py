"""How long an engine is waited for: until its time is up, or until it has fallen silent (:mod:`routing.core.silence`)."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Final

from routing.core import silence
from routing.dataplane.upstream import Cause, UpstreamFailed

if TYPE_CHECKING:
    from routing.dataplane.engine import Engine

UNREACHABLE: Final[Cause] = "unreachable"
BEAT_S = 0.05


class Patience:
    """The wait for the first byte of one answer, until ``deadline_s`` on the loop's clock. Used once, as ``async with``.

    Raises:
        UpstreamFailed: ``first_byte_timeout``, or ``unreachable`` where the engine fell silent before. Whatever was under way is cancelled first.
    """

    __slots__ = ("_engine", "_given_up", "_limit", "_silent_checks")

    def __init__(self, engine: Engine, deadline_s: float) -> None:
        self._engine = engine
        self._limit = asyncio.timeout_at(deadline_s)
        self._silent_checks = 0
        self._given_up = False

    async def __aenter__(self) -> None:
        self._engine.awaited[self] = None
        await self._limit.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        del self._engine.awaited[self]
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError:
            raise self._failed() from None
        if kind is not None and issubclass(kind, TimeoutError):  # the system's own
            raise self._failed() from None

    def _failed(self) -> UpstreamFailed:
        return UpstreamFailed(UNREACHABLE if self._given_up else "first_byte_timeout")

    def heard(self, meaning: silence.Meaning, limit: int) -> bool:
        """Take in what a health check says; with ``limit`` silent ones in a row the wait ends. True: with this one."""
        self._silent_checks = silence.in_a_row(self._silent_checks, meaning)
        if self._given_up or self._silent_checks < limit or self._limit.expired():
            return False
        self._given_up = True
        self._limit.reschedule(asyncio.get_running_loop().time())
        return True


class Pulse:
    """For how much of some time the event loop was held up: a beat that is due every ``BEAT_S``, and how late it comes. Used once, as ``with``."""

    __slots__ = ("_due_s", "_handle", "_late_s", "_loop")

    def __enter__(self) -> Pulse:
        self._loop = asyncio.get_running_loop()
        self._late_s = 0.0
        self._arm()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._handle.cancel()

    def _arm(self) -> None:
        self._due_s = self._loop.time() + BEAT_S
        self._handle = self._loop.call_at(self._due_s, self._beat)

    def _beat(self) -> None:
        self._late_s = self.late_s
        self._arm()

    @property
    def late_s(self) -> float:
        """Seconds so far."""
        return self._late_s + max(0.0, self._loop.time() - self._due_s)
