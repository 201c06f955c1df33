"""The limit of requests in flight of a replica, and the function that shows granted replicas with it."""

from importlib import import_module

from django.db import migrations, models

from tenants import rls

_earlier = import_module("routing.migrations.0005_isolation_row_level_security")
_SIGNATURE, _DROP = _earlier._SIGNATURE, _earlier._DROP
_before = import_module("routing.migrations.0009_replica_role").Migration.operations[2]


class Migration(migrations.Migration):
    dependencies = [("routing", "0012_slo")]

    operations = [
        migrations.AddField(model_name="replica", name="max_concurrency", field=models.IntegerField(blank=True, null=True)),
        migrations.AddConstraint(
            model_name="replica",
            constraint=models.CheckConstraint(condition=models.Q(("max_concurrency__range", (1, 100_000))), name="replica_max_concurrency_in_range"),
        ),
        migrations.RunSQL(sql=f"DROP FUNCTION {_DROP}", reverse_sql=_before.sql),
        rls.definer_function(
            _SIGNATURE,
            f"TABLE ({_earlier._COLUMNS}, isolation text, role text, max_concurrency integer)",
            f"SELECT {_earlier._SELECT}, r.isolation_state::text, r.role::text, r.max_concurrency {_earlier._FROM}",
            drop=_DROP,
        ),
    ]
