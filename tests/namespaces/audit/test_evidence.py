"""Signed evidence: what verifies, and that no change does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namespaces.audit import evidence
from namespaces.audit.evidence import EvidenceError

SEED = bytes(range(32))
VALUE = {"format": 1, "run": "r", "cases": [{"name": "two_salts", "outcome": "pass", "ttft_us": [1, None]}], "é": True}
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4),
)


def _report(value: dict[str, Any]) -> bytes:
    return evidence.report(value, *evidence.sign(value, SEED))


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), plain, max_size=5))
def test_a_report_verifies_and_gives_its_evidence_back(value: dict[str, Any]) -> None:
    assert evidence.verify(_report(value)) == value


def test_layout_and_order_do_not_matter() -> None:
    """Another program's formatting of the same content verifies."""
    again = json.dumps(dict(reversed(json.loads(_report(VALUE)).items())), indent=4).encode()
    assert evidence.verify(again) == VALUE


def _fail(report: dict[str, Any]) -> None:
    report["evidence"]["cases"][0]["outcome"] = "fail"


def _more(report: dict[str, Any]) -> None:
    report["evidence"]["more"] = 1


def _fraction(report: dict[str, Any]) -> None:
    report["evidence"]["format"] = 1.0


def _signature(report: dict[str, Any]) -> None:
    report["signature"] = "00" * 64


def _short_key(report: dict[str, Any]) -> None:
    report["public_key"] = "00"


def _list(report: dict[str, Any]) -> None:
    report["evidence"] = []


@pytest.mark.parametrize("change", [_fail, _more, _fraction, _signature, _short_key, _list])
def test_a_changed_report_is_refused(change: Any) -> None:
    report = json.loads(_report(VALUE))
    change(report)
    with pytest.raises(EvidenceError):
        evidence.verify(json.dumps(report).encode())


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b"null", b"\xff", b'{"evidence":1,"evidence":2}', b"[" * 100_000])
def test_what_is_no_report(document: bytes) -> None:
    with pytest.raises(EvidenceError):
        evidence.verify(document)


def test_the_key_is_held_against_the_one_given() -> None:
    """A report signed by somebody else verifies in itself, and not against our key."""
    ours = evidence.sign(VALUE, SEED)[1]
    foreign = evidence.report(VALUE, *evidence.sign(VALUE, bytes(32)))
    assert evidence.verify(foreign) == VALUE
    with pytest.raises(EvidenceError, match="another key"):
        evidence.verify(foreign, ours)
    assert evidence.verify(_report(VALUE), ours) == VALUE
