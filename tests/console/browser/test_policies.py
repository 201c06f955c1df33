"""Policies in a real browser: written with a check while one types, held against the past, tried, promoted, rolled back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.console.browser.looks import Visit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

    from tests.console.rows import AsOwner, Town

# What has the focus, and whether all of it is in view.
_SEEN = """() => {
    const one = document.activeElement, at = one.getBoundingClientRect();
    return [one.id, at.top >= 0 && at.bottom <= window.innerHeight];
}"""


def test_from_an_endpoint_a_policy_is_written_tried_promoted_and_rolled_back(
    town: Town, as_owner: AsOwner, signed_in: Callable[..., BrowserContext]
) -> None:
    """On a phone in the dark. What is typed is checked and held against what runs; a dry run leaves what was typed where it is."""
    from tests.console import rows

    rows.store(as_owner, town.acorn, *(rows.record(town.acorn, started_at=rows.ago(minutes=number)) for number in range(1, 4)))
    visit = Visit.of(signed_in(town.owner))
    visit.narrow_and_dark()
    page = visit.page
    visit.open(f"/t/acorn/endpoints/{town.acorn.endpoint_id}")
    page.get_by_role("link", name="Try a policy").click()
    page.get_by_role("link", name="Write a new one").click()
    page.get_by_role("heading", name="Write a policy for llama-chat").wait_for()

    page.get_by_label("pressure", exact=True).fill("-1")
    page.locator("#checked .wrong").wait_for()
    assert "spec.pressure" in page.locator("#checked").inner_text()
    page.get_by_label("pressure", exact=True).fill("2")
    page.get_by_text("Unlike default v1: pressure 1.0 to 2.0.").wait_for()
    page.get_by_role("button", name="Write it as YAML").click()
    assert page.get_by_label("Document").input_value() == "policy: ettft\npressure: 2\n"
    page.get_by_label("Document").fill("policy: round_robin\n")
    page.get_by_text("Unlike default v1: policy ettft to round_robin").wait_for()
    page.get_by_label("Prompts that it places").fill("50")
    page.get_by_role("button", name="Dry run").click()
    page.get_by_text("Decisions redone").wait_for()
    assert page.get_by_label("Document").input_value() == "policy: round_robin\n"
    assert page.get_by_label("Prompts that it places").input_value() == "50"
    assert visit.sideways() == []
    assert visit.axe() == []
    page.get_by_role("button", name="Try it").click()
    page.get_by_text("default v2 is tried on llama-chat.").wait_for()
    assert "placing 50 % of the prompts" in page.locator("#trial").inner_text()
    assert page.evaluate(_SEEN) == ["trial-said", True]
    assert visit.axe() == []
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.textContent") == "Dry run"

    page.get_by_role("link", name="Promote").click()
    page.get_by_role("button", name="Promote it").click()
    page.get_by_text("A roll-back returns to default v1.").wait_for()
    page.get_by_role("link", name="Roll back").click()
    page.get_by_role("button", name="Roll back").click()
    page.get_by_text("llama-chat runs default v1, and nothing is tried.").wait_for()
    assert visit.complaints() == []


def test_a_new_policy_reaches_an_endpoint_by_its_name(town: Town, signed_in: Callable[..., BrowserContext]) -> None:
    """From the list to an endpoint that never heard of it, by its trial; Enter in the dialog's field does what its first button says."""
    visit = Visit.of(signed_in(town.owner))
    page = visit.page
    visit.open("/t/acorn/policies")
    page.get_by_role("link", name="New Routing policies").click()
    page.get_by_label("Name").fill("night")
    page.get_by_label("Route by").select_option("bounded_hash")
    page.get_by_label("prefix tokens").wait_for()
    visit.quiet()
    page.get_by_label("prefix tokens").fill("512")
    page.get_by_text("Routers would take this.").wait_for()
    page.locator("button.primary").click()
    page.get_by_role("heading", name="night").wait_for()
    page.get_by_role("link", name="Activate v1").click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_role("heading").inner_text() == "Activate night v1?"
    dialog.get_by_label("Endpoint").fill("llama-chat")
    assert visit.axe() == []
    dialog.get_by_role("button", name="Try it there first").click()
    assert page.get_by_label("Policy", exact=True).locator("option:checked").inner_text() == "night v1: bounded_hash"
    page.get_by_role("button", name="Try it").click()
    page.get_by_text("night v1 is tried on llama-chat.").wait_for()

    page.get_by_role("navigation", name="acorn").get_by_role("link", name="Policies").click()
    page.get_by_role("link", name="night", exact=True).click()
    page.get_by_role("link", name="Activate v1").click()
    page.get_by_role("dialog").get_by_label("Endpoint").fill("llama-chat")
    page.get_by_role("dialog").get_by_label("Endpoint").press("Enter")
    page.get_by_text("llama-chat runs night v1.").wait_for()
    assert visit.complaints() == []
