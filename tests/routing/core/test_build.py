"""The digest of a build changes with version, model and cache settings, and with nothing that differs between two starts of one build."""

from __future__ import annotations

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
    base, served = build.read_models(msgspec.json.encode({"object": "list", "data": [_model("tiny")] if models is None else models}))
    settings, block_tokens = build.read_settings(page)
    found = build.read_version(msgspec.json.encode({"version": version}))
    return Facts(version=found, models=base, served=served, settings=settings, block_tokens=block_tokens)


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
    base, served = build.read_models(page)
    assert all(isinstance(one, str) for one in (build.read_version(page), *base, *served))


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
    found, all_of_them = build.read_adapters(body)
    assert (set(found), all_of_them) == (adapters, whole)
