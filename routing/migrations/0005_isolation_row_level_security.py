"""Guards the audit runs, and lets a granted pool's replicas show their isolation state to those who use them."""

from django.db import migrations

from tenants import rls

_SIGNATURE = "saltroute_granted_replicas(grantee uuid)"
_DROP = "saltroute_granted_replicas(uuid)"
_COLUMNS = "pool_id uuid, replica_id uuid, name text, url text, engine text, state text, credential bytea, kv_events jsonb, dedicated_namespace text"
_SELECT = "r.pool_id, r.id, r.name::text, r.url::text, r.engine::text, r.state::text, r.credential, r.kv_events, r.dedicated_namespace::text"
_FROM = """
              FROM routing_poolgrant g JOIN routing_replica r ON r.pool_id = g.pool_id
             WHERE g.tenant_id = grantee
               AND grantee = nullif(current_setting('saltroute.tenant', true), '')::uuid
             ORDER BY r.pool_id, r.name, r.id
            """
_before = rls.definer_function(_SIGNATURE, f"TABLE ({_COLUMNS})", f"SELECT {_SELECT} {_FROM}", drop=_DROP)


class Migration(migrations.Migration):
    dependencies = [("routing", "0004_isolation_audits")]

    operations = [
        rls.tenant_rows("routing_auditrun", app="SELECT, INSERT, UPDATE"),
        migrations.RunSQL(sql=f"DROP FUNCTION {_DROP}", reverse_sql=_before.sql),
        rls.definer_function(
            _SIGNATURE,
            f"TABLE ({_COLUMNS}, isolation text)",
            f"SELECT {_SELECT}, r.isolation_state::text {_FROM}",
            drop=_DROP,
        ),
    ]
