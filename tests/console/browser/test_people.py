"""People in a real browser: a second factor from enrolment to signing in, an invitation taken, a password reset by its mailed link."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.console.browser.looks import Visit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page
    from pytest_django import Settings
    from pytest_django.live_server_helper import LiveServer

NEW = "another long pass phrase"


def _fill_sign_in(page: Page, email: str, password: str) -> None:
    page.get_by_label("E-mail").fill(email)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def _codes(text: str) -> tuple[str, str]:
    """The code of now and the one after it."""
    import time

    import pyotp

    totp = pyotp.TOTP(text.replace(" ", ""))
    return totp.now(), totp.at(int(time.time()) + 30)


def test_second_factor_invitation_and_reset(live_server: LiveServer, settings: Settings, signed_in: Callable[..., BrowserContext]) -> None:
    """One person's way: enrols, signs out, signs in with a code; invites a second, who joins by the mailed link, forgets the password and sets a new
    one by the next link. No page complains of the policy, and the phone's width holds each."""
    from tests.console import rows
    from tests.tenants.people import link, mailed

    settings.CONSOLE_URL = live_server.url
    made = rows.tenant("acorn")
    rows.member(made.tenant_id, rows.person("ada@example.com"), "owner")
    phone = {"viewport": {"width": 390, "height": 844}}
    visit = Visit.of(signed_in(None, **phone))
    page = visit.page

    def last_link(address: str) -> str:
        return link(mailed(address)[-1])

    def fits() -> None:
        assert visit.sideways() == [], page.url

    # Enrols: the picture loads under the policy, the text gives the codes.
    page.goto("/account")
    _fill_sign_in(page, "ada@example.com", rows.PASSWORD)
    page.get_by_role("heading", name="Your account").wait_for()
    fits()
    page.get_by_role("link", name="Set it up").click()
    picture = page.get_by_role("img", name="QR code of the secret below")
    assert picture.evaluate("image => image.complete && image.naturalWidth > 50")
    fits()
    text = page.get_by_role("textbox", name="The secret as text").input_value()
    page.get_by_label("2. The code that it shows").fill(_codes(text)[0])
    page.get_by_role("button", name="Turn it on").click()
    page.get_by_role("heading", name="Your recovery codes").wait_for()
    assert len(re.findall(r"[a-z2-7]{4}(?:-[a-z2-7]{4}){3}", page.locator("#codes").inner_text())) == 10
    page.get_by_role("link", name="I have them").click()

    # Signs out and in again: the password alone is not enough, the next code is.
    page.locator(".end summary").click()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    _fill_sign_in(page, "ada@example.com", rows.PASSWORD)
    page.get_by_role("heading", name="Your code").wait_for()
    page.locator("#code:focus").wait_for()  # the page puts it there itself, a moment after it is loaded
    page.keyboard.type(_codes(text)[1])
    page.keyboard.press("Enter")
    page.get_by_role("navigation", name="acorn").wait_for()

    # The switcher by keyboard: the arrows open it and go through it.
    page.get_by_label("Tenant acorn, change").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.getAttribute('aria-current')") == "true"
    page.keyboard.press("Escape")

    # Invites.
    page.get_by_role("link", name="Members").click()
    page.get_by_role("link", name="Invite a person").click()
    page.get_by_label("E-mail").fill("bob@example.com")
    page.get_by_label("Role").select_option("operator")
    page.get_by_role("button", name="Invite").click()
    page.get_by_text("An invitation goes to bob@example.com.").wait_for()
    fits()
    invited = last_link("bob@example.com")

    # The invited person, in a browser of their own, joins by the link.
    guest = Visit.of(signed_in(None, **phone))
    other = guest.page
    other.goto(invited)
    other.get_by_role("heading", name="Join Acorn").wait_for()
    assert urlsplit(other.url).query == ""
    other.get_by_label("Your name").fill("Bob")
    other.get_by_label("Choose a password").fill(rows.PASSWORD)
    other.get_by_label("The same again").fill(rows.PASSWORD)
    other.get_by_role("button", name="Join acorn").click()
    other.get_by_text("You are a member of acorn now, as operator.").wait_for()

    # Forgets the password, and sets another by the mailed link.
    other.locator(".end summary").click()
    other.get_by_role("button", name="Sign out").click()
    other.get_by_role("link", name="Forgotten your password?").click()
    other.get_by_label("E-mail").fill("bob@example.com")
    other.get_by_role("button", name="Send the link").click()
    other.get_by_text("a mail with a link is on its way").wait_for()
    other.goto(last_link("bob@example.com"))
    other.get_by_label("New password").fill(NEW)
    other.get_by_label("The same again").fill(NEW)
    other.get_by_role("button", name="Set the password").click()
    other.get_by_text("Your password is changed").wait_for()
    _fill_sign_in(other, "bob@example.com", NEW)
    other.get_by_role("navigation", name="acorn").wait_for()
    assert other.get_by_role("link", name="Members").count() == 0  # an operator's role does not show them
    assert visit.complaints() + guest.complaints() == []
