"""Counters of sign-in attempts, shared by all workers; the table holds no tenant's rows."""

from django.db import migrations, models

from tenants import rls


class Migration(migrations.Migration):
    initial = True
    dependencies = [("tenants", "0002_row_level_security")]

    operations = [
        migrations.CreateModel(
            name="SignInBucket",
            fields=[
                ("key", models.BinaryField(max_length=32, primary_key=True, serialize=False)),
                ("attempts", models.IntegerField()),
                ("window_started_at", models.DateTimeField(db_index=True)),
            ],
        ),
        rls.shared_table("console_signinbucket"),
    ]
