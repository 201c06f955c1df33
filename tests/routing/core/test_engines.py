"""Every engine adapter: registered under its family, and closed to the ways in which a client could choose a cache."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from routing.core.engine import Engine
from routing.core.engines import ENGINES
from routing.core.snapshot import EngineFamily

# Written out here as engines name them, not read from the register: a name that is lost there must be missed here.
CHOOSES_A_CACHE = {"cache_salt", "extra_key", "extra_keys", "session_id", "session_params", "skip_reading_prefix_cache"}
FORGES_A_TRANSFER = {"kv_transfer_params", "kv_hints", "bootstrap_host", "bootstrap_port", "bootstrap_room"}
NAMES_A_REQUEST_OR_PLACE = {"request_id", "rid", "priority", "routed_dp_rank", "data_parallel_rank"}

engines = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


def test_the_register_and_the_snapshot_know_the_same_families() -> None:
    assert set(ENGINES) == set(get_args(EngineFamily))
    assert all(name == engine.family for name, engine in ENGINES.items())


@engines
def test_no_client_may_name_a_cache_forge_a_transfer_or_borrow_a_request(engine: Engine) -> None:
    dangerous = CHOOSES_A_CACHE | FORGES_A_TRANSFER | NAMES_A_REQUEST_OR_PLACE
    assert dangerous <= engine.stripped
    assert dangerous <= engine.stripped_inside["extra_body"]
    assert {"vllm_xargs", "nvext", "extra_body"} <= set(engine.stripped_inside)
    assert all("cache_salt" in members for members in engine.stripped_inside.values())


@engines
def test_what_we_set_ourselves_is_never_the_clients(engine: Engine) -> None:
    assert engine.salt_field is None or engine.salt_field in engine.stripped
    assert set(engine.forced) <= engine.stripped
    for raw in engine.forced.values():
        msgspec.json.decode(raw)


@engines
def test_content_of_a_prompt_is_never_stripped(engine: Engine) -> None:
    assert not engine.stripped & {"messages", "prompt", "input", "tools", "response_format", "metadata", "model", "stream", "max_tokens"}
    assert not set(engine.stripped_inside) & {"messages", "prompt", "input", "tools", "response_format", "metadata"}


@engines
def test_only_we_may_ask_for_full_reports(engine: Engine) -> None:
    if engine.full_report is not None:
        member, name, written = engine.full_report
        assert name in engine.stripped_inside[member]
        msgspec.json.decode(written)
    assert (engine.full_report is not None) == (engine.family == "vllm")
