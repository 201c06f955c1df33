"""A person in a real browser: signs in, issues a key, sees it once, revokes it, and reads why a request was fast."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.console.browser.looks import Visit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

    from tests.console.rows import AsOwner


def test_a_person_issues_a_key_sees_it_once_revokes_it_and_reads_a_decision(
    roles_of_the_server: list[str], as_owner: AsOwner, signed_in: Callable[..., BrowserContext]
) -> None:
    from tests.console import rows

    made = rows.tenant("acorn")
    ada = rows.person("ada@example.com")
    rows.member(made.tenant_id, ada, "owner")
    decision = rows.record(made)
    rows.store(as_owner, made, decision)
    roles_of_the_server.clear()
    visit = Visit.of(signed_in(None, viewport={"width": 390, "height": 844}))
    page = visit.page

    # Signs in with the keyboard alone; the page asked for comes next.
    page.goto("/t/acorn/keys")
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
    assert "Replica a held 1,008 of 1,200 prompt tokens" in page.locator("#answer").inner_text()
    assert page.get_by_role("img", name="Score terms").locator("rect").count() == 7
    assert visit.sideways() == []

    page.locator(".end summary").click()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    assert visit.complaints() == []
    assert set(roles_of_the_server) == {"saltroute_app"}
