"""The playground in a real browser: the answer streams into the page as text, what is known of it comes after, and errors say what to do."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.console.browser.looks import Visit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext
    from pytest_django import Settings

    from tests.console.rows import AsOwner, Town
    from tests.console.views.test_playground import Router

MARKUP = '<img src="/x.png" onerror="document.title=1">'


@pytest.fixture
def router(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Router]:
    """A router where the playground sends to, and places of this test alone."""
    from console.views import playground
    from routing.services.playground.places import Places
    from tests.console.views.test_playground import _running

    monkeypatch.setattr(playground, "places", Places(3))
    with _running() as one:
        settings.PLAYGROUND_ROUTER_URL = one.url
        yield one


def test_an_answer_streams_in_and_is_explained(town: Town, as_owner: AsOwner, router: Router, signed_in: Callable[..., BrowserContext]) -> None:
    """The first words are on the page while the router still speaks; markup of an answer is text; its record's sentence and link follow; the second
    turn carries the first; a stopped answer stops at the router; a key that routers do not know is named at its field."""
    from tests.console import rows
    from tests.console.views.test_playground import DECISION

    rows.store(as_owner, town.acorn, rows.record(town.acorn, id=uuid.UUID(DECISION)))
    visit = Visit.of(signed_in(town.owner, viewport={"width": 390, "height": 844}))
    page = visit.page
    visit.open("/t/acorn/playground")

    page.get_by_role("button", name="Send").click()
    assert page.evaluate("document.activeElement.id") == "message"  # an empty message is the browser's to refuse
    page.get_by_label("Message").fill("Hello")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("Paste an inference key, or get one").wait_for()
    assert page.evaluate("document.activeElement.id") == "key"
    assert all("status of 400" in one for one in visit.complaints())

    page.get_by_role("button", name="Get a key").click()
    page.get_by_text("is in the field").wait_for()
    assert page.get_by_label("Inference key").input_value().startswith("sk-sr-")
    router.words = ["Salt ", MARKUP, " and gold"]
    router.hold.clear()
    page.get_by_label("Message").press("Control+Enter")
    said = page.locator(".turn.assistant .said")
    page.get_by_text("Salt", exact=True).wait_for()
    assert said.inner_text().strip() == "Salt"
    router.hold.set()
    page.get_by_role("link", name="Its decision").wait_for()
    assert said.inner_text() == f"Salt {MARKUP} and gold"
    assert page.locator(".turn img").count() == 0
    assert "1,008 of 1,200 prompt tokens" in page.locator(".turn.assistant").inner_text()
    assert page.locator(".turn.assistant").get_by_text("32 of them cached").count() == 1
    assert visit.sideways() == []
    assert visit.axe() == []

    router.hold.clear()
    router.words = ["word "] * 50_000
    page.get_by_label("Message").fill("More")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("word", exact=True).wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped.").wait_for()
    router.hold.set()
    assert router.left.wait(30)
    assert [one["role"] for one in router.asked[-1][2]["messages"]] == ["user", "assistant", "user"]

    router.status = 401
    page.get_by_label("Message").fill("Again")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("A new key takes up to a second").wait_for()
    assert page.evaluate("document.activeElement.id") == "key"
    assert page.get_by_label("Message").input_value() == "Again"
    page.get_by_role("button", name="Start over").click()
    assert page.locator(".turn").count() == 0
    assert "sk-sr-" not in page.content()  # the field's value is no part of the document
    assert visit.complaints() == []


@pytest.mark.usefixtures("router")
def test_who_finds_no_place_reads_why_and_loses_no_word(town: Town, signed_in: Callable[..., BrowserContext]) -> None:
    """Two answers of the tenant are under way: the page says so beside the message, which is sent when a place is free again."""
    from console.views import playground
    from tests.console.views.test_playground import KEY

    taken = [playground.places.take(town.acorn.tenant_id) for _ in range(2)]
    visit = Visit.of(signed_in(town.owner))
    page = visit.page
    visit.open("/t/acorn/playground")
    page.get_by_label("Inference key").fill(KEY)
    page.get_by_label("Message").fill("Hello")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("alert").get_by_text("Your tenant has 2 answers under way here").wait_for()
    assert page.get_by_label("Message").input_value() == "Hello"
    assert page.locator(".turn").count() == 0
    assert all("status of 429" in one for one in visit.complaints())
    taken[0].back()
    page.get_by_role("button", name="Send").click()
    page.get_by_text("Salt and gold").wait_for()
    assert page.get_by_role("alert").count() == 0
    taken[1].back()


@pytest.mark.parametrize("path", ["/t/acorn", "/t/acorn/playground", "/t/acorn/keys/new", "/t/acorn/policies/new/routing", "/t/acorn/traces"])
def test_tab_goes_through_a_page_in_its_order(town: Town, signed_in: Callable[..., BrowserContext], path: str) -> None:
    """From the top, one stop for each thing that can be used, as they stand in the page; the first leads past the navigation."""
    visit = Visit.of(signed_in(town.owner))
    visit.open(path)
    page = visit.page
    page.evaluate(
        """() => { document.querySelectorAll('[hx-trigger]').forEach(one => one.removeAttribute('hx-trigger'));
        const wanted = 'a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex="0"]';
        window.stops = [...document.querySelectorAll(wanted)].filter(one => one.tabIndex === 0 && !one.disabled && one.checkVisibility()
            && !one.closest('dialog:not([open])')); }"""
    )
    wanted = page.evaluate("window.stops.length")
    reached = []
    for _ in range(wanted):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("window.stops.indexOf(document.activeElement)"))
    assert wanted > 20
    assert reached == list(range(wanted))


def test_a_dialog_keeps_the_keyboard_and_escape_gives_it_back(town: Town, signed_in: Callable[..., BrowserContext]) -> None:
    """Opened by Enter on a link; Tab stays inside; Escape closes it, nothing is done, and the focus is where it was."""
    visit = Visit.of(signed_in(town.owner))
    visit.open("/t/acorn/keys")
    page = visit.page
    page.get_by_role("link", name="Revoke app").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Revoke key app?").wait_for()
    for _ in range(6):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement === document.body || !!document.activeElement.closest('dialog')")
    assert visit.axe() == []
    page.keyboard.press("Escape")
    page.get_by_role("heading", name="Revoke key app?").wait_for(state="hidden")
    assert page.evaluate("document.activeElement.textContent").strip().startswith("Revoke")
    assert page.get_by_role("link", name="Revoke app").count() == 1
