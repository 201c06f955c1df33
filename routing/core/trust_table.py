"""All accounts of trust: one for each namespace at a target, and one for each tenant there that its namespaces fall back to.

A namespace with few answers is judged by its tenant's account at the target, and a tenant with few by the median over tenants, so that no tenant's
odd prompts decide how another's are placed. Bounded in accounts: who has most of them gives up its oldest first. About 4 kB an account at most.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from routing.core.trust import ENOUGH, Answer, Change, Report, Trust, Verdict, common_verdict, summary

Target = tuple[str, int]  # normalised URL of an engine, data-parallel rank
MAX_NAMESPACES = 4096  # accounts of namespaces, over all targets
MAX_OWNERS = 256  # accounts of tenants at one target
REFRESH_ANSWERS = 16  # at a target, until the median over its tenants is computed again
FULL_REPORT_EVERY = 8  # of the requests of an account that relearns, one in so many asks for the engine's full report
FULL_REPORT_GAP_S = 1.0  # at least, between two at one target


@dataclass(frozen=True, slots=True)
class Moved:
    """A change of verdict: of one namespace's account, or of a whole target's (``namespace`` None)."""

    target: Target
    namespace: bytes | None
    change: Change


class _AtTarget:
    """One target's accounts of tenants, least recently used first, and what its full reports cost so far."""

    __slots__ = ("answers", "full_report_s", "kappas", "owners", "turn", "verdict", "withholds")

    def __init__(self) -> None:
        self.owners: OrderedDict[bytes, Trust] = OrderedDict()
        self.full_report_s: float | None = None
        self.turn = 0
        self.answers = 0
        self.verdict: Verdict = "fine"
        self.kappas: dict[bool, float] = {}  # by kind of prediction, the median over tenants: seldom asked for, so seldom computed
        self.withholds = False  # as most tenants' answers say that are enough to say so

    def judged(self, target: Target) -> Iterator[Moved]:
        """The target's own verdict, if it is another one now."""
        verdict, cause = common_verdict(self.owners.values())
        if verdict != self.verdict:
            yield Moved(target, None, Change(before=self.verdict, after=verdict, cause=cause))
            self.verdict = verdict

    def kappa(self, now_s: float, *, exact: bool) -> float:
        if exact not in self.kappas:
            ledgers = [account.ledger(exact=exact) for account in self.owners.values()]
            known = [ledger.kappa(now_s) for ledger in ledgers if ledger.answers >= ENOUGH]
            self.kappas[exact] = median(known) if known else 1.0
        return self.kappas[exact]

    def look(self) -> None:
        """Compute anew what all tenants' accounts say together."""
        self.kappas.clear()
        told = [account.last_block.withheld for account in self.owners.values() if account.last_block.known]
        self.withholds = 2 * sum(told) > len(told)


class TrustTable:
    """Not thread-safe: one event loop owns it. ``owner`` is the tenant whose budget an account counts against. ``now_s`` is monotonic."""

    def __init__(self, *, max_namespaces: int = MAX_NAMESPACES, max_owners: int = MAX_OWNERS) -> None:
        self._max_namespaces, self._max_owners = max_namespaces, max_owners
        self._targets: dict[Target, _AtTarget] = {}
        self._namespaces: dict[bytes, OrderedDict[tuple[Target, bytes], Trust]] = {}  # by owner, least recently used first
        self._size = 0
        self.dropped = 0  # accounts given up to stay within the bounds

    def observe(self, target: Target, owner: bytes, namespace: bytes, answer: Answer, now_s: float) -> tuple[Moved, ...]:
        """Take in an answer; returns the verdicts it changed, of the namespace and of the target."""
        here = self._targets.setdefault(target, _AtTarget())
        moved = []
        change = self._account(target, owner, namespace).observe(answer, now_s)
        if change is not None:
            moved.append(Moved(target, namespace, change))
        account = self._owner(here, owner)
        withheld_before = account.last_block.withheld
        if account.observe(answer, now_s) is not None or account.events.answers == ENOUGH:
            moved.extend(here.judged(target))
        here.answers += 1
        if here.answers % REFRESH_ANSWERS == 0 or account.last_block.withheld != withheld_before:
            here.look()
        return tuple(moved)

    def retry(self, now_s: float) -> tuple[Moved, ...]:
        """Give accounts whose time has come another try; to be called now and then."""
        moved = []
        for entries in self._namespaces.values():
            for (target, namespace), account in entries.items():
                if (change := account.retry(now_s)) is not None:
                    moved.append(Moved(target, namespace, change))
        for target, here in self._targets.items():
            for account in here.owners.values():
                account.retry(now_s)
            moved.extend(here.judged(target))
        return tuple(moved)

    def kappa(self, target: Target, owner: bytes, namespace: bytes, *, exact: bool, now_s: float) -> float:
        """What part of a prediction comes true: the namespace's, else its tenant's, else the median of all tenants at the target; 1 if nobody
        knows."""
        here = self._targets.get(target)
        if here is None:
            return 1.0
        for account in self._accounts(target, owner, namespace):
            ledger = account.ledger(exact=exact)
            if ledger.answers >= ENOUGH:
                return ledger.kappa(now_s)
        return here.kappa(now_s, exact=exact)

    def believes_events(self, target: Target, owner: bytes, namespace: bytes) -> bool:
        """Whether this namespace's predictions at ``target`` may rest on events."""
        if target not in self._targets:
            return True
        return all(account.believes_events() for account in self._accounts(target, owner, namespace))

    def withholds(self, target: Target, owner: bytes) -> bool:
        """Whether the engine computes the last block anew that it holds of a prompt: by the tenant's own answers, else by most tenants'."""
        here = self._targets.get(target)
        if here is None:
            return False
        account = here.owners.get(owner)
        return account.last_block.withheld if account is not None and account.last_block.known else here.withholds

    def takes_full_report(self, target: Target, owner: bytes, namespace: bytes, now_s: float) -> bool:
        """Whether this request is one of the few that should ask for the engine's full report. Counts it if so."""
        if not any(account.relearns() for account in self._accounts(target, owner, namespace)):
            return False
        here = self._targets.setdefault(target, _AtTarget())
        here.turn += 1
        if (here.turn - 1) % FULL_REPORT_EVERY or (here.full_report_s is not None and now_s - here.full_report_s < FULL_REPORT_GAP_S):
            return False
        here.full_report_s = now_s
        return True

    def forget(self, target: Target) -> None:
        """The target's process is another one, or it is gone: what was known of it says nothing any more."""
        self._targets.pop(target, None)
        for owner, entries in list(self._namespaces.items()):
            for key in [key for key in entries if key[0] == target]:
                del entries[key]
                self._size -= 1
            if not entries:
                del self._namespaces[owner]

    def forget_engine(self, url: str) -> None:
        """As :meth:`forget`, for all ranks of an engine."""
        for target in [target for target in self._targets if target[0] == url]:
            self.forget(target)

    def report(self, target: Target, now_s: float) -> Report:
        return self.report_of((target,), now_s)

    def report_of(self, targets: Sequence[Target], now_s: float) -> Report:
        """Several targets' accounts as one: of an engine's ranks."""
        places = [here for target in targets if (here := self._targets.get(target)) is not None]
        found = summary([account for here in places for account in here.owners.values()], now_s)
        return replace(found, withholds=any(here.withholds for here in places))

    def verdict(self, target: Target) -> Verdict:
        """The target's own: the median over its tenants."""
        here = self._targets.get(target)
        return "fine" if here is None else here.verdict

    def targets(self) -> tuple[Target, ...]:
        return tuple(self._targets)

    def sizes(self) -> tuple[int, int]:
        """Accounts of namespaces and of tenants, for metrics."""
        return self._size, sum(len(here.owners) for here in self._targets.values())

    def _accounts(self, target: Target, owner: bytes, namespace: bytes) -> list[Trust]:
        """The namespace's account and its tenant's, where there are such."""
        entries, here = self._namespaces.get(owner), self._targets.get(target)
        own = None if entries is None else entries.get((target, namespace))
        tenant = None if here is None else here.owners.get(owner)
        return [account for account in (own, tenant) if account is not None]

    def _owner(self, here: _AtTarget, owner: bytes) -> Trust:
        account = here.owners.get(owner)
        if account is None:
            account = here.owners[owner] = Trust()
            if len(here.owners) > self._max_owners:
                here.owners.popitem(last=False)
                self.dropped += 1
        here.owners.move_to_end(owner)
        return account

    def _account(self, target: Target, owner: bytes, namespace: bytes) -> Trust:
        entries = self._namespaces.setdefault(owner, OrderedDict())
        account = entries.get((target, namespace))
        if account is None:
            account = entries[target, namespace] = Trust()
            self._size += 1
            self._trim()
        else:
            entries.move_to_end((target, namespace))
        return account

    def _trim(self) -> None:
        while self._size > self._max_namespaces:
            payer = max(self._namespaces, key=lambda owner: (len(self._namespaces[owner]), owner))
            self._namespaces[payer].popitem(last=False)
            self._size -= 1
            self.dropped += 1
            if not self._namespaces[payer]:
                del self._namespaces[payer]
