"""What goes to a worker and back."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.prompts import frames
from routing.prompts.pool import WRITE_BYTES
from routing.prompts.service import Prompts
from tests.routing.prompts import small

VALUES: Any = st.lists(st.none() | st.booleans() | st.integers(0, 2**63) | st.floats(allow_nan=False) | st.binary(max_size=40) | st.text(max_size=40))


@given(values=st.lists(VALUES, max_size=14), content=st.binary(max_size=70_000))
def test_a_frame_in_two_parts_is_read_as_one(values: list[Any], content: bytes) -> None:
    first, second = frames.around(values, content)
    assert second is content
    assert frames.read(io.BytesIO(first + second)) == frames.read(io.BytesIO(frames.pack([*values, content]))) == [*values, content]


async def test_a_large_file_goes_to_a_worker_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop copies none of it whole."""
    written: list[int] = []
    write = asyncio.StreamWriter.write

    def noted(writer: asyncio.StreamWriter, data: bytes) -> None:
        written.append(len(data))
        write(writer, data)

    monkeypatch.setattr(asyncio.StreamWriter, "write", noted)
    tokenizer = small.qwen_like().content + b" " * (3 * WRITE_BYTES)
    large = small.artifact(tokenizer)
    prompts = Prompts()
    await prompts.start()
    try:
        prompts.load(large.digest, large.content, "tokenizer")
        assert await prompts.admit(large.digest, "tokenizer", owner=b"a") is None
    finally:
        await prompts.stop()
    assert sum(written) > len(large.content)
    assert max(written) == WRITE_BYTES
