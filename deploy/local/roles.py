"""PostgreSQL roles and database of the product, made by an administrator before the first migration.

Works alike on the embedded server and on one of the operator's (then the administrator may be no superuser: CREATEROLE and
CREATEDB are enough). Safe to repeat: every run brings attributes and passwords back to what they should be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from deploy.local.process import LaunchError

OWNER = "saltroute_owner"
LOGIN_ROLES = (OWNER, "saltroute_app", "saltroute_ingest")
DEFINER = "saltroute_definer"
DEFAULT_DATABASE = "saltroute"
ROLE_LOCK = 0x5A17  # advisory lock: two starts at once would collide on pg_authid


@dataclass(frozen=True)
class Server:
    """A PostgreSQL server as its administrator reaches it, and the product's database there."""

    admin: Mapping[str, str]
    database: str

    @classmethod
    def at(cls, admin_url: str) -> Server:
        """Read an administrator's URL. The database it names is the product's; ``postgres`` or none means ``saltroute``.

        Raises:
            LaunchError: not a connection URL.
        """
        try:
            parts = {key: str(value) for key, value in conninfo_to_dict(admin_url).items() if value is not None}
        except psycopg.ProgrammingError:
            raise LaunchError("DATABASE_URL is not a PostgreSQL connection URL (postgresql://user:password@host:port/database)") from None
        named = parts.pop("dbname", "")
        return cls(admin=parts, database=DEFAULT_DATABASE if named in ("", "postgres") else named)

    def url(self, role: str) -> str:
        """URL for ``role``, with the placeholder that the settings replace from the password file."""
        rest = {key: value for key, value in self.admin.items() if key not in ("user", "password")}
        return f"postgresql://{role}:{{password}}@/{quote(self.database, safe='')}?{urlencode(rest, safe='/')}"

    def connect(self, database: str) -> psycopg.Connection[tuple[object, ...]]:
        """Open an administrator's connection in autocommit mode."""
        return psycopg.connect(dbname=database, autocommit=True, connect_timeout=10, **self.admin)  # type: ignore[arg-type]  # libpq keys by name


def bootstrap(server: Server, passwords: Mapping[str, str]) -> None:
    """Create or repair the roles, then the database.

    Args:
        passwords: one for each of ``LOGIN_ROLES``.

    Raises:
        LaunchError: the server cannot be reached, or the administrator lacks a right.
    """
    try:
        with _maintenance_connection(server) as connection:
            connection.execute("SELECT pg_advisory_lock(%s)", [ROLE_LOCK])
            for role in LOGIN_ROLES:
                _put_role(connection, role, passwords[role])
            _put_role(connection, DEFINER, None)
            for member in ("saltroute_app", "saltroute_ingest", DEFINER):
                connection.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(member), sql.Identifier(OWNER)))
            _put_database(connection, server.database)
    except psycopg.OperationalError as error:
        raise LaunchError(f"DATABASE_URL: cannot reach PostgreSQL as {server.admin.get('user', 'the default user')}: {error}") from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise LaunchError(f"DATABASE_URL must be an administrator's (CREATEROLE and CREATEDB): {error}") from None


def _maintenance_connection(server: Server) -> psycopg.Connection[tuple[object, ...]]:
    try:
        return server.connect("postgres")
    except psycopg.OperationalError:
        return server.connect(server.database)


def _put_role(connection: psycopg.Connection[tuple[object, ...]], role: str, password: str | None) -> None:
    name = sql.Identifier(role)
    if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone() is None:
        connection.execute(sql.SQL("CREATE ROLE {}").format(name))
    attributes = "LOGIN" if password is not None else "NOLOGIN"
    attributes += " CREATEDB" if role == OWNER else " NOCREATEDB"
    connection.execute(sql.SQL("ALTER ROLE {} " + attributes + " NOCREATEROLE INHERIT").format(name))
    found = connection.execute("SELECT rolsuper OR rolbypassrls OR rolreplication FROM pg_roles WHERE rolname = %s", [role]).fetchone()
    if found != (False,):
        raise LaunchError(f"role {role} on that server is a superuser, or bypasses row-level security, or may replicate: take that away first")
    if password is not None:
        connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(name, sql.Literal(password)))


def _put_database(connection: psycopg.Connection[tuple[object, ...]], database: str) -> None:
    name = sql.Identifier(database)
    if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database]).fetchone() is None:
        # an administrator who is no superuser can give a database only to a role that it belongs to
        connection.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(sql.Identifier(OWNER)))
        connection.execute(sql.SQL("CREATE DATABASE {} OWNER {} ENCODING 'UTF8' TEMPLATE template0").format(name, sql.Identifier(OWNER)))
    is_owner = connection.execute("SELECT pg_get_userbyid(datdba) = %s FROM pg_database WHERE datname = %s", [OWNER, database]).fetchone()
    if is_owner != (True,):
        connection.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(sql.Identifier(OWNER)))
        connection.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(name, sql.Identifier(OWNER)))
    connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(name))
    for role in ("saltroute_app", "saltroute_ingest"):
        connection.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(name, sql.Identifier(role)))
