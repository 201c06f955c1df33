"""Migration operations for row-level security, so that a tenant table is guarded from the migration that creates it.

Roles (created before the first migration, see deploy/local and the operations guide):
``saltroute_owner`` owns the tables and runs migrations, ``saltroute_app`` serves the control plane, ``saltroute_ingest`` stores records,
``saltroute_definer`` cannot log in and owns the few functions that read across tenants. None is a superuser or may bypass policies, and every
policy is FORCED, so the owner obeys it too.
"""

from __future__ import annotations

from typing import Any

from django.db.migrations.operations import RunSQL

APP = "saltroute_app"
INGEST = "saltroute_ingest"
DEFINER = "saltroute_definer"
SETTING = "saltroute.tenant"
# After a transaction-local set_config the setting is an empty string, not null; nullif makes "no tenant" match no row instead of failing to cast.
CURRENT_TENANT = f"nullif(current_setting('{SETTING}', true), '')::uuid"


def tenant_rows(
    table: str, *, column: str = "tenant_id", app: str = "SELECT, INSERT, UPDATE, DELETE", ingest: bool = False, definer: bool = False
) -> RunSQL:
    """Force row-level security on ``table``: a session sees and writes the rows of the tenant it is scoped to, and no row without a scope.

    ``ingest`` adds an INSERT-only policy for the record writer; ``definer`` lets the named cross-tenant functions read the table.
    """
    statements: list[Any] = [
        f'ALTER TABLE "{table}" ENABLE ROW LEVEL SECURITY',
        f'ALTER TABLE "{table}" FORCE ROW LEVEL SECURITY',
        f'CREATE POLICY tenant_rows ON "{table}" TO PUBLIC USING ("{column}" = {CURRENT_TENANT}) WITH CHECK ("{column}" = {CURRENT_TENANT})',
        f'GRANT {app} ON "{table}" TO {APP}',
    ]
    if ingest:
        statements += [f'CREATE POLICY ingest_rows ON "{table}" FOR INSERT TO {INGEST} WITH CHECK (true)', f'GRANT INSERT ON "{table}" TO {INGEST}']
    if definer:
        statements += [f'CREATE POLICY definer_rows ON "{table}" FOR SELECT TO {DEFINER} USING (true)', f'GRANT SELECT ON "{table}" TO {DEFINER}']
    return RunSQL(sql=statements, reverse_sql=[f'ALTER TABLE "{table}" DISABLE ROW LEVEL SECURITY'])


def shared_table(table: str, *, app: str = "SELECT, INSERT, UPDATE, DELETE", definer: bool = False) -> RunSQL:
    """Grant a table that holds no tenant's rows (users, sessions) to the control plane."""
    statements: list[Any] = [f'GRANT {app} ON "{table}" TO {APP}']
    if definer:
        statements.append(f'GRANT SELECT ON "{table}" TO {DEFINER}')
    return RunSQL(sql=statements, reverse_sql=RunSQL.noop)


def composite_foreign_key(table: str, column: str, to_table: str) -> RunSQL:
    """Reference ``to_table`` by (tenant_id, id): PostgreSQL checks foreign keys without policies, so a plain one would reach another tenant's row."""
    name = f"{table}_{column}_same_tenant"
    return RunSQL(
        sql=f'ALTER TABLE "{table}" ADD CONSTRAINT "{name}" FOREIGN KEY (tenant_id, "{column}") REFERENCES "{to_table}" (tenant_id, id) '
        "DEFERRABLE INITIALLY DEFERRED",
        reverse_sql=f'ALTER TABLE "{table}" DROP CONSTRAINT "{name}"',
    )


def definer_function(signature: str, returns: str, body: str, *, drop: str) -> RunSQL:
    """One named way across tenants: a SECURITY DEFINER function with a pinned search_path, executable by the app role alone."""
    return RunSQL(
        sql=[
            f"GRANT CREATE ON SCHEMA public TO {DEFINER}",
            f"CREATE FUNCTION {signature} RETURNS {returns} LANGUAGE sql STABLE SECURITY DEFINER "
            f"SET search_path = pg_catalog, public AS $body${body}$body$",
            f"REVOKE ALL ON FUNCTION {drop} FROM PUBLIC",
            f"GRANT EXECUTE ON FUNCTION {drop} TO {APP}",
            f"ALTER FUNCTION {drop} OWNER TO {DEFINER}",
            f"REVOKE CREATE ON SCHEMA public FROM {DEFINER}",
        ],
        reverse_sql=f"DROP FUNCTION {drop}",
    )
