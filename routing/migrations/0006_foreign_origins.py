"""An engine is known by host and port: another scheme or path is no other engine. The function takes ``host:port`` from now on."""

from django.db import migrations

from tenants import rls

_SIGNATURE = "saltroute_url_is_foreign(wanted text)"
_DROP = "saltroute_url_is_foreign(text)"
_OTHERS = "r.tenant_id IS DISTINCT FROM nullif(current_setting('saltroute.tenant', true), '')::uuid"
_ORIGIN = """
    CASE WHEN r.url ~ '^https?://[^/]*:[0-9]+(/|$)' THEN substring(r.url from '^https?://([^/]+)')
         ELSE substring(r.url from '^https?://([^/]+)') || CASE WHEN r.url LIKE 'https:%' THEN ':443' ELSE ':80' END END
"""
_before = rls.definer_function(_SIGNATURE, "boolean", f"SELECT EXISTS (SELECT 1 FROM routing_replica r WHERE r.url = wanted AND {_OTHERS})", drop=_DROP)


class Migration(migrations.Migration):
    dependencies = [("routing", "0005_isolation_row_level_security")]

    operations = [
        migrations.RunSQL(sql=f"DROP FUNCTION {_DROP}", reverse_sql=_before.sql),
        rls.definer_function(
            _SIGNATURE, "boolean", f"SELECT EXISTS (SELECT 1 FROM routing_replica r WHERE {_ORIGIN} = wanted AND {_OTHERS})", drop=_DROP
        ),
    ]
