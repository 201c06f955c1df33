"""The standard rig as a fixture, and a factory for rigs with other settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.events import FakeSource, running_source
from tests.fakes.rig import Rig, standard_rig

MakeRig = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def make_rig(tmp_path: Path) -> AsyncIterator[MakeRig]:
    """Build rigs with settings of their own; all are stopped at the end."""
    async with AsyncExitStack() as stack:
        made = 0

        async def make(**settings: Any) -> Rig:
            nonlocal made
            made += 1
            state_dir = settings.pop("state_dir", tmp_path / f"state{made}")
            return await stack.enter_async_context(standard_rig(state_dir, **settings))

        yield make


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    """The standard rig: no Valkey, snapshots delivered directly, health checks only when asked for."""
    return await make_rig()


@pytest.fixture
async def source() -> AsyncIterator[FakeSource]:
    """Where an engine publishes its KV events."""
    async with running_source() as one:
        yield one
