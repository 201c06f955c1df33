"""A candidate policy on trial beside an endpoint's live one, and the version that a roll-back returns to."""

import django.db.models.deletion
from django.db import migrations, models

from tenants import rls


def _version() -> models.ForeignKey:
    return models.ForeignKey(
        blank=True,
        db_constraint=False,
        null=True,
        on_delete=django.db.models.deletion.PROTECT,
        related_name="+",
        to="routing.policyversion",
    )


class Migration(migrations.Migration):
    dependencies = [("routing", "0009_replica_role")]

    operations = [
        migrations.AddField(model_name="endpoint", name="candidate_policy", field=_version()),
        migrations.AddField(model_name="endpoint", name="canary_share", field=models.FloatField(default=0.0)),
        migrations.AddField(model_name="endpoint", name="trial_since", field=models.DateTimeField(blank=True, null=True)),
        migrations.AddField(model_name="endpoint", name="previous_policy", field=_version()),
        migrations.AddConstraint(
            model_name="endpoint",
            constraint=models.CheckConstraint(
                condition=models.Q(("canary_share__gte", 0.0), ("canary_share__lte", 1.0)), name="endpoint_canary_share_is_a_share"
            ),
        ),
        migrations.AddConstraint(
            model_name="endpoint",
            constraint=models.CheckConstraint(
                condition=models.Q(("candidate_policy", None), ("previous_policy", None), _connector="OR"), name="endpoint_one_way_back"
            ),
        ),
        rls.composite_foreign_key("routing_endpoint", "candidate_policy_id", "routing_policyversion"),
        rls.composite_foreign_key("routing_endpoint", "previous_policy_id", "routing_policyversion"),
    ]
