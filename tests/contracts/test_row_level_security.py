"""The database itself keeps tenants apart; these tests ask PostgreSQL's catalogues, so a new table cannot be forgotten."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.apps import apps
from django.db import connection, models

from tenants.models import TenantRow

pytestmark = pytest.mark.django_db

# Every function that reads across tenants. A new one is added here by hand, on purpose.
CROSS_TENANT_FUNCTIONS = {
    "saltroute_granted_pools",
    "saltroute_granted_replicas",
    "saltroute_key_owner",
    "saltroute_memberships",
    "saltroute_pool_grantees",
    "saltroute_tenants",
    "saltroute_url_is_foreign",
}


def _rows(query: str) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def test_every_table_with_a_tenant_has_forced_policies() -> None:
    """A table with a tenant_id column, and the tenant table itself, is ENABLED and FORCED and has the tenant policy."""
    tables = _rows(
        """
        SELECT c.relname, c.relrowsecurity, c.relforcerowsecurity,
               EXISTS (SELECT 1 FROM pg_policies p WHERE p.tablename = c.relname AND p.policyname = 'tenant_rows')
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relkind IN ('r', 'p') AND n.nspname = 'public'
           AND (c.relname = 'tenants_tenant'
                OR EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped))
        """
    )
    assert len(tables) >= 15
    assert [row for row in tables if row[1:] != (True, True, True)] == []


def test_the_roles_of_the_product_cannot_bypass_policies() -> None:
    """No role of the product is a superuser, may bypass policies, or create roles."""
    roles = _rows("SELECT rolname, rolsuper, rolbypassrls, rolcreaterole FROM pg_roles WHERE rolname LIKE 'saltroute\\_%'")
    assert {row[0] for row in roles} >= {"saltroute_owner", "saltroute_app", "saltroute_ingest", "saltroute_definer"}
    assert [row for row in roles if any(row[1:])] == []


def test_the_ways_across_tenants_are_the_named_ones() -> None:
    """SECURITY DEFINER functions are exactly the listed ones, belong to the definer role and pin their search_path."""
    functions = _rows(
        """
        SELECT p.proname, pg_get_userbyid(p.proowner), coalesce(array_to_string(p.proconfig, ','), '')
          FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
         WHERE p.prosecdef AND n.nspname NOT IN ('pg_catalog', 'information_schema')
        """
    )
    assert {row[0] for row in functions} == CROSS_TENANT_FUNCTIONS
    assert {row[1] for row in functions} == {"saltroute_definer"}
    assert {row[2] for row in functions} == {"search_path=pg_catalog, public"}


def test_policies_that_ignore_the_scope_belong_to_named_roles() -> None:
    """Only the definer (reading) and ingest (inserting) have a policy that is simply true."""
    wide = _rows("SELECT tablename, roles::text, cmd FROM pg_policies WHERE coalesce(qual, with_check) = 'true'")
    assert {(row[1], row[2]) for row in wide} == {("{saltroute_definer}", "SELECT"), ("{saltroute_ingest}", "INSERT")}
    assert {row[0] for row in wide if row[2] == "INSERT"} == {"routing_decisionrow"}


def test_append_only_tables_cannot_be_rewritten() -> None:
    """The app role may not change history: audit entries, policy versions, decision records."""
    privileges = _rows(
        "SELECT table_name, privilege_type FROM information_schema.role_table_grants WHERE grantee = 'saltroute_app'"
        " AND table_name IN ('tenants_auditentry', 'routing_policyversion', 'routing_decisionrow')"
    )
    assert ("tenants_auditentry", "INSERT") in privileges
    assert not {("tenants_auditentry", "UPDATE"), ("tenants_auditentry", "DELETE"), ("routing_policyversion", "UPDATE")} & set(privileges)
    assert {row[1] for row in privileges if row[0] == "routing_decisionrow"} == {"SELECT"}


def _references() -> Iterator[tuple[str, str, str]]:
    for model in apps.get_models():
        if not issubclass(model, TenantRow):
            continue
        for field in model._meta.get_fields():
            if isinstance(field, models.ForeignKey) and field.remote_field and issubclass(field.related_model, TenantRow):
                yield model._meta.db_table, field.column, field.related_model._meta.db_table


def test_references_between_tenant_rows_are_composite() -> None:
    """Held against pg_constraint: (tenant_id, column) references (tenant_id, id). A grant's pool alone is a plain reference: it crosses tenants."""
    constraints = _rows(
        """
        SELECT c.conrelid::regclass::text, c.confrelid::regclass::text,
               (SELECT string_agg(a.attname, ',' ORDER BY k.n) FROM unnest(c.conkey) WITH ORDINALITY k(attnum, n)
                  JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.attnum)
          FROM pg_constraint c WHERE c.contype = 'f'
        """
    )
    expected = {(table, to, f"tenant_id,{column}") for table, column, to in _references() if (table, column) != ("routing_poolgrant", "pool_id")}
    assert len(expected) >= 9
    assert expected <= set(constraints)
