"""A keyed digest beside each sealed credential, so that declaring the same credential again changes nothing."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("routing", "0002_row_level_security")]

    operations = [
        migrations.AddField("replica", "credential_tag", models.BinaryField(max_length=16, null=True, blank=True)),
    ]
