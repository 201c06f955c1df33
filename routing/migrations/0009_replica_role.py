"""The role of a replica, and the function that shows granted replicas with it."""

from importlib import import_module

from django.db import migrations, models

from tenants import rls

_earlier = import_module("routing.migrations.0005_isolation_row_level_security")
_SIGNATURE, _DROP = _earlier._SIGNATURE, _earlier._DROP
_before = _earlier.Migration.operations[2]


class Migration(migrations.Migration):
    dependencies = [("routing", "0008_reconciliation")]

    operations = [
        migrations.AddField(
            model_name="replica",
            name="role",
            field=models.CharField(choices=[("both", "both"), ("prefill", "prefill"), ("decode", "decode")], default="both", max_length=16),
        ),
        migrations.RunSQL(sql=f"DROP FUNCTION {_DROP}", reverse_sql=_before.sql),
        rls.definer_function(
            _SIGNATURE,
            f"TABLE ({_earlier._COLUMNS}, isolation text, role text)",
            f"SELECT {_earlier._SELECT}, r.isolation_state::text, r.role::text {_earlier._FROM}",
            drop=_DROP,
        ),
    ]
