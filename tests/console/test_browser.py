"""A person in a real browser: signs in, issues a key, sees it once, revokes it, and reads why a request was fast."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.db import connection
from django.db.backends.signals import connection_created

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from pytest_django.live_server_helper import LiveServer

    from tests.console.rows import AsOwner

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}: apt-get install chromium"),
]


@pytest.fixture
def roles_of_the_server(as_app: None) -> Iterator[list[str]]:
    """Which database role each connection of the live server's threads acts as."""
    seen: list[str] = []

    def note(**_: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_user")
            seen.append(cursor.fetchone()[0])

    connection_created.connect(note)
    yield seen
    connection_created.disconnect(note)


@pytest.fixture
def browser() -> Iterator[Browser]:
    """Debian's Chromium. The sandbox is off: it does not start as root."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage", *ARGUMENTS])
        yield chromium
        chromium.close()


def _complaints(page: Page) -> list[str]:
    """What the browser says of the page: errors of scripts and violations of the policy."""
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    return said


@pytest.mark.usefixtures("valkey_url")
def test_a_person_issues_a_key_sees_it_once_revokes_it_and_reads_a_decision(
    live_server: LiveServer, roles_of_the_server: list[str], as_owner: AsOwner, request: pytest.FixtureRequest
) -> None:
    from tests.console import rows

    made = rows.tenant("acorn")
    ada = rows.person("ada@example.com")
    rows.member(made.tenant_id, ada, "owner")
    decision = rows.record(made)
    rows.store(as_owner, made, decision)
    roles_of_the_server.clear()
    # Only now: the browser's event loop lives in this thread, and Django refuses its ORM beside one.
    page = request.getfixturevalue("browser").new_page(viewport={"width": 390, "height": 844})
    complaints = _complaints(page)

    # Signs in with the keyboard alone; the page asked for comes next.
    page.goto(f"{live_server.url}/t/acorn/keys")
    page.locator("#email:focus").wait_for()  # the page puts it there itself, a moment after it is loaded
    page.keyboard.type("ada@example.com")
    page.keyboard.press("Tab")
    page.keyboard.type(rows.PASSWORD)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Inference keys").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"

    # Issues a key and sees it.
    page.get_by_role("link", name="Issue a key").click()
    page.get_by_label("Name").fill("bot")
    page.get_by_label("Auth scope").select_option("support")
    page.get_by_role("button", name="Issue key").click()
    secret = page.get_by_role("textbox", name="The key").input_value()
    assert re.fullmatch(r"sk-sr-[A-Za-z0-9_-]{43}", secret)
    page.get_by_role("link", name="Done, I have it").click()
    page.get_by_role("row", name="bot").wait_for()
    assert secret not in page.content()

    # Revokes it: a dialog asks, Escape leaves everything as it was, the button does it.
    page.get_by_role("link", name="Revoke bot").click()
    page.get_by_role("heading", name="Revoke key bot?").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("heading", name="Revoke key bot?").wait_for(state="hidden")
    page.get_by_role("link", name="Revoke bot").click()
    page.get_by_role("button", name="Revoke bot").click()
    page.get_by_text("Key bot is revoked.").wait_for()
    assert page.get_by_role("link", name="Revoke bot").count() == 0
    page.get_by_role("banner").get_by_text("no router reports").wait_for()

    # Reads a decision.
    page.get_by_role("navigation", name="acorn").get_by_role("link", name="Decisions").click()
    page.locator("tbody a").first.click()
    assert "replica a held 1,008 of 1,200 prompt tokens" in page.locator("#answer").inner_text()
    assert page.get_by_role("img", name="Score terms").locator("rect").count() == 7
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

    page.locator(".end summary").click()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    assert complaints == []
    assert set(roles_of_the_server) == {"saltroute_app"}
