from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing.prompts.segments import ENTRY_BYTES, Segments, key

A, B, N, M, T = b"acme", b"globex", b"n" * 16, b"m" * 16, b"t" * 32


def store(*, owner_bytes: int = 3 * (ENTRY_BYTES + 8), max_owners: int = 2, idle_s: float = 60.0) -> Segments:
    """Room for three segments of two ids."""
    return Segments(owner_bytes, max_owners, idle_s)


def test_a_namespace_sees_only_what_it_put_in() -> None:
    segments = store()
    segments.put(A, key(N, T, "text"), b"12345678", 0.0)
    assert segments.get(A, key(N, T, "text"), 0.0) == b"12345678"
    assert segments.get(A, key(M, T, "text"), 0.0) is None
    assert segments.get(A, key(N, b"u" * 32, "text"), 0.0) is None
    assert segments.get(A, key(N, T, "text", whole=True), 0.0) is None
    assert segments.get(B, key(N, T, "text"), 0.0) is None
    assert (segments.hits, segments.misses) == (1, 4)


def test_the_least_recently_used_goes_first_and_is_counted() -> None:
    segments = store()
    for text in "abc":
        segments.put(A, key(N, T, text), b"12345678", 0.0)
    segments.get(A, key(N, T, "a"), 0.0)
    segments.put(A, key(N, T, "d"), b"12345678", 0.0)
    assert [segments.get(A, key(N, T, text), 0.0) is not None for text in "abcd"] == [True, False, True, True]
    assert segments.evicted_bytes == ENTRY_BYTES + 8


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(0, 9), st.integers(0, 40)), max_size=60))
def test_nobody_evicts_anothers_segments(puts: list[tuple[bytes, int, int]]) -> None:
    alone, together = store(), store()
    for owner, place, ids in puts:
        together.put(owner, key(N, T, str(place)), bytes(4 * ids), 0.0)
        if owner == A:
            alone.put(owner, key(N, T, str(place)), bytes(4 * ids), 0.0)
    for place in range(10):
        assert alone.get(A, key(N, T, str(place)), 0.0) == together.get(A, key(N, T, str(place)), 0.0)
    assert together.size_bytes() <= 2 * together.owner_bytes


def test_what_is_longer_than_a_budget_is_not_kept() -> None:
    segments = store()
    segments.put(A, key(N, T, "long"), bytes(4096), 0.0)
    assert (segments.get(A, key(N, T, "long"), 0.0), segments.refused, segments.size_bytes()) == (None, 1, 0)


def test_newcomers_take_the_place_of_the_idle_alone() -> None:
    segments = store(max_owners=1)
    segments.put(A, key(N, T, "a"), b"1234", 0.0)
    segments.put(B, key(M, T, "b"), b"1234", 59.0)
    assert (segments.get(B, key(M, T, "b"), 59.0), segments.refused) == (None, 1)
    segments.put(B, key(M, T, "b"), b"1234", 61.0)
    assert segments.get(B, key(M, T, "b"), 61.0) == b"1234"
    assert (segments.get(A, key(N, T, "a"), 61.0), segments.owners()) == (None, 1)


def test_what_a_tokenizer_made_can_be_forgotten() -> None:
    segments = store()
    segments.put(A, key(N, T, "a"), b"1234", 0.0)
    segments.put(A, key(N, b"u" * 32, "a"), b"5678", 0.0)
    segments.forget_tokenizer(T)
    assert (segments.get(A, key(N, T, "a"), 0.0), segments.get(A, key(N, b"u" * 32, "a"), 0.0)) == (None, b"5678")
    assert segments.size_bytes() == ENTRY_BYTES + 4
