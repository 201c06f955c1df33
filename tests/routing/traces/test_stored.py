"""What is kept of a trace that was sent: the same requests, and nothing of what anything was called."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing.traces.request import TraceRequest
from routing.traces.stored import CHUNK_REQUESTS, apart, join, nameless, pack, split, unpack

NAMES = st.sampled_from(["", "alice@example.org", "bob", "s1", "n7", "9"])
REQUESTS = st.lists(
    st.builds(
        TraceRequest,
        at_s=st.floats(0, 1e6),
        prompt_tokens=st.integers(1, 1000),
        output_tokens=st.integers(1, 1000),
        blocks=st.lists(st.one_of(st.integers(0, 5), st.integers(2**62, 2**63 - 1)), max_size=6).map(tuple),
        session=NAMES,
        scope=NAMES,
        kind=st.sampled_from(["", "secret project"]),
        after_s=st.one_of(st.none(), st.floats(0, 100)),
    ),
    max_size=30,
)


@given(REQUESTS)
def test_numbers_stand_for_names_and_equal_stays_equal(requests: list[TraceRequest]) -> None:
    """Packed, joined, split and unpacked: times and lengths are the same, and two blocks, sessions or scopes are equal where they were."""
    kept = [one for chunk in split(join(pack(nameless(requests)))) for one in unpack(chunk)]
    for name in ("at_s", "prompt_tokens", "output_tokens", "after_s"):
        assert [getattr(one, name) for one in kept] == [getattr(one, name) for one in requests]
    for before, after in (
        ([one for request in requests for one in request.blocks], [one for request in kept for one in request.blocks]),
        ([one.session for one in requests], [one.session for one in kept]),
        ([one.scope for one in requests], [one.scope for one in kept]),
    ):
        renamed: dict[object, object] = dict(zip(before, after, strict=True))
        assert [renamed[one] for one in before] == after
        assert len(set(renamed.values())) == len(renamed)
        assert renamed.get("", "") == ""
    assert all(one.kind == "" for one in kept)
    assert max((block for one in kept for block in one.blocks), default=0) < 200


def test_nothing_of_a_name_is_kept() -> None:
    request = TraceRequest(0.0, 100, 5, (2**61 + 5,), session="alice@example.org", scope="payroll", kind="secret project")
    content = join(pack(nameless([request] * 3)))
    for name in (b"alice", b"payroll", b"secret", (2**61 + 5).to_bytes(8, "big"), (2**61 + 5).to_bytes(8, "little")):
        assert all(name not in part for part in _unpacked(content))
    assert any(bytes([100]) in part for part in _unpacked(content))  # the length of the prompt is


def _unpacked(content: bytes) -> list[bytes]:
    import zlib

    return [zlib.decompress(chunk) for chunk in split(content)]


def test_chunks_are_of_a_fixed_number_of_requests() -> None:
    requests = [TraceRequest(float(place), 10, 1, ()) for place in range(2 * CHUNK_REQUESTS + 1)]
    assert [len(unpack(chunk)) for chunk in pack(requests)] == [CHUNK_REQUESTS, CHUNK_REQUESTS, 1]


def test_blocks_of_two_scopes_are_two() -> None:
    """As engines share within one scope alone, whatever it is called; a request without a scope keeps its blocks."""
    asked = [TraceRequest(0.0, 1024, 1, (0, 2**63 - 1), scope=scope) for scope in ("payroll", "tenant 2", "", "payroll")]
    first, second, none, again = apart(asked)
    assert not set(first.blocks) & set(second.blocks)
    assert not set(first.blocks + second.blocks) & set(none.blocks)
    assert none.blocks == asked[2].blocks
    assert again.blocks == first.blocks
