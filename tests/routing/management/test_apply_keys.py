"""``manage.py apply`` and keys that were rotated; what a file can do to a key otherwise is in test_apply.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.utils import timezone

from deploy.local.demo import SPENT
from tenants.core.api_key import digest
from tenants.queries import snapshot_keys
from tests.tenants.houses import House, house

pytestmark = pytest.mark.django_db
OWN, OTHER = "my-own-secret-0123456789", "my-other-secret-0123456789"
FILE = """\
tenants:
  - slug: mine
    keys:
      - name: app
        secret: env:MY_KEY
"""
Apply = Callable[..., str]


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> House:
    """A tenant of that name, and the secret in its variable."""
    monkeypatch.setenv("MY_KEY", OWN)
    return house("mine")


@pytest.fixture
def apply(tmp_path: Path) -> Apply:
    """Apply a text; what was printed, or else the lines of the refusal."""

    def run(text: str, *options: str) -> str:
        file = tmp_path / "mine.yaml"
        file.write_text(text)
        out, err = StringIO(), StringIO()
        try:
            call_command("apply", "-f", str(file), *options, stdout=out, stderr=err)
        except SystemExit:
            return err.getvalue().replace(str(file), file.name)
        return out.getvalue()

    return run


def _opening(mine: House) -> set[bytes]:
    with mine.scope():
        return {entry.digest for entry in snapshot_keys(mine.id, timezone.now())}


def test_the_same_file_does_not_undo_a_rotation(mine: House, apply: Apply) -> None:
    """Refused at its line and field with what to do, also as a dry run; the rotated text goes on opening, the former does not."""
    apply(FILE)
    assert _opening(mine) == {digest(OWN)}
    rotated = mine.api().post("keys/app/rotate").json()["secret"]
    for options in ((), ("--dry-run",), ("--prune", "--prune-tenants")):
        assert re.sub(r"\d{4}-\d\d-\d\d", "DAY", apply(FILE, *options)).splitlines() == [
            "mine.yaml:5: tenants[0].keys[0].secret: This secret was replaced: this key got another text on DAY, "
            "and this one stays out. Name another one, or `stored` to keep the one in force.",
            "nothing was changed",
        ]
        assert _opening(mine) == {digest(rotated)}


def test_a_refusal_of_a_spent_secret_is_known_to_the_demo(mine: House, apply: Apply, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever rotates or revokes a key of the demo finds it with another text at the next ``make up``, instead of no start at all."""
    apply(FILE)
    mine.api().delete("keys/app")
    revoked = apply(FILE)
    monkeypatch.setenv("MY_KEY", OTHER)
    apply(FILE)
    mine.api().post("keys/app/rotate")
    replaced = apply(FILE)
    assert [[mark in told for mark in SPENT] for told in (revoked, replaced)] == [[True, False], [False, True]]


def test_the_text_in_force_is_no_change_by_whatever_name(mine: House, apply: Apply, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put into the variable, or left as `stored`; with `stored` the rest of the key can be changed."""
    apply(FILE)
    rotated = mine.api().post("keys/app/rotate").json()["secret"]
    stored = FILE.replace("env:MY_KEY", "stored")
    assert apply(stored) == "no changes\n"
    monkeypatch.setenv("MY_KEY", rotated)
    assert apply(FILE) == "no changes\n"
    assert "expires_at: none -> 2097-01-31T12:00:00Z" in apply(stored + "        expires_at: 2097-01-31T12:00:00Z\n")
    assert _opening(mine) == {digest(rotated)}


def test_a_rotation_by_declaration_is_one_way_too(mine: House, apply: Apply, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another secret in the variable replaces the text; the file with the former one is refused, also for a key of another name."""
    apply(FILE)
    monkeypatch.setenv("MY_KEY", OTHER)
    assert apply(FILE).splitlines()[:2] == ["~ mine: key app", "    secret: changed"]
    monkeypatch.setenv("MY_KEY", OWN)
    assert "This secret was replaced: this key got" in apply(FILE)
    assert "This secret was replaced: the key app got" in apply(FILE.replace("name: app", "name: again"))
    assert _opening(mine) == {digest(OTHER)}


def test_two_keys_may_overlap(mine: House, apply: Apply, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way to change over without a gap: a second key of the same scope, and later the first revoked. Nothing of it is refused."""
    monkeypatch.setenv("NEXT_KEY", OTHER)
    apply(FILE)
    both = FILE + "      - {name: app-2, secret: env:NEXT_KEY}\n"
    assert "+ mine: key app-2" in apply(both)
    assert _opening(mine) == {digest(OWN), digest(OTHER)}
    assert apply(both) == "no changes\n"
    second = "tenants: [{slug: mine, keys: [{name: app-2, secret: env:NEXT_KEY}]}]"
    assert apply(second) == "no changes\n"
    mine.api().delete("keys/app")
    assert apply(second) == "no changes\n"
    assert _opening(mine) == {digest(OTHER)}
    assert "This secret was revoked and stays so" in apply(both)
