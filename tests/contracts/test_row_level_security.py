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
    "saltroute_invitation",
    "saltroute_key_owner",
    "saltroute_memberships",
    "saltroute_pool_grantees",
    "saltroute_tenants",
    "saltroute_text_was_replaced",
    "saltroute_url_is_foreign",
}
# Functions that act as the owner, who alone may make and drop tables. They read and delete within the policies.
OWNER_FUNCTIONS = {"saltroute_keep_partitions", "saltroute_keep_capture_partitions", "saltroute_expire_decisions"}


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
    assert {row[0] for row in functions if row[1] == "saltroute_definer"} == CROSS_TENANT_FUNCTIONS
    assert {row[0] for row in functions if row[1] == "saltroute_owner"} == OWNER_FUNCTIONS
    assert {row[1] for row in functions} == {"saltroute_definer", "saltroute_owner"}
    assert {str(row[2]).partition(",lock_timeout")[0] for row in functions} == {"search_path=pg_catalog, public"}


def test_policies_that_ignore_the_scope_belong_to_named_roles() -> None:
    """Only the definer (reading) and ingest (inserting) have a policy that is simply true."""
    wide = _rows("SELECT tablename, roles::text, cmd FROM pg_policies WHERE coalesce(qual, with_check) = 'true'")
    assert {(row[1], row[2]) for row in wide} == {("{saltroute_definer}", "SELECT"), ("{saltroute_ingest}", "INSERT")}
    assert {row[0] for row in wide if row[2] == "INSERT"} == {
        *("routing_captureaccount", "routing_capturedrequest"),
        *("routing_decisionrow", "routing_replicastaterow", "routing_rolluprow", "routing_usagerow"),
    }


def test_append_only_tables_cannot_be_rewritten() -> None:
    """The app role may not change history: audit entries, policy versions, decision records."""
    privileges = _rows(
        "SELECT table_name, privilege_type FROM information_schema.role_table_grants WHERE grantee = 'saltroute_app'"
        " AND table_name IN ('tenants_auditentry', 'routing_policyversion', 'routing_decisionrow')"
    )
    assert ("tenants_auditentry", "INSERT") in privileges
    assert not {("tenants_auditentry", "UPDATE"), ("tenants_auditentry", "DELETE"), ("routing_policyversion", "UPDATE")} & set(privileges)
    assert {row[1] for row in privileges if row[0] == "routing_decisionrow"} == {"SELECT"}


def _granted(where: str) -> set[tuple[object, ...]]:
    """(table, role, right), read from the tables themselves: information_schema hides what the reader has no part in."""
    return set(
        _rows(
            f"""
            SELECT c.relname, pg_get_userbyid(a.grantee), a.privilege_type
              FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, aclexplode(c.relacl) a
             WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND {where}
            """
        )
    )


def test_ingest_may_insert_and_nothing_else() -> None:
    records = ("routing_decisionrow", "routing_recordaccount", "routing_replicastaterow", "routing_rolluprow", "routing_usagerow")
    tables = (*records, "routing_captureaccount", "routing_capturedrequest")
    assert _granted("pg_get_userbyid(a.grantee) = 'saltroute_ingest'") == {(table, "saltroute_ingest", "INSERT") for table in tables}


def test_partitions_are_reached_through_their_table_alone() -> None:
    """Nobody but the owner has a right on a partition; its policies hold for the owner too (tested above, as for every table with a tenant)."""
    assert len(_rows("SELECT inhrelid FROM pg_inherits WHERE inhparent = 'routing_decisionrow'::regclass")) >= 9
    assert _granted("c.relispartition AND pg_get_userbyid(a.grantee) <> 'saltroute_owner'") == set()
    assert _granted("c.relname = 'routing_decisionrow' AND pg_get_userbyid(a.grantee) = 'saltroute_app'")  # so the nothing above means something


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
