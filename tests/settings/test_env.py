"""Environment readers: a value is right or start-up stops, naming the variable and never its value."""

from __future__ import annotations

from pathlib import Path

import pytest

from settings import env


def test_text_needs_a_value_or_a_default() -> None:
    """Empty counts as unset."""
    assert env.text("X", env={"X": "a"}) == "a"
    assert env.text("X", "b", env={"X": ""}) == "b"
    with pytest.raises(env.EnvError, match="X is not set"):
        env.text("X", env={})


@pytest.mark.parametrize("raw", ["abc", "1.5", "-1", "99999999999"])
def test_integer_refuses_nonsense(raw: str) -> None:
    """Not a number, not whole, out of range: named, and the value is not shown."""
    with pytest.raises(env.EnvError, match="PORT") as caught:
        env.integer("PORT", 80, env={"PORT": raw})
    assert raw not in str(caught.value)
    assert env.integer("PORT", 80, env={}) == 80


@pytest.mark.parametrize("raw", ["0", "-1", "x", "nan", "inf"])
def test_seconds_are_positive(raw: str) -> None:
    """Fractions are fine, zero and worse are not."""
    with pytest.raises(env.EnvError, match="WAIT_S"):
        env.seconds("WAIT_S", 1.0, env={"WAIT_S": raw})
    assert env.seconds("WAIT_S", 1.0, env={"WAIT_S": "0.1"}) == 0.1


def test_a_flag_is_true_or_false_and_nothing_else() -> None:
    """A typo must not mean off."""
    assert env.flag("F", env={"F": "True"}) is True
    assert env.flag("F", True, env={"F": "0"}) is False
    with pytest.raises(env.EnvError, match="F must be"):
        env.flag("F", env={"F": "ture"})


def test_secrets_come_from_files(tmp_path: Path) -> None:
    """Missing, unreadable and empty files stop start-up; a password is put into its URL."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"pw\n")
    assert env.secret_file("S", env={"S": str(secret)}) == b"pw\n"
    assert env.optional_secret_file("S", env={}) is None
    assert env.password_in("redis://u:{password}@h/0", "S", env={"S": str(secret)}) == "redis://u:pw@h/0"
    assert env.password_in("redis://h/0", "S", env={}) == "redis://h/0"
    with pytest.raises(env.EnvError, match="cannot read"):
        env.secret_file("S", env={"S": str(tmp_path / "absent")})
    secret.write_bytes(b"")
    with pytest.raises(env.EnvError, match="is empty"):
        env.secret_file("S", env={"S": str(secret)})


def test_secret_files_are_read_in_order(tmp_path: Path) -> None:
    """Each by the rules of one; unset is none."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    assert env.secret_files("X", env={"X": f"{tmp_path / 'b'},{tmp_path / 'a'}"}) == (b"b", b"a")
    assert env.secret_files("X", env={}) == ()
    with pytest.raises(env.EnvError, match="X: cannot read"):
        env.secret_files("X", env={"X": str(tmp_path / "nowhere")})
