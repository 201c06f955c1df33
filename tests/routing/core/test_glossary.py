"""Every word that code can put before people has a meaning: the types and registers that words come from are walked."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import pytest

from namespaces.audit import case, states
from routing.core import candidates, cause, filters, glossary, reach, record, residency_state, stretches, trust
from routing.core.scorers import REGISTER
from routing.core.snapshot import ReplicaState
from routing.dataplane import dispatch, tokens, upstream


def _returned(function: object) -> set[str]:
    """The words that a function of :mod:`routing.core.filters` can return, by its source; names are constants of its module."""
    tree = ast.parse(inspect.getsource(function))  # type: ignore[arg-type]  # any function
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and node.value is not None:
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    found.add(part.value)
                elif isinstance(part, ast.Name) and isinstance(value := getattr(filters, part.id, None), str):
                    found.add(value)
    return found


REFUSALS = {
    *_returned(filters.refusal),
    *_returned(filters.refusal_of_pinned),
    *(set(get_args(ReplicaState)) - {"active"}),
    *(candidates.FULL, candidates.KV_FULL, candidates.RAMPING, candidates.NOT_SHORTLISTED),
}
EMITTED: dict[str, Iterable[str]] = {
    "health": reach.CONDITIONS,
    "residency": get_args(residency_state.State),
    "residency_reason": get_args(residency_state.Reason),
    "cause": (*cause.PARTS, "replica"),
    "trust": get_args(trust.Verdict),
    "trust_cause": get_args(trust.Cause),
    "isolation": [one.value for one in states.State],
    "audit": [one.value for one in case.Outcome],
    "state": (*get_args(ReplicaState), "unreachable"),
    "refusal": REFUSALS,
    "score": [one.name for one in REGISTER],
    "outcome": get_args(record.Outcome),
    "inexact": [word for words in get_args(tokens.Inexact) for word in get_args(words)],
    "failure": (*get_args(upstream.Cause), dispatch.NOT_SERVED, "aborted", "error_event", "truncated"),
    "evidence": ("event", *get_args(stretches.Source), "none"),
}


def test_the_refusals_are_read_from_the_code_that_refuses() -> None:
    """The control of what the walk below takes for all of them."""
    assert {"unreachable", "breaker_open", "isolation", "model_not_served", "credential", "tried", "full", "paused"} <= REFUSALS
    assert "quarantined" in REFUSALS


@pytest.mark.parametrize("group", EMITTED)
def test_every_word_has_a_meaning_and_no_meaning_is_of_a_word_that_is_gone(group: str) -> None:
    known = set(glossary.GROUPS[group].terms)
    assert set(EMITTED[group]) - known == set()
    assert known - set(EMITTED[group]) <= ({"queued", "running", "finished", "refused"} if group == "audit" else set())


def test_every_group_is_walked() -> None:
    assert set(EMITTED) | {"figure", "word"} == set(glossary.GROUPS)


def test_meanings_are_sentences_and_anchors_are_apart() -> None:
    anchors = []
    for name, group in glossary.GROUPS.items():
        assert group.about.endswith("."), name
        for code, term in group.terms.items():
            anchors.append(glossary.anchor(name, code))
            assert term.meaning.endswith("."), (name, code)
            assert term.label, (name, code)
            assert len(term.meaning) <= 250, (name, code)
            assert "_" not in term.label, (name, code)
    assert len(anchors) == len(set(anchors))
    assert not set(anchors) & set(glossary.GROUPS)


def test_the_documentation_of_causes_has_every_part() -> None:
    text = (Path(__file__).parents[3] / "docs/causes.md").read_text()
    assert [part for part in EMITTED["cause"] if f"`{part}`" not in text] == []


def test_states_of_residency_are_called_as_in_logs_metrics_and_api() -> None:
    """So the state that a log line or a label of a metric names is found on the pages."""
    for code in get_args(residency_state.State):
        assert glossary.shown("residency", code) == glossary.label("residency", code) == code


def test_codes_that_logs_and_metrics_say_stand_before_the_plain_words() -> None:
    assert glossary.shown("residency_reason", "stale") == "stale (silent)"
    assert glossary.shown("residency_reason", "no_events") == "no_events"
    assert glossary.shown("residency_reason", "frost") == "frost"  # a newer router's
    assert glossary.shown("health", "asleep") == "asleep"
    said: dict[str, Iterable[str]] = {
        "residency_reason": get_args(residency_state.Reason),  # the log line of a change
        "trust": get_args(trust.Verdict),  # labels of saltroute_replica_trust and saltroute_trust_changes_total
        "trust_cause": get_args(trust.Cause),
    }
    for group, codes in said.items():
        assert all(glossary.shown(group, code).split(" (")[0] == code for code in codes), group


def test_a_word_of_a_newer_router_is_shown_as_words() -> None:
    assert glossary.term("health", "on_fire") is None
    assert glossary.label("health", "on_fire") == "on fire"
    assert glossary.label("health", "ok") == "ok"


def test_failures_that_are_written_where_attempts_fail_are_walked() -> None:
    """Codes that stand in the source as they are; statuses of engines are numbers and need no meaning."""
    sources = [Path(inspect.getfile(dispatch)).parent / f"{name}.py" for name in ("dispatch", "relay", "transfer")]
    calls = [node for path in sources for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    failures = [
        one for one in calls if isinstance(one.func, ast.Attribute) and one.func.attr == "failed" and ast.unparse(one.func.value) == "attempt"
    ]
    written = {part.value for one in failures for part in ast.walk(one.args[0]) if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    codes = {code for code in written if not code.startswith("status_")}
    assert {"truncated", "error_event", "idle_timeout"} <= codes
    assert codes <= set(EMITTED["failure"])
