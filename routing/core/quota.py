"""Quotas: what the requests of a tenant, scope, key or endpoint may use, and how several routers keep one limit without asking each other.

A router holds a *slice*: what it may let through before it has to hear from the others again. It reports what it used and hears what all used, in the
background; between two exchanges it uses at most one slice. So whatever routers do at the same time, a limit is passed by one slice a router at most;
by one that cannot hear the others and must not stop, by its *share*: the limit divided by the routers, which nobody else can know to be used.
Pure: times are arguments, what travels are plain numbers. Limits by the minute slide: they hold for any sixty seconds, not from one full minute to
the next, at whose border twice the limit would pass; a token bucket has the same flaw, as it lets a full bucket and a minute's refill through.

Why windows have slots: what is counted is forgotten two seconds at a time, so that a minute of any traffic is thirty numbers. Why each process says
what *it* used, as a whole and not as an increment: a word that is repeated, because nobody knows whether it was heard, then counts once, and what was
lost with Valkey's memory is there again with the next word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal, Protocol, get_args
from uuid import UUID

Of = Literal["tenant", "platform", "scope", "key", "endpoint"]
Measure = Literal["requests_per_minute", "tokens_per_minute", "tokens_per_month"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
OFS: tuple[Of, ...] = get_args(Of)
MAX_LIMIT = 10**15  # of any measure; Valkey's scripts count exactly up to 2**53
WINDOW_S = 60
SLOT_S = 2
MARGIN_S = 1  # by which clocks may disagree, as routers estimate Valkey's
MINUTE_SLICES = 4  # of a limit by the minute, all routers' slices together are one of this many parts
MONTH_SLICES = 100
FRESH_S = 1.0  # how old what was heard may grow while a limit is in use
SPOILT_S = 1.0  # until a limit is asked about again whose key in Valkey holds no hash
RESERVED_S = 60  # how long a router's word on what it has reserved is believed
MINUTE_KEPT_S = 130
MONTH_KEPT_S = 70 * 86_400  # so that the month before is still there to be looked at
PREFIX = "saltroute:quota:"
ROUTERS = f"{PREFIX}routers"
_WHOLE = re.compile(r"-?[0-9]+", re.ASCII)
GONE = "u"  # the field of what processes that are gone have settled in a month


def month_of(now: float) -> str:
    """The calendar month (UTC) of a moment in unix seconds, such as ``2027-01``."""
    return _month_of_hour(int(now // 3600))


@lru_cache(maxsize=8)
def _month_of_hour(hour: int) -> str:
    return datetime.fromtimestamp(hour * 3600, tz=UTC).strftime("%Y-%m")


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
    """What one process knows of the use under one limit. ``now_s`` is unix seconds by Valkey's clock."""

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
        """Whether there is something that the others have to hear, or that has to be heard from them."""
        ...

    @property
    def spoilt(self) -> bool:
        """Whether Valkey holds something else under its key, so that of this limit nobody hears."""
        ...

    def report(self, now_s: float, process: str) -> dict[str, str]:
        """The fields to set in Valkey."""
        ...

    def heard(self, now_s: float, process: str, fields: Mapping[str, str]) -> list[str]:
        """All fields, once they were set; returns those that mean nothing any more."""
        ...


@dataclass(slots=True)
class MinuteMeter:
    """Requests or tokens of the last sixty seconds. Slots are numbered by ``now_s // SLOT_S``; a field is ``process:slot``."""

    own: dict[int, int] = field(default_factory=dict)  # by slot: used here
    said: dict[int, int] = field(default_factory=dict)  # of that, what the others have heard
    saying: dict[int, int] = field(default_factory=dict)
    others: dict[int, int] = field(default_factory=dict)  # by slot, as of the latest exchange
    heard_at_s: float = -math.inf
    used_at_s: float = -math.inf
    unsure: bool = False  # a report was sent, and nobody knows whether it was heard
    spoilt_at_s: float = -math.inf  # when Valkey was last found to hold something else than a hash under its key

    def _hidden(self, now_s: float) -> int:
        return _within(self.own, now_s) - _within(self.said, now_s)

    def _left(self, now_s: float, terms: Terms) -> int:
        """Of the limit, by what the others can know too."""
        return terms.limit - _within(self.others, now_s) - _within(self.said, now_s)

    def fits(self, now_s: float, amount: int, terms: Terms) -> bool:
        left, hidden = self._left(now_s, terms), self._hidden(now_s)
        share = min(self._share(now_s, terms), left - hidden) if terms.lost else 0  # what others were heard to use is used
        return amount <= terms.limit and _fits(amount, terms, left=left, hidden=hidden, slices=MINUTE_SLICES, share=share)

    def _share(self, now_s: float, terms: Terms) -> int:
        return max(1, terms.limit // terms.routers) - _within(self.own, now_s)

    def left(self, now_s: float, terms: Terms) -> int:
        left = self._left(now_s, terms) - self._hidden(now_s)
        return max(0, min(left, self._share(now_s, terms)) if terms.lost else left)

    def wait_s(self, now_s: float, amount: int, terms: Terms) -> float | None:
        wait_s = _until_s(now_s, amount, terms.limit, (self.own, self.others))
        if not terms.lost or wait_s is None:
            return wait_s
        share_s = _until_s(now_s, amount, max(1, terms.limit // terms.routers), (self.own,))
        return None if share_s is None else max(wait_s, share_s)

    def reset_s(self, now_s: float) -> float:
        """Until all that is known to be used has left the window."""
        slots = [slot for slots in (self.own, self.others) for slot, amount in slots.items() if amount]
        return max((_ends_s(slot) - now_s for slot in slots if _counts(slot, now_s)), default=0.0)

    def take(self, now_s: float, amount: int) -> int:
        slot, self.used_at_s = int(now_s // SLOT_S), now_s
        self.own[slot] = self.own.get(slot, 0) + amount
        if len(self.own) > WINDOW_S:
            self.own = _counted(self.own, now_s)
        return slot

    def settle(self, now_s: float, stamp: int, reserved: int, used: int) -> None:
        """What was used beyond the reservation counts now; what was not used is given back where it was taken, if that still counts."""
        if used > reserved:
            self.take(now_s, used - reserved)
        elif stamp in self.own:
            self.own[stamp] -= reserved - used

    @property
    def spoilt(self) -> bool:
        return self.spoilt_at_s > -math.inf

    def due(self, now_s: float) -> bool:
        return self.unsure or _old(self, now_s) or any(amount != self.said.get(slot, 0) for slot, amount in self.own.items() if _counts(slot, now_s))

    def report(self, now_s: float, process: str) -> dict[str, str]:
        self.saying = _counted(self.own, now_s)
        changed = {f"{process}:{slot}": str(amount) for slot, amount in self.saying.items() if self.unsure or amount != self.said.get(slot)}
        self.unsure = bool(changed)
        return changed

    def heard(self, now_s: float, process: str, fields: Mapping[str, str]) -> list[str]:
        self.said, self.saying, self.heard_at_s, self.unsure, self.spoilt_at_s = self.saying, {}, now_s, False, -math.inf
        self.others, over = {}, []
        for name, value in fields.items():
            owner, _, number = name.partition(":")
            slot, amount = whole(number), whole(value)
            if slot is None or amount is None or not _counts(slot, now_s):
                over.append(name)
            elif owner != process:
                self.others[slot] = self.others.get(slot, 0) + amount
        return over


@dataclass(slots=True)
class MonthMeter:
    """Tokens of one calendar month. What is reserved for requests under way is told as it stands, what they used is added for good.

    A field is a process, its value ``settled:reserved:unix s``; the field ``u`` holds what processes that are gone have settled.
    """

    month: str
    settled: int = 0  # here
    reserved: int = 0  # for requests under way here
    said: tuple[int, int] = (0, 0)  # of both, what the others have heard
    saying: tuple[int, int] = (0, 0)
    said_at_s: float = -math.inf
    others_used: int = 0
    others_reserved: int = 0
    heard_at_s: float = -math.inf
    used_at_s: float = -math.inf
    unsure: bool = False  # a report was sent, and nobody knows whether it was heard
    spoilt_at_s: float = -math.inf  # when Valkey was last found to hold something else than a hash under its key

    def _left(self, terms: Terms) -> int:
        return terms.limit - self.others_used - self.others_reserved - sum(self.said)

    def _hidden(self) -> int:
        return self.settled + self.reserved - sum(self.said)

    def fits(self, now_s: float, amount: int, terms: Terms) -> bool:  # noqa: ARG002 - the port of a meter
        return _fits(amount, terms, left=self._left(terms), hidden=self._hidden(), slices=MONTH_SLICES, share=self._share(terms))

    def _share(self, terms: Terms) -> int:
        """Of what was left when the others were heard last, this router's part."""
        return self._left(terms) // terms.routers - self._hidden()

    def left(self, now_s: float, terms: Terms) -> int:  # noqa: ARG002 - the port of a meter
        left = self._left(terms) - self._hidden()
        return max(0, min(left, self._share(terms)) if terms.lost else left)

    def wait_s(self, now_s: float, amount: int, terms: Terms) -> float | None:
        return 0.0 if amount <= self.left(now_s, terms) else None

    def take(self, now_s: float, amount: int) -> int:
        self.used_at_s = now_s
        self.reserved += amount
        return 0

    def settle(self, now_s: float, stamp: int, reserved: int, used: int) -> None:  # noqa: ARG002 - the port of a meter
        self.reserved -= reserved
        self.settled += used

    @property
    def spoilt(self) -> bool:
        return self.spoilt_at_s > -math.inf

    def due(self, now_s: float) -> bool:
        if self.unsure or _old(self, now_s) or (self.settled, self.reserved) != self.said:
            return True
        return self.reserved > 0 and now_s - self.said_at_s > RESERVED_S / 3

    def report(self, now_s: float, process: str) -> dict[str, str]:
        self.saying, self.said_at_s = (self.settled, self.reserved), now_s
        if not (self.unsure or any((*self.saying, *self.said))):
            return {}
        self.unsure = True
        return {process: f"{self.settled}:{self.reserved}:{int(now_s)}"}

    def heard(self, now_s: float, process: str, fields: Mapping[str, str]) -> list[str]:
        self.said, self.heard_at_s, self.unsure, self.spoilt_at_s = self.saying, now_s, False, -math.inf
        self.others_used, self.others_reserved = month_used({name: value for name, value in fields.items() if name != process}, now_s)
        return []

    @property
    def done(self) -> bool:
        """Whether the others have heard all of it, and nothing of it is under way."""
        return self.reserved == 0 and (self.settled, 0) == self.said and not self.unsure


def _old(meter: MinuteMeter | MonthMeter, now_s: float) -> bool:
    """Whether what was heard of the others is too old for a limit that is in use, or nothing was heard yet."""
    return meter.heard_at_s == -math.inf or (now_s - meter.heard_at_s > FRESH_S and now_s - meter.used_at_s < WINDOW_S)


def _fits(amount: int, terms: Terms, *, left: int, hidden: int, slices: int, share: int) -> bool:
    """Whether ``amount`` fits into this router's slice. ``left``: of the limit, ``hidden``: used here since the others were heard.

    Near the limit the slices shrink with what is left. A request larger than a slice is a slice of its own: it has its turn when nothing is hidden.
    """
    if amount <= min(terms.slice(slices), math.ceil(left / terms.routers)) - hidden:
        return True
    if hidden <= 0 and amount <= left - hidden:
        return True
    return terms.lost and amount <= share


def _until_s(now_s: float, amount: int, limit: int, parts: Sequence[Mapping[int, int]]) -> float | None:
    """How long until so much of what is in the slots has left the window that ``amount`` fits under ``limit``; None: it never does."""
    if amount > limit:
        return None
    used = [(slot, one) for slots in parts for slot, one in slots.items() if _counts(slot, now_s)]
    over = sum(one for _, one in used) + amount - limit
    if over <= 0:
        return 0.0
    for slot, one in sorted(used):
        over -= one
        if over <= 0:
            return _ends_s(slot) - now_s
    return float(WINDOW_S)


def _ends_s(slot: int) -> float:
    """When a slot leaves the window."""
    return float((slot + 1) * SLOT_S + WINDOW_S + MARGIN_S)


def _counts(slot: int, now_s: float) -> bool:
    """Whether a slot is in the window; one that is further ahead than a window is of a clock that was set back, and would never leave it."""
    return _ends_s(slot) > now_s and slot * SLOT_S <= now_s + WINDOW_S


def _within(slots: Mapping[int, int], now_s: float) -> int:
    return sum(amount for slot, amount in slots.items() if _counts(slot, now_s))


def _counted(slots: Mapping[int, int], now_s: float) -> dict[int, int]:
    return {slot: amount for slot, amount in slots.items() if _counts(slot, now_s)}


# ---- what Valkey holds -------------------------------------------------------------------------------------------------


def whole(text: str) -> int | None:
    """A whole number as routers write it; None: this is none, and means nothing."""
    return int(text) if len(text) <= 20 and _WHOLE.fullmatch(text) else None


def minute_used(fields: Mapping[str, str], now_s: float) -> tuple[int, float]:
    """What a minute's fields hold: used, and seconds until all of it has left the window."""
    slots: dict[int, int] = {}
    for name, value in fields.items():
        slot, amount = whole(name.partition(":")[2]), whole(value)
        if slot is not None and amount is not None:
            slots[slot] = slots.get(slot, 0) + amount
    counted = {slot: amount for slot, amount in _counted(slots, now_s).items() if amount}
    return sum(counted.values()), max((_ends_s(slot) - now_s for slot in counted), default=0.0)


def month_used(fields: Mapping[str, str], now_s: float) -> tuple[int, int]:
    """What a month's fields hold: tokens settled, and tokens that are reserved, as far as that was said of late."""
    used = reserved = 0
    for name, value in fields.items():
        parts = [whole(one) for one in value.split(":")]
        if name == GONE and len(parts) == 1:
            used += parts[0] or 0
        elif name != GONE and len(parts) == 3:
            settled, held, at = parts
            used += settled or 0
            if held is not None and at is not None and now_s - at < RESERVED_S:
                reserved += held
    return used, reserved


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
