"""``manage.py policy explain``."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from tenants.core.roles import Role
from tests.routing.api.test_trials import KEPT, decided, endpoint_of, furnish
from tests.tenants.houses import House, house

pytestmark = pytest.mark.django_db


@pytest.fixture
def acorn() -> House:
    """A tenant whose endpoint has decided four times."""
    made = house("acorn")
    furnish(made)
    decided(made, endpoint_of(made), 4, trial=False, candidates=KEPT)
    return made


def explain(*options: str) -> str:
    out = StringIO()
    call_command("policy", "explain", "--endpoint", "chat", *options, stdout=out)
    return out.getvalue()


def test_a_file_is_held_against_the_past(acorn: House, tmp_path: Path) -> None:
    """How many would differ, what was expected and would be, and one decision in terms."""
    file = tmp_path / "policy.yaml"
    file.write_text("policy: weighted\nweights: {wait: 4, prefill: 1}\n")
    said = explain("--file", str(file), "--tenant", "acorn")
    assert "would differ  4 (100.0%)" in said
    assert "expected time to first token  0.6000 s -> 1.0000 s (mean)" in said
    assert "expected cached tokens        900 -> 0 (mean)" in said
    assert "  b  <- it would go here" in said
    assert "  a  <- it went here" in said
    assert "wait            0.5000 s -> 2.0000 s" in said


def test_a_version_and_without_one_the_candidate(acorn: House) -> None:
    api = acorn.api(Role.OPERATOR)
    api.post("routing-policies/p/versions", {"spec": {"policy": "least_outstanding"}, "activate": False})
    assert "policy p v1" in explain()
    assert "would differ  0 (0.0%)" in explain("--version", "1")
    assert "would differ  4 (100.0%)" in explain("--version", "2")
    api.call("PUT", "endpoints/chat/trial", {"policy": "p"})
    assert "policy p v2" in explain()


def test_what_cannot_run_is_refused_by_its_field(acorn: House, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    for text, said in (
        ("policy: ettft\npressure: -1\n", "spec.pressure: Must be between"),
        ("policy: ettft\npressure: .nan\n", "spec.pressure: "),
        ("policy: ettft\npressure: .inf\n", "spec.pressure: "),
        ("policy: weighted\nweights: {luck: 1}\n", "spec.weights.luck: Unknown scorer"),
        ("policy: [", "spec: This is no YAML: line 1"),
        ("a: &a [1]\nb: *a\n", "spec: Write everything out"),
        ("policy: ettft\npolicy: weighted\n", "spec.policy: Line 2"),
        ("- ettft\n", "spec: A policy document is a mapping"),
        ("", "spec: Write a policy document"),
        ("x: " + "[" * 5000, "spec: A policy document has at most 20 levels"),
        ("x: " + "[" * 19 + "]" * 19, "spec.x: Is not a field"),  # so many are read
    ):
        file.write_text(text)
        with pytest.raises(CommandError, match=r"^" + said.replace(".", r"\.")):
            explain("--file", str(file))
    for options, said in ((("--version", "9"), "policy.version: "), (("--file", str(tmp_path / "none")), "cannot be read")):
        with pytest.raises(CommandError, match=said):
            explain(*options)
    with pytest.raises(CommandError, match="no such endpoint"):
        call_command("policy", "explain", "--endpoint", "nobody")
    with pytest.raises(CommandError, match="no tenant 'nobody'"):
        explain("--tenant", "nobody")
