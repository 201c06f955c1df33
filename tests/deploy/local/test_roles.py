"""The roles: each can do its work and none can step round row-level security."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from deploy.local import roles
from deploy.local.process import LaunchError
from tests.services import Services

PASSWORDS = {"saltroute_owner": "o", "saltroute_app": "a", "saltroute_ingest": "i"}


def _admin(services: Services) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(services.admin_database_url, autocommit=True)


@pytest.fixture
def table(postgres_server: Services) -> Services:
    """A table of the owner's with forced row-level security and one row that no policy shows."""
    with closing(psycopg.connect(postgres_server.role_url("saltroute_owner"), autocommit=True)) as connection:
        connection.execute("DROP TABLE IF EXISTS hidden")
        connection.execute("CREATE TABLE hidden (n int)")
        connection.execute("INSERT INTO hidden VALUES (1)")
        connection.execute("ALTER TABLE hidden ENABLE ROW LEVEL SECURITY")
        connection.execute("ALTER TABLE hidden FORCE ROW LEVEL SECURITY")
        connection.execute("GRANT ALL ON hidden TO saltroute_app, saltroute_ingest")
    return postgres_server


@pytest.mark.parametrize("role", ["saltroute_owner", "saltroute_app", "saltroute_ingest"])
def test_no_role_of_the_product_sees_rows_past_a_policy(table: Services, role: str) -> None:
    with closing(psycopg.connect(table.admin_database_url, dbname="saltroute")) as admin:
        assert admin.execute("SELECT count(*) FROM hidden").fetchone() == (1,)  # a superuser sees it, so the next zero means something
    with closing(psycopg.connect(table.role_url(role))) as connection:
        assert connection.execute("SELECT count(*) FROM hidden").fetchone() == (0,)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE ROLE stranger",
        "ALTER ROLE saltroute_app BYPASSRLS",
        "ALTER ROLE saltroute_app SUPERUSER",
        "SET ROLE saltroute_owner",
        "SET ROLE saltroute_definer",
        "CREATE TABLE mine (n int)",
        "CREATE DATABASE mine",
        "ALTER TABLE hidden DISABLE ROW LEVEL SECURITY",
        "SET row_security = off; SELECT * FROM hidden",
        "SET session_replication_role = replica",
    ],
)
@pytest.mark.parametrize("role", ["saltroute_app", "saltroute_ingest"])
def test_what_the_app_and_ingest_may_not_do(table: Services, role: str, statement: str) -> None:
    with closing(psycopg.connect(table.role_url(role), autocommit=True)) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement)


def test_the_definer_cannot_log_in(postgres_server: Services) -> None:
    with closing(_admin(postgres_server)) as admin:
        found = admin.execute("SELECT rolcanlogin, rolsuper, rolbypassrls FROM pg_roles WHERE rolname = 'saltroute_definer'").fetchone()
    assert found == (False, False, False)


def test_the_owner_may_become_each_role_for_migrations(postgres_server: Services) -> None:
    with closing(psycopg.connect(postgres_server.role_url("saltroute_owner"), autocommit=True)) as connection:
        for role in ("saltroute_app", "saltroute_ingest", "saltroute_definer"):
            connection.execute(f"SET ROLE {role}")
            connection.execute("RESET ROLE")


def test_strangers_have_no_access_to_the_database(postgres_server: Services) -> None:
    with closing(_admin(postgres_server)) as admin:
        admin.execute("DROP ROLE IF EXISTS passer_by")
        admin.execute("CREATE ROLE passer_by LOGIN PASSWORD 'p'")
        url = roles.Server.at(postgres_server.admin_database_url).url("passer_by").format(password="p")
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            psycopg.connect(url)
        admin.execute("DROP ROLE passer_by")


def test_repeating_brings_attributes_and_passwords_back(postgres_server: Services) -> None:
    server = roles.Server.at(postgres_server.admin_database_url)
    with closing(_admin(postgres_server)) as admin:
        admin.execute("ALTER ROLE saltroute_ingest CREATEROLE CREATEDB PASSWORD 'changed'")
        roles.bootstrap(server, postgres_server.held.postgres_passwords())
        found = admin.execute("SELECT rolcreaterole, rolcreatedb FROM pg_roles WHERE rolname = 'saltroute_ingest'").fetchone()
    assert found == (False, False)
    with closing(psycopg.connect(postgres_server.role_url("saltroute_ingest"))) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("saltroute_ingest",)


def test_a_role_that_bypasses_policies_is_refused(postgres_server: Services) -> None:
    server = roles.Server.at(postgres_server.admin_database_url)
    with closing(_admin(postgres_server)) as admin:
        admin.execute("ALTER ROLE saltroute_app BYPASSRLS")
        try:
            with pytest.raises(LaunchError, match="saltroute_app"):
                roles.bootstrap(server, postgres_server.held.postgres_passwords())
        finally:
            admin.execute("ALTER ROLE saltroute_app NOBYPASSRLS")


def test_an_administrator_who_is_no_superuser_suffices(postgres_server: Services) -> None:
    """The managed services of cloud providers give no superuser."""
    with closing(_admin(postgres_server)) as admin:
        admin.execute("CREATE ROLE dba LOGIN CREATEROLE CREATEDB PASSWORD 'd'")
        for role in (*roles.LOGIN_ROLES, roles.DEFINER):
            admin.execute(f"GRANT {role} TO dba WITH ADMIN OPTION")  # a role's maker has this by itself
        url = roles.Server.at(postgres_server.admin_database_url).url("dba").format(password="d").replace("/saltroute?", "/managed?")
        try:
            roles.bootstrap(roles.Server.at(url), postgres_server.held.postgres_passwords())
            owner = admin.execute("SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = 'managed'").fetchone()
            assert owner == ("saltroute_owner",)
        finally:
            admin.execute("DROP DATABASE IF EXISTS managed")
            admin.execute("DROP OWNED BY dba")
            admin.execute("DROP ROLE dba")


@pytest.mark.parametrize(
    ("url", "database"),
    [
        ("postgresql://admin:secret@db.example:5433/orders?sslmode=require", "orders"),
        ("postgresql://admin:secret@db.example/postgres", "saltroute"),
        ("postgresql://admin:secret@db.example", "saltroute"),
    ],
)
def test_role_urls_keep_the_server_and_hide_the_administrator(url: str, database: str) -> None:
    derived = roles.Server.at(url).url("saltroute_app")
    parts = conninfo_to_dict(derived.replace("{password}", "p"))
    assert (parts["user"], parts["password"], parts["host"], parts["dbname"]) == ("saltroute_app", "p", "db.example", database)
    assert "secret" not in derived
    assert "admin" not in derived


def test_a_url_that_is_none_is_named_without_its_text() -> None:
    with pytest.raises(LaunchError, match="DATABASE_URL") as caught:
        roles.Server.at("mysql://root:hunter2@localhost/x")
    assert "hunter2" not in str(caught.value)
