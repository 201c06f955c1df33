"""People's accounts: made, and given passwords. Signing in is the console's (console.views.sign_in)."""

from __future__ import annotations

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction

from tenants.constraints import refuse_on
from tenants.core import names
from tenants.core.errors import Conflict, Invalid
from tenants.models import User

EMAIL_MAX = 254
PASSWORD_MAX = 1000  # characters; hashing a megabyte would be somebody's way to keep us busy


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


def create(*, email: str, password: str | None, name: str = "", platform_operator: bool = False) -> User:
    """Create an account. Without a password nobody can sign in to it until one is set.

    Raises:
        Invalid: e-mail, name or password is not acceptable.
        Conflict: the e-mail has an account. Shown to operators alone: invitations go through :func:`ensure`.
    """
    user = User(email=normal_email(email), name=names.label(name, field="name") if name else "", is_platform_operator=platform_operator)
    _set_password(user, password)
    with refuse_on(tenants_user_email_key=Conflict("This e-mail has an account.", field="email")):
        user.save()
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


def set_password(*, user: User, password: str) -> None:
    """Set a new password. Sessions that were opened with the old one end.

    Raises:
        Invalid: the password is not acceptable.
    """
    _set_password(user, password)
    user.save(update_fields=["password"])


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
