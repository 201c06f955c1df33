"""A cause in one sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from routing.core.cause import PARTS, folded
from routing.core.cause_words import sentence
from routing.core.record import CauseRecord

_BEST = "about what a replica takes that has the prompt in its cache and nothing else to do."


def test_the_main_cause_comes_first_then_what_else_took_a_notable_share() -> None:
    parts = {"ideal": 30_000, "missed_evicted": 1_200_000, "queue_router": 600_000, "router": 5_000}
    cause = CauseRecord(parts_us=parts, main="missed_evicted", missed_tokens={"evicted": 9600})
    assert sentence(cause, parts) == (
        "Of the 1.83 s that it took in all, about 1.20 s went to computing 9,600 prompt tokens that had been sent to a replica before, "
        "whose cache no longer held them (evicted); 600 ms passed in the router's queue, until a replica had time."
    )


@pytest.mark.parametrize(
    ("part", "missed_us", "told"), [("missed_evicted", 401_000, True), ("missed_evicted", 100_000, False), ("missed_never_seen", 401_000, False)]
)
def test_what_had_to_be_computed_again_is_told_from_a_smaller_share_on(part: str, missed_us: int, *, told: bool) -> None:
    """Also behind three larger parts: it is what somebody can do something about."""
    parts = {"ideal": 30_000, "generation": 1_410_000, "queue_engine": 617_000, "unexplained": 509_000, part: missed_us}
    said = sentence(CauseRecord(parts_us=parts, main="generation", missed_tokens={part.removeprefix("missed_"): 2096}), parts)
    assert ("about 401 ms went to computing 2,096 prompt tokens" in said) is told
    assert said.count(";") == 2 + told
    assert "617 ms" in said


def test_a_changed_prompt_says_where() -> None:
    parts = {"missed_changed": 500_000}
    cause = CauseRecord(parts_us=parts, main="missed_changed", missed_tokens={"changed": 4000}, diverged_tokens=32, diverged_bytes=128)
    assert "(it first differs from the last turn at about token 32, byte 128)" in sentence(cause, parts)


def test_a_request_that_lost_nothing_is_called_so() -> None:
    parts = {"ideal": 30_000, "router": 2_000}
    assert sentence(CauseRecord(parts_us=parts, main="router"), parts) == f"It took 32 ms, {_BEST}"
    assert sentence(CauseRecord(parts_us={}), {}) == f"It took 0 ms, {_BEST}"


@pytest.mark.parametrize("part", [part for part in PARTS if part != "ideal"])
def test_every_part_has_words_of_its_own(part: str) -> None:
    parts = {part: 3_000_000}
    said = sentence(CauseRecord(parts_us=parts, main=part, missed_tokens={part.removeprefix("missed_"): 7}), parts)
    assert "3.00 s" in said
    assert "_" not in said


def test_what_tells_of_others_is_one_part_where_the_reader_may_not_see_it() -> None:
    parts = {"queue_engine": 900_000, "slow_replica": 300_000, "unexplained": 100_000, "ideal": 30_000}
    said = sentence(CauseRecord(parts_us=parts, main="queue_engine"), folded(parts))
    assert said == "Of the 1.33 s that it took in all, 1.30 s passed behind other requests at the replica, or because it was slow (estimated)."


def test_the_documentation_explains_sentences_as_they_are_said() -> None:
    quoted = re.findall(r'^\| "\.\.\. ([^"]+)" \|', (Path(__file__).parents[3] / "docs/causes.md").read_text(), flags=re.MULTILINE)
    said = {part: sentence(CauseRecord(parts_us={part: 3_000_000}, main=part), {part: 3_000_000}) for part in PARTS}
    assert len(quoted) > 10
    assert [one for one in quoted if not any(one in text for text in said.values())] == []
