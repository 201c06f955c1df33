"""What a late router takes over: the same matches as at the sibling, at less confidence; shared out fairly; nothing malformed gets in."""

from __future__ import annotations

import struct
from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core import warmup
from routing.core.calibration import DEFAULT_FIXED_S, ByteRatio, Calibration
from routing.core.peering import PeeringError, engine_id
from routing.core.residency import AGE_CONSTANT_S, P_INFERRED, HistoryIndex
from routing.core.warmup import WARM_AGE_S, Holding, Known, Part, Ratio

OWNERS = (b"a" * 16, b"b" * 16)
NAMESPACES = {b"n" * 16: OWNERS[0], b"o" * 16: OWNERS[0], b"p" * 16: OWNERS[1]}
URLS = ("http://a", "http://b")
WORDS = ["".join(letters) for length in range(1, 5) for letters in product("xy", repeat=length)]


def chain(word: str) -> tuple[bytes, ...]:
    return tuple(word[: end + 1].encode().ljust(16, b".") for end in range(len(word)))


def sent(index: HistoryIndex, namespace: bytes, word: str, url: str, at_s: float | None) -> None:
    """One prompt; still pending where ``at_s`` is None."""
    ticket = index.dispatched(namespace, chain(word), url, owner=NAMESPACES[namespace])
    if at_s is not None:
        index.confirmed(namespace, chain(word), url, ticket, at_s, owner=NAMESPACES[namespace])


placed = st.tuples(st.sampled_from(list(NAMESPACES)), st.sampled_from(WORDS), st.sampled_from(URLS), st.one_of(st.none(), st.integers(0, 100)))
prompts = st.lists(placed, max_size=20)


def moved(old: HistoryIndex, new: HistoryIndex, now_s: float, owners: tuple[bytes, ...] = OWNERS) -> int:
    """Everything that travels, through its bytes."""
    urls = {engine_id(url): url for url in URLS}
    count = 0
    for part in warmup.parts([], [], warmup.holdings(old, URLS, owners, now_s)):
        for holding in warmup.decode(warmup.encode(part)).holdings:
            count += warmup.restore(new, holding, urls[holding.engine], now_s)
    return count


@given(prompts)
@settings(max_examples=150, deadline=None)
def test_a_late_router_finds_what_its_sibling_knows_to_be_resident(script: list[tuple[bytes, str, str, int | None]]) -> None:
    old, new, shown = HistoryIndex(), HistoryIndex(), HistoryIndex()
    for namespace, word, url, at_s in script:
        sent(old, namespace, word, url, at_s)
        if at_s is not None:
            sent(shown, namespace, word, url, at_s)
    moved(old, new, 100.0)
    for namespace, owner in NAMESPACES.items():
        for word in WORDS:
            for url in URLS:
                here = new.match(namespace, chain(word), url, 100.0, owner=owner)
                there = shown.match(namespace, chain(word), url, 100.0, owner=owner)
                assert here.blocks == there.blocks
                if here.blocks:
                    assert here.confidence < there.confidence
                    assert here.age_s == pytest.approx(there.age_s + WARM_AGE_S)


@given(prompts, prompts)
@settings(max_examples=100, deadline=None)
def test_what_was_seen_here_counts_for_more(script: list[tuple[bytes, str, str, int | None]], own: list[tuple[bytes, str, str, int | None]]) -> None:
    old, new, alone = HistoryIndex(), HistoryIndex(), HistoryIndex()
    for namespace, word, url, at_s in script:
        sent(old, namespace, word, url, at_s)
    for namespace, word, url, at_s in own:
        sent(new, namespace, word, url, at_s)
        sent(alone, namespace, word, url, at_s)
    moved(old, new, 100.0)
    moved(old, new, 100.0)  # taking it over twice changes nothing
    for namespace, owner in NAMESPACES.items():
        for word in WORDS:
            for url in URLS:
                here, before = (one.match(namespace, chain(word), url, 100.0, owner=owner) for one in (new, alone))
                assert here.blocks >= before.blocks
                assert here.blocks * here.confidence >= before.blocks * before.confidence - 1e-9


@given(prompts)
@settings(max_examples=50, deadline=None)
def test_only_owners_named_are_told_of(script: list[tuple[bytes, str, str, int | None]]) -> None:
    old, new = HistoryIndex(), HistoryIndex()
    for namespace, word, url, at_s in script:
        sent(old, namespace, word, url, at_s)
    moved(old, new, 100.0, owners=OWNERS[:1])
    assert {owner for url in URLS for owner in new.owners(url)} <= {OWNERS[0]}


def test_what_was_taken_over_is_evicted_from_the_leaves_on() -> None:
    old, new = HistoryIndex(), HistoryIndex()
    for number, word in enumerate(WORDS[-8:]):
        sent(old, b"n" * 16, word, URLS[0], float(number))
    sent(new, b"n" * 16, "xxxx", URLS[0], 100.0)
    moved(old, new, 100.0)
    held = [new.match(b"n" * 16, chain(word), URLS[0], 100.0, owner=OWNERS[0]).blocks for word in WORDS]
    for capacity in range(sum(new.owners(URLS[0]).values()), 0, -1):
        new.set_capacity(URLS[0], capacity)
        left = [new.match(b"n" * 16, chain(word), URLS[0], 100.0, owner=OWNERS[0]).blocks for word in WORDS]  # no hole: it would not match at all
        assert all(now <= before for now, before in zip(left, held, strict=True))
        assert sum(new.owners(URLS[0]).values()) == capacity
        held = left


def test_confidence_is_what_a_minute_more_leaves() -> None:
    old, new = HistoryIndex(), HistoryIndex()
    sent(old, b"n" * 16, "x", URLS[0], 100.0)
    moved(old, new, 100.0)
    match = new.match(b"n" * 16, chain("x"), URLS[0], 100.0, owner=OWNERS[0])
    assert match.confidence == pytest.approx(P_INFERRED * 2.718281828 ** (-WARM_AGE_S / AGE_CONSTANT_S))
    assert match.source == "inferred"


def test_each_owner_gets_an_equal_share_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warmup.shares({"hog": 1000, "modest": 10, "middle": 45}, 100) == {"modest": 10, "middle": 45, "hog": 45}
    assert warmup.shares({}, 100) == {}
    monkeypatch.setattr(warmup, "MAX_ENTRIES", 10)
    old, new = HistoryIndex(), HistoryIndex()
    sent(old, b"p" * 16, "xyx", URLS[0], 1.0)
    for word in WORDS:
        sent(old, b"n" * 16, word, URLS[0], 2.0)
    assert moved(old, new, 3.0) == 10
    assert new.owners(URLS[0]) == {OWNERS[1]: 3, OWNERS[0]: 7}


def test_an_answer_is_cut_into_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "PART_BYTES", 100)
    monkeypatch.setattr(warmup, "MAX_PARTS", 3)
    piece = Holding(b"e" * 16, b"o" * 16, b"n" * 16, b"d" * 64, b"p" * 8, b"a" * 8)
    parts = list(warmup.parts([], [], iter([piece] * 10)))
    assert [len(part.holdings) for part in parts] == [0, 1, 1]


GOOD = Holding(b"e" * 16, b"o" * 16, b"n" * 16, b"2" * 16 + b"1" * 16, struct.pack("<2H", 1, 0xFFFF), struct.pack("<2H", 5, 4))


@pytest.mark.parametrize(
    "change",
    [
        {"namespace": b"n" * 15},
        {"owner": b""},
        {"digests": b"2" * 31},
        {"parents": struct.pack("<2H", 0, 0xFFFF)},  # its own parent
        {"parents": struct.pack("<2H", 1, 0)},  # a circle
        {"parents": struct.pack("<2H", 2, 0xFFFF)},  # a parent that is not there
        {"parents": b""},
        {"ages": b"12345"},
        {"digests": b"d" * 16 * (warmup.MAX_HOLDING + 1)},
    ],
)
def test_a_malformed_piece_leaves_nothing(change: dict[str, bytes]) -> None:
    index = HistoryIndex()
    with pytest.raises(PeeringError):
        warmup.restore(index, msgspec.structs.replace(GOOD, **change), URLS[0], 100.0)
    assert index.sizes() == {}
    assert warmup.restore(index, GOOD, URLS[0], 100.0) == 2
    assert index.match(b"n" * 16, (b"1" * 16, b"2" * 16), URLS[0], 100.0, owner=b"o" * 16).blocks == 2


def test_noise_is_refused() -> None:
    with pytest.raises(PeeringError):
        warmup.decode(b"noise")
    assert warmup.decode(warmup.encode(Part())) == Part()


def test_rates_are_taken_where_nothing_was_measured() -> None:
    known = Known(b"e" * 16, 20_000.0, 0.2, 300.0, None)
    fresh, measured = Calibration(), Calibration()
    for _ in range(8):
        measured.observe_ttft(tokens_ahead=0, uncached_tokens=4000, idle=True, ttft_s=1.0, expected_s=1.0, now_s=100.0)
    own = measured.own_rate
    for calibration in (fresh, measured):
        warmup.adopt_rate(calibration, known, 100.0)
    assert fresh.rate(None, 100.0) == pytest.approx(20_000, rel=0.5)
    assert fresh.rate(8000.0, 100.0) == pytest.approx(20_000)
    assert fresh.rate(8000.0, 160.0) == pytest.approx(14_000)  # it drifts to the pool's median from the first minute on
    assert fresh.fixed_s == pytest.approx(0.2)
    assert measured.own_rate == own
    warmup.adopt_rate(empty := Calibration(), Known(b"e" * 16, None, None, 1.0, None), 0.0)
    assert (empty.own_rate, empty.fixed_s) == (None, DEFAULT_FIXED_S)


def test_ratios_are_taken_where_no_answer_was_seen() -> None:
    fresh, seen = ByteRatio(), ByteRatio()
    seen.observe(300, 100)
    for ratio in (fresh, seen):
        warmup.adopt_ratio(ratio, Ratio(b"e" * 16, 5.5, 1000))
    assert (fresh.bytes_per_token, fresh.samples) == (5.5, warmup.WARM_SAMPLES)
    assert seen.bytes_per_token == pytest.approx(3.0)
    warmup.adopt_ratio(odd := ByteRatio(), Ratio(b"e" * 16, 1e9, 10))
    assert odd.samples == 0
