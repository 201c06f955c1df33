"""Second factors of people: enrolled, checked at sign-in, replaced by recovery codes, taken off again.

Whoever calls :func:`check` has counted the attempt first (console.throttle): six digits are few.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from hmac import compare_digest

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils.crypto import salted_hmac

from tenants import queries, sessions
from tenants.actor import Actor
from tenants.core import second_factor as rules
from tenants.core.errors import Conflict, Invalid, Unavailable
from tenants.core.second_factor import SealError
from tenants.models import RecoveryCode, SecondFactor, User
from tenants.services import accounts

_WRONG = "This code is not right, or was used before."


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What an authenticator needs, shown while a person enrols."""

    text: str = field(repr=False)  # base32
    uri: str = field(repr=False)

    @property
    def mark(self) -> str:
        """By which whoever was shown the secret recognises it; it tells nothing of it."""
        return _mark(self.text)


def required_of(user: User, seats: Iterable[queries.Seat]) -> bool:
    """Whether anything that this person may open asks for a second factor."""
    return operator_needs_one(user) or any(seat.second_factor_required for seat in seats)


def missing(user: User, seat: queries.Seat) -> bool:
    """Whether this person may not enter this tenant before they have enrolled."""
    return user.second_factor_at is None and required_of(user, [seat])


def operator_needs_one(user: User) -> bool:
    """Whether the installation asks it of this person as a platform operator."""
    return user.is_platform_operator and bool(settings.OPERATORS_SECOND_FACTOR)


@transaction.atomic
def enrol(*, user: User, mark: str = "") -> Enrolment:
    """The secret of the enrolment that is under way and has this mark; else a new one. Nothing is in force before :func:`confirm`.

    Whoever knew the password alone, or held a session, may have looked at a secret before: it must not become the owner's.

    Raises:
        Conflict: they have a second factor.
        Unavailable: this process holds no sign-in key.
    """
    person = _locked(user)
    if person.second_factor_at is not None:
        raise Conflict("You have a second factor already: take it off first.")
    keys = _keys()
    row = SecondFactor.objects.filter(user=person).first()
    try:
        secret = rules.unseal(keys, bytes(row.secret), person.id) if row else None
    except SealError:
        secret = None
    if secret is None or not compare_digest(_mark(rules.as_text(secret)), mark):
        secret = secrets.token_bytes(rules.SECRET_BYTES)
        sealed = rules.seal(keys[0], secret, person.id, secrets.token_bytes(rules.NONCE_BYTES))
        SecondFactor.objects.update_or_create(user=person, defaults={"secret": sealed, "last_step": None})
    return Enrolment(text=rules.as_text(secret), uri=rules.uri(secret, person.email))


@transaction.atomic
def confirm(*, user: User, mark: str, code: str, actor: Actor, now: datetime) -> list[str]:
    """Put the enrolled secret in force, proven by a code of it. Returns recovery codes, which are shown this once. All sessions end.

    Raises:
        Conflict: it is in force, or nothing was enrolled, or another secret than the one with this mark.
        Invalid: a wrong code.
        Unavailable: this process holds no sign-in key.
    """
    person = _locked(user)
    row = SecondFactor.objects.filter(user=person).first()
    if person.second_factor_at is not None or row is None or not compare_digest(_mark(rules.as_text(_opened(row, person))), mark):
        raise Conflict("There is nothing to confirm, or setting up was begun anew elsewhere: begin again.")
    if not _take_code(person, code, now):
        raise Invalid(_WRONG, field="code")
    person.second_factor_at = user.second_factor_at = now
    person.save(update_fields=["second_factor_at"])
    accounts.record(person, actor, "account.second_factor_on")
    sessions.end_all(user=person)
    return _new_codes(person)


@transaction.atomic
def check(*, user: User, code: str, now: datetime) -> bool:
    """Whether this is a good code of a person whose second factor is in force: of the authenticator, or a recovery code. Takes it: once only.

    Raises:
        Unavailable: this process holds no key that opens the secret; nobody gets in for want of one.
    """
    person = _locked(user)
    if person.second_factor_at is None:
        return False
    return _take_code(person, code, now) or _take_recovery(person, code, now)


@transaction.atomic
def renew_codes(*, user: User, code: str, actor: Actor, now: datetime) -> list[str]:
    """New recovery codes, shown this once; the old ones are void.

    Raises:
        Invalid: a wrong code.
    """
    if not check(user=user, code=code, now=now):
        raise Invalid(_WRONG, field="code")
    accounts.record(user, actor, "account.recovery_codes")
    return _new_codes(user)


@transaction.atomic
def take_off(*, user: User, password: str, code: str, actor: Actor, now: datetime) -> None:
    """Sign in without a code from now on. Needs the password and a code. All sessions end.

    Raises:
        Conflict: a tenant of theirs, or the installation, requires it.
        Invalid: the password or the code is wrong. A wrong password takes no code.
    """
    if required_of(user, queries.tenants_of_user(user)):
        raise Conflict("A tenant of yours, or this installation, requires a second factor.")
    if not user.check_password(password):
        raise Invalid("The password is not right.", field="password")
    if not check(user=user, code=code, now=now):
        raise Invalid(_WRONG, field="code")
    _clear(user, actor, "account.second_factor_off")


@transaction.atomic
def forget(*, user: User, actor: Actor) -> None:
    """Take off the second factor of somebody who lost it, by an operator's hand. All sessions end; where one is required they enrol anew."""
    if user.second_factor_at is not None:
        _clear(user, actor, "account.second_factor_forgotten")


def codes_left(user: User) -> int:
    """How many recovery codes are unused."""
    return RecoveryCode.objects.filter(user=user, used_at=None).count()


def _clear(user: User, actor: Actor, action: str) -> None:
    person = _locked(user)
    SecondFactor.objects.filter(user=person).delete()
    RecoveryCode.objects.filter(user=person).delete()
    person.second_factor_at = user.second_factor_at = None
    person.save(update_fields=["second_factor_at"])
    accounts.record(person, actor, action)
    sessions.end_all(user=person)


def _take_code(user: User, typed: str, now: datetime) -> bool:
    """Take an authenticator's code. The step is raised in the same statement that compares it: of two sign-ins with one code one gets in."""
    keys = _keys()
    row = SecondFactor.objects.filter(user=user).first()
    if row is None:
        return False
    secret = _opened(row, user)
    step = rules.step_of(secret, rules.cleaned(typed), now_s=now.timestamp(), last_step=row.last_step)
    if step is None:
        return False
    fresh = Q(last_step=None) | Q(last_step__lt=step)
    columns: dict[str, object] = {"last_step": step}
    if not rules.under(keys[0], bytes(row.secret)):
        columns["secret"] = rules.seal(keys[0], secret, user.id, secrets.token_bytes(rules.NONCE_BYTES))
    return bool(SecondFactor.objects.filter(fresh, user=user).update(**columns))


def _opened(row: SecondFactor, user: User) -> bytes:
    try:
        return rules.unseal(_keys(), bytes(row.secret), user.id)
    except SealError:
        raise Unavailable("Your second factor cannot be checked here: ask a platform operator.") from None


def _mark(text: str) -> str:
    return salted_hmac("saltroute.enrolment", text, algorithm="sha256").hexdigest()


def _take_recovery(user: User, typed: str, now: datetime) -> bool:
    digest = rules.recovery_digest(user.id, typed)
    return digest is not None and bool(RecoveryCode.objects.filter(user=user, digest=digest, used_at=None).update(used_at=now))


def _new_codes(user: User) -> list[str]:
    codes = [rules.recovery_code(secrets.token_bytes(rules.RECOVERY_BYTES)) for _ in range(rules.RECOVERY_CODES)]
    RecoveryCode.objects.filter(user=user).delete()
    RecoveryCode.objects.bulk_create(RecoveryCode(user=user, digest=rules.recovery_digest(user.id, code)) for code in codes)
    return codes


def _keys() -> tuple[bytes, ...]:
    keys: tuple[bytes, ...] = settings.SIGN_IN_KEYS
    if not keys:
        raise Unavailable("Second factors are not set up here: this process holds no sign-in key (SALTROUTE_SIGN_IN_KEY_FILES).")
    return keys


def _locked(user: User) -> User:
    """The person's row, locked: changes of one person's sign-in follow one another."""
    return User.objects.select_for_update().get(id=user.id)
