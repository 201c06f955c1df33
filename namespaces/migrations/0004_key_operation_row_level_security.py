"""Guards the operations on keys."""

from django.db import migrations

from tenants import rls


class Migration(migrations.Migration):
    dependencies = [("namespaces", "0003_key_operation"), ("tenants", "0002_row_level_security")]

    operations = [rls.tenant_rows("namespaces_keyoperation", app="SELECT, INSERT, UPDATE")]
