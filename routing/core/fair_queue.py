"""Whose turn it is when a pool has more work than it can start: deficit round robin in tokens between tenants, and inside a tenant between keys;
inside a key by priority class, then by earliest deadline.

What a replica holds plays no part here, so residency never reorders across tenants. A request is charged what it is expected to cost when it is
taken, and settled when its answer is known: a flow in debt waits, at most :data:`FLOOR_QUANTA` rounds of it, and never while nobody else wants the
pool. A flow that comes back after a silence has no credit from it.
Source: deficit round robin (Shreedhar and Varghese, 1995); settling by real cost as in fair serving of language models by token counters (VTC, 2024).
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

QUANTUM_TOKENS = 4096.0
FLOOR_QUANTA = 4.0
OUTPUT_WEIGHT = 2.0  # an output token keeps a replica busy about twice as long as an uncached prompt token
MAX_DEBTORS = 4096  # flows without waiters whose debt is remembered
RETRY_STEPS_S = (1, 2, 5, 10, 30)


@dataclass(frozen=True, slots=True)
class Waiter:
    """One request that waits for its turn. ``deadline_s`` (monotonic) is when it is due: in its class the earliest goes first."""

    id: int
    tenant: bytes
    key: bytes
    cost_tokens: float  # expected uncached prompt tokens + OUTPUT_WEIGHT * expected output tokens, > 0
    deadline_s: float
    priority: int = 0  # class inside its tenant; lower goes first


@dataclass(slots=True)
class _Flow:
    """One turn-taker. ``deficit`` is what it may still spend, in tokens; negative is debt."""

    weight: float = 1.0
    deficit: float = 0.0


F = TypeVar("F", bound=_Flow)


class _Ring(Generic[F]):
    """Flows with waiters in the order of their turns."""

    def __init__(self, make: Callable[[], F]) -> None:
        self._make = make
        self.flows: OrderedDict[bytes, F] = OrderedDict()
        self._debts: OrderedDict[bytes, float] = OrderedDict()

    def join(self, name: bytes, weight: float) -> F:
        flow = self.flows.get(name)
        if flow is None:
            flow = self.flows[name] = self._make()
            flow.deficit = self._debts.pop(name, 0.0)
        flow.weight = weight
        return flow

    def leave(self, name: bytes) -> None:
        """A flow without waiters keeps its debt and loses its credit."""
        self._remember(name, self.flows.pop(name).deficit)

    def _remember(self, name: bytes, deficit: float) -> None:
        self._debts.pop(name, None)
        if deficit < 0:
            self._debts[name] = deficit
            if len(self._debts) > MAX_DEBTORS:
                self._debts.popitem(last=False)

    def settle(self, name: bytes, tokens: float, weight: float) -> None:
        """Charge (or give back, where negative) the difference between expected and real cost."""
        flow = self.flows.get(name)
        before = self._debts.get(name, 0.0) if flow is None else flow.deficit
        after = max(before - tokens, -FLOOR_QUANTA * QUANTUM_TOKENS * weight)
        if flow is None:
            self._remember(name, after)
        else:
            flow.deficit = after

    def turn(self, cost_of: Callable[[F], float | None]) -> tuple[bytes, F] | None:
        """The flow whose turn it is; those without a cost are passed over.

        Grants every competing flow as many quanta as the first one to be able to pay needs: the rounds of the textbook in one step.
        """
        wanting = [(name, flow, cost) for name, flow in self.flows.items() if (cost := cost_of(flow)) is not None]
        if not wanting:
            return None
        rounds = [max(0, math.ceil((cost - flow.deficit) / (QUANTUM_TOKENS * flow.weight))) for _, flow, cost in wanting]
        fewest = min(rounds)
        for _, flow, _ in wanting:
            flow.deficit += fewest * QUANTUM_TOKENS * flow.weight
        name, flow, _ = wanting[rounds.index(fewest)]
        return name, flow

    def charge(self, name: bytes, cost: float, *, more: bool) -> None:
        """Pay for one request; a flow without another one leaves."""
        self.flows[name].deficit -= cost
        if not more:
            self.leave(name)


@dataclass(slots=True)
class _KeyFlow(_Flow):
    heap: list[tuple[int, float, int]] = field(default_factory=list)  # priority, deadline, id


@dataclass(slots=True)
class _TenantFlow(_Flow):
    keys: _Ring[_KeyFlow] = field(default_factory=lambda: _Ring(_KeyFlow))
    waiting: int = 0
    tokens: float = 0.0


class FairQueue:
    """Waiters of one pool. Not thread-safe. Bounded by waiters and by tokens of each tenant."""

    def __init__(self, *, max_waiters: int) -> None:
        self._max_waiters = max_waiters  # of each tenant
        self._tenants: _Ring[_TenantFlow] = _Ring(_TenantFlow)
        self._waiters: dict[int, Waiter] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def __contains__(self, waiter_id: object) -> bool:
        return waiter_id in self._waiters

    def add(self, waiter: Waiter, *, tenant_weight: float = 1.0) -> bool:
        """Let a request wait. False: its tenant has as many waiting as it may, and nothing changed."""
        if self.waiting_of(waiter.tenant)[0] >= self._max_waiters:
            return False
        tenant = self._tenants.join(waiter.tenant, tenant_weight)
        key = tenant.keys.join(waiter.key, 1.0)
        heapq.heappush(key.heap, (waiter.priority, waiter.deadline_s, waiter.id))
        self._waiters[waiter.id] = waiter
        tenant.waiting += 1
        tenant.tokens += waiter.cost_tokens
        return True

    def peek(self) -> Waiter | None:
        """Whose turn it is. It stays so until that waiter is taken or removed, or one joins that may go before it."""
        turn = self._tenants.turn(lambda tenant: self._first_of(tenant).cost_tokens)
        return None if turn is None else self._first_of(turn[1])

    def take(self, waiter_id: int) -> Waiter:
        """Start a waiter: charge it to its flows and let it go.

        Raises:
            KeyError: nobody of that id waits.
        """
        waiter = self._waiters[waiter_id]
        tenant = self._tenants.flows[waiter.tenant]
        key = tenant.keys.flows[waiter.key]
        self._discard(waiter)
        tenant.keys.charge(waiter.key, waiter.cost_tokens, more=bool(key.heap))
        self._tenants.charge(waiter.tenant, waiter.cost_tokens, more=tenant.waiting > 0)
        return waiter

    def remove(self, waiter_id: int) -> None:
        """A waiter went away without being started; it is charged nothing. Safe to repeat."""
        waiter = self._waiters.get(waiter_id)
        if waiter is None:
            return
        self._discard(waiter)
        tenant = self._tenants.flows[waiter.tenant]
        if not tenant.keys.flows[waiter.key].heap:
            tenant.keys.leave(waiter.key)
        if not tenant.waiting:
            self._tenants.leave(waiter.tenant)

    def settle(self, waiter: Waiter, actual_tokens: float, *, tenant_weight: float = 1.0) -> None:
        """The real cost of a waiter that was taken is known."""
        difference = actual_tokens - waiter.cost_tokens
        self._tenants.settle(waiter.tenant, difference, tenant_weight)
        tenant = self._tenants.flows.get(waiter.tenant)
        if tenant is not None:
            tenant.keys.settle(waiter.key, difference, 1.0)

    def expired(self, now_s: float) -> list[Waiter]:
        """Remove and return those that can no longer start in time."""
        late = [waiter for waiter in self._waiters.values() if waiter.deadline_s < now_s]
        for waiter in late:
            self.remove(waiter.id)
        return late

    def waiting_of(self, tenant: bytes) -> tuple[int, float]:
        """A tenant's own waiters and their tokens."""
        flow = self._tenants.flows.get(tenant)
        return (0, 0.0) if flow is None else (flow.waiting, flow.tokens)

    def weights_beside(self, tenant: bytes) -> float:
        """The sum of the weights of the other tenants that wait."""
        return sum(flow.weight for name, flow in self._tenants.flows.items() if name != tenant)

    def tenants(self) -> Iterable[bytes]:
        return self._tenants.flows.keys()

    def _head(self, key: _KeyFlow) -> Waiter:
        return self._waiters[key.heap[0][2]]

    def _first_of(self, tenant: _TenantFlow) -> Waiter:
        """The tenant's next: the best class that waits, and in it the key whose turn it is."""
        best = min(self._head(key).priority for key in tenant.keys.flows.values())

        def cost(key: _KeyFlow) -> float | None:
            head = self._head(key)
            return head.cost_tokens if head.priority == best else None

        turn = tenant.keys.turn(cost)
        if turn is None:
            raise RuntimeError("a tenant without waiters has no turn")
        return self._head(turn[1])

    def _discard(self, waiter: Waiter) -> None:
        tenant = self._tenants.flows[waiter.tenant]
        heap = tenant.keys.flows[waiter.key].heap
        heap.remove((waiter.priority, waiter.deadline_s, waiter.id))
        heapq.heapify(heap)
        del self._waiters[waiter.id]
        tenant.waiting -= 1
        tenant.tokens -= waiter.cost_tokens


def retry_after_s(own_tokens: float, tokens_per_s: float) -> int:
    """When to come back, in whole seconds: how long the tenant's own queue takes at the rate that is its share, rounded up to 1, 2, 5, 10 or 30, so
    that the number tells nothing of others."""
    seconds = own_tokens / max(1.0, tokens_per_s)
    return next((step for step in RETRY_STEPS_S if seconds <= step), RETRY_STEPS_S[-1])
