"""A few routers' meters and the fields that Valkey holds for them, in simulated time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from routing.core.quota import MinuteMeter, MonthMeter, Terms


@dataclass
class Request:
    """One that was let in: when, what was reserved, what it came to use (None: it runs)."""

    at_s: float
    router: int
    stamp: int
    reserved: int
    used: int | None = None
    settled_at_s: float = 0.0

    def charged_in(self, since_s: float, until_s: float) -> int:
        """What of it counts in ``(since, until]``: its reservation until it is settled, then what it used; what goes beyond counts when it shows."""
        amount = 0
        if since_s < self.at_s <= until_s:
            amount = self.reserved if self.used is None or self.settled_at_s > until_s else min(self.reserved, self.used)
        if self.used is not None and self.used > self.reserved and since_s < self.settled_at_s <= until_s:
            amount += self.used - self.reserved
        return amount


@dataclass
class World:
    """Routers under one limit, and the fields that Valkey holds for it. ``errors_s``: how wrong each router's idea of Valkey's clock is."""

    limit: int
    meters: list[MinuteMeter] | list[MonthMeter]
    errors_s: list[float]
    fields: dict[str, str] = field(default_factory=dict)
    now_s: float = 1000.0
    cut: set[int] = field(default_factory=set)  # routers that Valkey does not answer
    requests: list[Request] = field(default_factory=list)

    @classmethod
    def minute(cls, limit: int, routers: int, errors_s: list[float] | None = None) -> World:
        return cls(limit, [MinuteMeter() for _ in range(routers)], errors_s or [0.0] * routers)

    @classmethod
    def month(cls, limit: int, routers: int) -> World:
        return cls(limit, [MonthMeter("2027-01") for _ in range(routers)], [0.0] * routers)

    @property
    def routers(self) -> int:
        return len(self.meters)

    @property
    def terms(self) -> Terms:
        return Terms(limit=self.limit, routers=self.routers)

    def clock_s(self, router: int) -> float:
        return self.now_s + self.errors_s[router]

    def ask(self, router: int, amount: int) -> Request | None:
        """A request of ``amount`` arrives."""
        meter, now_s = self.meters[router], self.clock_s(router)
        if not meter.fits(now_s, amount, replace(self.terms, lost=router in self.cut)):
            return None
        made = Request(self.now_s, router, meter.take(now_s, amount), amount)
        self.requests.append(made)
        return made

    def settle(self, request: Request, used: int) -> None:
        """It ends."""
        request.used, request.settled_at_s = used, self.now_s
        self.meters[request.router].settle(self.clock_s(request.router), request.stamp, request.reserved, used)

    def exchange(self, router: int, *, answer_lost: bool = False) -> None:
        """The router tells and hears; ``answer_lost``: Valkey did its part, and the router does not know. One that is cut off speaks to nobody."""
        meter, now_s, process = self.meters[router], self.clock_s(router), f"process-{router}"
        said = meter.report(now_s, process)
        if router in self.cut:
            return
        self.fields.update(said)
        if not answer_lost:
            for name in meter.heard(now_s, process, self.fields):
                self.fields.pop(name, None)

    def running(self) -> list[Request]:
        return [one for one in self.requests if one.used is None]

    def charged(self, since_s: float, until_s: float) -> int:
        """What all routers let through in ``(since, until]``."""
        return sum(one.charged_in(since_s, until_s) for one in self.requests)
