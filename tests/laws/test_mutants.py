"""The runner of the mutants tells a broken law from a harmless change, and its register fits the tree."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.laws import mutants
from tests.laws.register import MUTANTS, Mutant

BROKEN = replace(
    next(mutant for mutant in MUTANTS if mutant.name == "null encoded as empty"),
    tests=("tests/namespaces/core/test_identity.py::test_none_empty_and_the_word_null_are_three_identities",),
)
HARMLESS = Mutant(
    name="another word in a docstring",
    file=BROKEN.file,
    old="where the model reads text only.",
    new="where the model only reads text.",
    tests=BROKEN.tests,
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mutants.copy_of(mutants.ROOT, tmp_path_factory.mktemp("mutants") / "tree")


def test_a_broken_law_is_caught_and_named(copy: Path) -> None:
    before = (copy / BROKEN.file).read_bytes()
    outcome = mutants.judge(copy, BROKEN)
    assert outcome.verdict == "caught", outcome.by
    assert outcome.by.startswith(BROKEN.tests[0])
    assert (copy / BROKEN.file).read_bytes() == before


def test_a_harmless_change_survives(copy: Path) -> None:
    """The control: were this caught, being caught would mean nothing."""
    assert mutants.judge(copy, HARMLESS).verdict == "survived"


def test_a_tree_that_does_not_import_catches_nothing(copy: Path) -> None:
    broken = Mutant(name="no Python", file=BROKEN.file, old="def value(", new="def (", tests=BROKEN.tests)
    assert mutants.judge(copy, broken).verdict == "broken"


@pytest.mark.parametrize(
    "stale",
    [
        Mutant("text that is gone", BROKEN.file, "no such text", "", ()),
        Mutant("text that is there twice", BROKEN.file, "Subject", "", ()),
        Mutant("a file that is gone", "namespaces/core/components/gone.py", "x", "", ()),
        Mutant("no change", BROKEN.file, BROKEN.old, BROKEN.old, ()),
    ],
    ids=lambda mutant: mutant.name,
)
def test_a_mutant_that_no_longer_applies_is_told(copy: Path, stale: Mutant) -> None:
    assert mutants.judge(copy, stale).verdict == "stale"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_applies_to_the_tree_and_leaves_python(mutant: Mutant) -> None:
    """A red one here means that the code it breaks was rewritten: bring ``tests/laws/register.py`` up to date."""
    text = mutants.mutated((mutants.ROOT / mutant.file).read_text(), mutant)
    ast.parse(text)
    assert all((mutants.ROOT / test.split("::")[0]).is_file() for test in mutant.tests)


def test_names_are_distinct() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1] == []
