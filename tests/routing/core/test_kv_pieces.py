"""Pieces of a batch are small, and together they are the batch."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from routing.core import blocks
from routing.core.event_index import EventIndex
from routing.core.kv_events import Batch, Cleared, Event, Removed, Stored
from routing.core.kv_pieces import cut

SALT, KEY, OWNER, SEED, TARGET = "sr1-" + "a" * 43, b"k" * 16, b"o", b"s" * 32, ("http://a:1", 0)
SIZE = 2


def stored(chain: int, first: int, count: int, *, tokens: bool = True) -> Stored:
    """Blocks ``first`` and on of one of some chains; the salt is in block 0."""
    ids = [chain * 1000 + position for position in range(first * SIZE, (first + count) * SIZE)]
    return Stored(
        hashes=tuple(chain * 100 + number for number in range(first, first + count)),
        parent=None if first == 0 else chain * 100 + first - 1,
        tokens=blocks.pack(ids) if tokens else b"",
        block_tokens=SIZE if tokens else 0,
        medium="GPU" if tokens else "CPU",
        extra_keys=tuple((SALT,) if number == 0 else None for number in range(first, first + count)) if tokens else None,
    )


events = st.lists(
    st.one_of(
        st.builds(stored, st.integers(1, 3), st.integers(0, 2), st.integers(1, 12)),
        st.builds(stored, st.integers(1, 3), st.just(0), st.integers(1, 12), tokens=st.just(False)),
        st.builds(lambda chain, count: Removed(tuple(chain * 100 + 11 - n for n in range(count)), "GPU"), st.integers(1, 3), st.integers(1, 12)),
        st.just(Cleared()),
    ),
    max_size=12,
)


def applied(batches: list[Batch]) -> tuple[object, ...]:
    index = EventIndex()
    index.set_generation(TARGET, 0, 0.0)
    index.claim(SALT, ns_key=KEY, owner=OWNER, seed=SEED)
    for batch in batches:
        index.apply(TARGET, batch, 1.0)
    prompts = [[chain * 1000 + position for position in range(14 * SIZE)] for chain in (1, 2, 3)]
    matches = tuple(index.match(KEY, blocks.token_chain(SEED, prompt, SIZE), TARGET, 1.0) for prompt in prompts)
    return matches, index.sizes(), index.unusable(TARGET)


@given(events, st.integers(1, 9))
@example([stored(1, 0, 2), stored(1, 0, 2), Removed(tuple(1 * 100 + 11 - n for n in range(11)), "GPU")], 1)
@example([stored(1, 2, 1), stored(1, 0, 3), Removed((102,), "GPU")], 2)
@example([stored(1, 0, 6), Removed((102, 103), "GPU"), stored(1, 3, 6)], 5)
def test_applying_the_pieces_is_applying_the_batch(written: list[Event], most: int) -> None:
    """Whatever is stored, repeated, orphaned and removed. The examples: a repeated prompt whose first block is a piece of its own is a report in
    full all the same; an orphan that its event stores again behind the cut gets no second copy, which one removal would leave behind; orphans of the
    piece itself are adopted with it."""
    batch = Batch(1.0, tuple(written), 0, 3)
    pieces = cut(batch, most)
    assert applied(pieces) == applied([batch])
    for piece in pieces:
        assert sum(len(event.hashes) for event in piece.events if isinstance(event, Stored | Removed)) <= most
    assert sum(piece.unknown_fields for piece in pieces) == 3


def test_a_small_batch_stays_whole() -> None:
    batch = Batch(1.0, (stored(1, 0, 3), Removed((1, 2), "GPU")), 0)
    assert cut(batch, 5) == [batch]
    assert [len(piece.events) for piece in cut(batch, 4)] == [1, 1]


def test_an_orphan_waits_for_the_piece_that_stores_it_and_others_are_adopted_at_once() -> None:
    """Between two pieces: block 1, which the second stores, is an orphan still; another child of block 0 is adopted. At the end both are credited."""
    index = EventIndex()
    index.set_generation(TARGET, 0, 0.0)
    index.claim(SALT, ns_key=KEY, owner=OWNER, seed=SEED)
    other = Stored((777,), 100, blocks.pack([7, 7]), SIZE, "GPU")
    index.apply(TARGET, Batch(1.0, (stored(1, 1, 1), other), 0), 1.0)
    first, second = cut(Batch(1.0, (stored(1, 0, 2),), 0), 1)
    index.apply(TARGET, first, 1.0)
    assert (index.sizes()[TARGET].credited, index.sizes()[TARGET].orphans) == (2, 1)
    index.apply(TARGET, second, 1.0)
    assert (index.sizes()[TARGET].credited, index.sizes()[TARGET].orphans) == (3, 0)
