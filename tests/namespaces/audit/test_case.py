"""Verdicts of isolation audits: sharing is never passed over, and nothing passes without its control."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from namespaces.audit.case import Case, Expect, Facts, Outcome, Probe, Seen, judge
from namespaces.audit.cases import CASES

BLOCK_TOKENS = 16
FACTS = Facts(engine="vllm", adapters=("ada", "bob"))
PLANNED = [case for case in CASES if case.plan(FACTS) is not None]


def _clean(probes: tuple[Probe, ...]) -> dict[str, Seen]:
    """What an honest engine answers."""
    return {probe.label: Seen(probe.label, 200, cached_tokens=1024 if probe.expect is Expect.HIT else 0) for probe in probes}


def test_the_register_names_every_row_of_the_matrix_once() -> None:
    """25 rows, each in exactly one case, so that a report can list them all."""
    assert sorted(row for case in CASES for row in case.rows) == list(range(1, 26))
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", PLANNED, ids=lambda case: case.name)
def test_each_negative_has_a_control_before_it(case: Case) -> None:
    """Labels are unique, and every negative probe asks for a prompt that a control has shown to be cached."""
    probes = tuple(case.plan(FACTS) or ())
    assert len({probe.label for probe in probes}) == len(probes)
    for position, probe in enumerate(probes):
        if probe.expect in (Expect.APART, Expect.REFUSED_OR_APART):
            assert any(earlier.expect is Expect.HIT and earlier.prompt == probe.prompt for earlier in probes[:position])


@pytest.mark.parametrize("case", PLANNED, ids=lambda case: case.name)
def test_an_honest_engine_passes_and_each_single_fault_does_not(case: Case) -> None:
    """A hit in any negative fails; a missing control, a stale nonce, an error or a silent engine is inconclusive."""
    probes = tuple(case.plan(FACTS) or ())
    clean = _clean(probes)
    assert judge(probes, clean, block_tokens=BLOCK_TOKENS).outcome is Outcome.PASS
    for probe in probes:
        wrong = 0 if probe.expect is Expect.HIT else BLOCK_TOKENS
        expected = Outcome.FAIL if probe.expect in (Expect.APART, Expect.REFUSED_OR_APART) else Outcome.INCONCLUSIVE
        assert judge(probes, {**clean, probe.label: Seen(probe.label, 200, wrong)}, block_tokens=BLOCK_TOKENS).outcome is expected
        assert judge(probes, {**clean, probe.label: Seen(probe.label, 500)}, block_tokens=BLOCK_TOKENS).outcome is Outcome.INCONCLUSIVE
        assert judge(probes, {**clean, probe.label: Seen(probe.label, 200, None)}, block_tokens=BLOCK_TOKENS).outcome is Outcome.INCONCLUSIVE
        without = {label: seen for label, seen in clean.items() if label != probe.label}
        assert judge(probes, without, block_tokens=BLOCK_TOKENS).outcome is Outcome.INCONCLUSIVE


def test_a_refusal_counts_only_where_the_input_is_hostile() -> None:
    """A 400 is a fine answer to a forged salt and no answer to an ordinary probe."""
    hostile = Probe("x", "B", 0, Expect.REFUSED_OR_APART)
    assert judge([hostile], {"x": Seen("x", 400)}, block_tokens=BLOCK_TOKENS).outcome is Outcome.PASS
    ordinary = replace(hostile, expect=Expect.APART)
    assert judge([ordinary], {"x": Seen("x", 400)}, block_tokens=BLOCK_TOKENS).outcome is Outcome.INCONCLUSIVE


@given(st.sampled_from(PLANNED), st.data())
def test_sharing_is_never_a_pass(case: Case, data: st.DataObject) -> None:
    """Whatever else was seen, a block cached across namespaces fails the case."""
    probes = tuple(case.plan(FACTS) or ())
    negatives = [probe for probe in probes if probe.expect in (Expect.APART, Expect.REFUSED_OR_APART)]
    seen = {
        probe.label: Seen(probe.label, data.draw(st.sampled_from([200, 200, 400, 500])), data.draw(st.sampled_from([None, 0, 15, 16, 900])))
        for probe in probes
    }
    leak = data.draw(st.sampled_from(negatives))
    seen[leak.label] = Seen(leak.label, 200, data.draw(st.integers(BLOCK_TOKENS, 10_000)))
    assert judge(probes, seen, block_tokens=BLOCK_TOKENS).outcome is Outcome.FAIL


def test_a_stale_nonce_is_odd_and_silence_is_not() -> None:
    """What an honest engine never shows raises suspicion; a missing answer or control does not."""
    probes = tuple(CASES[0].plan(FACTS) or ())
    clean = _clean(probes)
    fresh, control = probes[0].label, probes[1].label
    assert judge(probes, {**clean, fresh: Seen(fresh, 200, 500)}, block_tokens=BLOCK_TOKENS).odd
    assert not judge(probes, {**clean, fresh: Seen(fresh, 503)}, block_tokens=BLOCK_TOKENS).odd
    assert not judge(probes, {**clean, control: Seen(control, 200, 0)}, block_tokens=BLOCK_TOKENS).odd


@pytest.mark.parametrize("kept", range(1, 48))
def test_a_cut_salt_meets_itself_in_the_plan(kept: int) -> None:
    """Whatever an engine keeps of a salt's 47 characters, from the left or the right, some negative probe and its control look alike to it."""
    plan = next(case for case in CASES if case.name == "part_of_salt").plan(FACTS) or ()
    salts = {"A": "sr1-" + "a" * 43, "B": "sr1-" + "b" * 43}

    def meets(cut: slice) -> bool:
        def seen(probe: Probe) -> str:
            return (probe.salt_prefix + salts[probe.scope] + probe.salt_suffix)[cut]

        return any(
            seen(negative) == seen(control)
            for negative in plan
            if negative.expect is Expect.APART
            for control in plan
            if control.expect is Expect.HIT and control.prompt == negative.prompt
        )

    assert meets(slice(0, kept))
    assert meets(slice(-kept, None))
    assert not meets(slice(None))
