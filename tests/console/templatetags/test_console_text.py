"""Numbers and times in words."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.template import Context
from django.utils import timezone

from console.templatetags import console_text as text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, text.UNKNOWN),
        ("", text.UNKNOWN),
        (0, "0 s"),
        (0.0004, "0.4 ms"),
        (0.0123, "12 ms"),
        (0.12, "120 ms"),
        (0.9994, "999 ms"),
        (1.5, "1.50 s"),
        (150, "2.5 min"),
    ],
)
def test_seconds(value: float | None, said: str) -> None:
    assert text.seconds(value) == said


@pytest.mark.parametrize(("value", "said"), [(None, text.UNKNOWN), (0, "0 %"), (1, "100 %"), (0.5, "50 %"), (0.8734, "87.3 %"), (0.99999, "100 %")])
def test_share(value: float | None, said: str) -> None:
    assert text.share(value) == said


@pytest.mark.parametrize(("value", "said"), [(None, text.UNKNOWN), (1234567, "1,234,567"), (979.6, "980")])
def test_count(value: float | None, said: str) -> None:
    assert text.count(value) == said


@pytest.mark.parametrize(
    ("passed", "said"),
    [
        (timedelta(seconds=1), ">now<"),
        (timedelta(seconds=61), ">61 s ago<"),
        (timedelta(minutes=30), ">30 min ago<"),
        (timedelta(hours=20), ">20 h ago<"),
        (timedelta(days=9), ">9 d ago<"),
        (timedelta(days=-30), ">in 30 d<"),
    ],
)
def test_ago(passed: timedelta, said: str) -> None:
    assert said in text.ago(timezone.now() - passed)


def test_a_year_from_now_and_nothing() -> None:
    assert text.ago(None) == text.UNKNOWN
    assert text.moment(None) == text.UNKNOWN


@pytest.mark.parametrize(
    ("value", "tone"),
    [
        ("isolated", "good"),
        ("pass", "good"),
        ("suspect", "warn"),
        ("inconclusive", "warn"),
        ("quarantined", "bad"),
        ("fail", "bad"),
        ("unverified", ""),
        ("running", ""),
        ("not expressible", ""),
    ],
)
def test_the_tone_of_a_state_or_verdict(value: str, tone: str) -> None:
    assert text.proof_tone(value) == tone


def test_parts_per_million() -> None:
    assert text.parts_per_million(12_500) == "1.25 %"
    assert text.parts_per_million(None) == text.parts_per_million("") == text.UNKNOWN  # type: ignore[arg-type]  # as a template may pass it


def test_words_of_a_sentence_lead_to_their_terms_once_and_all_else_is_text() -> None:
    """In whole words, plural too; a name that holds such a word is a name."""
    said = "Replica <b>cache-1</b> & replica old-pool held prompt tokens: two attempts, one attempt, no reattempt."
    found = text.with_terms(Context({"tenant": SimpleNamespace(slug="acorn")}), said)
    assert re.findall(r'<a class="term" href="/t/acorn/terms#word-([a-z-]+)" title="[^"]+">([^<]+)</a>', found) == [
        ("replica", "Replica"),
        ("token", "prompt tokens"),
        ("attempt", "attempts"),
    ]
    assert html.unescape(re.sub(r"</?a[^>]*>", "", found)) == said
    assert "<b>" not in found
    assert text.with_terms(Context({"tenant": SimpleNamespace(slug="acorn")}), "<i>") == "&lt;i&gt;"
