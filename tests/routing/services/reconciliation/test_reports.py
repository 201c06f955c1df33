"""What is made of routers' reports: what each says by itself; anything malformed is passed over."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.reconcile_facts import EngineWord, Mismatch, Rank
from routing.services.reconciliation import reports

TENANT = UUID(int=1)
URL = "http://10.0.0.1:8000"


def parsed(**report: Any) -> Any:
    (word,) = reports.parse([msgspec.json.encode({"router_id": "r1", **report})])
    return word


def test_one_report_in_full() -> None:
    engine = {"condition": "ok", "build": "b1", "models": ["m"], "block_size_tokens": 32, "capacity_tokens": 1000}
    engine |= {"residency": "degraded", "residency_reason": "gap", "residency_for_s": 40.0, "trust": {"verdict": "flag", "cause": "unknown"}}
    pair = {"endpoint": str(TENANT), "replica": str(TENANT), "state": "different", "sample": "tools", "position": 3}
    lacking = {**pair, "state": "inexact", "position": None, "why": "no_template"}
    word = parsed(
        at=100.0,
        state="stale",
        versions={str(TENANT): 7},
        refused={str(TENANT): "rollback"},
        replicas={URL: engine},
        tokens={
            "artifacts": {"others": {"ab" * 32: {"kind": "tokenizer", "state": "refused", "reason": "slow"}}},
            "parity": {"others": [pair, {**pair, "state": "unavailable"}, lacking, {**lacking, "why": "<b>"}]},
        },
    )
    assert (word.at_s, word.state, word.versions, word.refused) == (100.0, "stale", {TENANT: 7}, {TENANT: "rollback"})
    ranks = (Rank(0, "degraded", "gap", 60.0),)
    assert word.engines == {URL: EngineWord("ok", "b1", frozenset({"m"}), 32, 1000, ranks=ranks, trust="flag")}
    away = parsed(at=100.0, replicas={URL: {**engine, "condition": "failing (active)", "away_since": 58.0}}).engines[URL]
    assert (away.condition, away.away_since_s, away.away_for_s) == ("failing (active)", 58.0, 42.0)
    assert word.artifacts == {"ab" * 32: "refused: slow"}
    assert word.mismatches == (Mismatch(TENANT, TENANT, "tools", 3), Mismatch(TENANT, TENANT, "tools", inexact="no_template"))


@pytest.mark.parametrize(
    "document",
    [b"", b"[]", b"{}", b"nonsense", b'{"router_id": 7}', b'{"router_id": "<script>"}', b'{"router_id": ""}', b"[" * 5000],
)
def test_what_is_no_report_is_passed_over(document: bytes) -> None:
    assert reports.parse([document]) == ()


def test_an_address_is_one() -> None:
    """What cannot be stored, or shown in one line, is no engine's address."""
    assert list(parsed(replicas={URL: {}, "x": {}, "http://a\0b": {}, "http://a b": {}, "http://" + "a" * 500: {}}).engines) == [URL]


def test_a_routers_words_are_words() -> None:
    """A text that could be anything (an engine's, a client's) is dropped, not shown."""
    word = parsed(state="<b>x</b>", replicas={URL: {"residency": "exact", "residency_reason": "y" * 500, "condition": 7}})
    assert (word.state, word.engines[URL].ranks, word.engines[URL].condition) == ("", (Rank(0, "exact"),), "")


json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.integers() | st.just(10**400) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["versions", "refused", "replicas", "tokens", "at", "state"])
times = ["away_since", "residency_for_s"]
inner_names = st.sampled_from([URL, str(TENANT), "artifacts", "parity", "others", "residency", "trust", "models", "block_size_tokens", *times])
nested: Any = st.dictionaries(inner_names, st.dictionaries(inner_names, json_values, max_size=4) | json_values, max_size=4)


@given(st.dictionaries(names, nested | json_values, max_size=6))
def test_no_report_breaks_the_reader(report: dict[str, Any]) -> None:
    assert parsed(**report).router_id == "r1"


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1e308", "-1e308"])
def test_a_number_that_none_can_be_is_passed_over(number: str) -> None:
    """The rest of the report counts, and times can be told from one another."""
    said = '{"router_id": "r1", "at": %s, "replicas": {"%s": {"condition": "ok", "away_since": %s, "residency": "exact", "residency_for_s": %s}}}'
    for at_s in ("100.0", number):
        (word,) = reports.parse([(said % (at_s, URL, number, number)).encode()])
        assert word.at_s in (100.0, 0.0)
        assert word.engines[URL] == EngineWord("ok", ranks=(Rank(0, "exact"),))
    (word,) = reports.parse([(said % ("100.0", URL, "58.0", "40.0")).encode()])
    assert word.engines[URL] == EngineWord("ok", away_since_s=58.0, away_for_s=42.0, ranks=(Rank(0, "exact", "", 60.0),))
