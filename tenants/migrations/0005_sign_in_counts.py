"""Signing in is counted, by person, kind and quarter of an hour. Rows hold no tenant's data."""

import uuid

from django.db import migrations, models

from tenants import rls


class Migration(migrations.Migration):
    dependencies = [("tenants", "0004_membership_entered")]

    operations = [
        migrations.CreateModel(
            name="SignInCount",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("subject", models.UUIDField()),
                ("kind", models.CharField(max_length=24)),
                ("window_started_at", models.DateTimeField(db_index=True)),
                ("attempts", models.BigIntegerField()),
                ("peer_address", models.CharField(blank=True, default="", max_length=64)),
                ("first_at", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
            ],
            options={"constraints": [models.UniqueConstraint(fields=("subject", "kind", "window_started_at"), name="sign_in_count_once")]},
        ),
        rls.shared_table("tenants_signincount"),
    ]
