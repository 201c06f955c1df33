"""Laws of the event index: it agrees with an engine whose every event it saw, never exceeds one of which it missed some, and tells namespaces apart
whatever events say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from routing.core.event_index import EventIndex
from routing.core.event_tables import BLOCK_BYTES, SEGMENT_BLOCKS, Block, Target
from routing.core.kv_events import Batch, Event, Removed
from tests.routing.core.kv_stream import URL, Engine, batch, chain, ns_key, salt, seed, stored

LONGEST = 4
WORDS = ["".join(letters) for length in range(1, LONGEST + 1) for letters in product("ab", repeat=length)]
NAMES = ("A", "B", "C")
SALTS = (salt("A"), salt("B"), salt("C"), "theirs", None)
ADAPTERS = {salt("A"): None, salt("B"): "lora", salt("C"): salt("A"), "theirs": salt("B"), None: salt("A")}  # some named like salts
words, names, salts = st.sampled_from(WORDS), st.sampled_from(NAMES), st.sampled_from(SALTS)
TARGETS: tuple[Target, ...] = ((URL, 0), (URL, 1))
targets = st.sampled_from(TARGETS)


class _Target:
    """What the test knows of one target. ``exact``: the index saw everything since the cache was last empty; ``counted``: copies too."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.history: list[Batch] = []
        self.generation = 1
        self.present = True
        self.exact = True
        self.counted = True


class EventMachine(RuleBasedStateMachine):
    """Prompts, evictions, resets, losses, replays, restarts, removals and claims, in any order."""

    budget_bytes = 10_000 * BLOCK_BYTES

    def __init__(self) -> None:
        super().__init__()
        self.index = EventIndex(budget_bytes=self.budget_bytes, sweep_slice=1)  # so that new blocks meet what is not swept yet
        self.claimed: set[str] = set()
        self.targets = {target: _Target() for target in TARGETS}

    @initialize()
    def begin(self) -> None:
        for target in TARGETS:
            assert self.index.set_generation(target, 1, 0.0)

    def _send(self, target: Target, events: Sequence[Event]) -> None:
        known = self.targets[target]
        known.history.append(batch(*events))
        applied = self.index.apply(target, known.history[-1], 0.0, generation=known.generation)
        assert applied.accepted == known.present
        known.counted = known.counted and not applied.set_semantics
        assert applied.unusable is None

    @rule(where=targets, salt_=salts, word=words, cold=st.booleans())
    def prompt(self, where: Target, salt_: str | None, word: str, cold: bool) -> None:
        self._send(where, self.targets[where].engine.run(salt_, ADAPTERS[salt_], word, cold=cold))

    @rule(where=targets, salt_=salts, word=words)
    def report(self, where: Target, salt_: str | None, word: str) -> None:
        self.index.use_set_semantics(where)
        self.targets[where].counted = False
        self._send(where, self.targets[where].engine.report(salt_, ADAPTERS[salt_], word))

    @rule(where=targets, data=st.data())
    def evict(self, where: Target, data: st.DataObject) -> None:
        engine = self.targets[where].engine
        leaves = engine.leaves()
        if leaves:
            self._send(where, engine.evict(data.draw(st.sampled_from(sorted(leaves, key=str)))))

    @rule(where=targets)
    def reset(self, where: Target) -> None:
        known = self.targets[where]
        self._send(where, known.engine.reset())
        if known.present:
            known.exact = known.counted = True

    @rule(where=targets, salt_=salts, word=words, data=st.data())
    def lose(self, where: Target, salt_: str | None, word: str, data: st.DataObject) -> None:
        """A message is lost for good: what was known is forgotten, and what comes is incomplete."""
        known = self.targets[where]
        events = known.engine.run(salt_, ADAPTERS[salt_], word)
        leaves = known.engine.leaves()
        events += known.engine.evict(data.draw(st.sampled_from(sorted(leaves, key=str))))
        known.history.append(batch(*events))
        self.index.clear(where)
        known.exact = False

    @precondition(lambda self: any(known.present for known in self.targets.values()))
    @rule(where=targets)
    def replay(self, where: Target) -> None:
        """Everything since the process began comes again, as a new generation."""
        known = self.targets[where]
        if not known.present:
            return
        known.generation += 1
        assert self.index.set_generation(where, known.generation, 0.0)
        known.counted = True
        for old in known.history:
            known.counted = not self.index.apply(where, old, 0.0).set_semantics and known.counted
        known.exact = True

    @rule(where=targets)
    def restart(self, where: Target) -> None:
        """Another process, with an empty cache; a batch of the old one still comes."""
        known = self.targets[where]
        stale = known.engine.run(salt("A"), None, "ab")
        known.engine, known.history = Engine(), []
        known.generation += 1
        known.present = known.exact = known.counted = True
        assert self.index.set_generation(where, known.generation, 0.0)
        assert not self.index.set_generation(where, known.generation - 1, 0.0)
        assert not self.index.apply(where, batch(*stale), 0.0, generation=known.generation - 1).accepted

    @rule(where=targets)
    def remove(self, where: Target) -> None:
        self.index.forget(where)
        self.targets[where].present = False

    @rule(name=names)
    def claim(self, name: str) -> None:
        self.index.claim(salt(name), ns_key=ns_key(name), owner=b"o", seed=seed(name))
        self.claimed.add(name)

    @precondition(lambda self: self.claimed)
    @rule(name=names)
    def disclaim(self, name: str) -> None:
        """What its engines still hold is unknown from then on, whoever claims it again."""
        if name in self.claimed:
            self.index.disclaim(salt(name))
            self.claimed.remove(name)
            for known in self.targets.values():
                known.exact = False

    @rule()
    def time_passes(self) -> None:
        self.index.advance()

    @invariant()
    def matches_the_engines(self) -> None:
        for target, known in self.targets.items():
            for name, word in product(NAMES, WORDS):
                blocks = self.index.match(ns_key(name), chain(name, word), target, 0.0).blocks
                holds = known.engine.holds(salt(name), ADAPTERS[salt(name)], word)
                if name not in self.claimed or not known.present:
                    assert blocks == 0
                elif known.exact and known.counted:
                    assert blocks == holds
                else:
                    assert blocks <= holds

    @invariant()
    def adds_up(self) -> None:
        consistent(self.index)


def consistent(index: EventIndex) -> None:
    """The sums that bounds rest on are those of the tables."""
    contents = index._contents
    sizes = index.sizes()
    assert contents.blocks == sum(size.credited for size in sizes.values()) == sum(owner.blocks for owner in contents.owners.values())
    assert contents.ignored == sum(size.ignored for size in sizes.values())
    groups = list(contents.groups())
    assert len(contents.segments) == sum(owner.segments for owner in contents.owners.values()) == sum(len(group.segments) for group in groups)
    waiting = [each for group in groups for parked in group.parked.values() for each in parked.values()]
    assert len(waiting) == sum(group.parked_blocks for group in groups) == sum(size.parked for size in sizes.values())
    assert all(group.credited == sum(len(segment.held) for segment in group.segments.values()) for group in groups)
    assert contents.parked_bytes == sum(group.parked_bytes for group in groups) == sum(each.size_bytes for each in waiting)
    assert contents.parked_in == Counter(each.salt for each in waiting)
    assert (
        contents.orphan_bytes
        == sum(group.orphan_bytes for group in groups)
        == sum(each.size_bytes for group in groups for each in group.orphans.values())
    )
    leaves = {id(block) for owner in contents.owners.values() for block in owner.leaves if block.segment in contents.segments}
    for group in groups:
        dropped = [each for each in group.known.values() if isinstance(each, Block) and each.segment not in contents.segments]
        assert not dropped or contents.remains
        assert len(group.known) - len(dropped) == sum(len(segment.held) for segment in group.segments.values()) + len(group.orphans) + sum(
            len(parked) for parked in group.parked.values()
        )
        for segment in group.segments.values():
            for block in segment.held.values():
                children = [each for each in segment.held.values() if each.parent == block.digest]
                assert block.children == len(children)
                assert (id(block) in leaves) == (not children)
                assert block.copies
            parents = [block.parent for block in segment.held.values() if block.parent not in segment.held and block.parent != segment.name.root]
            assert segment.lost == {parent: parents.count(parent) for parent in parents}
            assert segment.lower == sum(1 for block in segment.held.values() if not block.copies & 255)
    assert len(leaves) == sum(1 for group in groups for segment in group.segments.values() for block in segment.held.values() if not block.children)

    if not contents.remains:
        assert len(leaves) == sum(len(owner.leaves) for owner in contents.owners.values())


TestEventMachine = pytest.mark.timeout(300)(EventMachine.TestCase)
TestEventMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


class _SmallMachine(EventMachine):
    """The same with room for six blocks in two segments: never more than the engines hold, never more than the bound."""

    budget_bytes = (6 + 2 * SEGMENT_BLOCKS) * BLOCK_BYTES

    @invariant()
    def matches_the_engines(self) -> None:
        assert self.index._contents.weight <= 6 + 2 * SEGMENT_BLOCKS
        for target, known in self.targets.items():
            for name, word in product(NAMES, WORDS):
                blocks = self.index.match(ns_key(name), chain(name, word), target, 0.0).blocks
                assert blocks <= (known.engine.holds(salt(name), ADAPTERS[salt(name)], word) if known.present and name in self.claimed else 0)


TestSmallMachine = pytest.mark.timeout(300)(_SmallMachine.TestCase)
TestSmallMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)

hashes = st.integers(1, 6)
hostile_salts = st.sampled_from([salt("A"), "theirs", "", "sr1-", salt("B")[:-1], salt("B") + "x", " " + salt("B")])
hostile_keys = st.lists(
    st.one_of(hostile_salts, st.tuples(st.just(salt("B")), st.integers()), st.integers(), st.none(), st.binary(max_size=3)), max_size=3
)


@st.composite
def _hostile(draw: st.DrawFn, last: str | None) -> Event:
    """Any event that does not say, as a prompt's last plain key, the salt of B; adapters may be named like it. ``last``: the key that is, if any."""
    if draw(st.integers(0, 5)) == 0:
        return Removed((draw(hashes),), draw(st.sampled_from(["GPU", "CPU", None, "moon"])))
    word = draw(words)
    keys = [*draw(hostile_keys), *([] if last is None else [last])]
    return stored(
        draw(st.lists(hashes, min_size=len(word), max_size=len(word))),
        word,
        parent=draw(st.one_of(st.none(), st.none(), hashes)),
        keys=keys,
        adapter=draw(st.sampled_from([None, None, salt("B"), salt("A"), "lora"])),
        medium=draw(st.sampled_from(["GPU", "CPU", "STORAGE"])),
        group=draw(st.sampled_from([0, 0, 1])),
    )


def _claimed(*names_: str, one_seed: bool = False) -> EventIndex:
    index = EventIndex()
    index.set_generation((URL, 0), 1, 0.0)
    for name in names_:
        index.claim(salt(name), ns_key=ns_key(name), owner=name.encode(), seed=seed("A" if one_seed else name))
    return index


@settings(max_examples=250)
@given(data=st.data(), last=st.sampled_from([salt("A"), None, "theirs"]), late=st.booleans())
def test_no_events_under_other_salts_make_a_match(data: st.DataObject, last: str | None, late: bool) -> None:
    """Even were both namespaces' digests the same (one seed): B's blocks are found under B's key alone, and nothing puts any there."""
    index = _claimed("A", one_seed=True) if late else _claimed("A", "B", one_seed=True)
    for event in data.draw(st.lists(_hostile(last), max_size=12)):
        index.apply((URL, 0), batch(event), 0.0)
        consistent(index)
    if late:
        index.claim(salt("B"), ns_key=ns_key("B"), owner=b"B", seed=seed("A"))
    assert all(index.match(ns_key("B"), chain("A", word), (URL, 0), 0.0).blocks == 0 for word in WORDS)


@pytest.mark.parametrize("name", ["A", "B"])
def test_the_same_events_under_the_own_salt_do(name: str) -> None:
    index = _claimed("A", "B", one_seed=True)
    index.apply((URL, 0), batch(stored([1, 2], "ab", keys=[salt(name)], adapter=salt("B"))), 0.0)
    found = {other: index.match(ns_key(other), chain("A", "ab"), (URL, 0), 0.0).blocks for other in "AB"}
    assert found == {"A": 2 if name == "A" else 0, "B": 2 if name == "B" else 0}


slower_media = st.sampled_from(["CPU", "cpu", "STORAGE"])
said_of_slower = st.one_of(
    st.builds(
        lambda listed, word, parent, keys, group, kind, medium, size: msgspec.structs.replace(
            stored(listed, word, parent=parent, keys=keys, group=group, kind=kind, medium=medium), block_tokens=size
        ),
        st.lists(st.integers(2**63, 2**63 + 8), min_size=1, max_size=3),
        words,
        st.none() | st.integers(2**63, 2**63 + 8),
        st.lists(hostile_salts, max_size=1),
        st.sampled_from([0, 0, 1]),
        st.sampled_from(["full_attention", "mamba"]),
        slower_media,
        st.sampled_from([2, 4]),
    ),
    st.builds(lambda hash_, medium: Removed((hash_,), medium), st.integers(2**63, 2**63 + 8), slower_media),
)


@given(data=st.data(), steps=st.lists(st.tuples(st.sampled_from(["A", "B", "theirs"]), words), max_size=8))
def test_whatever_is_said_of_slower_tiers_what_lies_in_gpu_memory_stays(data: st.DataObject, steps: list[tuple[str, str]]) -> None:
    """Between an engine's own events come a connector's, of any hashes, parents, keys, sizes and groups: nobody's GPU blocks change by them."""
    engine, plain, beside = Engine(), _claimed("A", "B"), _claimed("A", "B")
    for name, word in steps:
        events = engine.run(salt(name), None, word)
        if data.draw(st.booleans()) and (leaves := engine.leaves()):
            events += engine.evict(data.draw(st.sampled_from(leaves)))
        for event in events:
            plain.apply((URL, 0), batch(event), 0.0)
            beside.apply((URL, 0), batch(*data.draw(st.lists(said_of_slower, max_size=3)), event), 0.0)
        consistent(beside)
    assert beside.unusable((URL, 0)) is None
    for name, word in product("AB", WORDS):
        found = [index.match(ns_key(name), chain(name, word), (URL, 0), 0.0).blocks for index in (plain, beside)]
        assert found[0] == found[1] <= engine.holds(salt(name), None, word)


def _family(prefix: str = "") -> list[tuple[str, int | None, int]]:
    """All words up to three letters with their parent's hash and their own."""
    words_ = [word for word in WORDS if len(word) <= 3]
    return [(word, words_.index(word[:-1]) + 1 if len(word) > 1 else None, words_.index(word) + 1) for word in words_]


@given(order=st.permutations(_family()), claim_at=st.integers(0, 14), sizes=st.lists(st.integers(1, 5), min_size=14, max_size=14))
def test_stores_and_the_claim_may_come_in_any_order_and_any_batches(
    order: list[tuple[str, int | None, int]], claim_at: int, sizes: list[int]
) -> None:
    """Children before parents wait for them, and nothing is credited twice."""
    index = _claimed()
    events = [stored([own], word[-1], parent=parent, keys=[salt("A")]) for word, parent, own in order]
    done = 0
    for size in sizes:
        if done >= claim_at:
            index.claim(salt("A"), ns_key=ns_key("A"), owner=b"o", seed=seed("A"))
        index.apply((URL, 0), batch(*events[done : done + size]), 0.0)
        done += size
    index.apply((URL, 0), batch(*events[done:]), 0.0)
    index.claim(salt("A"), ns_key=ns_key("A"), owner=b"o", seed=seed("A"))
    consistent(index)
    assert all(index.match(ns_key("A"), chain("A", word), (URL, 0), 0.0).blocks == len(word) for word, _, _ in order)
    assert index.sizes()[(URL, 0)].orphans == 0
    assert index.sizes()[(URL, 0)].credited == len(order)


@given(turns=st.lists(st.integers(0, 1), max_size=20), data=st.data())
def test_targets_do_not_see_each_other(turns: list[int], data: st.DataObject) -> None:
    """Two targets' events interleaved leave each as its own alone would."""
    both, alone = _claimed("A"), (_claimed("A"), _claimed("A"))
    both.set_generation((URL, 1), 1, 0.0)
    engines = (Engine(), Engine())
    for turn in turns:
        sent = batch(*engines[turn].run(salt("A"), None, data.draw(words)))
        both.apply((URL, turn), sent, 0.0)
        alone[turn].apply((URL, 0), sent, 0.0)
    for turn, word in product((0, 1), WORDS):
        digests = chain("A", word)
        assert both.match(ns_key("A"), digests, (URL, turn), 0.0) == alone[turn].match(ns_key("A"), digests, (URL, 0), 0.0)


@settings(max_examples=60, deadline=None)
@given(modest=st.lists(words, max_size=3, unique=True), flood=st.lists(st.text("cdefgh", min_size=1, max_size=6), max_size=30), first=st.booleans())
def test_nobody_is_pushed_below_an_equal_share(modest: list[str], flood: list[str], first: bool) -> None:
    """Two tenants, room for 20 blocks in two segments: whoever holds at most ten in one keeps them, whatever the other does."""
    index = EventIndex(budget_bytes=(20 + 2 * SEGMENT_BLOCKS) * BLOCK_BYTES)
    index.set_generation((URL, 0), 1, 0.0)
    for name in "AB":
        index.claim(salt(name), ns_key=ns_key(name), owner=name.encode(), seed=seed(name))
    engine = Engine()
    waves = [[("A", word) for word in modest], [("B", word) for word in flood]]
    for name, word in waves[0] + waves[1] if first else waves[1] + waves[0]:
        index.apply((URL, 0), batch(*engine.run(salt(name), None, word)), 0.0)
        consistent(index)
    held = {name: index.owners()[name.encode()][0] for name in "AB"}
    assert sum(held.values()) <= 20 + SEGMENT_BLOCKS
    own = {word[: end + 1] for word in modest for end in range(len(word))}
    if len(own) <= 10:
        assert held["A"] == len(own)
        assert all(index.match(ns_key("A"), chain("A", word), (URL, 0), 0.0).blocks == len(word) for word in modest)
