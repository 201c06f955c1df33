"""What rollups add up besides: causes, the ceiling of reuse, coarser sums for the overview; and measures of replicas, guarded from the start.

Coarser rows and causes begin with the first record that ingest stores afterwards. A state of a replica is a row of the tenant that owns its pool: of
a platform's pool it is the platform's.
"""

import uuid

import django.db.models.deletion
from django.db import migrations, models

from tenants import rls


class Migration(migrations.Migration):
    dependencies = [("routing", "0013_replica_max_concurrency"), ("tenants", "0002_row_level_security")]

    operations = [
        migrations.AddField(model_name="rolluprow", name="grain", field=models.SmallIntegerField(default=0)),
        migrations.AddField(model_name="rolluprow", name="ceiling_tokens", field=models.BigIntegerField(default=0)),
        migrations.AddField(model_name="rolluprow", name="causes", field=models.JSONField(default=dict)),
        migrations.RunSQL(  # the defaults stay in the database, so that an ingest process of before the upgrade can go on
            [
                "ALTER TABLE routing_rolluprow ALTER COLUMN grain SET DEFAULT 0",
                "ALTER TABLE routing_rolluprow ALTER COLUMN ceiling_tokens SET DEFAULT 0",
                "ALTER TABLE routing_rolluprow ALTER COLUMN causes SET DEFAULT '{}'::jsonb",
            ],
            migrations.RunSQL.noop,
        ),
        migrations.RemoveIndex(model_name="rolluprow", name="rollup_by_time"),
        migrations.AddIndex(model_name="rolluprow", index=models.Index(fields=["tenant", "grain", "start_at"], name="rollup_by_time")),
        migrations.AddIndex(
            model_name="rolluprow",
            index=models.Index(fields=["tenant", "endpoint_id", "grain", "start_at"], name="rollup_by_endpoint"),
        ),
        migrations.CreateModel(
            name="ReplicaStateRow",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("start_at", models.DateTimeField()),
                ("width_s", models.IntegerField()),
                ("replica_id", models.UUIDField()),
                ("router_id", models.CharField(max_length=200)),
                ("observed_us", models.BigIntegerField()),
                ("busy_us", models.BigIntegerField()),
                ("request_us", models.BigIntegerField()),
                ("event_us", models.BigIntegerField()),
                ("evicted_blocks", models.BigIntegerField()),
                ("kv_samples", models.BigIntegerField()),
                ("kv_used_ppm", models.BigIntegerField()),
                ("block_samples", models.BigIntegerField()),
                ("resident_blocks", models.BigIntegerField()),
                ("distinct_blocks", models.BigIntegerField()),
                ("tenant", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.tenant")),
            ],
            options={
                "abstract": False,
                "indexes": [
                    models.Index(fields=["tenant", "start_at"], name="replica_state_by_time"),
                    models.Index(fields=["tenant", "replica_id", "start_at"], name="replica_state_by_replica"),
                ],
            },
        ),
        rls.tenant_rows("routing_replicastaterow", app="SELECT, INSERT, DELETE", ingest=True),
    ]
