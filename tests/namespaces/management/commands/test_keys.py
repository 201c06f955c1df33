"""``manage.py keys``: files that are never overwritten, work where the root key is, a request where it is not, no secret on the terminal."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from namespaces.core import keyring
from namespaces.core.keyring import Roots
from namespaces.models import KeyOperation
from tenants.scoping import tenant_scope
from tests.namespaces.services.world import CREDENTIAL, NEW, OLD, World, make_world, name, spellings


@pytest.fixture
def world(db: None, valkey_url: str, settings: Any) -> World:
    settings.ROOT = ()
    return make_world(settings)


@pytest.fixture
def here(settings: Any, tmp_path: Path) -> None:
    """This process holds both roots."""
    (tmp_path / "new").write_bytes(NEW)
    (tmp_path / "old").write_bytes(OLD)
    settings.ROOT = (f"file:{tmp_path / 'new'}", f"file:{tmp_path / 'old'}")


def _run(*arguments: str) -> str:
    out = StringIO()
    call_command("keys", *arguments, stdout=out)
    return out.getvalue()


def test_a_new_root_key_is_written_once_and_not_printed(tmp_path: Path) -> None:
    """Private files; the id printed is that of the public half; neither file is ever overwritten."""
    out, public = tmp_path / "root.key", tmp_path / "seal.pub"
    printed = _run("new-root", "--out", str(out), "--public", str(public))
    key = out.read_bytes()
    assert public.read_bytes() == keyring.seal_public_key(key)
    assert keyring.root_id(public.read_bytes()) in printed
    assert not [text for text in spellings(key) if text in printed]
    assert {path.stat().st_mode & 0o777 for path in (out, public)} == {0o600}
    public.unlink()
    with pytest.raises(CommandError, match="no key is ever overwritten"):
        _run("new-root", "--out", str(out), "--public", str(public))
    assert (out.read_bytes(), public.exists()) == (key, False)


def test_a_kms_that_cannot_be_had_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="awskms"):
        _run("new-root", "--out", str(tmp_path / "root.kms"), "--public", str(tmp_path / "seal.pub"), "--kms", "region=eu-west-1")
    assert list(tmp_path.iterdir()) == []


def test_where_the_root_is_the_work_is_done_at_once(world: World, here: None) -> None:
    """Progress, counts and ids are printed; no secret."""
    printed = _run("rotate-root", "--reason", "yearly")
    assert "done" in printed
    assert name(NEW) in printed
    assert world.keys(Roots((NEW,))) == world.secrets
    printed += _run("rotate-tenant", "--tenant", "acorn", "--reason", "lost") + _run("status") + _run("status", "--tenant", "acorn")
    assert "tenant key of platform: version 1 (--tenant SLUG shows another's)\n" in printed
    assert "tenant key of acorn: version 2\n" in printed
    assert f"{name(NEW)}, {name(OLD)}" in printed
    assert not [text for text in spellings(OLD, NEW, *world.secrets.values(), CREDENTIAL.encode()) if text in printed]


def test_elsewhere_it_is_asked_for(world: World) -> None:
    """The row waits for the worker; status shows it."""
    printed = _run("rotate-tenant", "--tenant", "acorn", "--reason", "lost") + _run("rotate-root", "--reason", "yearly")
    assert printed.count("requested") == 2
    with tenant_scope(world.tenants["acorn"]):
        assert KeyOperation.objects.get().reason == "lost"
    status = _run("status", "--tenant", "acorn")
    assert "none (only routers" in status
    assert "requested" in status


def test_waiting_returns_with_the_workers_problem(world: World, here: None, settings: Any, tmp_path: Path) -> None:
    """A worker with the old root alone says what it waits for, instead of moving anything."""
    settings.ROOT = (f"file:{tmp_path / 'old'}",)
    assert "waiting" in _run("rotate-root", "--reason", "yearly")
    assert world.keys(Roots((OLD,))) == world.secrets


@pytest.mark.parametrize(
    "arguments",
    [
        ("rotate-tenant", "--tenant", "nobody", "--reason", "x"),
        ("rotate-tenant", "--tenant", "keyless", "--reason", "x"),
        ("rotate-tenant", "--tenant", "acorn", "--reason", " "),
        ("rotate-tenant", "--tenant", "acorn"),
        ("rotate-root",),
        ("rotate-everything",),
    ],
)
def test_what_is_refused(world: World, arguments: tuple[str, ...]) -> None:
    """A tenant that is not there or has no key, no reason, no such verb; nothing is asked for."""
    with pytest.raises(CommandError):
        _run(*arguments)
    for tenant_id in world.all:
        with tenant_scope(tenant_id):
            assert KeyOperation.objects.count() == 0


def test_a_root_that_cannot_be_read_is_a_clear_refusal(world: World, settings: Any) -> None:
    settings.ROOT = ("file:/nowhere/root.key",)
    with pytest.raises(CommandError, match="cannot be read"):
        _run("status")
