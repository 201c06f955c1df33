"""The plans of all cases carried out in order, and what follows from them. All input comes by hand: who sends, which random numbers, what time.

An engine that reports cached tokens is judged by them, and its report is held against the times; one that does not, or whose report cannot be true,
is judged by the times. Whatever looks like sharing is tried again with fresh prompts before it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from namespaces.audit import timing
from namespaces.audit.case import Case, Expect, Facts, Outcome, Probe, Seen, Verdict, judge
from namespaces.audit.cases import CASES, two_salts
from namespaces.audit.states import Event
from namespaces.audit.timing import Reading, Times
from routing.services.audits.extent import LEAST_TIMED_NEGATIVES, Sizes, round_tokens
from routing.services.audits.prompts import WORDS_A_PROMPT, prompt, words_for

Send = Callable[[Probe, str], Seen]
NEGATIVE = (Expect.APART, Expect.REFUSED_OR_APART)
CONFIRMING_GAP = 0.6  # what the second stage must be able to find: times that overlap, as they do on a busy machine
TEMPLATE_PART = 0.25  # of a prompt: more than that cached at its first use is no template
CONTRADICTED = "hits were reported that took as long as first uses"
SMALLEST_KIND = 4  # fewer probes of a kind can hardly reject by themselves
AS_FAST = "nothing was reported, but negative probes were as fast as hits"
UNTRUE = "cached tokens are reported that cannot be"
NOT_AGAIN = "seen once, and not again"
_POOLED = ("routes", "client_salts")  # at the engine these are two different salts: one round, all negatives together


@dataclass(slots=True)
class Tried:
    """One case and everything that was sent for it."""

    case: Case
    verdict: Verdict
    sent: list[tuple[Probe, Seen]] = field(default_factory=list)
    rounds: int = 0
    times: Times | None = None


@dataclass(slots=True)
class Findings:
    """A whole run. ``baseline_tokens`` is what the template alone has cached in one scope. ``unaffordable``: after the first two probes had told what
    a prompt costs at this engine, the tokens did not do for every case; why, or an empty text."""

    reported: bool  # judged by reported tokens; else by times
    tried: list[Tried]
    outcome: Outcome
    event: Event
    reason: str
    negatives: int = 0  # clean ones
    computed_tokens: int = 0
    probes: int = 0
    baseline_tokens: int = 0
    discarded_rounds: int = 0  # their times, because the engine was busy
    times: Times | None = None
    unaffordable: str = ""


class OutOfBounds(Exception):
    """Time or tokens are used up; what is not tried stays untried."""


class Execution:
    """One run. ``left_tokens`` bounds what it may cost; confirming a suspicion may go over it. What only sharpens the bound leaves enough
    of them for ``reserved_runs`` later runs. ``late`` says that time is up; ``busy`` that others load the engine, which makes times useless."""

    def __init__(
        self,
        *,
        send: Send,
        facts: Facts,
        rng: Random,
        block_tokens: int,
        sizes: Sizes,
        left_tokens: int,
        reserved_runs: int = 0,
        late: Callable[[], bool] = lambda: False,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._send = send
        self._facts = facts
        self._rng = rng
        self._block_tokens = block_tokens
        self._sizes = sizes
        self._left_tokens = left_tokens
        self._reserved_runs = reserved_runs
        self._late = late
        self._busy = busy
        self._threshold_tokens = block_tokens
        self._words = WORDS_A_PROMPT  # until the engine's tokenizer is known
        self._prompt_tokens = WORDS_A_PROMPT  # of a prompt of so many words
        self._timed_two_salts = 0  # rounds that the tokens do for
        self._untimed: set[int] = set()  # ids of answers whose times do not count
        self._stop = ""
        self._confirmed_case = ""  # one confirmed case is enough: the others of the same run are then listed on one sample
        self.findings = Findings(reported=True, tried=[], outcome=Outcome.INCONCLUSIVE, event=Event.INCOMPLETE, reason="")

    def run(self) -> Findings:
        """Carry it out."""
        trusted = self._calibrate()
        by_report = self.findings.reported and trusted
        if not self._stop:
            self.findings.unaffordable = self._stop = self._afforded(by_report=by_report)
        if self._stop:
            return self._listed(self._stop)
        if by_report:
            self._by_report()
        else:
            self._by_times(trusted=trusted)
        return self._concluded()

    # ---- the beginning -----------------------------------------------------------------------------------------------------

    def _calibrate(self) -> bool:
        """Two first uses in one scope: what the second has cached is the template. False: what is reported cannot be true."""
        first, second = (self._one(Probe(f"baseline{number}", "A", number, Expect.FRESH)) for number in (1, 2))
        bad = next((seen for seen in (first, second) if seen.status != 200), None)
        if bad is not None:
            self._stop = f"the router answered {bad.status} to the first probe" if bad.status else "the router did not answer"
            return False
        told = [(seen.cached_tokens, seen.prompt_tokens or WORDS_A_PROMPT) for seen in (first, second)]
        least_tokens = min(prompt_tokens for _, prompt_tokens in told)
        self._words = words_for(least_tokens)
        self._prompt_tokens = -(-least_tokens * self._words // WORDS_A_PROMPT)
        if any(cached is None for cached, _ in told):
            self.findings.reported = False
            return True
        if any((cached or 0) > TEMPLATE_PART * prompt_tokens for cached, prompt_tokens in told):
            self.findings.reported = False
            return False
        self.findings.baseline_tokens = second.cached_tokens or 0
        self._threshold_tokens = self.findings.baseline_tokens + self._block_tokens
        return True

    def _afforded(self, *, by_report: bool) -> str:
        """Why the tokens cannot do, or an empty text: what would end in the middle, with nothing proved, is not begun. By times they say how many
        rounds of "two salts" there are: as many as are wanted, or fewer, but never too few to tell."""
        wanted = max(self._sizes.timed_rounds, -(-self._sizes.timed_negatives // 2))
        self._timed_two_salts = min(wanted, max(self._sizes.timed_rounds, LEAST_TIMED_NEGATIVES // 2))
        rounds = [(probes, 1 if by_report else self._timed_rounds(case)) for case in CASES if (probes := case.plan(self._facts)) is not None]
        needed_tokens = self.findings.computed_tokens + sum(self._cost_tokens(probes) * number for probes, number in rounds)
        spare_tokens = self._left_tokens - needed_tokens
        if spare_tokens < 0:
            return f"the day's tokens for audits are used up: trying every case here takes {needed_tokens}, and {self._left_tokens} are left"
        more = spare_tokens // self._cost_tokens(two_salts.CASE.plan(self._facts) or ())
        self._timed_two_salts = min(wanted, self._timed_two_salts + more)
        return ""

    def _cost_tokens(self, probes: Iterable[Probe]) -> int:
        """What a plan makes this engine compute, about: a prompt, and of a repeat the last block."""
        return sum(self._block_tokens if probe.expect is Expect.HIT else self._prompt_tokens for probe in probes)

    def _one(self, probe: Probe) -> Seen:
        seen = self._send(probe, prompt(self._rng, self._words))
        self._count(probe, seen)
        return seen

    # ---- rounds ------------------------------------------------------------------------------------------------------------

    def _round(self, tried: Tried, probes: Sequence[Probe], *, confirming: bool = False) -> dict[str, Seen]:
        """Send one plan with fresh prompts.

        Raises:
            OutOfBounds: the tokens do not suffice for it, or time is up.
        """
        if not confirming and self.findings.computed_tokens + self._cost_tokens(probes) > self._left_tokens:
            raise OutOfBounds("the day's tokens for audits are used up")
        texts: dict[int, str] = {}
        seen: dict[str, Seen] = {}
        loaded = self._busy()
        for probe in probes:
            got = seen[probe.label] = self._sent(probe, texts)
            tried.sent.append((probe, got))
        tried.rounds += 1
        if loaded or self._busy():
            self.findings.discarded_rounds += 1
            self._untimed.update(id(got) for got in seen.values())
        return seen

    def _sent(self, probe: Probe, texts: dict[int, str]) -> Seen:
        if self._late():
            raise OutOfBounds("out of time")
        if probe.prompt not in texts:
            texts[probe.prompt] = prompt(self._rng, self._words)
        seen = self._send(probe, texts[probe.prompt])
        self._count(probe, seen)
        return seen

    def _count(self, probe: Probe, seen: Seen) -> None:
        self.findings.probes += 1
        if seen.status != 200:
            return
        prompt_tokens = seen.prompt_tokens or WORDS_A_PROMPT
        cached_tokens = seen.cached_tokens
        if not self.findings.reported or cached_tokens is None:  # a repeat that did not hit shows in its time, and ends as inconclusive
            cached_tokens = prompt_tokens - self._block_tokens if probe.expect is Expect.HIT else 0
        self.findings.computed_tokens += max(0, prompt_tokens - cached_tokens)

    # ---- by reported tokens ------------------------------------------------------------------------------------------------

    def _by_report(self) -> None:
        for case in CASES:
            probes = case.plan(self._facts)
            if probes is None:
                self.findings.tried.append(Tried(case, _untried(case)))
                continue
            tried = Tried(case, Verdict(Outcome.INCONCLUSIVE, ""))
            self.findings.tried.append(tried)
            self._judged(tried, probes)
        if all(tried.verdict.outcome not in (Outcome.FAIL, Outcome.INCONCLUSIVE) for tried in self.findings.tried):
            self._more_of_two_salts()
        self._held_against_times()

    def _judged(self, tried: Tried, probes: Sequence[Probe]) -> None:
        """One round; another where it was incomplete, or to confirm what looks like sharing."""
        try:
            verdict = judge(probes, self._round(tried, probes), block_tokens=self._threshold_tokens)
            if verdict.outcome is Outcome.INCONCLUSIVE and not verdict.odd:
                verdict = judge(probes, self._round(tried, probes), block_tokens=self._threshold_tokens)
            if verdict.outcome is Outcome.FAIL:
                again = judge(probes, self._round(tried, probes, confirming=True), block_tokens=self._threshold_tokens)
                if again.outcome is not Outcome.FAIL:
                    verdict = Verdict(Outcome.INCONCLUSIVE, f"{verdict.reason}; {NOT_AGAIN}", odd=True, evidence=verdict.evidence)
        except OutOfBounds as bound:
            verdict = Verdict(Outcome.INCONCLUSIVE, str(bound))
        if verdict.outcome is Outcome.PASS:
            verdict = Verdict(Outcome.PASS, verdict.reason, tried.verdict.negative_probes + verdict.negative_probes, evidence=verdict.evidence)
        tried.verdict = verdict

    def _more_of_two_salts(self) -> None:
        """More of the one class that most rows come down to, for the bound on the rate of failures. The budget may end it; it has passed by then, and
        what later audits need at least is left to them: a new build must not find the day's tokens spent on a sharper bound for the old one.
        """
        tried = next(one for one in self.findings.tried if one.case is two_salts.CASE)
        probes = two_salts.CASE.plan(self._facts) or ()
        least_tokens = max(self.findings.computed_tokens, round_tokens(self._facts, self._block_tokens))  # without so much no run may begin
        for _ in range(self._sizes.rounds):
            if self.findings.computed_tokens + self._cost_tokens(probes) > self._left_tokens - self._reserved_runs * least_tokens:
                return
            held = tried.verdict
            self._judged(tried, probes)
            if tried.verdict.outcome is Outcome.INCONCLUSIVE and not tried.verdict.odd:
                tried.verdict = held
                return
            if tried.verdict.outcome is not Outcome.PASS:
                return

    def _held_against_times(self) -> None:
        """Doubt what was reported where the times say otherwise."""
        everything = [pair for tried in self.findings.tried for pair in tried.sent]
        self.findings.times = self._times(everything, self._apart(everything))
        leaks = [seen for probe, seen in everything if probe.expect in NEGATIVE and self._leaked(seen)]
        if leaks and self._times(everything, leaks).reading is Reading.APART:
            for tried in self.findings.tried:
                if tried.verdict.outcome is Outcome.FAIL:
                    tried.verdict = Verdict(Outcome.INCONCLUSIVE, CONTRADICTED, odd=True, evidence=tried.verdict.evidence)
        for tried in self.findings.tried:
            tried.times = self._times(everything, self._apart(tried.sent)) if tried.sent else None
            if tried.verdict.outcome is Outcome.PASS and tried.times is not None and tried.times.reading is Reading.SHARED:
                tried.verdict = Verdict(Outcome.INCONCLUSIVE, AS_FAST, odd=True, evidence=tried.verdict.evidence)

    def _leaked(self, seen: Seen) -> bool:
        return seen.status == 200 and (seen.cached_tokens or 0) >= self._threshold_tokens

    def _apart(self, sent: Iterable[tuple[Probe, Seen]]) -> list[Seen]:
        return [seen for probe, seen in sent if probe.expect in NEGATIVE and not self._leaked(seen)]

    # ---- by times ----------------------------------------------------------------------------------------------------------

    def _by_times(self, *, trusted: bool) -> None:
        plans: list[tuple[Tried, Sequence[Probe]]] = []
        for case in CASES:
            probes = case.plan(self._facts)
            tried = Tried(case, _untried(case) if probes is None else Verdict(Outcome.INCONCLUSIVE, "not tried"))
            self.findings.tried.append(tried)
            if probes is not None:
                plans.append((tried, probes))
        order = [plan for plan in plans for _ in range(self._timed_rounds(plan[0].case))]
        self._rng.shuffle(order)
        try:
            for tried, probes in order:
                self._round(tried, probes)
        except OutOfBounds as bound:
            self._stop = str(bound)
        everything = [pair for tried, _ in plans for pair in tried.sent]
        self.findings.times = self._times(everything, [seen for probe, seen in everything if probe.expect in NEGATIVE])
        for tried, probes in plans:
            verdict = self._timed_verdict(tried, probes, everything)
            if verdict.outcome is Outcome.PASS and not trusted:
                verdict = Verdict(Outcome.INCONCLUSIVE, UNTRUE, odd=True, evidence=verdict.evidence)
            tried.verdict = verdict

    def _timed_rounds(self, case: Case) -> int:
        if case is two_salts.CASE:
            return self._timed_two_salts
        return 1 if case.name in _POOLED else self._sizes.timed_rounds

    def _timed_verdict(self, tried: Tried, probes: Sequence[Probe], everything: Sequence[tuple[Probe, Seen]]) -> Verdict:
        if self._stop and tried.rounds < self._timed_rounds(tried.case):
            return Verdict(Outcome.INCONCLUSIVE, self._stop)
        failed = next((seen for probe, seen in tried.sent if seen.status != 200 and probe.expect is not Expect.REFUSED_OR_APART), None)
        if failed is not None:
            return Verdict(Outcome.INCONCLUSIVE, f"{failed.label}: status {failed.status}")
        tried.times, label = self._worst(tried, everything)
        if tried.times.reading is Reading.BLIND:
            return Verdict(Outcome.INCONCLUSIVE, "hits and first uses cannot be told apart by their times")
        negatives = sum(probe.expect in NEGATIVE for probe, _ in tried.sent)
        if tried.times.reading is Reading.APART:
            return Verdict(Outcome.PASS, "controls were fast, negative probes as slow as first uses", negatives)
        if self._confirmed_case:
            return Verdict(Outcome.FAIL, f"{label}: as fast as hits, in one sample; sharing was confirmed by {self._confirmed_case}", negatives)
        return self._confirmed(tried, probes, label)

    def _confirmed(self, tried: Tried, probes: Sequence[Probe], label: str) -> Verdict:
        """The second stage, on probes of its own."""
        second = Tried(tried.case, tried.verdict)
        try:
            for _ in range(_confirming_rounds(probes)):
                self._round(second, probes, confirming=True)
        except OutOfBounds as bound:
            return Verdict(Outcome.INCONCLUSIVE, f"{label}: as fast as hits; {bound}", odd=True)
        tried.sent += second.sent
        tried.rounds += second.rounds
        tried.times, label = self._worst(second, second.sent)
        if tried.times.reading is Reading.SHARED:
            self._confirmed_case = tried.case.name
            return Verdict(Outcome.FAIL, f"{label}: as fast as hits, in two independent samples", tried.times.negatives)
        return Verdict(Outcome.INCONCLUSIVE, f"{label}: as fast as hits; {NOT_AGAIN}", odd=True)

    def _worst(self, tried: Tried, everything: Sequence[tuple[Probe, Seen]]) -> tuple[Times, str]:
        """The reading that speaks most against the case: all negative probes together, and each kind by itself where there are enough of it."""
        answered = [(probe, seen) for probe, seen in tried.sent if probe.expect in NEGATIVE and seen.status == 200]
        groups = {tried.case.title: [seen for _, seen in answered]}
        labels = dict.fromkeys(probe.label for probe, _ in answered)
        kinds = {label: [seen for probe, seen in answered if probe.label == label] for label in labels}
        if all(len(kind) >= SMALLEST_KIND for kind in kinds.values()):
            groups |= kinds
        read = [(self._times(everything, group), label) for label, group in groups.items()]
        if not read:
            return self._times(everything, []), tried.case.title
        rank = {Reading.SHARED: 0, Reading.BLIND: 1, Reading.APART: 2}
        return min(read, key=lambda pair: (rank[pair[0].reading], pair[0].negative_p))

    def _times(self, everything: Iterable[tuple[Probe, Seen]], negatives: Iterable[Seen]) -> Times:
        pairs = list(everything)
        misses = [seen for probe, seen in pairs if probe.expect is Expect.FRESH]
        hits = [seen for probe, seen in pairs if probe.expect is Expect.HIT]
        return timing.read(negatives=self._ttfts(negatives), misses=self._ttfts(misses), hits=self._ttfts(hits))

    def _ttfts(self, answers: Iterable[Seen]) -> list[float]:
        return [seen.ttft_s for seen in answers if seen.status == 200 and seen.ttft_s is not None and id(seen) not in self._untimed]

    # ---- the end -----------------------------------------------------------------------------------------------------------

    def _listed(self, reason: str) -> Findings:
        """Nothing was tried: every case is listed with the reason."""
        found = self.findings
        found.tried = [Tried(case, _untried(case) if case.plan(self._facts) is None else Verdict(Outcome.INCONCLUSIVE, reason)) for case in CASES]
        found.reason = reason
        return found

    def _concluded(self) -> Findings:
        found = self.findings
        verdicts = [tried.verdict for tried in found.tried]
        found.negatives = sum(verdict.negative_probes for verdict in verdicts if verdict.outcome is Outcome.PASS)
        failed = [tried for tried in found.tried if tried.verdict.outcome is Outcome.FAIL]
        odd = [tried for tried in found.tried if tried.verdict.odd]
        unclear = [tried for tried in found.tried if tried.verdict.outcome is Outcome.INCONCLUSIVE]
        if failed:
            found.outcome, found.event = Outcome.FAIL, Event.SHARING
        elif unclear:
            found.outcome, found.event = Outcome.INCONCLUSIVE, Event.ODD if odd else Event.INCOMPLETE
        else:
            found.outcome, found.event = Outcome.PASS, Event.CLEAN
        telling = [f"{tried.case.name}: {tried.verdict.reason}" for tried in failed or odd or unclear]
        found.reason = "; ".join(telling) or "controls hit, nothing was shared"
        return found


def _untried(case: Case) -> Verdict:
    if case.elsewhere is not None:
        return Verdict(Outcome.PROVED_ELSEWHERE, case.elsewhere)
    return Verdict(Outcome.NOT_EXPRESSIBLE, "this pool has nothing to try it with")


def _confirming_rounds(probes: Sequence[Probe]) -> int:
    """Enough that each kind of negative probe can reject by itself, with some to spare for answers that were held up."""
    first_uses = sum(probe.expect is Expect.FRESH for probe in probes)
    return next(rounds for rounds in range(4, 100) if timing.smallest_gap(rounds, rounds * first_uses) <= CONFIRMING_GAP)
