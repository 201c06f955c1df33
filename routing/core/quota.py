"""Quotas: what the requests of a tenant, scope, key or endpoint may use, and how several routers keep one limit without asking each other.

A router holds a *slice*: what it may let through before it has to hear from the others again. It reports what it used and hears what all used, in the
background; between two exchanges it uses at most one slice. So whatever routers do at the same time, a limit is passed by one slice a router at most.
Pure: times are arguments, what travels are plain numbers. Limits by the minute slide: they hold for any sixty seconds, not from one full minute to
the next, at whose border twice the limit would pass; a token bucket has the same flaw, as it lets a full bucket and a minute's refill through.

Why windows have slots: what is counted is forgotten two seconds at a time, so that a minute of any traffic is thirty numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, Protocol, get_args
from uuid import UUID

Of = Literal["tenant", "platform", "scope", "key", "endpoint"]
Measure = Literal["requests_per_minute", "tokens_per_minute", "tokens_per_month"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
OFS: tuple[Of, ...] = get_args(Of)
MAX_LIMIT = 10**15  # of any measure; Valkey's scripts count exactly up to 2**53
WINDOW_S = 60
SLOT_S = 2
MINUTE_SLICES = 4  # of a limit by the minute, all routers' slices together are one of this many parts
MONTH_SLICES = 100
RESERVED_S = 60  # how long a router's word on what it has reserved is believed
PREFIX = "saltroute:quota:"
ROUTERS = f"{PREFIX}routers"


def month_of(now: float) -> str:
    """The calendar month (UTC) of a moment in unix seconds, such as ``2027-01``."""
    return datetime.fromtimestamp(now, tz=UTC).strftime("%Y-%m")


def month_ends_at(month: str) -> float:
    """The unix second at which the next month begins."""
    year, number = int(month[:4]), int(month[5:])
    return datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC).timestamp()


def key_of(quota_id: UUID, measure: Measure, month: str = "") -> str:
    """Where Valkey keeps what was used; ``month`` for the measure by the month alone."""
    return f"{PREFIX}{quota_id}:{measure}:{month}" if month else f"{PREFIX}{quota_id}:{measure}"


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds at the moment: the limit, how many routers share it (>= 1), and whether the others are out of hearing."""

    limit: int
    routers: int = 1
    lost: bool = False

    def slice(self, slices: int) -> int:
        """What a router may use between two exchanges. One that is alone shares with nobody."""
        return self.limit if self.routers <= 1 else max(1, math.ceil(self.limit / (slices * self.routers)))


class Meter(Protocol):
    """What one router knows of the use under one limit. ``now_s`` is monotonic."""

    sent: int  # the serial of the latest report

    def fits(self, now_s: float, amount: int, terms: Terms) -> bool:
        """Whether ``amount`` more may be used now."""
        ...

    def left(self, now_s: float, terms: Terms) -> int:
        """What is left of the limit, as far as is known here."""
        ...

    def wait_s(self, now_s: float, amount: int, terms: Terms) -> float | None:
        """How long until ``amount`` fits by what is known; None: not before the limit begins anew. 0: only this router's slice is used up."""
        ...

    def take(self, now_s: float, amount: int) -> int:
        """Use ``amount``; returns what :meth:`settle` asks for."""
        ...

    def settle(self, now_s: float, stamp: int, reserved: int, used: int) -> None:
        """``used`` took the place of what was reserved."""
        ...

    def due(self, now_s: float) -> bool:
        """Whether there is something that the others have to hear."""
        ...

    def report(self, now_s: float) -> str:
        """The words for the exchange: repeated until they were heard, under the same serial, so that nothing counts twice."""
        ...


@dataclass(slots=True)
class MinuteMeter:
    """Requests or tokens of the last sixty seconds. Slots are numbered by ``now_s // SLOT_S``."""

    told: list[tuple[int, int]] = field(default_factory=list)  # (slot, amount) of all routers, as of the latest exchange
    fresh: dict[int, int] = field(default_factory=dict)  # by slot: used here and not reported yet
    back: dict[int, int] = field(default_factory=dict)  # by slot: given back of what was reported already, below zero
    sending: list[tuple[int, int]] = field(default_factory=list)  # reported, not heard of yet
    own: dict[int, int] = field(default_factory=dict)  # by slot: all that was used here
    sent: int = 0
    heard_once: bool = False

    def _known(self, now_s: float) -> int:
        return sum(amount for slot, amount in self.told if _counts(slot, now_s))

    def _hidden(self, now_s: float) -> int:
        return sum(amount for slot, amount in (*self.fresh.items(), *self.back.items(), *self.sending) if _counts(slot, now_s))

    def fits(self, now_s: float, amount: int, terms: Terms) -> bool:
        if amount > terms.limit:
            return False
        left, hidden = terms.limit - self._known(now_s), self._hidden(now_s)
        if amount <= min(terms.slice(MINUTE_SLICES), math.ceil(left / terms.routers)) - hidden:
            return True
        if hidden <= 0 and amount <= left - hidden:  # a request larger than a slice is a slice of its own
            return True
        return terms.lost and amount <= self._share_left(now_s, terms)

    def _share_left(self, now_s: float, terms: Terms) -> int:
        return max(1, terms.limit // terms.routers) - _within(self.own, now_s)

    def left(self, now_s: float, terms: Terms) -> int:
        left = terms.limit - self._known(now_s) - self._hidden(now_s)
        return max(0, min(left, self._share_left(now_s, terms)) if terms.lost else left)

    def wait_s(self, now_s: float, amount: int, terms: Terms) -> float | None:
        if amount > terms.limit:
            return None
        used: dict[int, int] = {}
        counted: Iterable[tuple[int, int]] = self.own.items() if terms.lost else [*self.told, *self.fresh.items(), *self.back.items(), *self.sending]
        for slot, one in counted:
            if _counts(slot, now_s):
                used[slot] = used.get(slot, 0) + one
        over = sum(used.values()) + amount - (max(1, terms.limit // terms.routers) if terms.lost else terms.limit)
        if over <= 0:
            return 0.0
        for slot in sorted(used):
            over -= used[slot]
            if over <= 0:
                return _ends_s(slot) - now_s
        return float(WINDOW_S)

    def reset_s(self, now_s: float) -> float:
        """Until all that is known to be used has left the window."""
        slots = [slot for slot, amount in (*self.told, *self.fresh.items(), *self.sending) if amount > 0]
        return max((_ends_s(slot) - now_s for slot in slots if _counts(slot, now_s)), default=0.0)

    def take(self, now_s: float, amount: int) -> int:
        slot = int(now_s // SLOT_S)
        self._add(self.fresh, slot, amount, now_s)
        self._add(self.own, slot, amount, now_s)
        return slot

    @staticmethod
    def _add(slots: dict[int, int], slot: int, amount: int, now_s: float) -> None:
        slots[slot] = slots.get(slot, 0) + amount
        if len(slots) > WINDOW_S:
            for one in [one for one in slots if not _counts(one, now_s)]:
                del slots[one]

    def settle(self, now_s: float, stamp: int, reserved: int, used: int) -> None:
        """What was used beyond the reservation counts now; what was not used is given back where it was taken, if that still counts."""
        change = used - reserved
        if change > 0:
            self.take(now_s, change)
        elif change < 0 and _counts(stamp, now_s):
            self._add(self.own, stamp, change, now_s)
            unsaid = min(-change, self.fresh.get(stamp, 0))
            self._add(self.fresh, stamp, -unsaid, now_s)
            if change + unsaid:
                self._add(self.back, stamp, change + unsaid, now_s)

    def due(self, now_s: float) -> bool:  # noqa: ARG002 - the port of a meter
        return bool(self.fresh or self.back or self.sending or not self.heard_once)

    def report(self, now_s: float) -> str:
        """``m serial age amount age amount ...``: ages in whole seconds.

        What was used counts from the end of its slot, what is given back from before the beginning: so that what is given back never outlasts, in
        Valkey's own slots, what it takes back.
        """
        if not self.sending:
            self.sending = [(slot, amount) for slot, amount in (*self.fresh.items(), *self.back.items()) if amount and _counts(slot, now_s)]
            self.fresh, self.back = {}, {}
            self.sent += bool(self.sending)
        serial = self.sent if self.sending else 0
        pairs = (f"{_age_s(slot, amount, now_s)} {amount}" for slot, amount in self.sending)
        return " ".join([f"m {serial}", *pairs])

    def heard(self, now_s: float, slots: Iterable[tuple[float, int]]) -> None:
        """The answer: what all routers used, each by the age in seconds of its slot's beginning."""
        self.told = []
        for age_s, amount in slots:
            place = (now_s - age_s) / SLOT_S
            self.told.append((math.ceil(place) if amount > 0 else math.floor(place), amount))
        self.sending = []
        self.heard_once = True


@dataclass(slots=True)
class MonthMeter:
    """Tokens of one calendar month. What is reserved for requests under way is told as it stands, what they used is added for good."""

    month: str
    told_used: int = 0  # settled by all routers
    told_reserved: int = 0  # by the others
    said: int = 0  # of ``reserved``, what the others have heard of
    reserved: int = 0  # for requests under way here
    fresh: int = 0  # settled here and not reported yet
    sending: int = 0
    saying: int = 0
    sent: int = 0
    said_at_s: float = -math.inf
    heard_once: bool = False

    def _left(self, terms: Terms) -> int:
        """Of the limit, by what the others know too."""
        return terms.limit - self.told_used - self.told_reserved - self.said

    def _hidden(self) -> int:
        return self.fresh + self.sending + self.reserved - self.said

    def fits(self, now_s: float, amount: int, terms: Terms) -> bool:  # noqa: ARG002 - the port of a meter
        left, hidden = self._left(terms), self._hidden()
        if amount <= min(terms.slice(MONTH_SLICES), math.ceil(left / terms.routers)) - hidden:
            return True
        if hidden <= 0 and amount <= left - hidden:
            return True
        return terms.lost and amount <= self._share_left(terms)

    def _share_left(self, terms: Terms) -> int:
        others_know = terms.limit - self.told_used - self.told_reserved
        return others_know // terms.routers - self.fresh - self.sending - self.reserved

    def left(self, now_s: float, terms: Terms) -> int:  # noqa: ARG002 - the port of a meter
        left = self._left(terms) - self._hidden()
        return max(0, min(left, self._share_left(terms)) if terms.lost else left)

    def wait_s(self, now_s: float, amount: int, terms: Terms) -> float | None:
        return 0.0 if amount <= self.left(now_s, terms) else None

    def take(self, now_s: float, amount: int) -> int:  # noqa: ARG002 - the port of a meter
        self.reserved += amount
        return 0

    def settle(self, now_s: float, stamp: int, reserved: int, used: int) -> None:  # noqa: ARG002 - the port of a meter
        self.reserved -= reserved
        self.fresh += used

    def due(self, now_s: float) -> bool:
        if self.fresh or self.sending or self.reserved != self.said or not self.heard_once:
            return True
        return self.reserved > 0 and now_s - self.said_at_s > RESERVED_S / 3

    def report(self, now_s: float) -> str:
        """``M serial settled reserved``."""
        if not self.sending:
            self.sending, self.fresh = self.fresh, 0
            self.sent += bool(self.sending)
        self.saying, self.said_at_s = self.reserved, now_s
        return f"M {self.sent if self.sending else 0} {self.sending} {self.saying}"

    def heard(self, used: int, reserved: int) -> None:
        """The answer: tokens settled by all, tokens reserved by the others."""
        self.told_used, self.told_reserved, self.said = used, reserved, self.saying
        self.sending = 0
        self.heard_once = True

    @property
    def done(self) -> bool:
        """Whether nothing of it is left to be told."""
        return not (self.fresh or self.sending or self.reserved or self.said)


def _ends_s(slot: int) -> float:
    """When a slot leaves the window."""
    return float((slot + 1) * SLOT_S + WINDOW_S)


def _counts(slot: int, now_s: float) -> bool:
    return _ends_s(slot) > now_s


def _age_s(slot: int, amount: int, now_s: float) -> int:
    if amount > 0:
        return max(0, math.floor(now_s - (slot + 1) * SLOT_S))
    return math.ceil(now_s - (slot - 1) * SLOT_S)


def _within(slots: Mapping[int, int], now_s: float) -> int:
    return sum(amount for slot, amount in slots.items() if _counts(slot, now_s))


# ---- what Valkey holds -------------------------------------------------------------------------------------------------


def minute_used(fields: Mapping[str, str], now: float) -> tuple[int, float]:
    """What a minute's fields hold at ``now`` (unix s): used, and seconds until all of it has left the window."""
    slots = {int(name): int(amount) for name, amount in fields.items() if name.isdigit() and int(amount)}
    counted = {slot: amount for slot, amount in slots.items() if _counts(slot, now)}
    return max(0, sum(counted.values())), max((_ends_s(slot) - now for slot in counted), default=0.0)


def month_used(fields: Mapping[str, str], now: float) -> tuple[int, int]:
    """What a month's fields hold: tokens settled, and tokens that routers have reserved of late."""
    reserved = 0
    for name, value in fields.items():
        amount, _, at = value.partition(":")
        if name.startswith("r:") and at and now - float(at) < RESERVED_S:
            reserved += int(amount)
    return int(fields.get("u", 0)), reserved


def reset_text(seconds: float) -> str:
    """A span of time as OpenAI writes it in headers: ``6m0s``, ``1h0m3s``, ``250ms``."""
    if seconds < 1:
        return f"{max(0, math.ceil(seconds * 1000))}ms" if seconds > 0 else "0s"
    whole = math.ceil(seconds)
    hours, minutes = divmod(whole // 60, 60)
    parts = [(hours, "h"), (minutes, "m"), (whole % 60, "s")]
    while parts[0][0] == 0 and len(parts) > 1:
        parts.pop(0)
    return "".join(f"{number}{unit}" for number, unit in parts)
