"""Guards the wrapped tenant keys."""

from django.db import migrations

from tenants import rls


class Migration(migrations.Migration):
    dependencies = [("namespaces", "0001_initial"), ("tenants", "0002_row_level_security")]

    operations = [rls.tenant_rows("namespaces_tenantkeyversion")]
