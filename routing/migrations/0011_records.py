"""Decisions in partitions of a day, rollups and usage, how long records are kept, and the two doors to that.

Rows that exist move into partitions of their days. Rollups and usage begin with the first record that ingest stores afterwards.

The doors are SECURITY DEFINER functions of the owner, who alone may make and drop tables. Neither takes a table's name. The owner obeys the
policies too: ``saltroute_expire_decisions`` deletes rows of the tenant that the session is scoped to, and no other.
"""

import uuid

import django.db.models.deletion
from django.db import migrations, models

from tenants import rls

# ruff: noqa: S608 - every piece of these statements is a constant of this file or of tenants.rls
_COLUMNS = """
    id uuid NOT NULL, created_at timestamptz NOT NULL, started_at timestamptz NOT NULL, endpoint_id uuid, key_id uuid, scope_id uuid,
    replica_id varchar(64) NOT NULL, outcome varchar(20) NOT NULL, status integer NOT NULL, prompt_tokens integer, cached_tokens integer,
    completion_tokens integer, matched_tokens integer NOT NULL, expected_ttft_s double precision, ttft_s double precision, e2e_s double precision,
    record jsonb NOT NULL, tenant_id uuid NOT NULL
"""
_NAMES = (
    "id, created_at, started_at, endpoint_id, key_id, scope_id, replica_id, outcome, status, prompt_tokens, cached_tokens, completion_tokens, "
    "matched_tokens, expected_ttft_s, ttft_s, e2e_s, record, tenant_id"
)
_FOREIGN = "FOREIGN KEY (tenant_id) REFERENCES tenants_tenant (id) DEFERRABLE INITIALLY DEFERRED"

# Each partition is guarded like the table itself, so that reading it by its own name shows no more. Rights are on the table alone.
_GUARD = f"""
    EXECUTE format('ALTER TABLE public.%I ENABLE ROW LEVEL SECURITY', part);
    EXECUTE format('ALTER TABLE public.%I FORCE ROW LEVEL SECURITY', part);
    EXECUTE format('CREATE POLICY tenant_rows ON public.%I TO PUBLIC USING (tenant_id = {rls.CURRENT_TENANT.replace("'", "''")})'
                   ' WITH CHECK (tenant_id = {rls.CURRENT_TENANT.replace("'", "''")})', part);
"""
_MAKE = f"""
    part := 'routing_decisionrow_p' || to_char(day, 'YYYYMMDD');
    IF to_regclass('public.' || part) IS NULL THEN
        BEGIN
            EXECUTE format('CREATE TABLE public.%I PARTITION OF public.routing_decisionrow FOR VALUES FROM (%L) TO (%L)', part,
                           to_char(day, 'YYYY-MM-DD') || ' 00:00:00+00', to_char(day + 1, 'YYYY-MM-DD') || ' 00:00:00+00');
            {_GUARD}
            made := made + 1;
        EXCEPTION WHEN check_violation THEN
            blocked := blocked + 1;  -- rows of that day lie in the partition of all other days; they stay there until they expire
        END;
    END IF;
"""
KEEP = f"""
CREATE FUNCTION saltroute_keep_partitions(ahead_days integer, keep_days integer)
RETURNS TABLE (created integer, dropped integer, blocked_days integer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public SET lock_timeout = '3s' SET timezone = 'UTC' AS $body$
DECLARE
    day date;
    part text;
    made integer := 0;
    gone integer := 0;
    blocked integer := 0;
    today date := (now() AT TIME ZONE 'UTC')::date;
BEGIN
    IF ahead_days NOT BETWEEN 1 AND 31 OR keep_days NOT BETWEEN 1 AND 3650 THEN
        RAISE EXCEPTION 'ahead_days must be 1 to 31 and keep_days 1 to 3650' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR day IN SELECT today + n FROM generate_series(-1, ahead_days) AS n LOOP
        {_MAKE}
    END LOOP;
    FOR part IN SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                 WHERE i.inhparent = 'public.routing_decisionrow'::regclass AND c.relname ~ '^routing_decisionrow_p[0-9]{{8}}$'
                   AND to_date(right(c.relname, 8), 'YYYYMMDD') < today - keep_days LOOP
        EXECUTE format('DROP TABLE public.%I', part);
        gone := gone + 1;
    END LOOP;
    RETURN QUERY SELECT made, gone, blocked;
END
$body$
"""
EXPIRE = f"""
CREATE FUNCTION saltroute_expire_decisions(platform_days integer, at_most integer)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public SET lock_timeout = '3s' AS $body$
DECLARE
    owner uuid := {rls.CURRENT_TENANT};
    days integer;
    gone bigint;
BEGIN
    IF platform_days NOT BETWEEN 1 AND 3650 OR at_most NOT BETWEEN 1 AND 100000 THEN
        RAISE EXCEPTION 'platform_days must be 1 to 3650, at_most 1 to 100000' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT least(platform_days, greatest(1, coalesce(min(s.keep_days), platform_days))) INTO days
      FROM routing_recordsettings s WHERE s.tenant_id = owner;
    DELETE FROM routing_decisionrow d USING (
        SELECT r.id, r.started_at FROM routing_decisionrow r
         WHERE r.tenant_id = owner AND r.started_at < now() - make_interval(days => days) ORDER BY r.started_at LIMIT at_most
    ) old WHERE d.id = old.id AND d.started_at = old.started_at AND d.tenant_id = owner;
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$body$
"""


def _door(signature: str) -> list[str]:
    return [f"REVOKE ALL ON FUNCTION {signature} FROM PUBLIC", f"GRANT EXECUTE ON FUNCTION {signature} TO {rls.APP}"]


_PARTITION = [
    # the owner obeys the policies as everybody does; for the move they are lifted, and the table is gone at the end of it
    "ALTER TABLE routing_decisionrow NO FORCE ROW LEVEL SECURITY",
    "ALTER TABLE routing_decisionrow DISABLE ROW LEVEL SECURITY",
    "ALTER TABLE routing_decisionrow RENAME TO routing_decisionrow_before",
    "DROP INDEX decision_by_time",
    "DROP INDEX decision_by_endpoint",
    f"CREATE TABLE routing_decisionrow ({_COLUMNS}, CONSTRAINT routing_decisionrow_key PRIMARY KEY (id, started_at), "
    f"CONSTRAINT routing_decisionrow_tenant FOREIGN KEY {_FOREIGN.removeprefix('FOREIGN KEY ')}) PARTITION BY RANGE (started_at)",
    "CREATE INDEX decision_by_time ON routing_decisionrow (tenant_id, started_at DESC)",
    "CREATE INDEX decision_by_endpoint ON routing_decisionrow (tenant_id, endpoint_id, started_at DESC)",
    f"""
DO $body$
DECLARE
    day date;
    part text := 'routing_decisionrow_other';
    made integer := 0;
    blocked integer := 0;
BEGIN
    PERFORM set_config('timezone', 'UTC', true);
    CREATE TABLE routing_decisionrow_other PARTITION OF routing_decisionrow DEFAULT;
    {_GUARD}
    FOR day IN SELECT (now() AT TIME ZONE 'UTC')::date + n FROM generate_series(-1, 7) AS n
               UNION SELECT DISTINCT (started_at AT TIME ZONE 'UTC')::date FROM routing_decisionrow_before
                      WHERE started_at > now() - interval '366 days' AND started_at < now() + interval '8 days' LOOP
        {_MAKE}
    END LOOP;
END
$body$
""",
    f"INSERT INTO routing_decisionrow ({_NAMES}) SELECT {_NAMES} FROM routing_decisionrow_before",
    "SET CONSTRAINTS ALL IMMEDIATE",
    "DROP TABLE routing_decisionrow_before",
]


class Migration(migrations.Migration):
    dependencies = [("routing", "0010_policy_trials"), ("tenants", "0002_row_level_security")]

    operations = [
        migrations.AddField(model_name="endpoint", name="explain_until", field=models.DateTimeField(blank=True, null=True)),
        migrations.CreateModel(
            name="RecordAccount",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField()),
                ("router_id", models.CharField(max_length=200)),
                ("boot_ms", models.BigIntegerField()),
                ("highest", models.BigIntegerField()),
                ("stored", models.BigIntegerField()),
                ("refused", models.BigIntegerField()),
            ],
            options={"indexes": [models.Index(fields=["router_id", "boot_ms"], name="record_account_by_router")]},
        ),
        migrations.CreateModel(
            name="RecordSettings",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("keep_days", models.IntegerField()),
                ("tenant", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.tenant")),
            ],
            options={"abstract": False, "constraints": [models.UniqueConstraint(fields=("tenant",), name="record_settings_once")]},
        ),
        migrations.CreateModel(
            name="RollupRow",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("start_at", models.DateTimeField()),
                ("width_s", models.IntegerField()),
                ("endpoint_id", models.UUIDField(blank=True, null=True)),
                ("scope_id", models.UUIDField(blank=True, null=True)),
                ("replica_id", models.CharField(blank=True, default="", max_length=64)),
                ("outcome", models.CharField(max_length=20)),
                ("requests", models.BigIntegerField()),
                ("prompt_tokens", models.BigIntegerField()),
                ("cached_tokens", models.BigIntegerField()),
                ("completion_tokens", models.BigIntegerField()),
                ("reported_prompt_tokens", models.BigIntegerField()),
                ("matched_tokens", models.BigIntegerField()),
                ("expected_tokens", models.BigIntegerField()),
                ("slo_missed", models.BigIntegerField()),
                ("saved_us", models.BigIntegerField()),
                ("codes", models.JSONField(default=dict)),
                ("histograms", models.BinaryField()),
                ("tenant", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.tenant")),
            ],
            options={"abstract": False, "indexes": [models.Index(fields=["tenant", "start_at"], name="rollup_by_time")]},
        ),
        migrations.CreateModel(
            name="UsageRow",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("day", models.DateField()),
                ("key_id", models.UUIDField(blank=True, null=True)),
                ("scope_id", models.UUIDField(blank=True, null=True)),
                ("endpoint_id", models.UUIDField(blank=True, null=True)),
                ("requests", models.BigIntegerField()),
                ("input_tokens", models.BigIntegerField()),
                ("cached_tokens", models.BigIntegerField()),
                ("output_tokens", models.BigIntegerField()),
                ("saved_us", models.BigIntegerField()),
                ("tenant", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.tenant")),
            ],
            options={"abstract": False, "indexes": [models.Index(fields=["tenant", "day"], name="usage_by_day")]},
        ),
        rls.shared_table("routing_recordaccount", app="SELECT, INSERT, DELETE"),
        migrations.RunSQL(f"GRANT INSERT ON routing_recordaccount TO {rls.INGEST}", migrations.RunSQL.noop),
        rls.tenant_rows("routing_recordsettings"),
        rls.tenant_rows("routing_rolluprow", app="SELECT, INSERT, DELETE", ingest=True),
        rls.tenant_rows("routing_usagerow", app="SELECT, INSERT, DELETE", ingest=True),
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunSQL(_PARTITION, migrations.RunSQL.noop)],
            state_operations=[migrations.RemoveConstraint(model_name="decisionrow", name="routing_decisionrow_tenant_id")],
        ),
        rls.tenant_rows("routing_decisionrow", app="SELECT", ingest=True),
        migrations.RunSQL([KEEP, *_door("saltroute_keep_partitions(integer, integer)")], "DROP FUNCTION saltroute_keep_partitions(integer, integer)"),
        migrations.RunSQL(
            [EXPIRE, *_door("saltroute_expire_decisions(integer, integer)")], "DROP FUNCTION saltroute_expire_decisions(integer, integer)"
        ),
    ]
