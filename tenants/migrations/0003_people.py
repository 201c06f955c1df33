"""People: second factors, sessions of our own, invitations, and mail that waits. What belongs to a person holds no tenant's rows."""

import django.db.models.deletion
import django.utils.timezone
import uuid
from django.conf import settings
from django.db import migrations, models

from tenants import rls

_SEATS = "saltroute_memberships(wanted uuid)"
_SEAT_COLUMNS = "tenant_id uuid, slug text, name text, role text, suspended boolean"


def _seats(more: str) -> str:
    """The seats of a person; ``more`` is another column of the tenant."""
    return f"""
            SELECT t.id, t.slug::text, t.name::text, m.role::text, t.suspended{more}
              FROM tenants_membership m JOIN tenants_tenant t ON t.id = m.tenant_id
             WHERE m.user_id = wanted AND t.deleted_at IS NULL
            UNION
            SELECT t.id, t.slug::text, t.name::text, 'owner', t.suspended{more}
              FROM tenants_tenant t
             WHERE t.deleted_at IS NULL
               AND EXISTS (SELECT 1 FROM tenants_user u WHERE u.id = wanted AND u.is_platform_operator AND u.is_active)
            """


_seats_before = rls.definer_function(_SEATS, f"TABLE ({_SEAT_COLUMNS})", _seats(""), drop="saltroute_memberships(uuid)")


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0002_row_level_security'),
    ]

    operations = [
        migrations.CreateModel(
            name='OutgoingMail',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('kind', models.CharField(max_length=24)),
                ('address', models.EmailField(max_length=254)),
                ('invitation_digest', models.BinaryField(blank=True, max_length=32, null=True)),
                ('attempts', models.IntegerField(default=0)),
                ('next_at', models.DateTimeField(db_index=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.CreateModel(
            name='SecondFactor',
            fields=[
                ('user', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='+', serialize=False, to=settings.AUTH_USER_MODEL)),
                ('secret', models.BinaryField(max_length=200)),
                ('last_step', models.BigIntegerField(blank=True, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.AddField(
            model_name='tenant',
            name='require_second_factor',
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name='user',
            name='second_factor_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.CreateModel(
            name='PersonSession',
            fields=[
                ('session_key', models.CharField(max_length=64, primary_key=True, serialize=False)),
                ('session_data', models.TextField()),
                ('expire_date', models.DateTimeField(db_index=True)),
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('last_seen_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('peer_address', models.CharField(blank=True, default='', max_length=64)),
                ('browser', models.CharField(blank=True, default='', max_length=200)),
                ('user', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='Invitation',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('email', models.EmailField(max_length=254)),
                ('role', models.CharField(choices=[('viewer', 'viewer'), ('operator', 'operator'), ('admin', 'admin'), ('owner', 'owner')], max_length=16)),
                ('nonce', models.BinaryField(max_length=32)),
                ('digest', models.BinaryField(max_length=32)),
                ('invited_by', models.CharField(max_length=254)),
                ('mail', models.CharField(default='queued', max_length=8)),
                ('expires_at', models.DateTimeField()),
                ('accepted_at', models.DateTimeField(blank=True, null=True)),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant')),
            ],
            options={
                'abstract': False,
                'constraints': [models.UniqueConstraint(fields=('tenant', 'id'), name='tenants_invitation_tenant_id'), models.UniqueConstraint(fields=('digest',), name='invitation_digest_unique'), models.UniqueConstraint(condition=models.Q(('accepted_at', None), ('revoked_at', None)), fields=('tenant', 'email'), name='invitation_open_once_per_address')],
            },
        ),
        migrations.CreateModel(
            name='RecoveryCode',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('digest', models.BinaryField(max_length=32)),
                ('used_at', models.DateTimeField(blank=True, null=True)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('user', 'digest'), name='recovery_code_once')],
            },
        ),
        rls.shared_table("tenants_secondfactor"),
        rls.shared_table("tenants_recoverycode"),
        rls.shared_table("tenants_personsession"),
        rls.shared_table("tenants_outgoingmail"),
        rls.tenant_rows("tenants_invitation", definer=True),
        migrations.RunSQL(sql="DROP FUNCTION saltroute_memberships(uuid)", reverse_sql=_seats_before.sql),
        rls.definer_function(
            _SEATS,
            f"TABLE ({_SEAT_COLUMNS}, require_second_factor boolean)",
            _seats(", t.require_second_factor"),
            drop="saltroute_memberships(uuid)",
        ),
        rls.definer_function(
            "saltroute_invitation(wanted bytea)",
            "TABLE (tenant_id uuid, invitation_id uuid)",
            "SELECT i.tenant_id, i.id FROM tenants_invitation i JOIN tenants_tenant t ON t.id = i.tenant_id"
            " WHERE i.digest = wanted AND t.deleted_at IS NULL",
            drop="saltroute_invitation(bytea)",
        ),
    ]
