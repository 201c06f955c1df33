"""When the real engine runs: with ``-m engine``, or with SALTROUTE_REQUIRE_ENGINE=1, where a missing engine is a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.engine.installation import EngineUnavailableError, Installation
from tests.engine.vllm_cpu import Replica, start, stop

ENGINE_TIMEOUT_S = 2400  # the first test pays for the installation and for the engines' start


def required() -> bool:
    """Whether a machine without the engine is an error."""
    return os.environ.get("SALTROUTE_REQUIRE_ENGINE") == "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave engine tests out unless they were asked for; give those that run the time they need."""
    marked = [item for item in items if item.get_closest_marker("engine")]
    if required() or "engine" in config.option.markexpr:
        for item in marked:
            item.add_marker(pytest.mark.timeout(ENGINE_TIMEOUT_S))
    elif marked:
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if item not in marked]


@pytest.fixture(scope="session")
def replicas() -> Iterator[list[Replica]]:
    """Two real vLLM replicas with one model and empty caches, ended with the session."""
    installation = Installation.default()
    try:
        installation.ensure()
        started = start(installation, ("a", "b"))
    except EngineUnavailableError as error:
        if required():
            pytest.fail(f"no engine: {error}", pytrace=False)
        pytest.skip(f"no engine: {error}")
    yield started
    stop(started)
