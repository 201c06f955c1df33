"""The embedded PostgreSQL: keeps data, survives kill -9, stops cleanly, stands beside another, never listens on TCP."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from deploy.local.places import Home
from deploy.local.postgres import Postgres, copy_binaries, find_binaries, system_binaries
from deploy.local.process import LaunchError, started_at, wait_until


@pytest.fixture
def server(home: Home) -> Iterator[Postgres]:
    postgres = Postgres(home, admin_password="an-admin-password")
    postgres.start()
    yield postgres
    postgres.stop()


def _run(postgres: Postgres, statement: str) -> list[tuple[object, ...]]:
    with closing(psycopg.connect(postgres.admin_url, autocommit=True)) as connection:
        cursor = connection.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


def test_a_restart_keeps_the_data_and_a_stop_is_clean(server: Postgres) -> None:
    _run(server, "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n")
    assert server.stop() == 0
    server.start()
    assert _run(server, "SELECT count(*) FROM kept") == [(1000,)]


def test_committed_rows_survive_kill_9_and_the_next_start_needs_no_help(server: Postgres, home: Home) -> None:
    _run(server, "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n")
    assert server.child is not None
    os.kill(server.child.pid, signal.SIGKILL)  # not reaped: its pid file and its zombie are both still there
    assert (server.data / "postmaster.pid").exists()
    again = Postgres(home, admin_password="an-admin-password")
    again.start()
    try:
        assert _run(again, "SELECT count(*) FROM kept") == [(1000,)]
    finally:
        assert again.stop() == 0


def test_a_server_that_outlived_its_launcher_is_replaced(server: Postgres, home: Home) -> None:
    assert server.child is not None
    old_pid = server.child.pid
    again = Postgres(home, admin_password="an-admin-password")
    again.start()
    try:
        assert started_at(old_pid) is None
        assert _run(again, "SELECT 1") == [(1,)]
    finally:
        assert again.stop() == 0


def test_two_servers_stand_side_by_side(server: Postgres, home: Home) -> None:
    beside = Home(home.root / "b")
    beside.make()
    second = Postgres(beside, admin_password="another-password")
    second.start()
    try:
        _run(server, "CREATE TABLE only_in_first (n int)")
        assert _run(second, "SELECT to_regclass('only_in_first')") == [(None,)]
    finally:
        assert second.stop() == 0


def test_only_the_socket_listens_and_its_directory_is_private(server: Postgres) -> None:
    assert _run(server, "SHOW listen_addresses") == [("",)]
    assert stat.S_IMODE(server.sockets.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.data.stat().st_mode) == 0o700


def test_a_password_is_asked_for_on_the_socket_too(server: Postgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(server.admin_url.replace("an-admin-password", "a-wrong-one"))


def test_another_password_than_the_clusters_is_named_as_such(server: Postgres, home: Home) -> None:
    server.stop()
    other = Postgres(home, admin_password="a-wrong-one")
    try:
        with pytest.raises(LaunchError, match="another password"):
            other.start()
    finally:
        other.stop()


def test_a_long_home_gets_a_short_socket_directory(home: Home) -> None:
    deep = Home(home.root / ("d" * 60) / ("e" * 60))
    deep.make()
    postgres = Postgres(deep, admin_password="an-admin-password")
    try:
        postgres.start()
        assert len(str(postgres.sockets)) < 80
        assert stat.S_IMODE(postgres.sockets.stat().st_mode) == 0o700
        assert _run(postgres, "SELECT 1") == [(1,)]
    finally:
        postgres.stop()
        postgres.sockets.rmdir()


def test_an_interrupted_initdb_is_done_again(home: Home) -> None:
    postgres = Postgres(home, admin_password="an-admin-password")
    half_made = home.root / "pgdata.new"
    half_made.mkdir()
    (half_made / "PG_VERSION").write_text("18\n")
    try:
        postgres.start()
        assert _run(postgres, "SELECT 1") == [(1,)]
    finally:
        postgres.stop()


def test_a_cluster_of_another_major_version_is_refused_with_both_named(server: Postgres, home: Home) -> None:
    server.stop()
    (server.data / "PG_VERSION").write_text("9\n")
    with pytest.raises(LaunchError, match="made by PostgreSQL 9"):
        Postgres(home, admin_password="an-admin-password").start()


def test_a_dying_server_is_named_with_the_end_of_its_log(server: Postgres, home: Home) -> None:
    server.stop()
    (server.data / "postgresql.conf").write_text("no_such_setting = 1\n")
    with pytest.raises(LaunchError, match=r"(?s)postgres exited with code 1.*no_such_setting"):
        Postgres(home, admin_password="an-admin-password").start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another account")
def test_a_home_that_the_dropped_account_cannot_reach_moves_the_data_and_says_so(home: Home) -> None:
    closed = home.root / "closed"
    closed.mkdir(mode=0o700)
    said: list[str] = []
    postgres = Postgres(Home(closed / "home"), admin_password="an-admin-password", say=said.append)
    assert postgres.data.parent.parent == Path("/var/lib/saltroute")
    assert [str(postgres.data.parent) in line for line in said] == [True]
    postgres.sockets.rmdir()
    postgres.data.parent.rmdir()


def test_copied_binaries_run(monkeypatch: pytest.MonkeyPatch, home: Home) -> None:
    monkeypatch.setattr("deploy.local.postgres.BINARY_CACHE", home.root)
    copied = copy_binaries(find_binaries())
    assert os.system(f"{copied.bin}/postgres --version >/dev/null") == 0
    assert copy_binaries(find_binaries()) == copied


def test_the_newest_system_server_is_the_fallback(tmp_path: Path) -> None:
    for version in ("9", "15", "17"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / "postgres").touch()
    assert system_binaries(tmp_path).bin == tmp_path / "17" / "bin"


def test_no_server_at_all_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="DATABASE_URL"):
        system_binaries(tmp_path)


def test_waiting_names_what_was_not_ready(server: Postgres) -> None:
    assert server.child is not None
    with pytest.raises(LaunchError, match=r"(?s)the moon was not ready within 0 s.*database system is ready"):
        wait_until("the moon", lambda: False, deadline_s=0.05, watched=[server.child])


def test_the_log_holds_no_statements_and_no_keys(server: Postgres, home: Home) -> None:
    """A refused INSERT is one line: neither its values nor the key that is there already, which may be a secret's digest."""
    assert _run(server, "SHOW log_min_error_statement") == [("panic",)]
    assert _run(server, "SHOW log_error_verbosity") == [("terse",)]
    _run(server, "CREATE TABLE kept (digest text CONSTRAINT once UNIQUE)")
    _run(server, "INSERT INTO kept VALUES ('d1gest')")
    with pytest.raises(psycopg.errors.UniqueViolation):
        _run(server, "INSERT INTO kept VALUES ('d1gest')")
    log = (home.logs / "postgres.log").read_text()
    assert "once" in log
    assert "d1gest" not in log
