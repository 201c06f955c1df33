"""Key files: made once, private, never overwritten, and matching one another."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from deploy.local import secrets
from deploy.local.process import LaunchError
from namespaces.core import keyring

KEYS_OF_32_BYTES = {"root.key", "seal.pub", "publish.key", "publish.pub", "records.key", "evidence.key", "evidence.pub"}


def test_every_file_is_private(tmp_path: Path) -> None:
    directory = tmp_path / "secrets"
    secrets.ensure(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}


def test_keys_have_their_size_and_the_public_ones_belong_to_the_private_ones(tmp_path: Path) -> None:
    held = secrets.ensure(tmp_path / "secrets")
    assert {len(held.file(name).read_bytes()) for name in KEYS_OF_32_BYTES} == {32}
    assert held.file("seal.pub").read_bytes() == keyring.seal_public_key(held.file("root.key").read_bytes())
    assert held.file("publish.pub").read_bytes() == keyring.publish_public_key(held.file("publish.key").read_bytes())


def test_a_second_start_changes_nothing(tmp_path: Path) -> None:
    held = secrets.ensure(tmp_path / "secrets")
    before = {path.name: path.read_bytes() for path in held.directory.iterdir()}
    secrets.ensure(held.directory)
    assert {path.name: path.read_bytes() for path in held.directory.iterdir()} == before


def test_two_homes_share_no_secret(tmp_path: Path) -> None:
    first, second = secrets.ensure(tmp_path / "a"), secrets.ensure(tmp_path / "b")
    values = [path.read_bytes() for held in (first, second) for path in held.directory.iterdir()]
    assert len(set(values)) == len(values)


def test_a_replaced_root_key_is_noticed(tmp_path: Path) -> None:
    held = secrets.ensure(tmp_path / "secrets")
    held.file("root.key").write_bytes(b"r" * 32)
    with pytest.raises(LaunchError, match=r"seal\.pub"):
        secrets.ensure(held.directory)


def test_an_empty_file_is_refused_and_not_replaced(tmp_path: Path) -> None:
    held = secrets.ensure(tmp_path / "secrets")
    held.file("records.key").write_bytes(b"")
    with pytest.raises(LaunchError, match=r"records\.key"):
        secrets.ensure(held.directory)
    assert held.file("records.key").read_bytes() == b""


def test_loose_permissions_are_tightened(tmp_path: Path) -> None:
    held = secrets.ensure(tmp_path / "secrets")
    held.file("root.key").chmod(0o644)
    held.directory.chmod(0o755)
    secrets.ensure(held.directory)
    assert stat.S_IMODE(held.file("root.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(held.directory.stat().st_mode) == 0o700
