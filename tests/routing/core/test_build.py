"""The digest of a build changes with version, model and cache settings, and with nothing that differs between two starts of one build."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core import build
from routing.core.build import ABSENT, Facts

PAGE = (
    b'# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{_block_size_resolved="True",block_size="32",cache_dtype="auto",'
    b'enable_prefix_caching="True",engine="0",num_gpu_blocks="40",prefix_caching_hash_algo="sha256",sliding_window="None"} 1.0\n'
)


def _model(name: str, root: str = "/srv/model", parent: str | None = None, created: int = 1) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "root": root, "parent": parent, "max_model_len": 4096}


def _facts(version: str = "0.32.0", models: list[dict[str, Any]] | None = None, page: bytes = PAGE) -> Facts:
    listed = build.read_models(msgspec.json.encode({"object": "list", "data": [_model("tiny")] if models is None else models}))
    settings, block_tokens = build.read_settings(page)
    found = build.read_version(msgspec.json.encode({"version": version}))
    return Facts(version=found, models=listed.base, served=listed.served, settings=settings, block_tokens=block_tokens)


USUAL = _facts().digest("vllm")


@pytest.mark.parametrize(
    "facts",
    [
        _facts(version="0.32.1"),
        _facts(models=[_model("other")]),
        _facts(models=[_model("tiny", root="/srv/other")]),
        _facts(models=[_model("tiny"), _model("alias")]),
        _facts(page=PAGE.replace(b'block_size="32"', b'block_size="16"')),
        _facts(page=PAGE.replace(b'algo="sha256"', b'algo="xxhash"')),
        _facts(page=PAGE.replace(b'dtype="auto"', b'dtype="fp8"')),
        _facts(page=PAGE.replace(b'caching="True"', b'caching="False"')),
        _facts(page=b""),
    ],
)
def test_another_build_has_another_digest(facts: Facts) -> None:
    assert facts.digest("vllm") not in (None, USUAL)
    assert _facts().digest("sglang") != USUAL


@pytest.mark.parametrize(
    "facts",
    [
        _facts(),
        _facts(models=[_model("tiny", created=99)]),
        _facts(models=[_model("tiny"), _model("ada", root="/srv/ada", parent="tiny")]),
        _facts(page=PAGE.replace(b'num_gpu_blocks="40"', b'num_gpu_blocks="41"')),
        _facts(page=PAGE + PAGE.replace(b'engine="0"', b'engine="1"')),
    ],
)
def test_what_a_restart_or_an_adapter_changes_is_no_other_build(facts: Facts) -> None:
    assert facts.digest("vllm") == USUAL


def test_the_order_of_names_is_no_difference() -> None:
    assert _facts(models=[_model("a"), _model("b")]).digest("vllm") == _facts(models=[_model("b"), _model("a")]).digest("vllm")


def test_a_build_is_told_only_when_every_page_was_asked_for() -> None:
    whole = _facts()
    for missing in ({"version": None}, {"models": None}, {"settings": None}):
        assert replace(whole, **missing).digest("vllm") is None  # type: ignore[arg-type] # one member each
    assert Facts(version=ABSENT, models=(), settings=ABSENT).digest("vllm") is None
    assert Facts(version="1", models=(), settings=ABSENT).digest("vllm") is not None


def test_block_size_and_served_names_are_read() -> None:
    facts = _facts(models=[_model("tiny"), _model("ada", parent="tiny")])
    assert (facts.block_tokens, facts.served) == (32, ("tiny", "ada"))
    assert _facts(page=PAGE.replace(b'block_size="32"', b'block_size="None"')).block_tokens is None
    assert _facts(page=PAGE.replace(b'block_size="32"', 'block_size="3²"'.encode())).block_tokens is None
    assert len(str(USUAL)) == 32


@given(st.binary(max_size=200))
def test_no_page_is_too_odd_to_be_read(page: bytes) -> None:
    build.read_version(page)
    build.read_models(page)
    build.read_settings(page)


_names = st.sampled_from(["data", "id", "version", "root", "parent"])
_leaves = st.none() | st.integers(-(2**60), 2**60) | st.text(max_size=5)


@given(st.recursive(_leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner)))
def test_no_document_is_too_odd_to_be_read(document: object) -> None:
    page = msgspec.json.encode(document)
    listed = build.read_models(page)
    assert all(isinstance(one, str) for one in (build.read_version(page), *listed.base, *listed.served, *listed.adapters))


def _list(*rows: Any) -> bytes:
    return msgspec.json.encode({"object": "list", "data": list(rows)})


@pytest.mark.parametrize(
    ("body", "adapters", "whole"),
    [
        (_list(_model("tiny"), _model("ad1", parent="tiny"), _model("ad2", parent="tiny")), {"ad1", "ad2"}, True),
        (_list(_model("tiny")), set(), True),
        (_list(), set(), False),
        (b"", set(), False),
        (b'{"data": 7}', set(), False),
        (_list(_model("tiny"), 7), set(), False),
        (_list(_model("tiny"), _model("a" * 300, parent="tiny")), set(), False),
        (_list(*[_model(f"m{number}") for number in range(build.MAX_MODELS + 1)]), set(), False),
    ],
)
def test_a_list_that_could_not_be_kept_whole_is_no_list(body: bytes, adapters: set[str], whole: bool) -> None:
    listed = build.read_models(body)
    assert (set(listed.adapters), listed.whole) == (adapters, whole)


LITTLE = b"[]," * 300_000 + b"[]"


def _peak_bytes(read: Callable[[bytes], object], page: bytes) -> int:
    tracemalloc.start()
    try:
        read(page)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("read", "page", "found"),
    [
        (build.read_version, b'{"version":"1","x":[%s]}' % LITTLE, "1"),
        (build.read_models, b'{"data":[%s]}' % LITTLE, build.Listed()),
        (build.read_models, b'{"data":[{"id":"m","x":[%s]}]}' % LITTLE, build.Listed()),
    ],
)
def test_a_page_of_little_lists_is_read_without_building_them(read: Callable[[bytes], object], page: bytes, found: object) -> None:
    """900 kB that would be 300,000 objects, made on the event loop. The control builds them."""
    assert read(page) == found
    assert _peak_bytes(read, page) < 1_000_000
    assert _peak_bytes(msgspec.json.decode, page) > 10_000_000


def test_the_longest_list_that_vllm_would_write_in_a_megabyte_is_read() -> None:
    """The bound on signs does not meet an engine's own list: vLLM 0.32 writes each model with its permissions."""
    permission = {
        "id": "modelperm-86a1e0d9d1a54c4b", "object": "model_permission", "created": 1, "allow_create_engine": False, "allow_sampling": True,
        "allow_logprobs": True, "allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False, "organization": "*",
        "group": None, "is_blocking": False,
    }  # fmt: skip
    page = _list(*[_model(f"m{number}") | {"owned_by": "vllm", "permission": [permission]} for number in range(2000)])
    assert len(page) > 800_000
    listed = build.read_models(page)
    assert (len(listed.served), listed.whole, listed.owner) == (build.MAX_MODELS, False, "vllm")


def test_settings_are_found_in_a_long_page_and_in_one_row_of_bounded_length() -> None:
    others = b'vllm:num_requests_running{engine="0"} 1.0\n' * 1000
    assert build.read_settings(others + PAGE + others) == build.read_settings(PAGE)
    row = PAGE.partition(b"\n")[2]
    assert build.read_settings(row) == build.read_settings(PAGE)
    assert build.read_settings(row.replace(b"{", b"{" + b'a="b",' * 100_000)) == (ABSENT, None)
    assert build.read_settings(row.replace(b"{", b"{" + b'a="b",' * 10)) == build.read_settings(PAGE)
