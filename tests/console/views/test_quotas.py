"""Quotas in the console: how they stand, who may set and remove them, and what a mistake looks like."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from routing.core import quota
from routing.models import Quota
from tenants.models import ApiKey, AuditEntry
from tenants.scoping import tenant_scope
from tests.console.rows import Town

pytestmark = pytest.mark.django_db
PAGE = "/t/acorn/quotas"


def limits(town: Town) -> dict[tuple[str, str], dict[str, Any]]:
    with tenant_scope(town.acorn.tenant_id):
        rows = list(Quota.objects.filter(tenant_id=town.acorn.tenant_id))
    return {(row.of, row.name): {measure: getattr(row, measure) for measure in quota.MEASURES} for row in rows}


def test_used_and_left_are_shown_and_what_is_near_its_limit_is_warned_of(town: Town, valkey_url: str) -> None:
    """A bar with its number in words beside it; the control is the same page a moment before."""
    calm = town.viewer.get(PAGE).content.decode()
    assert "1,000,000" in calm
    assert "near its limit" not in calm
    now = time.time()
    key = quota.key_of(town.acorn.quota_id, "tokens_per_month", quota.month_of(now))
    with redis.Redis.from_url(valkey_url) as valkey:
        valkey.hset(key, "aaaa", f"850000:1000:{int(now)}")
    page = town.viewer.get(PAGE).content.decode()
    assert 'max="1000000" value="851000"' in page
    assert "85.1 %" in page
    assert "149,000" in page
    assert "near its limit" in page
    assert "1 quota is used to 80" in page
    assert "used up" not in page
    with redis.Redis.from_url(valkey_url) as valkey:
        valkey.hset(key, "aaaa", f"1000000:0:{int(now)}")
    gone = town.viewer.get(PAGE).content.decode()
    assert "used up" in gone
    assert "near its limit" not in gone  # it is no longer near


def test_a_quota_is_set_changed_and_removed(town: Town) -> None:
    """By the name of what it is of; each change is in the audit log with before and after."""
    answer = town.owner.post(
        PAGE, {"subject": "key:app", "requests_per_minute": "60", "tokens_per_minute": "", "tokens_per_month": "5000"}, follow=True
    )
    assert "The quota of key app is set" in answer.content.decode()
    assert limits(town)["key", "app"] == {"requests_per_minute": 60, "tokens_per_minute": None, "tokens_per_month": 5000}
    town.owner.post(PAGE, {"subject": "key:app", "tokens_per_month": "6000"})
    assert limits(town)["key", "app"] == {"requests_per_minute": None, "tokens_per_minute": None, "tokens_per_month": 6000}
    asked = town.owner.get(f"{PAGE}/{town.acorn.quota_id}/remove").content.decode()
    assert "Remove the quota of the tenant?" in asked
    town.owner.post(f"{PAGE}/{town.acorn.quota_id}/remove")
    assert set(limits(town)) == {("key", "app")}
    with tenant_scope(town.acorn.tenant_id):
        log = list(AuditEntry.objects.filter(action__startswith="quota.").order_by("created_at"))
    assert [(entry.action, entry.actor_label) for entry in log] == [
        ("quota.set", "owner@example.com"),
        ("quota.set", "owner@example.com"),
        ("quota.remove", "owner@example.com"),
    ]


def test_a_key_of_the_playground_is_no_choice(town: Town) -> None:
    """It would have ended before its quota counts anything; a key that lasts is one."""
    with tenant_scope(town.acorn.tenant_id):
        for name, minutes in (("playground, owner", 15), ("ci", 120)):
            ends = timezone.now() + timedelta(minutes=minutes)
            ApiKey.objects.create(
                tenant_id=town.acorn.tenant_id, kind="inference", name=name, shown="sk-sr-x", digest=name.encode().ljust(32), expires_at=ends
            )
    page = town.owner.get(PAGE).content.decode()
    assert 'value="key:ci"' in page
    assert "playground, owner" not in page


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"subject": "tenant:"}, "Set at least one of"),
        ({"subject": "key:nobody", "tokens_per_month": "5"}, "This tenant has no key of this name."),
        ({"subject": "planet:", "tokens_per_month": "5"}, "Use one of: tenant, platform, scope, key, endpoint."),
        ({"subject": "tenant:", "tokens_per_month": "0"}, "greater than or equal to 1"),
        ({"subject": "tenant:", "tokens_per_month": "many"}, "Enter a whole number"),
    ],
)
def test_a_mistake_is_told_where_it_is(town: Town, sent: dict[str, str], said: str) -> None:
    answer = town.owner.post(PAGE, sent)
    assert answer.status_code == 400
    assert said in answer.content.decode()
    assert set(limits(town)) == {("tenant", "")}


def test_a_viewer_sees_and_changes_nothing(town: Town) -> None:
    assert "Set a quota" not in town.viewer.get(PAGE).content.decode()
    assert town.viewer.post(PAGE, {"subject": "tenant:", "tokens_per_month": "5"}).status_code == 403
    assert town.viewer.post(f"{PAGE}/{town.acorn.quota_id}/remove").status_code == 403
    assert limits(town)["tenant", ""]["tokens_per_month"] == 1_000_000


def test_the_platforms_quota_is_the_operators(town: Town) -> None:
    """An owner sees it and can neither set nor remove it; an operator can."""
    sent = {"subject": "platform:", "tokens_per_month": "500"}
    assert town.owner.post(PAGE, sent).status_code == 403
    assert town.operator.post(PAGE, sent).status_code == 302
    page = town.owner.get(PAGE).content.decode()
    assert "the tenant, by the platform" in page
    with tenant_scope(town.acorn.tenant_id):
        row = Quota.objects.get(of="platform")
    assert town.owner.post(f"{PAGE}/{row.id}/remove").status_code == 403
    assert town.operator.post(f"{PAGE}/{row.id}/remove").status_code == 302


def test_an_empty_page_says_what_quotas_are_for(town: Town) -> None:
    town.owner.post(f"{PAGE}/{town.acorn.quota_id}/remove")
    assert "No quota yet" in town.viewer.get(PAGE).content.decode()


def test_the_page_takes_as_many_queries_for_many_quotas_as_for_one(town: Town) -> None:
    town.owner.get(PAGE)
    with CaptureQueriesContext(connection) as few:
        town.owner.get(PAGE)
    with tenant_scope(town.acorn.tenant_id):
        Quota.objects.bulk_create(
            Quota(tenant_id=town.acorn.tenant_id, of="key", name=f"key {number}", requests_per_minute=5) for number in range(50)
        )
    with CaptureQueriesContext(connection) as many:
        page = town.owner.get(PAGE).content.decode()
    assert len(many) == len(few)
    assert "nothing has this name" in page
