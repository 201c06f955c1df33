"""A quota on its way: set in the control plane, published, in force in a real router before a simulated engine, and its use read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from routing.models import Pool, Quota
from routing.services import quotas
from tenants.scoping import tenant_scope
from tests.routing.services.audits.conftest import world
from tests.routing.services.audits.rig import until
from tests.routing.services.rows import ACTOR

if TYPE_CHECKING:
    from tests.routing.services.audits.world import World

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(120)]
__all__ = ["world"]  # the fixture


def standing(world: World) -> dict[str, int | None]:
    """What is used of the tenant's quotas, by what they are of."""
    with tenant_scope(world.tenant.id):
        rows = list(Quota.objects.filter(tenant_id=world.tenant.id))
        return {held.row.of: held.standings[0].used for held in quotas.standings(world.tenant.id, rows, timezone.now())}


def test_a_quota_is_in_force_and_what_is_used_of_it_is_read_back(world: World) -> None:
    """Of the key: two requests pass, the third does not. The control is another key, which the quota is not of."""
    key, other = world.key("app"), world.key("other")
    with tenant_scope(world.tenant.id):
        Pool.objects.filter(tenant_id=world.tenant.id).update(isolation="declared")
        quotas.put(tenant_id=world.tenant.id, actor=ACTOR, of="key", name="app", requests_per_minute=2)
        quotas.put(tenant_id=world.tenant.id, actor=ACTOR, of="tenant", tokens_per_month=1_000_000)
    world.publish()
    answers = [world.rig.chat(key, f"question {number}") for number in range(3)]
    assert [answer[0] for answer in answers] == [200, 200, 429]
    assert world.rig.chat(other, "a question")[0] == 200
    until(lambda: standing(world)["key"] == 2)
    until(lambda: (standing(world)["tenant"] or 0) > 0)
