"""Bursts of one prompt: who follows waits for the leader's first byte, where that is due soon (:mod:`routing.core.gate`)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from routing.core import gate, prefix
from routing.core.gate import Gate

if TYPE_CHECKING:
    from routing.dataplane.choice import Choice
    from routing.dataplane.inflight import Flight
    from routing.dataplane.state import Plane


class Bursts:
    """Leaders and followers of this router. One event loop owns it. A flight that leads or follows says so in ``burst`` and ``serial``."""

    def __init__(self, *, window_s: float) -> None:
        self._gate = Gate(window_s=window_s)
        self._followers: dict[int, asyncio.Event] = {}
        self._serial = 0

    def __len__(self) -> int:
        """Requests held behind the leader of their burst."""
        return len(self._followers)

    def hold_s(self, plane: Plane, flight: Flight, choice: Choice) -> float | None:
        """For how long the flight should wait behind the leader of its burst, in seconds; None: it goes.

        What marks a burst is the prefix that ends :data:`gate.MIN_TOKENS` after what the chosen replica holds for certain.
        """
        prompt, namespace, endpoint, chosen = flight.prompt, flight.namespace, flight.endpoint, choice.decision.chosen
        if prompt is None or namespace is None or endpoint is None or chosen.uncached_tokens < gate.MIN_TOKENS:
            return None
        if endpoint.policy.policy != "ettft":  # the baselines are what they are called
            return None
        if chosen.evidence == "event":
            held_bytes = chosen.matched_tokens * prompt.bytes_per_token
        else:
            key = namespace.key
            held_blocks = plane.index.settled(key, prompt.digests, choice.computes.place.key, owner=flight.owner)
            held_bytes = prefix.covered_bytes(held_blocks)
        position = prefix.whole_blocks(int(held_bytes + gate.MIN_TOKENS * prompt.bytes_per_token))
        if position >= len(prompt.digests):
            return None
        self._serial += 1
        flight.serial = self._serial
        flight.burst = namespace.public_id.encode() + prompt.digests[position]
        return self._gate.arrive(
            flight.burst,
            flight.serial,
            uncached_tokens=chosen.uncached_tokens,
            expected_ttft_s=chosen.expected_ttft_s,
            joins=chosen.evidence == "pending",
            bound_s=gate.bound_s(flight.slo_s),
            now_s=time.monotonic(),
        )

    async def behind_leader(self, plane: Plane, flight: Flight, hold_s: float) -> None:
        """Wait until the leader's first byte, for ``hold_s`` at most."""
        event = self._followers[flight.serial] = asyncio.Event()
        plane.metrics.held.labels(reason="burst").inc()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(hold_s):
                    await event.wait()
        finally:
            del self._followers[flight.serial]
            if flight.burst is not None and not event.is_set():
                self._gate.gave_up(flight.burst, flight.serial)

    def turned_away(self, flight: Flight) -> None:
        """The flight goes to another endpoint: nobody waits for its prefix here any more."""
        if flight.burst is not None:
            heir = self._gate.lost(flight.burst, flight.serial)
            self._open(() if heir is None else (heir,))
            flight.burst = None

    def first_byte(self, flight: Flight) -> None:
        """The flight's prefix is resident where it went: those who follow it may go."""
        if flight.burst is not None:
            self._open(self._gate.opened(flight.burst, flight.serial))

    def _open(self, serials: Collection[int]) -> None:
        for serial in serials:
            if (event := self._followers.get(serial)) is not None:
                event.set()
