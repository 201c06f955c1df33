"""Plots in a real browser: drawn under the Content-Security-Policy, kept while the page renews itself, readable without scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings

from tests.console.test_browser import _complaints, browser, pytestmark, roles_of_the_server

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from pytest_django.live_server_helper import LiveServer

    from tests.console.rows import AsOwner, Made

__all__ = ["browser", "pytestmark", "roles_of_the_server"]


def _signed_in(request: pytest.FixtureRequest, live_server: LiveServer, cookie: str, **options: Any) -> Page:
    """A page of somebody whose session exists already. To be made last: beside the browser's event loop Django refuses its ORM in this thread."""
    context = request.getfixturevalue("browser").new_context(**options)
    context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": cookie, "url": live_server.url}])
    page: Page = context.new_page()
    return page


def _town() -> tuple[Made, str]:
    """A tenant, and the session of its owner."""
    from tests.console import rows

    town = rows.town()
    return town.acorn, str(town.owner.cookies[settings.SESSION_COOKIE_NAME].value)


@pytest.mark.usefixtures("valkey_url", "roles_of_the_server")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_plots_are_drawn_kept_and_renewed(live_server: LiveServer, as_owner: AsOwner, request: pytest.FixtureRequest, scheme: str) -> None:
    """Four plots with a canvas each; after htmx brought newer figures the same canvases show them; the browser complains of nothing."""
    from tests.console import rows

    made, cookie = _town()
    rows.store(as_owner, made, *(rows.record(made, started_at=rows.ago(minutes=number)) for number in range(1, 30)))
    page = _signed_in(request, live_server, cookie, viewport={"width": 390, "height": 844}, color_scheme=scheme)
    complaints = _complaints(page)
    page.goto(f"{live_server.url}/t/acorn")
    page.locator(".plot canvas").first.wait_for()
    assert page.locator(".plot canvas").count() == 4
    assert page.locator(".plot .chart").count() == 0  # the drawings for those without scripts gave way
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.get_by_text("not reported").first.wait_for()  # what routers say of replicas came apart, into its own place
    assert page.locator("#replica-measures tbody tr").count() == 2
    assert page.evaluate("[...document.querySelectorAll('.plot canvas')].every(one => one.getAttribute('aria-label'))")
    drawn = "document.querySelector('.plot canvas').toDataURL().length > 2000"
    assert page.evaluate(drawn)
    page.evaluate("document.querySelector('.plot canvas').dataset.kept = 'yes'")
    page.evaluate("document.querySelector('#live').dataset.old = 'yes'")
    page.evaluate("htmx.ajax('GET', location.href, {target: '#live', select: '#live', swap: 'outerHTML'})")
    page.wait_for_function("!document.querySelector('#live').dataset.old")
    page.wait_for_function("document.querySelector('.plot canvas') && document.querySelector('.plot canvas').dataset.kept === 'yes'")
    assert page.evaluate(drawn)
    page.get_by_text("The plots as a table").click()
    assert page.locator(".figures-table tbody tr").count() >= 28
    assert complaints == []


@pytest.mark.usefixtures("valkey_url", "roles_of_the_server")
def test_without_scripts_the_drawings_and_tables_stay(live_server: LiveServer, as_owner: AsOwner, request: pytest.FixtureRequest) -> None:
    from tests.console import rows

    made, cookie = _town()
    rows.store(as_owner, made, *(rows.record(made, started_at=rows.ago(minutes=number)) for number in range(1, 5)))
    page = _signed_in(request, live_server, cookie, java_script_enabled=False)
    page.goto(f"{live_server.url}/t/acorn?range=15m")
    assert page.locator(".plot svg.chart").count() == 4
    page.get_by_text("The plots as a table").click()
    assert page.get_by_role("row").filter(has_text="84 %").count() >= 4


@pytest.mark.usefixtures("valkey_url", "roles_of_the_server")
def test_a_single_figure_is_seen_and_small_ticks_differ(live_server: LiveServer, as_owner: AsOwner, request: pytest.FixtureRequest) -> None:
    """The first request of an hour has no neighbour to draw a line to: it is a point all the same. Ticks far below one are told apart."""
    from tests.console import rows

    made, cookie = _town()
    rows.store(as_owner, made, rows.record(made, started_at=rows.ago(minutes=30)))
    page = _signed_in(request, live_server, cookie)
    page.add_init_script(
        "let made; Object.defineProperty(window, 'uPlot', { get: () => made, set: (plot) => { made = class extends plot {"
        " constructor(...given) { super(...given); (window.allDrawn ||= []).push(this); } }; Object.assign(made, plot); } })"
    )
    page.goto(f"{live_server.url}/t/acorn?range=1h")
    page.locator(".plot canvas").first.wait_for()
    lone = "allDrawn[0].series[1].points.filter(allDrawn[0], 1, false)"
    assert page.evaluate(f"{lone}.length === 1 && allDrawn[0].data[1][{lone}[0]] !== null")
    assert page.evaluate("allDrawn[0].series[1].points.filter(allDrawn[0], 1, true)") is None  # wide enough for all points: uPlot draws them itself
    ticks = page.evaluate("allDrawn[2].axes[1].values(allDrawn[2], [0, 0.0005, 0.001, 0.0015])")
    assert ticks == ["0", "0.0005", "0.001", "0.0015"]
