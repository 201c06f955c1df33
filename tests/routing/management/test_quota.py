"""``manage.py quota``."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from tests.tenants.houses import House, house

pytestmark = pytest.mark.django_db


@pytest.fixture
def acorn() -> House:
    return house("acorn")


def run(*words: str) -> str:
    out = StringIO()
    call_command("quota", *words, stdout=out)
    return out.getvalue()


def test_set_list_and_remove(acorn: House, valkey_url: str) -> None:
    """What is set is listed with what is left, and each change is in the log as the command's."""
    shown = run("set", "--tenant", "acorn", "--of", "platform", "--tokens-per-month", "500", "--requests-per-minute", "9")
    assert shown == run("list", "--tenant", "acorn")
    assert [line.split() for line in shown.splitlines()] == [
        ["platform"],
        ["requests_per_minute", "9", "0", "used,", "9", "left"],
        ["tokens_per_month", "500", "0", "used,", "500", "left"],
    ]
    assert run("remove", "--tenant", "acorn", "--of", "platform") == ""
    assert [entry.actor_label for action in ("quota.set", "quota.remove") for entry in acorn.log(action)] == ["manage.py quota"] * 2


def test_mistakes_name_the_option(acorn: House) -> None:
    with pytest.raises(CommandError, match="--name: This tenant has no key of this name"):
        run("set", "--tenant", "acorn", "--of", "key", "--name", "nobody", "--tokens-per-month", "5")
    with pytest.raises(CommandError, match="--tokens-per-month: Use a whole number"):
        run("set", "--tenant", "acorn", "--of", "tenant", "--tokens-per-month", "0")
    with pytest.raises(CommandError, match="there is no such quota"):
        run("remove", "--tenant", "acorn", "--of", "tenant")
    with pytest.raises(CommandError, match="there is no tenant 'nobody'"):
        run("list", "--tenant", "nobody")
