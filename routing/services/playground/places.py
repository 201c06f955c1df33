"""How many answers of the playground this process carries at once: each holds one of its threads until it ends."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from tenants.core.errors import Refusal

log = logging.getLogger(__name__)


class Busy(Refusal):
    """All places are taken; one is free again within ``talk.TALK_S``."""

    code = "overloaded"
    http_status = 429


class Places:
    """``limit`` places (``PLAYGROUND_STREAMS``), of which one tenant gets all but one. Thread-safe; nobody waits for a place."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0  # answers under way
        self.served = 0  # begun since the process started
        self.refused = 0  # turned away since the process started
        self._held: Counter[UUID] = Counter()
        self._lock = threading.Lock()

    @property
    def of_a_tenant(self) -> int:
        """Places that one tenant may hold, so that it cannot keep the others out."""
        return max(1, self.limit - 1)

    def take(self, tenant_id: UUID) -> Place:
        """Take a place; who takes it gives it back.

        Raises:
            Busy: none is free, for this tenant or at all.
        """
        with self._lock:
            own = self._held[tenant_id]
            if self.taken < self.limit and own < self.of_a_tenant:
                self.taken += 1
                self.served += 1
                self._held[tenant_id] += 1
                return Place(self, tenant_id)
            self.refused += 1
            refused = self.refused
        log.warning("playground: no place of %d (PLAYGROUND_STREAMS; %d for one tenant); %d refused so far", self.limit, self.of_a_tenant, refused)
        if own >= self.of_a_tenant:
            held = f"{own} answer{'s' if own != 1 else ''}"
            raise Busy(f"Your tenant has {held} under way here, as many as one may (PLAYGROUND_STREAMS): stop one, or try again when one has ended.")
        raise Busy(
            f"All {self.limit} places of the playground are taken (PLAYGROUND_STREAMS). Applications are not held up: try again in some seconds."
        )

    def _back(self, tenant_id: UUID) -> None:
        with self._lock:
            self.taken -= 1
            self._held[tenant_id] -= 1
            if not self._held[tenant_id]:
                del self._held[tenant_id]


class Place:
    """One place; giving it back twice is giving it back once."""

    def __init__(self, places: Places, tenant_id: UUID) -> None:
        self._places, self._tenant_id, self._held = places, tenant_id, True

    def back(self) -> None:
        if self._held:
            self._held = False
            self._places._back(self._tenant_id)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Hold it until the end of the block."""
        try:
            yield
        finally:
            self.back()
