"""The receiver's half of :mod:`routing.core.peering`: siblings' placements enter the history index, their loads are added up by engine.

Whatever order messages come in, and however often, the outcome is the same while their sender lives; a sender that falls silent
fades: its load within a second, its unsettled placements after ``GONE_S``. A sibling is believed once it names this process among
those it has heard, so old messages are worth nothing. What a sibling says goes under the namespace and the owner that it names and
nowhere else; owners unknown here are ignored.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from routing.core.peering import Beat, Head, Load, Placement, Settled
from routing.core.prefix import DIGEST_BYTES
from routing.core.residency import HistoryIndex
from routing.core.work_clock import WorkClock

FRESH_S = 0.5  # two beats: until then a load counts in full
SILENT_S = 1.0  # from then on not at all
GONE_S = 5.0
PLACEMENT_S = 600.0  # longer than any answer that does not stream
TRANSIT_S = 0.1  # that a sibling's word may have been on its way
PARKED_S = 1.0  # how long what came too early waits for what it continues
MAX_SIBLINGS = 64
MAX_MARKS = 1024  # processes whose counters are remembered
MAX_PARKED = 256
MAX_WAITING = 64  # beats of one sibling that came before their turn; then what they wait for is given up
MAX_OPEN_BLOCKS = 262_144  # digests kept for settling, over all siblings
WINDOW = 256  # counters that may come late


@dataclass(frozen=True, slots=True)
class Shared:
    """Siblings' work at one engine: uncached tokens and requests without a first byte, requests in flight, and what these ask for beyond one answer
    each."""

    queued_tokens: float = 0.0
    waiting: float = 0.0
    in_flight: float = 0.0
    more_answers: float = 0.0

    @property
    def decodes(self) -> float:
        return max(0.0, self.in_flight + self.more_answers - self.waiting)

    def plus(self, other: Shared) -> Shared:
        """Of two places of one engine."""
        return Shared(
            self.queued_tokens + other.queued_tokens,
            self.waiting + other.waiting,
            self.in_flight + other.in_flight,
            self.more_answers + other.more_answers,
        )


NONE_SHARED = Shared()


@dataclass(frozen=True, slots=True)
class Here:
    """What this router knows: its history, its tenants, and its engines' URLs by :func:`routing.core.peering.engine_id`."""

    index: HistoryIndex
    owners: Container[bytes]
    engines: Mapping[bytes, str]


@dataclass(slots=True)
class Effects:
    """What a message means for the engines: answers that siblings asked of them, and engines of which siblings asked what is not known here."""

    asked: Counter[str] = field(default_factory=Counter)
    unexplained: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Window:
    """Which counters of a process were seen: each is admitted once, and none that is ``WINDOW`` behind the highest."""

    highest: int = -1
    seen: int = 0  # bit n: highest - n

    def admit(self, counter: int) -> bool:
        """Whether the counter is new; it is not from then on."""
        ahead = counter - self.highest
        if ahead > 0:
            self.seen = ((self.seen << ahead) | 1) & ((1 << WINDOW) - 1) if ahead < WINDOW else 1
            self.highest = counter
            return True
        if -ahead >= WINDOW or self.seen >> -ahead & 1:
            return False
        self.seen |= 1 << -ahead
        return True


@dataclass(frozen=True, slots=True)
class _Open:
    """A placement in the index that its sender has not settled."""

    namespace: bytes
    owner: bytes
    url: str
    digests: tuple[bytes, ...]
    ticket: int
    until_s: float


@dataclass(slots=True)
class _Parked:
    """A placement whose beginning is not known here (yet), and how it went, if that was said already."""

    process: bytes
    placement: Placement
    until_s: float
    settled: tuple[Settled, float] | None = None


@dataclass(slots=True)
class _Sibling:
    process: bytes
    router_id: str = ""
    heard_at_s: float = 0.0
    spoke_at_s: float | None = None  # its last word that was believed
    counter: int = -1  # of the beat that the loads are from
    blocks: int = 0  # in its history, as it last said
    loads: dict[str, Load] = field(default_factory=dict)
    next: int | None = None  # number of the beat that is due
    waiting: dict[int, tuple[Beat, float]] = field(default_factory=dict)  # beats that came before their turn, and when
    open: OrderedDict[int, _Open] = field(default_factory=OrderedDict)
    oldest_open: int = 0  # as of the latest beat
    settled_below: int = 0  # the same as of ``looked_at_s``: whatever is open below it now lost its settlement
    looked_at_s: float = 0.0
    learned: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)  # answers asked of an engine that no placement told of


class Siblings:
    """All siblings of the router process ``process``. Not thread-safe; ``now_s`` is monotonic and given by the caller.

    ``counts`` says what became of messages and placements, for metrics.
    """

    def __init__(self, process: bytes = bytes(16)) -> None:
        self.process = process
        self.counts: Counter[str] = Counter()
        self.met = False  # a sibling was believed at some time
        self.own_heard_at_s: float | None = None  # when a beat of this process came back: the channel works
        self._marks: OrderedDict[bytes, Window] = OrderedDict()
        self._known: dict[bytes, _Sibling] = {}
        self._parked: list[_Parked] = []
        self._clocks: dict[str, WorkClock] = {}  # of siblings' requests, by engine, from when their beginning and end was heard
        self._open_blocks = 0

    # -- messages -----------------------------------------------------------------------------------------------------------------

    def admit(self, head: Head) -> bool:
        """Whether an authentic message is new. Each is admitted once."""
        mark = self._marks.get(head.process)
        if mark is None:
            mark = self._marks[head.process] = Window()
            if len(self._marks) > MAX_MARKS:
                self._marks.popitem(last=False)
        self._marks.move_to_end(head.process)
        if mark.admit(head.counter):
            return True
        self.counts["replayed"] += 1
        return False

    def hear(self, head: Head, beat: Beat, now_s: float) -> bool:
        """Note an authentic beat; True if its sender has heard this process, hence lives now and is believed."""
        sibling = self._known.get(head.process)
        if sibling is None:
            if len(self._known) >= MAX_SIBLINGS:
                self.counts["too_many"] += 1
                unproven = [one for one in self._known.values() if one.spoke_at_s is None]
                if not unproven:
                    return False
                del self._known[min(unproven, key=lambda one: one.heard_at_s).process]  # a recording must not keep a living one out
            sibling = self._known[head.process] = _Sibling(head.process)
        sibling.router_id, sibling.heard_at_s = beat.router_id, now_s
        if self.process not in beat.heard:
            self.counts["unproven"] += 1
            return False
        self.counts["believed"] += 1
        sibling.spoke_at_s = now_s
        self.met = True
        return True

    def take(self, head: Head, beat: Beat, now_s: float, here: Here) -> Effects:
        """Merge the beat of a believed sibling: its loads at once, the rest in the order of beats, as far as those before it are there."""
        effects, sibling = Effects(), self._known[head.process]
        if head.counter > sibling.counter:
            sibling.counter, sibling.blocks = head.counter, beat.blocks
            self._keep(sibling, {here.engines[load.engine]: load for load in beat.loads if load.engine in here.engines}, now_s)
        if sibling.next is None:
            sibling.next = beat.number
        if beat.number > sibling.next:
            sibling.waiting[beat.number] = (beat, now_s)
            if len(sibling.waiting) > MAX_WAITING:
                self._give_up(sibling)
        else:
            sibling.next = max(sibling.next, beat.number + 1)
            self._merge(sibling, beat, now_s, here, effects)
        self._follow(sibling, here, effects)
        return effects

    def _keep(self, sibling: _Sibling, loads: dict[str, Load], now_s: float) -> None:
        """Put the loads that a sibling has by its last word in the place of those before."""
        for url in sibling.loads.keys() | loads.keys():
            before, after = sibling.loads.get(url), loads.get(url)
            by = (0 if after is None else after.in_flight) - (0 if before is None else before.in_flight)
            if by:
                self._clocks.setdefault(url, WorkClock()).change(by, now_s)
        sibling.loads = loads

    def _give_up(self, sibling: _Sibling) -> None:
        """Wait no longer for what comes before the first beat that waits. All that wait come after ``next``, so it only grows."""
        due = min(sibling.waiting)
        self.counts["lost"] += due - (sibling.next or 0)
        sibling.next = due

    def _follow(self, sibling: _Sibling, here: Here, effects: Effects) -> None:
        """Merge the beats whose turn it is."""
        while sibling.next is not None and (found := sibling.waiting.pop(sibling.next, None)) is not None:
            sibling.next += 1
            self._merge(sibling, *found, here, effects)

    def _merge(self, sibling: _Sibling, beat: Beat, heard_at_s: float, here: Here, effects: Effects) -> None:
        process = sibling.process
        for placement in beat.placements:
            self._place(_Parked(process, placement, heard_at_s + PARKED_S), sibling, here, effects)
        self._unpark(here, effects)
        for settled in beat.settled:
            at_s = heard_at_s - settled.age_ms / 1000
            if (opened := sibling.open.pop(settled.serial, None)) is not None:
                self._settle(opened, settled, at_s, here.index)
                continue
            for parked in self._parked:
                if parked.process == process and parked.placement.serial == settled.serial:
                    parked.settled = (settled, at_s)
        sibling.oldest_open = max(sibling.oldest_open, beat.oldest_open)
        for load in beat.loads:
            url = here.engines.get(load.engine)
            if url is not None and (missing := load.asked - sibling.learned[url]) != sibling.missing[url]:
                if missing > sibling.missing[url]:  # it asked for more than its placements told
                    effects.unexplained.add(url)
                sibling.missing[url] = missing
        if beat.leaving:
            self._part(process, heard_at_s, here.index)

    def _place(self, parked: _Parked, sibling: _Sibling, here: Here, effects: Effects, *, again: bool = False) -> bool:
        """Put one placement into the index; False where its beginning is not known (yet): it waits for that a while."""
        one = parked.placement
        url = here.engines.get(one.engine)
        if url is None:
            self.counts["unknown_engine"] += 1
            return True
        digests = tuple(one.digests[start : start + DIGEST_BYTES] for start in range(0, len(one.digests), DIGEST_BYTES))
        if digests and one.owner not in here.owners:
            self.counts["unknown_owner"] += 1
            return True
        if one.parent:
            before = here.index.chain_to(one.namespace, one.parent, url, owner=one.owner)
            if before is None:
                if again or len(self._parked) < MAX_PARKED:
                    self.counts["parked"] += not again
                    self._parked.append(parked)
                else:
                    self.counts["orphaned"] += 1
                return False
            digests = before + digests
        if one.shared:
            sibling.learned[url] += one.sequences
            effects.asked[url] += one.sequences
        if digests:
            self.counts["placed"] += 1
            ticket = here.index.dispatched(one.namespace, digests, url, owner=one.owner)
            opened = _Open(one.namespace, one.owner, url, digests, ticket, parked.until_s + PLACEMENT_S)
            self._open_blocks += len(digests)
            if parked.settled is not None:
                self._settle(opened, *parked.settled, here.index)
            else:
                self._hold(sibling, one.serial, opened, here.index)
        return True

    def _hold(self, sibling: _Sibling, serial: int, opened: _Open, index: HistoryIndex) -> None:
        sibling.open[serial] = opened
        while self._open_blocks > MAX_OPEN_BLOCKS:
            fullest = max(self._known.values(), key=lambda one: len(one.open))
            self.counts["expired"] += 1
            self._settle(fullest.open.popitem(last=False)[1], _UNKNOWN, 0.0, index)

    def _settle(self, opened: _Open, settled: Settled, at_s: float, index: HistoryIndex) -> None:
        self._open_blocks -= len(opened.digests)
        where = (opened.namespace, opened.digests, opened.url, opened.ticket)
        if settled.confirmed:
            index.confirmed(*where, at_s, owner=opened.owner)
        else:
            index.dropped(*where, owner=opened.owner, certain=settled.certain)

    def _unpark(self, here: Here, effects: Effects) -> None:
        """Place what waited for its beginning, until nothing more finds it."""
        found = bool(self._parked)
        while found:
            waiting, self._parked = self._parked, []
            found = False
            for parked in waiting:
                sibling = self._known.get(parked.process)
                found |= sibling is None or self._place(parked, sibling, here, effects, again=True)

    # -- time ---------------------------------------------------------------------------------------------------------------------

    def tick(self, now_s: float, here: Here) -> Effects:
        """Let go of siblings that fell silent, of placements that nobody settled, and of beats that never came."""
        effects = Effects()
        for process, sibling in list(self._known.items()):
            if now_s - sibling.heard_at_s > GONE_S:
                effects.unexplained.update(url for url, load in sibling.loads.items() if load.asked)  # it may have asked more, and not said so
                self._part(process, now_s, here.index)
                continue
            self._expire(sibling, now_s, here.index)
            if sibling.waiting and now_s - min(at_s for _, at_s in sibling.waiting.values()) > PARKED_S:
                self._give_up(sibling)
                self._follow(sibling, here, effects)
        kept = [one for one in self._parked if one.until_s >= now_s]
        self.counts["orphaned"] += len(self._parked) - len(kept)
        self._parked = kept
        if len(self._clocks) > len(here.engines):
            known = set(here.engines.values())
            self._clocks = {url: clock for url, clock in self._clocks.items() if url in known or clock.count}
        return effects

    def _expire(self, sibling: _Sibling, now_s: float, index: HistoryIndex) -> None:
        """Settle what stayed open though its sender has settled it, or for too long."""
        if now_s - sibling.looked_at_s < PARKED_S:
            return
        for serial in [serial for serial, opened in sibling.open.items() if serial < sibling.settled_below or opened.until_s < now_s]:
            self.counts["expired"] += 1
            self._settle(sibling.open.pop(serial), _UNKNOWN, 0.0, index)
        sibling.settled_below, sibling.looked_at_s = sibling.oldest_open, now_s

    def _part(self, process: bytes, now_s: float, index: HistoryIndex) -> None:
        sibling = self._known.pop(process, _Sibling(process))
        self._keep(sibling, {}, now_s)
        for opened in sibling.open.values():
            self._settle(opened, _UNKNOWN, 0.0, index)

    # -- questions ----------------------------------------------------------------------------------------------------------------

    def load(self, url: str, now_s: float) -> Shared:
        """What siblings have at an engine: each one's last word, in full for ``FRESH_S``, gone after ``SILENT_S``."""
        queued_tokens = waiting = in_flight = more_answers = 0.0
        for sibling in self._known.values():
            told = sibling.loads.get(url)
            if told is None or sibling.spoke_at_s is None:
                continue
            weight = min(1.0, max(0.0, (SILENT_S - (now_s - sibling.spoke_at_s)) / (SILENT_S - FRESH_S)))
            queued_tokens += weight * told.queued_tokens
            waiting += weight * told.waiting
            in_flight += weight * told.in_flight
            more_answers += weight * told.more_answers
        return Shared(queued_tokens, waiting, in_flight, more_answers) if in_flight or queued_tokens else NONE_SHARED

    def busy_s(self, url: str, now_s: float) -> float:
        """For how long siblings have had requests at an engine so far, by what was heard. The end of each was heard up to ``TRANSIT_S`` late."""
        clock = self._clocks.get(url)
        return 0.0 if clock is None else clock.read(now_s)[0]

    def told_all_before(self, at_s: float) -> bool:
        """Whether everything that siblings sent to engines until ``at_s`` was heard here, as far as one can know. Where no sibling was ever met
        there is nothing to hear."""
        if not self.met:
            return True
        due_s = at_s + TRANSIT_S
        if self.own_heard_at_s is None or self.own_heard_at_s < due_s:
            return False
        # Who was never believed may be a recording: whoever can repeat one must not be able to keep an alarm silent.
        return all(one.spoke_at_s >= due_s for one in self._known.values() if one.spoke_at_s is not None)

    def heard(self) -> list[bytes]:
        """The processes heard of late, to be named in the next beat."""
        return list(self._known)

    def believed(self, now_s: float) -> list[bytes]:
        """The siblings that live, those first that know most."""
        alive = [one for one in self._known.values() if one.spoke_at_s is not None and now_s - one.spoke_at_s < SILENT_S]
        return [one.process for one in sorted(alive, key=lambda one: (-one.blocks, one.process))]

    def last_word_age_s(self, now_s: float) -> float | None:
        """The age of the oldest last word of those siblings that live or fell silent a moment ago; None without siblings."""
        return max((now_s - one.spoke_at_s for one in self._known.values() if one.spoke_at_s is not None), default=None)

    def open_placements(self) -> int:
        return sum(len(one.open) for one in self._known.values())

    def report(self, now_s: float) -> list[dict[str, object]]:
        """Each sibling for the router's report."""
        return [
            {
                "router_id": one.router_id,
                "age_s": None if one.spoke_at_s is None else round(now_s - one.spoke_at_s, 3),
                "in_flight": sum(load.in_flight for load in one.loads.values()),
                "open_placements": len(one.open),
            }
            for one in sorted(self._known.values(), key=lambda one: one.router_id)
        ]


_UNKNOWN = Settled(serial=0, confirmed=False, certain=False, age_ms=0)  # nobody says how it went
