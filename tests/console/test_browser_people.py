"""People in a real browser: a second factor from enrolment to signing in, an invitation taken, a password reset by its mailed link."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

# the fixtures of the other browser test, and its way to Chromium
from tests.console.test_browser import _complaints, browser, pytestmark  # noqa: F401

if TYPE_CHECKING:
    from playwright.sync_api import Page
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


@pytest.mark.usefixtures("valkey_url")
def test_second_factor_invitation_and_reset(live_server: LiveServer, request: pytest.FixtureRequest, settings: object) -> None:
    """One person's way: enrols, signs out, signs in with a code; invites a second, who joins by the mailed link, forgets the password and sets a new
    one by the next link. No page complains of the policy, and the phone's width holds each."""
    from concurrent.futures import ThreadPoolExecutor

    from django.db import connection
    from pytest_django import Settings

    from tests.console import rows
    from tests.tenants.people import link, mailed

    assert isinstance(settings, Settings)
    settings.CONSOLE_URL = live_server.url
    made = rows.tenant("acorn")
    rows.member(made.tenant_id, rows.person("ada@example.com"), "owner")

    def last_link(address: str) -> str:
        """Sent by a worker's own thread: Django refuses its ORM in the one where the browser's event loop lives."""

        def work() -> str:
            try:
                return link(mailed(address)[-1])
            finally:
                connection.close()

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work).result()

    chromium = request.getfixturevalue("browser")
    page = chromium.new_page(viewport={"width": 390, "height": 844})
    complaints = _complaints(page)

    def fits() -> None:
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), page.url

    # Enrols: the picture loads under the policy, the text gives the codes.
    page.goto(f"{live_server.url}/account")
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
    other = chromium.new_context(viewport={"width": 390, "height": 844}).new_page()
    complaints_too = _complaints(other)
    other.goto(live_server.url + invited)
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
    other.goto(live_server.url + last_link("bob@example.com"))
    other.get_by_label("New password").fill(NEW)
    other.get_by_label("The same again").fill(NEW)
    other.get_by_role("button", name="Set the password").click()
    other.get_by_text("Your password is changed").wait_for()
    _fill_sign_in(other, "bob@example.com", NEW)
    other.get_by_role("navigation", name="acorn").wait_for()
    assert other.get_by_role("link", name="Members").count() == 0  # an operator's role does not show them
    assert complaints + complaints_too == []
