"""Guards every tenant table of this app from its first day, and names the few ways across tenants."""

from django.db import migrations

from tenants import rls


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0001_initial"),
        ("contenttypes", "0002_remove_content_type_name"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("sessions", "0001_initial"),
    ]

    operations = [
        rls.tenant_rows("tenants_tenant", column="id", app="SELECT, INSERT, UPDATE", definer=True),
        rls.tenant_rows("tenants_membership", definer=True),
        rls.tenant_rows("tenants_scope"),
        rls.tenant_rows("tenants_apikey", definer=True),
        rls.tenant_rows("tenants_auditentry", app="SELECT, INSERT"),
        rls.tenant_rows("tenants_idempotencyrecord"),
        rls.composite_foreign_key("tenants_apikey", "scope_id", "tenants_scope"),
        rls.shared_table("tenants_user", app="SELECT, INSERT, UPDATE", definer=True),
        rls.shared_table("django_session"),
        rls.shared_table("django_content_type", app="SELECT"),
        rls.shared_table("django_migrations", app="SELECT"),
        rls.definer_function(
            "saltroute_key_owner(wanted bytea)",
            "TABLE (tenant_id uuid, key_id uuid)",
            "SELECT k.tenant_id, k.id FROM tenants_apikey k WHERE k.digest = wanted",
            drop="saltroute_key_owner(bytea)",
        ),
        rls.definer_function(
            "saltroute_memberships(wanted uuid)",
            "TABLE (tenant_id uuid, slug text, name text, role text, suspended boolean)",
            """
            SELECT t.id, t.slug::text, t.name::text, m.role::text, t.suspended
              FROM tenants_membership m JOIN tenants_tenant t ON t.id = m.tenant_id
             WHERE m.user_id = wanted AND t.deleted_at IS NULL
            UNION
            SELECT t.id, t.slug::text, t.name::text, 'owner', t.suspended
              FROM tenants_tenant t
             WHERE t.deleted_at IS NULL
               AND EXISTS (SELECT 1 FROM tenants_user u WHERE u.id = wanted AND u.is_platform_operator AND u.is_active)
            """,
            drop="saltroute_memberships(uuid)",
        ),
        rls.definer_function(
            "saltroute_tenants()",
            "TABLE (tenant_id uuid, slug text, config_version bigint, deleted boolean)",
            "SELECT t.id, t.slug::text, t.config_version, t.deleted_at IS NOT NULL FROM tenants_tenant t",
            drop="saltroute_tenants()",
        ),
    ]
