"""Guards every tenant table of this app, ties references to their tenant, and names the ways by which a granted pool is seen."""

from django.db import migrations

from tenants import rls


class Migration(migrations.Migration):
    dependencies = [("routing", "0001_initial"), ("tenants", "0002_row_level_security")]

    operations = [
        rls.tenant_rows("routing_artifact"),
        rls.tenant_rows("routing_modelspec"),
        rls.tenant_rows("routing_adapter"),
        rls.tenant_rows("routing_pool", definer=True),
        rls.tenant_rows("routing_poolgrant", definer=True),
        rls.tenant_rows("routing_replica", definer=True),
        rls.tenant_rows("routing_policy"),
        rls.tenant_rows("routing_policyversion", app="SELECT, INSERT, DELETE"),
        rls.tenant_rows("routing_endpoint"),
        rls.tenant_rows("routing_decisionrow", app="SELECT", ingest=True),
        rls.composite_foreign_key("routing_adapter", "model_id", "routing_modelspec"),
        rls.composite_foreign_key("routing_replica", "pool_id", "routing_pool"),
        rls.composite_foreign_key("routing_policyversion", "policy_id", "routing_policy"),
        rls.composite_foreign_key("routing_endpoint", "grant_id", "routing_poolgrant"),
        rls.composite_foreign_key("routing_endpoint", "model_id", "routing_modelspec"),
        rls.composite_foreign_key("routing_endpoint", "adapter_id", "routing_adapter"),
        rls.composite_foreign_key("routing_endpoint", "routing_policy_id", "routing_policyversion"),
        rls.composite_foreign_key("routing_endpoint", "slo_policy_id", "routing_policyversion"),
        rls.definer_function(
            "saltroute_granted_pools(grantee uuid)",
            "TABLE (grant_id uuid, pool_id uuid, owner_tenant_id uuid, name text, isolation text, grantees bigint)",
            """
            SELECT g.id, p.id, p.tenant_id, p.name::text, p.isolation::text,
                   (SELECT count(*) FROM routing_poolgrant o WHERE o.pool_id = p.id)
              FROM routing_poolgrant g JOIN routing_pool p ON p.id = g.pool_id
             WHERE g.tenant_id = grantee
               AND grantee = nullif(current_setting('saltroute.tenant', true), '')::uuid
            """,
            drop="saltroute_granted_pools(uuid)",
        ),
        rls.definer_function(
            "saltroute_granted_replicas(grantee uuid)",
            "TABLE (pool_id uuid, replica_id uuid, name text, url text, engine text, state text, credential bytea, kv_events jsonb, dedicated_namespace text)",
            """
            SELECT r.pool_id, r.id, r.name::text, r.url::text, r.engine::text, r.state::text, r.credential, r.kv_events, r.dedicated_namespace::text
              FROM routing_poolgrant g JOIN routing_replica r ON r.pool_id = g.pool_id
             WHERE g.tenant_id = grantee
               AND grantee = nullif(current_setting('saltroute.tenant', true), '')::uuid
             ORDER BY r.pool_id, r.name, r.id
            """,
            drop="saltroute_granted_replicas(uuid)",
        ),
        rls.definer_function(
            "saltroute_pool_grantees(wanted uuid)",
            "TABLE (tenant_id uuid)",
            """
            SELECT g.tenant_id FROM routing_poolgrant g JOIN routing_pool p ON p.id = g.pool_id
             WHERE p.id = wanted AND p.tenant_id = nullif(current_setting('saltroute.tenant', true), '')::uuid
            """,
            drop="saltroute_pool_grantees(uuid)",
        ),
        rls.definer_function(
            "saltroute_url_is_foreign(wanted text)",
            "boolean",
            """
            SELECT EXISTS (SELECT 1 FROM routing_replica r
                            WHERE r.url = wanted
                              AND r.tenant_id IS DISTINCT FROM nullif(current_setting('saltroute.tenant', true), '')::uuid)
            """,
            drop="saltroute_url_is_foreign(text)",
        ),
    ]
