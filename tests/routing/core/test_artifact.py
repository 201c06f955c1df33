"""Artifacts on their way: what is carried comes out as it went in, and nothing else does."""

from __future__ import annotations

import hashlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import artifact
from routing.core.artifact import ArtifactError
from tests.fakes.artifacts import TEMPLATE, TOKENIZER, naming
from tests.fakes.rig import KEY_A, bumped, tenant


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


@given(st.binary(max_size=5000))
def test_what_is_packed_comes_out(content: bytes) -> None:
    assert artifact.unpack(artifact.pack(content), sha256(content)) == content


@given(st.binary(min_size=1, max_size=300), st.data())
def test_no_damage_passes(content: bytes, data: st.DataObject) -> None:
    """Whatever byte is changed, wherever it is cut or lengthened: refused, or the very same content."""
    packed = bytearray(artifact.pack(content))
    place = data.draw(st.integers(0, len(packed) - 1))
    changed = data.draw(st.sampled_from(["flip", "cut", "more"]))
    if changed == "flip":
        packed[place] ^= data.draw(st.integers(1, 255))
    damaged = bytes(packed[:place]) if changed == "cut" else bytes(packed) + b"x" * (changed == "more")
    try:
        unpacked = artifact.unpack(damaged, sha256(content))
    except ArtifactError:
        return
    assert unpacked == content  # some bits of a zlib header say nothing


def test_another_content_under_this_name_is_forged() -> None:
    with pytest.raises(ArtifactError, match="forged"):
        artifact.unpack(artifact.pack(b"theirs"), sha256(b"ours"))


def test_a_small_packet_cannot_become_a_gigabyte() -> None:
    """Neither with an honest size, nor with one that lies."""
    bomb = zlib.compress(bytes(artifact.MAX_BYTES * 2))
    for size, reason in ((artifact.MAX_BYTES * 2, "too_large"), (100, "damaged"), (artifact.MAX_BYTES, "damaged")):
        with pytest.raises(ArtifactError, match=reason):
            artifact.unpack(b"SRA1" + size.to_bytes(8, "big") + bomb, sha256(b""))


def test_a_snapshot_names_each_artifact_once() -> None:
    document = tenant("acme", (), {KEY_A: ""})
    assert artifact.named_by(document) == ()
    document = naming(document)
    twice = bumped(document, endpoints=document.endpoints * 2)
    expected = (("tokenizer", sha256(TOKENIZER)), ("chat_template", sha256(TEMPLATE)))
    assert artifact.named_by(document) == artifact.named_by(twice) == expected
    assert artifact.named_by(bumped(twice, deleted=True)) == ()
