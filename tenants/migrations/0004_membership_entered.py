"""Since when a member has been in the tenant themselves."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0003_people")]

    operations = [migrations.AddField(model_name="membership", name="entered_at", field=models.DateTimeField(blank=True, null=True))]
