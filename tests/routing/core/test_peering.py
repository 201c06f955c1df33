"""Laws of what routers tell one another: merging does not depend on order or repetition, nothing crosses namespaces, the dead fade, bounds hold."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field
from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from namespaces.core.keyring import KeyringError, Roots
from routing.core import peering, siblings
from routing.core.peering import BEAT, Ask, Beat, Head, Load, Outbox, PeeringError, Placement, engine_id
from routing.core.residency import HistoryIndex
from routing.core.siblings import GONE_S, PARKED_S, SILENT_S, Effects, Here, Shared, Siblings, Window

ME, ONE, TWO = b"m" * 16, b"1" * 16, b"2" * 16
OWNERS = (b"a" * 16, b"b" * 16)
NAMESPACES = {b"n" * 16: OWNERS[0], b"o" * 16: OWNERS[0], b"p" * 16: OWNERS[1]}
URLS = ("http://a", "http://b")
WORDS = ["".join(letters) for length in range(1, 5) for letters in product("xy", repeat=length)]
ENGINES = {engine_id(url): url for url in URLS}


def chain(word: str) -> tuple[bytes, ...]:
    """One block for each letter; words that begin alike share their first blocks."""
    return tuple(word[: end + 1].encode().ljust(16, b".") for end in range(len(word)))


@pytest.fixture(autouse=True)
def _short_chains_travel_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peering, "WHOLE_CHAIN_BLOCKS", 0)


@dataclass
class Sender:
    """A router that places prompts and speaks after each step."""

    process: bytes
    index: HistoryIndex = field(default_factory=HistoryIndex)
    outbox: Outbox = field(default_factory=Outbox)
    open: list[tuple[bytes, tuple[bytes, ...], str, int, int]] = field(default_factory=list)
    said: list[tuple[Head, Beat]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.outbox.listening = True
        self.speak()  # the first word, by which they meet

    def place(self, namespace: bytes, word: str, url: str) -> None:
        digests, owner = chain(word), NAMESPACES[namespace]
        serial = self.outbox.placed(namespace, owner, url, digests, index=self.index, sequences=1)
        self.open.append((namespace, digests, url, serial, self.index.dispatched(namespace, digests, url, owner=owner)))

    def settle(self, which: int, *, confirmed: bool) -> None:
        if not self.open:
            return
        namespace, digests, url, serial, ticket = self.open.pop(which % len(self.open))
        if confirmed:
            self.index.confirmed(namespace, digests, url, ticket, 0.0, owner=NAMESPACES[namespace])
        else:
            self.index.dropped(namespace, digests, url, ticket, owner=NAMESPACES[namespace])
        self.outbox.settled(serial, confirmed=confirmed, at_s=0.0)

    def speak(self) -> None:
        waiting = {url: sum(1 for one in self.open if one[2] == url) for url in URLS}
        loads = [Load(engine_id(url), 10.0 * count, count, count, self.outbox.asked(url)) for url, count in waiting.items()]
        beat = self.outbox.beat("router", loads=loads, heard=[ME], now_s=0.0)
        encoded = peering.decode(BEAT, peering.encode(beat))
        assert isinstance(encoded, Beat)
        self.said.append((Head(BEAT, self.process, len(self.said) + 1), encoded))


class Receiver:
    """What one router makes of it."""

    def __init__(self, owners: tuple[bytes, ...] = OWNERS) -> None:
        self.index = HistoryIndex()
        self.siblings = Siblings(ME)
        self.here = Here(self.index, owners, ENGINES)
        self.effects: list[Effects] = []

    def hear(self, messages: list[tuple[Head, Beat]], now_s: float = 0.0) -> None:
        for head, beat in messages:
            if self.siblings.admit(head) and self.siblings.hear(head, beat, now_s):
                self.effects.append(self.siblings.take(head, beat, now_s, self.here))

    def view(self, now_s: float = 1.0) -> dict[tuple[bytes, str, str], object]:
        """Everything that can be asked of the index."""
        return {
            (namespace, word, url): self.index.match(namespace, chain(word), url, now_s, owner=owner)
            for namespace, owner in NAMESPACES.items()
            for word in WORDS
            for url in URLS
        }


steps = st.lists(
    st.one_of(
        st.tuples(st.just("place"), st.sampled_from(list(NAMESPACES)), st.sampled_from(WORDS), st.sampled_from(URLS)),
        st.tuples(st.just("settle"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("speak")),
    ),
    max_size=25,
)


def run(process: bytes, script: list[tuple[object, ...]]) -> Sender:
    sender = Sender(process)
    for step in script:
        match step:
            case ("place", namespace, word, url):
                sender.place(namespace, word, url)  # type: ignore[arg-type] # as drawn
            case ("settle", which, confirmed):
                sender.settle(which, confirmed=confirmed)  # type: ignore[arg-type] # as drawn
            case _:
                sender.speak()
    sender.speak()
    return sender


@given(one=steps, two=steps, seed=st.integers(0, 2**32))
@settings(max_examples=120, deadline=None)
def test_order_and_repetition_of_messages_do_not_matter(one: list[tuple[object, ...]], two: list[tuple[object, ...]], seed: int) -> None:
    first, second = run(ONE, one), run(TWO, two)
    straight = Receiver()
    straight.hear(first.said + second.said)
    shuffled = Receiver()
    met, rest = [first.said[0], second.said[0]], [*first.said[1:], *second.said[1:]] * 2
    random.Random(seed).shuffle(rest)
    shuffled.hear(met + rest)
    assert shuffled.view() == straight.view()
    assert [shuffled.siblings.load(url, 0.0) for url in URLS] == [straight.siblings.load(url, 0.0) for url in URLS]
    assert shuffled.siblings.open_placements() == straight.siblings.open_placements() == len(first.open) + len(second.open)
    assert shuffled.siblings.counts["replayed"] == len(rest) // 2


@given(script=steps)
@settings(max_examples=80, deadline=None)
def test_a_receiver_comes_to_know_what_its_sibling_knows(script: list[tuple[object, ...]]) -> None:
    sender, receiver = run(ONE, script), Receiver()
    receiver.hear(sender.said)
    for (namespace, word, url), match in receiver.view().items():
        assert match == sender.index.match(namespace, chain(word), url, 1.0, owner=NAMESPACES[namespace])
    for url in URLS:
        assert receiver.siblings.load(url, 0.0).in_flight == sum(1 for one in sender.open if one[2] == url)
    asked = sum((effects.asked for effects in receiver.effects), Effects().asked)
    assert all(asked[url] == sender.outbox.asked(url) for url in URLS)
    assert not any(effects.unexplained for effects in receiver.effects)


@given(script=steps, silent=st.sampled_from(list(NAMESPACES)))
@settings(max_examples=80, deadline=None)
def test_nothing_said_of_one_namespace_shows_in_another(script: list[tuple[object, ...]], silent: bytes) -> None:
    """With every word about one namespace left out, the answers for all others stay the same, and there are none for that one."""
    kept = [step for step in script if step[0] != "place" or step[1] != silent]
    spoken = [step for step in script if step[0] == "place" and step[1] == silent]
    receiver = Receiver()
    receiver.hear(run(ONE, kept).said)
    alone = receiver.view()
    assert not [match for (namespace, _, _), match in alone.items() if namespace == silent and match.blocks]  # type: ignore[attr-defined] # a Match
    receiver.hear(run(TWO, spoken).said)
    both = receiver.view()
    assert [both[key] for key in both if key[0] != silent] == [alone[key] for key in alone if key[0] != silent]
    assert bool(spoken) == any(match.blocks for (namespace, _, _), match in both.items() if namespace == silent)  # type: ignore[attr-defined] # a Match


@given(script=steps)
@settings(max_examples=60, deadline=None)
def test_who_falls_silent_leaves_no_load_and_no_promise(script: list[tuple[object, ...]]) -> None:
    sender, receiver = run(ONE, script), Receiver()
    receiver.hear(sender.said)
    assert all(receiver.siblings.load(url, SILENT_S).in_flight == 0 for url in URLS)
    receiver.siblings.tick(GONE_S + 0.1, receiver.here)
    assert receiver.siblings.open_placements() == 0
    assert receiver.siblings.heard() == []
    assert receiver.siblings._open_blocks == 0
    assert all(entry.pending == 0 for held in receiver.index._replicas.values() for entries in held.owners.values() for entry in entries.values())


def test_a_load_fades_and_is_whole_while_its_sender_speaks() -> None:
    sender, receiver = Sender(ONE), Receiver()
    sender.place(b"n" * 16, "xy", URLS[0])
    sender.speak()
    receiver.hear(sender.said)
    weights = [receiver.siblings.load(URLS[0], now_s).queued_tokens for now_s in (0.0, 0.5, 0.75, 1.0)]
    assert weights == pytest.approx([10.0, 10.0, 5.0, 0.0])
    assert receiver.siblings.load(URLS[1], 0.0).queued_tokens == 0


def test_an_owner_unknown_here_and_an_engine_unknown_here_are_ignored() -> None:
    sender, receiver = Sender(ONE), Receiver(owners=OWNERS[:1])
    sender.place(b"p" * 16, "xy", URLS[0])
    sender.place(b"n" * 16, "xy", "http://elsewhere")
    sender.place(b"n" * 16, "xy", URLS[0])
    sender.speak()
    receiver.hear(sender.said)
    assert {key for key, match in receiver.view().items() if match.blocks} == {  # type: ignore[attr-defined] # a Match
        (b"n" * 16, word, URLS[0]) for word in WORDS if word.startswith("x")
    }
    assert (receiver.siblings.counts["unknown_owner"], receiver.siblings.counts["unknown_engine"]) == (1, 1)
    assert receiver.effects[-1].unexplained == {URLS[0]}  # the engine was asked for something that is not known here


def test_without_naming_the_receiver_nobody_is_believed() -> None:
    sender, receiver = Sender(ONE), Receiver()
    sender.place(b"n" * 16, "xy", URLS[0])
    beat = sender.outbox.beat("router", loads=[], heard=[TWO], now_s=0.0)
    receiver.hear([(Head(BEAT, ONE, 7), beat)])
    assert receiver.siblings.counts["unproven"] == 1
    assert not any(match.blocks for match in receiver.view().values())  # type: ignore[attr-defined] # a Match
    assert receiver.siblings.heard() == [ONE]  # it is named in turn, so that it can prove itself
    assert receiver.siblings.told_all_before(0.0)


def test_a_recording_keeps_no_alarm_silent_and_no_living_sibling_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats of a process that is gone, repeated by whoever can write to the channel, never name the receiver: nothing waits for its word. Where
    there are as many as are remembered, one that lives takes the place of one that never proved that it does."""
    monkeypatch.setattr(siblings, "MAX_SIBLINGS", 2)
    receiver = Receiver()
    receiver.siblings.met = True
    receiver.siblings.own_heard_at_s = 100.0
    for number, process in enumerate((ONE, TWO)):
        old = Sender(process)
        receiver.hear([(Head(BEAT, process, 7 + number), old.outbox.beat("router", loads=[], heard=[], now_s=0.0))])
    assert len(receiver.siblings.heard()) == 2
    assert receiver.siblings.told_all_before(50.0)
    assert not receiver.siblings.told_all_before(100.0)  # its own word is older than that
    living = Sender(b"3" * 16)
    living.speak()
    receiver.hear(living.said)
    assert receiver.siblings.counts["believed"] == len(living.said)
    assert not receiver.siblings.told_all_before(50.0)  # the living one has not said all until then


def test_a_beat_that_never_comes_is_waited_for_and_given_up() -> None:
    sender, receiver = Sender(ONE), Receiver()
    for word in ("xx", "xy", "yy"):
        sender.place(b"n" * 16, word, URLS[0])
        sender.speak()
    met, lost, *late = sender.said
    receiver.hear([met, *late])
    assert receiver.siblings.counts["placed"] == 0
    receiver.siblings.tick(PARKED_S + 0.1, receiver.here)
    assert receiver.siblings.counts["lost"] == 1
    assert receiver.view()[b"n" * 16, "yy", URLS[0]].blocks == 2  # type: ignore[attr-defined] # a Match
    assert (receiver.siblings.counts["placed"], receiver.siblings.counts["parked"]) == (1, 1)  # what continues the lost one has no beginning
    receiver.siblings.tick(PARKED_S + 0.3, receiver.here)
    assert receiver.siblings.counts["orphaned"] == 1
    receiver.hear([lost])


@pytest.mark.parametrize("lost", [set(), {5}, {5, 6, 40}], ids=["nothing", "one", "some"])
def test_a_lost_beat_of_a_busy_sibling_is_given_up_for_good(monkeypatch: pytest.MonkeyPatch, lost: set[int]) -> None:
    """More beats come within the time that a lost one is waited for than may wait: what comes after them is merged in order all the same, now and
    later, and what was lost is counted once."""
    monkeypatch.setattr(siblings, "MAX_WAITING", 4)
    monkeypatch.setattr(peering, "WHOLE_CHAIN_BLOCKS", 32)
    sender, receiver = Sender(ONE), Receiver()
    receiver.hear(sender.said)
    for number in range(2, 300):
        sender.settle(0, confirmed=True)
        sender.place(b"n" * 16, WORDS[number % len(WORDS)], URLS[0])
        sender.speak()
        now_s = number / 50
        if number not in lost:
            receiver.hear(sender.said[-1:], now_s)
        receiver.siblings.tick(now_s, receiver.here)
    (one,) = receiver.siblings._known.values()
    assert (one.next, len(one.waiting), receiver.siblings.counts["lost"]) == (300, 0, len(lost))
    assert receiver.siblings.counts["placed"] == 298 - len(lost)
    assert receiver.siblings.open_placements() == 1
    ends = [receiver.index.match(b"n" * 16, chain(word), URLS[0], 2.0, owner=OWNERS[0]) for word in WORDS]
    assert {(match.blocks - len(word), match.source) for word, match in zip(WORDS, ends, strict=True)} == {(0, "inferred")}


def test_a_lost_settlement_does_not_stay_open() -> None:
    sender, receiver = Sender(ONE), Receiver()
    sender.place(b"n" * 16, "xy", URLS[0])
    sender.speak()
    sender.settle(0, confirmed=True)
    sender.speak()
    sender.speak()
    receiver.hear([*sender.said[:2], *sender.said[3:]])
    for now_s in (1.1, 2.2, 3.3):
        assert receiver.siblings.open_placements() == (1 if now_s < 3 else 0) or now_s > 2
        receiver.siblings.tick(now_s, receiver.here)
    assert receiver.siblings.open_placements() == 0
    assert receiver.siblings.counts["expired"] == 1


def test_what_is_waited_for_and_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siblings, "MAX_OPEN_BLOCKS", 10)
    monkeypatch.setattr(siblings, "MAX_SIBLINGS", 2)
    monkeypatch.setattr(peering, "MAX_QUEUED", 20)
    sender, receiver = Sender(ONE), Receiver()
    for _ in range(30):
        sender.place(b"n" * 16, "xyxy", URLS[0])
    assert sender.outbox.dropped == 10
    while sender.outbox.backlog():
        sender.speak()
    receiver.hear(sender.said)
    assert receiver.siblings._open_blocks <= 10
    assert receiver.siblings.counts["expired"] == 18
    for number in range(5):
        receiver.hear([(Head(BEAT, bytes([number]) * 16, 1), Beat(router_id="r", heard=(ME,)))])
    assert len(receiver.siblings.heard()) == 2
    assert receiver.siblings.counts["too_many"] == 4


def test_a_prompt_too_long_is_not_shared_and_not_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peering, "MAX_CHAIN_BLOCKS", 3)
    sender, receiver = Sender(ONE), Receiver()
    sender.place(b"n" * 16, "xyxy", URLS[0])
    sender.speak()
    receiver.hear(sender.said)
    assert sender.outbox.cut == 1
    assert not any(match.blocks for match in receiver.view().values())  # type: ignore[attr-defined] # a Match
    assert receiver.effects[-1].unexplained == {URLS[0]}


def test_a_beat_makes_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peering, "MAX_BEAT_BLOCKS", 8)
    sender = Sender(ONE)
    for _ in range(5):
        sender.place(b"n" * 16, "xyxy", URLS[0])
    counts = []
    while sender.outbox.backlog():
        sender.speak()
        counts.append(len(sender.said[-1][1].placements))
    assert counts == [2, 2, 1]
    sender.settle(4, confirmed=True)
    sender.place(b"n" * 16, "yyyy", URLS[0])
    sender.speak()
    assert [one.serial for one in sender.said[-1][1].settled] == [5]
    assert sender.said[-1][1].oldest_open == 1


def test_nobody_is_told_while_nobody_listens() -> None:
    outbox, index = Outbox(), HistoryIndex()
    assert outbox.placed(b"n" * 16, OWNERS[0], URLS[0], chain("xy"), index=index, sequences=3) == 0
    outbox.settled(0, confirmed=True, at_s=0.0)
    assert outbox.beat("router", loads=[], heard=[], now_s=0.0).placements == ()
    assert outbox.asked(URLS[0]) == 3


def test_a_beat_says_how_much_its_sender_knows_and_not_how_much_it_tells() -> None:
    """Who begins late asks whoever knows most."""
    sender = Sender(ONE)
    sender.place(b"n" * 16, "xyx", URLS[0])
    assert sender.outbox.beat("router", loads=[], heard=[], now_s=0.0, blocks=500).blocks == 500


def test_an_audits_prompts_are_counted_and_not_told() -> None:
    sender = Sender(ONE)
    sender.outbox.placed(b"n" * 16, b"audits", URLS[0], chain("xy"), index=sender.index, sequences=1)
    sender.speak()
    (placement,) = sender.said[-1][1].placements
    assert (placement.namespace, placement.digests, placement.sequences) == (bytes(16), b"", 1)


# -- messages -----------------------------------------------------------------------------------------------------------------------


def _placement(**more: object) -> Placement:
    values: dict[str, object] = {
        "serial": 1,
        "namespace": b"n" * 16,
        "owner": b"o" * 16,
        "engine": b"e" * 16,
        "parent": b"",
        "digests": b"d" * 32,
        "sequences": 1,
    }
    return Placement(**{**values, **more})  # type: ignore[arg-type] # wrong ones too


@pytest.mark.parametrize(
    "placement",
    [
        _placement(namespace=b"n" * 15),  # with a digest of 17 bytes it would be another namespace's key
        _placement(namespace=b"n" * 17),
        _placement(owner=b""),
        _placement(engine=b"e"),
        _placement(parent=b"p" * 8),
        _placement(digests=b"d" * 31),
        _placement(sequences=-1),
    ],
)
def test_names_of_another_length_are_refused(placement: Placement) -> None:
    assert peering.decode(BEAT, peering.encode(Beat(router_id="r", placements=(_placement(),))))
    with pytest.raises(PeeringError):
        peering.decode(BEAT, peering.encode(Beat(router_id="r", placements=(placement,))))


@pytest.mark.parametrize(
    "load",
    [
        Load(b"e", 0.0, 0, 0, 0),
        Load(b"e" * 16, -1.0, 0, 0, 0),
        Load(b"e" * 16, 1e300, 0, 0, 0),
        Load(b"e" * 16, 0.0, 0, -5, 0),
        Load(b"e" * 16, 0.0, 0, 1, 1, -1),
    ],
)
def test_loads_out_of_bounds_are_refused(load: Load) -> None:
    assert peering.decode(BEAT, peering.encode(Beat(router_id="r", loads=(Load(b"e" * 16, 1.0, 1, 1, 1, 1),))))
    with pytest.raises(PeeringError):
        peering.decode(BEAT, peering.encode(Beat(router_id="r", loads=(load,))))


def test_a_load_of_a_router_from_before_answers_were_counted_has_one_for_each_request() -> None:
    load = Load(b"e" * 16, 8.0, 1, 3, 5)
    said = msgspec.msgpack.decode(peering.encode(Beat(router_id="r", loads=(load,))))
    said[3][0] = said[3][0][:5]
    beat = peering.decode(BEAT, msgspec.msgpack.encode(said))
    assert isinstance(beat, Beat)
    assert beat.loads == (load,)


def test_answers_beyond_one_for_each_request_decode_too() -> None:
    assert Shared(0.0, 1.0, 3.0, 4.0).decodes == 6.0
    assert Shared(1.0, 2.0, 3.0, 4.0).plus(Shared(10.0, 20.0, 30.0, 40.0)) == Shared(11.0, 22.0, 33.0, 44.0)


@given(st.binary(max_size=300), st.integers(0, 5))
def test_noise_is_refused(noise: bytes, kind: int) -> None:
    """Only as the error that is counted; what decodes by chance is no message all the same, since its seal does not open."""
    with contextlib.suppress(PeeringError):
        peering.decode(kind, noise)
    with pytest.raises(PeeringError):
        peering.read_head(b"SRP" + noise)


def test_the_seal_binds_root_process_counter_and_head() -> None:
    seal = Roots((b"r" * 32,)).sibling_seal(ONE)
    clear = peering.head(BEAT, ONE, 5)
    sealed = seal.seal(5, b"word", clear)
    assert Roots((b"q" * 32, b"r" * 32)).sibling_seal(ONE).open(5, sealed, clear) == b"word"  # while the root rotates
    others = [
        (Roots((b"q" * 32,)).sibling_seal(ONE), 5, clear),
        (Roots((b"r" * 32,)).sibling_seal(TWO), 5, clear),
        (seal, 6, clear),
        (seal, 5, peering.head(peering.ASK, ONE, 5)),
    ]
    for other, counter, bound in others:
        with pytest.raises(KeyringError):
            other.open(counter, sealed, bound)
    with pytest.raises(KeyringError):
        Roots((b"r" * 32,)).sibling_seal(b"short")
    assert "r" * 8 not in repr(seal)


@given(st.lists(st.integers(0, 600), max_size=60))
def test_a_window_admits_each_counter_at_most_once(counters: list[int]) -> None:
    window, admitted, highest = Window(), set(), -1
    for counter in counters:
        expected = counter not in admitted and counter > highest - siblings.WINDOW
        assert window.admit(counter) == expected
        admitted |= {counter} if expected else set()
        highest = max(highest, counter)


def test_an_ask_names_whom_it_asks() -> None:
    assert peering.decode(peering.ASK, peering.encode(Ask(to=ME, ask=bytes(16)))) == Ask(to=ME, ask=bytes(16))
    with pytest.raises(PeeringError):
        peering.decode(peering.ASK, peering.encode(Ask(to=b"", ask=bytes(16))))
