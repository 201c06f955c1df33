"""The register of root key sources, and what each refuses: every refusal names the reference and no key."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path

import pytest

from namespaces import roots
from namespaces.core import keyring
from namespaces.core.keyring import Roots
from namespaces.root import RootError
from settings import env

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def _file(folder: Path, name: str, value: bytes) -> str:
    (folder / name).write_bytes(value)
    return f"file:{folder / name}"


def test_references_come_from_the_list_or_the_single_file() -> None:
    """The list wins; without either the process holds no root key. Nothing is opened to say so."""
    assert env.root_references(env={}) == ()
    assert env.root_references(env={"SALTROUTE_ROOT_KEY_FILE": "/run/root"}) == ("file:/run/root",)
    both = {"SALTROUTE_ROOT": "file:/new, awskms:/old?key=k", "SALTROUTE_ROOT_KEY_FILE": "/run/root"}
    assert env.root_references(env=both) == ("file:/new", "awskms:/old?key=k")


def test_the_first_reference_is_current(tmp_path: Path) -> None:
    """Order matters, for the ids too."""
    first, second = _file(tmp_path, "a", KEY), _file(tmp_path, "b", OTHER)
    loaded = roots.load((first, second))
    assert (loaded.current, loaded.secrets) == (KEY, (KEY, OTHER))
    assert loaded.ids == tuple(reversed(roots.load((second, first)).ids))
    assert loaded.ids[0] == keyring.root_id(keyring.seal_public_key(KEY))


@pytest.mark.parametrize(
    "text", [KEY.hex(), KEY.hex().upper(), base64.b64encode(OTHER).decode(), base64.urlsafe_b64encode(KEY).rstrip(b"=").decode() + "\n"]
)
def test_a_variable_holds_hexadecimal_digits_or_base64(text: str) -> None:
    """All usual spellings of 32 bytes."""
    assert roots.load(("env:ROOT",), {"ROOT": text}).current in (KEY, OTHER)


@pytest.mark.parametrize("text", ["", "   ", "hunter2-hunter2", KEY.hex() + "00", base64.b64encode(KEY + b"x").decode(), "é" * 43, "*" * 43])
def test_a_variable_with_anything_else_is_refused_by_name(text: str) -> None:
    """The name of the variable, not its content."""
    with pytest.raises(RootError, match="ROOT") as refused:
        roots.load(("env:ROOT",), {"ROOT": text})
    assert not text.strip() or text not in str(refused.value)


def test_wrong_references_are_refused_without_repeating_them(tmp_path: Path) -> None:
    """A key pasted in place of a reference must not reach a log."""
    good = _file(tmp_path, "a", KEY)
    for wanted in ((), (KEY.hex(),), ("vault:secret-path",), ("file:",), (good,) * 5):
        with pytest.raises(RootError) as refused:
            roots.load(wanted)
        assert KEY.hex() not in str(refused.value)
        assert "secret-path" not in str(refused.value)
    with pytest.raises(RootError, match="twice"):
        roots.load((good, _file(tmp_path, "copy", KEY)))
    for reference in (_file(tmp_path, "short", b"x" * 31), _file(tmp_path, "long", b"x" * 33), _file(tmp_path, "empty", b"")):
        with pytest.raises(RootError, match="exactly 32 bytes"):
            roots.load((good, reference))
    with pytest.raises(RootError, match="cannot be read"):
        roots.load((f"file:{tmp_path / 'absent'}",))
    with pytest.raises(RootError, match="cannot be read"):
        roots.load((f"file:{tmp_path}",))


def test_root_keys_are_neither_printed_nor_pickled() -> None:
    """The handle shows ids; it does not leave the process."""
    held = Roots((KEY, OTHER))
    assert KEY.hex() not in repr(held)
    assert repr(KEY) not in repr(held)
    with pytest.raises(TypeError):
        pickle.dumps(held)


def test_a_failed_load_is_tried_again(tmp_path: Path) -> None:
    """Only success is remembered: a secret that was mounted late is found."""
    reference = f"file:{tmp_path / 'late'}"
    with pytest.raises(RootError):
        roots.held((reference,))
    (tmp_path / "late").write_bytes(KEY)
    first = roots.held((reference,))
    (tmp_path / "late").unlink()
    assert roots.held((reference,)) is first
