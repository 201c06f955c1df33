"""Texts that keys had before stay known, as digests, so that they open nothing again. What was replaced before this migration left no digest."""

import uuid

import django.db.models.deletion
from django.db import migrations, models

from tenants import rls


class Migration(migrations.Migration):
    dependencies = [("tenants", "0005_sign_in_counts")]

    operations = [
        migrations.CreateModel(
            name="FormerText",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("digest", models.BinaryField(max_length=32)),
                (
                    "key",
                    models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="tenants.apikey"),
                ),
                ("tenant", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.tenant")),
            ],
            options={
                "abstract": False,
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "id"), name="tenants_formertext_tenant_id"),
                    models.UniqueConstraint(fields=("digest",), name="former_text_once"),
                ],
            },
        ),
        rls.tenant_rows("tenants_formertext", app="SELECT, INSERT", definer=True),
        rls.composite_foreign_key("tenants_formertext", "key_id", "tenants_apikey"),
        rls.definer_function(
            "saltroute_text_was_replaced(wanted bytea)",
            "boolean",
            "SELECT EXISTS (SELECT 1 FROM tenants_formertext f WHERE f.digest = wanted)",
            drop="saltroute_text_was_replaced(bytea)",
        ),
    ]
