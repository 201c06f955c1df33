"""Second factors as services: in force once proven, codes taken once also by two at a time, sealed at rest, taken off with proof alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from tenants.core import second_factor as rules
from tenants.core.errors import Conflict, Invalid, Unavailable
from tenants.core.roles import Role
from tenants.models import AuditEntry, RecoveryCode, SecondFactor, User
from tenants.scoping import tenant_scope
from tenants.services import accounts, members, provisioning, second_factors
from tests.tenants.people import ACTOR, code, with_second_factor

PASSWORD = "correct horse battery"
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def cheap_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def ada(db: None) -> User:
    return accounts.create(email="ada@oak.example", password=PASSWORD)


def test_nothing_is_in_force_before_a_code_proves_it(ada: User) -> None:
    """And a second look by whoever was shown it shows the same secret, so that a reload does not break the picture just read."""
    enrolment = second_factors.enrol(user=ada)
    assert second_factors.enrol(user=ada, mark=enrolment.mark) == enrolment
    assert enrolment.text not in repr(enrolment)
    with pytest.raises(Invalid):
        second_factors.confirm(user=ada, mark=enrolment.mark, code="000000", actor=ACTOR, now=timezone.now())
    assert not User.objects.exclude(second_factor_at=None).exists()
    assert not second_factors.check(user=ada, code=code(enrolment.text), now=timezone.now())
    codes = second_factors.confirm(user=ada, mark=enrolment.mark, code=code(enrolment.text), actor=ACTOR, now=timezone.now())
    assert User.objects.exclude(second_factor_at=None).get() == ada
    assert len(set(codes)) == rules.RECOVERY_CODES
    with pytest.raises(Conflict):
        second_factors.enrol(user=ada)


def test_a_secret_that_somebody_saw_before_is_never_put_in_force(ada: User) -> None:
    """Who had the password, or a session for a minute, could look at the page; what the owner then reads and confirms is another secret."""
    seen = second_factors.enrol(user=ada)
    owners = second_factors.enrol(user=ada)
    assert owners.text != seen.text
    assert second_factors.enrol(user=ada, mark=seen.mark).text not in (seen.text, owners.text)
    with pytest.raises(Conflict):
        second_factors.confirm(user=ada, mark=owners.mark, code=code(owners.text), actor=ACTOR, now=timezone.now())
    with pytest.raises(Conflict):
        second_factors.confirm(user=ada, mark="", code=code(owners.text), actor=ACTOR, now=timezone.now())
    assert not User.objects.exclude(second_factor_at=None).exists()


def test_the_secret_and_the_recovery_codes_are_not_stored_in_clear(ada: User) -> None:
    """Searched for in every column of both tables, as text and as bytes; the control is that the sealed secret opens with the key."""
    text, codes = with_second_factor(ada)
    with connection.cursor() as cursor:
        cursor.execute("SELECT s::text FROM tenants_secondfactor s UNION ALL SELECT r::text FROM tenants_recoverycode r")
        stored = " ".join(row[0] for row in cursor.fetchall()).lower()
    secret = rules.unseal(second_factors._keys(), bytes(SecondFactor.objects.get().secret), ada.id)
    assert rules.as_text(secret) == text
    for told in (text, secret.hex(), *codes, *(one.replace("-", "") for one in codes)):
        assert told.lower() not in stored


def test_a_code_is_taken_once(ada: User) -> None:
    text, _ = with_second_factor(ada)
    now = timezone.now()
    assert second_factors.check(user=ada, code=code(text, now=now), now=now)
    assert not second_factors.check(user=ada, code=code(text, now=now), now=now)
    assert second_factors.check(user=ada, code=code(text, steps=1, now=now), now=now)


def test_a_recovery_code_is_taken_once_and_new_ones_void_the_old(ada: User) -> None:
    text, codes = with_second_factor(ada)
    now = timezone.now()
    assert second_factors.check(user=ada, code=f" {codes[0].upper()} ", now=now)
    assert not second_factors.check(user=ada, code=codes[0], now=now)
    assert second_factors.codes_left(ada) == rules.RECOVERY_CODES - 1
    fresh = second_factors.renew_codes(user=ada, code=code(text, now=now), actor=ACTOR, now=now)
    assert not second_factors.check(user=ada, code=codes[1], now=now)
    assert second_factors.check(user=ada, code=fresh[0], now=now)


def test_another_persons_codes_open_nothing(ada: User) -> None:
    text, codes = with_second_factor(ada)
    bob = accounts.create(email="bob@oak.example", password=PASSWORD)
    with_second_factor(bob)
    now = timezone.now()
    assert not second_factors.check(user=bob, code=code(text, now=now), now=now)
    assert not second_factors.check(user=bob, code=codes[0], now=now)
    assert second_factors.check(user=ada, code=codes[0], now=now)


def test_taking_it_off_needs_password_and_code(ada: User) -> None:
    """A wrong password takes no code; afterwards nothing of it is left."""
    text, _ = with_second_factor(ada)
    now = timezone.now()
    good = code(text, now=now)
    for password, given in [("wrong", good), (PASSWORD, "000000"), (PASSWORD, "")]:
        with pytest.raises(Invalid):
            second_factors.take_off(user=ada, password=password, code=given, actor=ACTOR, now=now)
    second_factors.take_off(user=ada, password=PASSWORD, code=good, actor=ACTOR, now=now)
    ada.refresh_from_db()
    assert (ada.second_factor_at, SecondFactor.objects.count(), RecoveryCode.objects.count()) == (None, 0, 0)


def test_it_stays_where_it_is_required(ada: User, settings: Any) -> None:
    """By a tenant, or by the installation of its operators; in the log of the tenant that it was put in force."""
    tenant = provisioning.create(actor=ACTOR, slug="oak", name="Oak")
    with tenant_scope(tenant.id):
        members.add(tenant_id=tenant.id, actor=ACTOR, email=ada.email, role="owner", ceiling=Role.OWNER)
        provisioning.require_second_factor(tenant_id=tenant.id, actor=ACTOR, required=True)
    text, _ = with_second_factor(ada)
    with pytest.raises(Conflict):
        second_factors.take_off(user=ada, password=PASSWORD, code=code(text), actor=ACTOR, now=timezone.now())
    with tenant_scope(tenant.id):
        assert AuditEntry.objects.filter(action="account.second_factor_on", object_label=ada.email).count() == 1
        provisioning.require_second_factor(tenant_id=tenant.id, actor=ACTOR, required=False)
    second_factors.take_off(user=ada, password=PASSWORD, code=code(text), actor=ACTOR, now=timezone.now())
    operator = accounts.create(email="op@oak.example", password=PASSWORD, platform_operator=True)
    assert not second_factors.operator_needs_one(operator)
    settings.OPERATORS_SECOND_FACTOR = True
    assert second_factors.operator_needs_one(operator)
    assert not second_factors.operator_needs_one(ada)


def test_without_a_key_nobody_gets_in(ada: User, settings: Any) -> None:
    """No key, or another: refused as away, not let through. With a new key before the old one codes go on, and the secret moves to the new."""
    text, codes = with_second_factor(ada)
    now, (key,) = timezone.now(), settings.SIGN_IN_KEYS
    for keys in ((), (b"x" * 32,)):
        settings.SIGN_IN_KEYS = keys
        for given in (code(text, now=now), codes[0]):
            with pytest.raises(Unavailable):
                second_factors.check(user=ada, code=given, now=now)
    settings.SIGN_IN_KEYS = (b"x" * 32, key)
    assert second_factors.check(user=ada, code=code(text, now=now), now=now)
    settings.SIGN_IN_KEYS = (b"x" * 32,)
    assert second_factors.check(user=ada, code=code(text, steps=1, now=now), now=now)


def test_an_operator_may_forget_a_lost_one(ada: User) -> None:
    with_second_factor(ada)
    second_factors.forget(user=ada, actor=ACTOR)
    ada.refresh_from_db()
    assert (ada.second_factor_at, SecondFactor.objects.count(), RecoveryCode.objects.count()) == (None, 0, 0)


@pytest.mark.django_db(transaction=True)
def test_of_two_sign_ins_with_one_code_one_gets_in(settings: Any) -> None:
    """At the same time, each on a connection of its own."""
    ada = accounts.create(email="ada@oak.example", password=PASSWORD)
    text, recovery = with_second_factor(ada)
    now = timezone.now()

    def attempt(given: str) -> bool:
        try:
            return second_factors.check(user=ada, code=given, now=now)
        finally:
            connection.close()

    for given in (code(text, now=now), recovery[0]):
        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(attempt, [given] * 4)) == [False, False, False, True]
