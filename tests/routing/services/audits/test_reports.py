"""What is taken from routers' reports, and what is not."""

from __future__ import annotations

import msgspec
import pytest

from routing.services.audits.reports import EngineReport, Reports, digest, join

URL = "http://127.0.0.1:9001"


def report(at: float, replicas: object, unserved: object = None) -> bytes:
    return msgspec.json.encode({"router_id": "r", "at": at, "replicas": replicas, "unserved": unserved or {}})


def test_the_newer_word_counts() -> None:
    """Two routers speak of one engine."""
    old = report(1.0, {URL: {"condition": "ok", "build": "b1", "block_size_tokens": 16, "started_at": 5.5, "models": ["m"], "waiting": 0}})
    new = report(2.0, {URL: {"condition": "ok", "build": "b2", "block_size_tokens": 32, "started_at": 9, "models": ["m", "ada"], "waiting": 3}})
    for order in ((old, new), (new, old)):
        found = join(order).engines[URL]
        assert (found.build, found.block_tokens, found.started_at, found.models, found.waiting) == ("b2", 32, 9.0, ("m", "ada"), 3.0)


def test_what_is_malformed_is_passed_over() -> None:
    """A router's word can be anything; nothing of it raises."""
    odd = report(1.0, {URL: {"build": None, "block_size_tokens": "16", "started_at": True, "models": "m", "waiting": []}, "x": 7, "y": "reachable"})
    found = join([b"not json", b"[]", b"7", odd, report(1.0, 7, 7), report(1.0, None, {"r1": "ns", "r2": [1, "ns-a", "ns-a"]})])
    assert found.engines[URL] == EngineReport(reported_at=1.0)
    assert found.engines["y"].condition == "reachable"
    assert found.unserved == {"r1": (), "r2": ("ns-a",)}
    assert join([]) == Reports(engines={}, unserved={})


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1e308", "-1", "-1e308", "1" + "0" * 12])
def test_a_number_that_none_can_be_is_passed_over(number: str) -> None:
    """It ends no run of anybody's: neither the report's time, nor an engine's, which becomes a date."""
    said = '{"at": 3.5, "replicas": {"%s": {"condition": "ok", "started_at": %s, "waiting": %s}}}'
    (odd,) = join([(said % (URL, number, number)).encode()]).engines.values()
    assert odd == EngineReport(condition="ok", reported_at=3.5)
    (right,) = join([(said % (URL, "1e9", "7")).encode()]).engines.values()
    assert (right.started_at, right.waiting) == (1e9, 7.0)
    assert join([f'{{"at": {number}, "replicas": {{"{URL}": "ok"}}}}'.encode()]).engines[URL].reported_at == 0.0


def test_what_cannot_be_read_or_stored_is_passed_over() -> None:
    nested = b'{"at": 1.0, "replicas": {"%s": {"build": %s}}}'
    deep = [nested % (URL.encode(), b"[" * depth + b"]" * depth) for depth in (500, 900, 990, 5000)]
    assert join([*deep, report(2.0, {URL: {"build": "b1"}})]).engines[URL].build == "b1"
    odd = join([report(1.0, {URL: {"build": "b\0"}, "http://a\0b": {"build": "b"}})])
    assert (list(odd.engines), len(odd.engines[URL].build)) == ([URL], 64)


def test_a_build_is_kept_short() -> None:
    assert (digest(None), digest(""), digest("abc")) == ("", "", "abc")
    assert digest({"version": "0.32", "block": 16}) == digest({"block": 16, "version": "0.32"})
    assert len(digest("x" * 1000)) == 64
