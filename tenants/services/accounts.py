"""People's accounts: made, and given passwords. Signing in is the console's (console.views.sign_in)."""

from __future__ import annotations

from dataclasses import replace

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction

from tenants import changes, queries, sessions
from tenants.actor import Actor, system
from tenants.constraints import refuse_on
from tenants.core import names
from tenants.core.errors import Conflict, Invalid
from tenants.models import PLATFORM_SLUG, Membership, User
from tenants.scoping import tenant_scope
from tenants.services import mail

EMAIL_MAX = 254
_ACCOUNTS = system("accounts")
PASSWORD_MAX = 1000  # characters; hashing a megabyte would be somebody's way to keep us busy
NOTICED = frozenset({"account.set_password", "account.second_factor_on", "account.second_factor_off", "account.second_factor_forgotten"})


def normal_email(email: object, *, field: str = "email") -> str:
    """An e-mail address in lower case; accounts are known by it.

    Raises:
        Invalid: not an address of at most 254 ASCII characters.
    """
    if not isinstance(email, str) or len(email) > EMAIL_MAX or not email.isascii():
        raise Invalid("This is not an e-mail address.", field=field)
    address = email.strip().lower()
    try:
        validate_email(address)
    except ValidationError:
        raise Invalid("This is not an e-mail address.", field=field) from None
    return address


@transaction.atomic
def create(*, email: str, password: str | None, name: str = "", platform_operator: bool = False, actor: Actor = _ACCOUNTS) -> User:
    """Create an account. Without a password nobody can sign in to it until one is set. A platform operator's is in the platform's audit log.

    Raises:
        Invalid: e-mail, name or password is not acceptable.
        Conflict: the e-mail has an account. Shown to operators alone: invitations go through :func:`ensure`.
    """
    user = User(email=normal_email(email), name=names.label(name, field="name") if name else "", is_platform_operator=platform_operator)
    _set_password(user, password)
    with refuse_on(tenants_user_email_key=Conflict("This e-mail has an account.", field="email")):
        user.save()
    record(user, actor, "account.create")
    return user


def ensure(*, email: str) -> User:
    """The account with this e-mail; made without a password when there is none, so that an invitation does not tell who has one.

    Raises:
        Invalid: not an e-mail address.
    """
    address = normal_email(email)
    with transaction.atomic():
        # Two invitations at once: the second insert waits for the first and does nothing.
        user = User(email=address)
        user.set_unusable_password()
        User.objects.bulk_create([user], ignore_conflicts=True)
        return User.objects.get(email=address)


@transaction.atomic
def set_password(*, user: User, password: str, actor: Actor = _ACCOUNTS) -> None:
    """Set a new password. Every session of the person ends. Every tenant that they are a member of has it in its audit log, and they get a mail.

    Raises:
        Invalid: the password is not acceptable.
    """
    first = not user.has_usable_password()
    _set_password(user, password)
    user.save(update_fields=["password"])
    record(user, actor, "account.set_password", told=not first)
    sessions.end_all(user=user)


@transaction.atomic
def change_password(*, user: User, current: str, password: str, actor: Actor) -> None:
    """Set a new password, proven by the current one.

    Raises:
        Invalid: the current password is wrong, or the new one is not acceptable.
    """
    if not user.check_password(current):
        raise Invalid("The current password is not right.", field="current")
    set_password(user=user, password=password, actor=actor)


@transaction.atomic
def rename(*, user: User, name: str, actor: Actor) -> None:
    """Change the name by which others see a person; an empty one takes it away. Safe to repeat.

    Raises:
        Invalid: not a name.
    """
    checked, before = names.label(name, field="name") if name else "", user.name
    if checked != before:
        user.name = checked
        user.save(update_fields=["name"])
        record(user, actor, "account.rename", before={"name": before}, after={"name": checked})


def record(
    user: User, actor: Actor, action: str, *, before: dict[str, str] | None = None, after: dict[str, str] | None = None, told: bool = True
) -> None:
    """Accounts belong to no tenant: a change is written where the account opens something. An operator's opens everything: the platform's log.

    Changes of how a person signs in are mailed to them too, unless ``told`` is False.
    """
    if user.is_platform_operator:
        platform = queries.tenant_id_of(PLATFORM_SLUG)
        where = [platform] if platform is not None else []
    else:
        where = [seat.tenant_id for seat in queries.tenants_of_user(user)]
    for tenant_id in where:
        with tenant_scope(tenant_id):
            # Anybody's address can be added to a tenant: where its person has not been, nobody learns from where they come.
            known = user.is_platform_operator or Membership.objects.filter(tenant_id=tenant_id, user=user, entered_at__isnull=False).exists()
            changes.record(
                tenant_id=tenant_id,
                actor=actor if known else replace(actor, peer_address=""),
                action=action,
                object_id=user.id,
                object_label=user.email,
                before=before,
                after=after,
                publishes=False,
            )
    if told and action in NOTICED:
        mail.queue(kind=mail.CHANGED, address=user.email)


def _set_password(user: User, password: str | None) -> None:
    if password is None:
        user.set_unusable_password()
        return
    if len(password) > PASSWORD_MAX:
        raise Invalid(f"A password has at most {PASSWORD_MAX} characters.", field="password")
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise Invalid(" ".join(error.messages), field="password") from None
    user.set_password(password)
