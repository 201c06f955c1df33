"""An audit against model engines: honest ones pass, each broken one is caught by the case meant for it, and lies quarantine nobody."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namespaces.audit.case import Facts, Outcome
from namespaces.audit.cases import CASES
from namespaces.audit.states import Event
from routing.services.audits.execution import Execution, Findings
from routing.services.audits.extent import LEAST_TIMED_NEGATIVES, RESTARTED, Sizes, round_tokens
from routing.services.audits.prompts import LEAST_WORDS, WORDS, WORDS_A_PROMPT, prompt, words_for
from tests.routing.services.audits.engine import BLOCK_TOKENS, Engine

FACTS = Facts(engine="vllm", adapters=("ada", "bob"))
SMALL = Sizes(rounds=3, timed_negatives=20, timed_rounds=5)


def audit(engine: Engine, **more: Any) -> Findings:
    values: dict[str, Any] = {
        "send": engine.send,
        "facts": FACTS,
        "rng": Random(1),
        "block_tokens": BLOCK_TOKENS,
        "sizes": SMALL,
        "left_tokens": 1_000_000,
    }
    return Execution(**{**values, **more}).run()


def failed(found: Findings) -> set[str]:
    return {tried.case.name for tried in found.tried if tried.verdict.outcome is Outcome.FAIL}


@pytest.mark.parametrize("reports", [True, False])
@pytest.mark.parametrize("template_tokens", [0, 3, 40])
def test_an_honest_engine_passes(reports: bool, template_tokens: int) -> None:
    """Also where the template alone fills blocks that a scope rightly shares with itself, and where nothing is reported."""
    found = audit(Engine(reports=reports, template_tokens=template_tokens))
    assert (found.outcome, found.event, found.reported) == (Outcome.PASS, Event.CLEAN, reports), found.reason
    expressible = {tried.case.name for tried in found.tried if tried.verdict.outcome is Outcome.PASS}
    assert expressible == {"two_salts", "part_of_salt", "routes", "client_salts", "adapters", "joined_texts"}
    assert found.negatives >= 20


@pytest.mark.parametrize("reports", [True, False])
@pytest.mark.parametrize(
    ("salt_mode", "case"),
    [
        ("ignore_salt", "two_salts"),
        ("truncate_salt", "part_of_salt"),
        ("last_characters", "part_of_salt"),
        ("capitals", "part_of_salt"),
        ("adapter_before", "joined_texts"),
        ("adapter_after", "joined_texts"),
        ("no_adapter", "adapters"),
    ],
)
def test_each_broken_engine_is_caught_by_its_row(salt_mode: str, case: str, reports: bool) -> None:
    """By what it reports, and by its times alone where it reports nothing; sharing is confirmed by a second, independent sample."""
    found = audit(Engine(salt_mode=salt_mode, reports=reports))
    assert (found.outcome, found.event) == (Outcome.FAIL, Event.SHARING), found.reason
    assert case in failed(found)
    assert case in found.reason
    if salt_mode in ("truncate_salt", "last_characters", "capitals"):
        assert failed(found) == {"part_of_salt"}


@pytest.mark.parametrize("salt_mode", ["ignore_salt", "truncate_salt"])
def test_an_engine_that_reports_zero_and_shares_is_not_passed(salt_mode: str) -> None:
    """No control ever hits, so nothing passes; the times are not consulted to convict it on a field that lies."""
    found = audit(Engine(salt_mode=salt_mode, lies=True))
    assert found.outcome is Outcome.INCONCLUSIVE


class ReportsOwnOnly(Engine):
    """Reports hits of the first scope's plain salt truly and everything else as 0: the worst liar, whom only times give away."""

    def send(self, probe: Any, prompt: str) -> Any:
        from dataclasses import replace

        seen = super().send(probe, prompt)
        negative = probe.expect.value in ("apart", "refused or apart")
        return replace(seen, cached_tokens=0) if negative and seen.status == 200 else seen


def test_a_negative_that_reports_zero_but_is_as_fast_as_a_hit_is_inconclusive() -> None:
    found = audit(ReportsOwnOnly(salt_mode="ignore_salt"), sizes=Sizes(rounds=5))
    assert (found.outcome, found.event) == (Outcome.INCONCLUSIVE, Event.ODD)
    assert "as fast as hits" in found.reason


@pytest.mark.parametrize("forged", [48, 512, 1008, 99_999])
@pytest.mark.parametrize("forged_from", [0, 3, 30])
def test_a_forged_field_quarantines_nobody(forged: int, forged_from: int) -> None:
    """Whatever is forged and whenever it begins: the engine keeps namespaces apart, so no sharing may be found."""
    found = audit(Engine(forged=forged, forged_from=forged_from))
    assert found.event is not Event.SHARING, found.reason
    assert found.outcome is not Outcome.FAIL


@pytest.mark.parametrize("forged", [512, 99_999])
def test_a_forged_field_does_not_hide_sharing(forged: int) -> None:
    """A field that cannot be true is not believed; the times convict."""
    found = audit(Engine(salt_mode="ignore_salt", forged=forged))
    assert (found.reported, found.outcome) == (False, Outcome.FAIL)


def test_a_field_that_cannot_be_true_passes_nobody() -> None:
    found = audit(Engine(forged=1000))
    assert (found.reported, found.outcome, found.event) == (False, Outcome.INCONCLUSIVE, Event.ODD)
    assert "cannot be" in found.reason


def test_one_odd_answer_is_a_suspicion_and_no_verdict() -> None:
    """Seen once and not again."""

    class Once(Engine):
        def send(self, probe: Any, prompt: str) -> Any:
            from dataclasses import replace

            seen = super().send(probe, prompt)
            return replace(seen, cached_tokens=640) if self.requests == 5 else seen

    found = audit(Once())
    assert (found.outcome, found.event) == (Outcome.INCONCLUSIVE, Event.ODD)
    assert "not again" in found.reason


@pytest.mark.parametrize("number", [3, 8, 20])
def test_a_lost_answer_is_tried_again_with_fresh_prompts(number: int) -> None:
    assert audit(Engine(failing={number})).outcome is Outcome.PASS


def test_an_engine_that_is_away_is_incomplete_and_no_suspicion() -> None:
    """Nothing answers from the first probe, or from the middle on: no verdict, and no event that changes a state."""
    for failing in (set(range(1, 1000)), set(range(20, 1000))):
        found = audit(Engine(failing=failing))
        assert (found.outcome, found.event) == (Outcome.INCONCLUSIVE, Event.INCOMPLETE)
        assert len(found.tried) == len(CASES)


def test_without_times_that_tell_hits_apart_nothing_passes() -> None:
    """No reported tokens, and an engine so fast or so noisy that a hit saves nothing one could see."""
    found = audit(Engine(reports=False, token_s=0.0))
    assert (found.outcome, found.event) == (Outcome.INCONCLUSIVE, Event.INCOMPLETE)


def test_rounds_under_load_do_not_count_in_times() -> None:
    """All of them: the times are blind. A reported verdict stands without."""
    timed = audit(Engine(reports=False), busy=lambda: True)
    assert timed.outcome is Outcome.INCONCLUSIVE
    assert timed.discarded_rounds > 20
    assert audit(Engine(), busy=lambda: True).outcome is Outcome.PASS


def test_the_budget_ends_a_run_and_never_makes_it_pass() -> None:
    """Enough for every case, had each been complete at once: an answer of the dearest is lost, and it cannot be tried again. What it cost stays
    within the bound."""
    found = audit(Engine(failing={35}), left_tokens=46_000)
    assert (found.outcome, found.event) == (Outcome.INCONCLUSIVE, Event.INCOMPLETE)
    assert found.computed_tokens <= 46_000
    assert "client_salts: the day's tokens for audits are used up" in found.reason
    assert max(tried.rounds for tried in found.tried) == 1
    assert audit(Engine(), left_tokens=46_000).outcome is Outcome.PASS


def test_a_budget_for_one_round_of_each_case_is_enough_to_pass() -> None:
    """The further rounds only sharpen the bound."""
    least_tokens = round_tokens(FACTS, BLOCK_TOKENS)
    found = audit(Engine(), left_tokens=least_tokens, sizes=Sizes())
    assert found.outcome is Outcome.PASS
    assert found.computed_tokens <= least_tokens


@pytest.mark.parametrize("facts", [FACTS, Facts(engine="vllm")], ids=["adapters", "none"])
@pytest.mark.parametrize(("tokens_a_word", "template_tokens"), [(1, 0), (1, 40), (1, 300), (2, 40), (3, 40)])
def test_one_round_of_each_case_costs_no_more_than_it_was_said_to(facts: Facts, tokens_a_word: int, template_tokens: int) -> None:
    """By that figure a run may begin, so with exactly so much it passes; it is no guess far above what it costs either."""
    said = round_tokens(facts, BLOCK_TOKENS)
    for seed in range(5):
        engine = Engine(tokens_a_word=tokens_a_word, template_tokens=template_tokens)
        found = audit(engine, facts=facts, sizes=RESTARTED, left_tokens=said, rng=Random(seed))
        assert found.outcome is Outcome.PASS, found.reason
        assert max(tried.rounds for tried in found.tried) == 1
        assert 0.7 * said < found.computed_tokens <= said


def test_what_the_tokens_cannot_do_for_is_not_begun() -> None:
    """Not on an engine that reports, whose tokenizer makes more of a prompt than was thought, nor on one that is judged by times."""
    for engine, left_tokens in ((Engine(), 20_000), (Engine(tokens_a_word=5), 60_000), (Engine(reports=False), 90_000)):
        found = audit(engine, left_tokens=left_tokens, sizes=Sizes())
        assert (found.outcome, found.event) == (Outcome.INCONCLUSIVE, Event.INCOMPLETE)
        assert f"{left_tokens} are left" in found.unaffordable
        assert (found.probes, {tried.rounds for tried in found.tried}) == (2, {0})
    assert audit(Engine(tokens_a_word=5), left_tokens=70_000, sizes=RESTARTED).outcome is Outcome.PASS


def test_by_times_two_salts_are_tried_as_often_as_the_tokens_allow() -> None:
    """Never too rarely to tell: with what a restart is given, sharing is still found, and kept apart from an honest engine."""
    negatives = {}
    for left_tokens, sizes in ((300_000, Sizes()), (200_000, Sizes()), (300_000, RESTARTED)):
        found = audit(Engine(reports=False, template_tokens=40), left_tokens=left_tokens, sizes=sizes)
        assert found.outcome is Outcome.PASS, found.reason
        assert found.computed_tokens <= left_tokens
        negatives[left_tokens, sizes] = next(one.verdict.negative_probes for one in found.tried if one.case.name == "two_salts")
    few, usual, small = negatives[200_000, Sizes()], negatives[300_000, Sizes()], negatives[300_000, RESTARTED]
    assert small == LEAST_TIMED_NEGATIVES < few < usual
    assert audit(Engine(reports=False, salt_mode="ignore_salt"), sizes=RESTARTED).outcome is Outcome.FAIL


def test_a_sharper_bound_leaves_tokens_for_later_runs_of_the_day() -> None:
    """Two more must fit in what a run of the usual sizes leaves, whatever it would have liked to try; told to keep nothing, it tries everything."""
    left_tokens, spent = 200_000, []
    for reserved_runs in (2, 1, 0):
        found = audit(Engine(), left_tokens=left_tokens, sizes=Sizes(), reserved_runs=reserved_runs)
        assert found.outcome is Outcome.PASS
        left_tokens -= found.computed_tokens
        assert left_tokens >= reserved_runs * round_tokens(FACTS, BLOCK_TOKENS)  # with less none of them may begin
        spent.append(found.computed_tokens)
    assert left_tokens >= 0
    assert max(spent) < 120_000 < audit(Engine(), left_tokens=200_000, sizes=Sizes()).computed_tokens


def test_time_ends_a_run() -> None:
    calls = iter(range(1000))
    assert audit(Engine(), late=lambda: next(calls) > 30).event is Event.INCOMPLETE


def test_what_the_usual_sizes_cost() -> None:
    """As stated: within the day's 300,000 tokens on either kind of engine, with 60 clean probes, so a bound of 5 %."""
    reported, timed = audit(Engine(), sizes=Sizes()), audit(Engine(reports=False), sizes=Sizes())
    assert (reported.outcome, timed.outcome) == (Outcome.PASS, Outcome.PASS)
    assert reported.negatives >= 60
    assert 120_000 < reported.computed_tokens < 160_000
    assert timed.computed_tokens < 300_000
    assert sum(tried.verdict.negative_probes for tried in timed.tried if tried.case.name == "two_salts") == 100


def test_a_tokenizer_that_makes_more_of_each_word_costs_no_more() -> None:
    """Prompts are measured in the engine's own tokens, once it has told how many the first ones were; it still tells sharing apart."""
    plain, coarse = audit(Engine(), sizes=Sizes()), audit(Engine(tokens_a_word=3), sizes=Sizes())
    assert (coarse.outcome, coarse.negatives) == (Outcome.PASS, plain.negatives)
    assert coarse.computed_tokens < 1.1 * plain.computed_tokens
    assert audit(Engine(tokens_a_word=3, salt_mode="ignore_salt")).outcome is Outcome.FAIL


@pytest.mark.parametrize("told", [0, 1, 1040, 2600, 10**9])
def test_no_word_of_an_engine_makes_prompts_short_or_endless(told: int) -> None:
    assert LEAST_WORDS <= words_for(told) <= WORDS_A_PROMPT


@given(tokens_a_word=st.floats(1.0, 4.0), template=st.integers(0, 40), seen=st.floats(0.97, 1.0))
def test_prompts_that_are_measured_in_an_engines_tokens_have_1024_of_them(tokens_a_word: float, template: int, seen: float) -> None:
    """Also where what was measured held a template that not every route has, and other words are a little shorter in tokens."""
    words = words_for(math.ceil(WORDS_A_PROMPT * tokens_a_word) + template)
    assert words * max(1.0, tokens_a_word * seen) >= 1024


def test_no_adapter_no_case_and_it_says_so() -> None:
    found = audit(Engine(), facts=Facts(engine="vllm"))
    assert found.outcome is Outcome.PASS
    unexpressed = {tried.case.name for tried in found.tried if tried.verdict.outcome is Outcome.NOT_EXPRESSIBLE}
    assert unexpressed == {"adapters", "joined_texts", "images", "tiers"}


def test_prompts_are_long_and_differ_from_the_first_block_on() -> None:
    assert len(set(WORDS)) == len(WORDS) > 240
    made = [prompt(Random(seed)) for seed in range(200)]
    assert all(len(text.split()) >= 1024 for text in made)
    assert len({" ".join(text.split()[:8]) for text in made}) == 200
