"""Plots in a real browser: drawn under the Content-Security-Policy, kept while the page renews itself, readable without scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.console.browser.looks import Visit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

    from tests.console.rows import AsOwner, Town


# Every plot of a page as uPlot made it, in ``allDrawn``.
ALL_DRAWN = (
    "let made; Object.defineProperty(window, 'uPlot', { get: () => made, set: (plot) => { made = class extends plot {"
    " constructor(...given) { super(...given); (window.allDrawn ||= []).push(this); } }; Object.assign(made, plot); } })"
)
# What of each plot's words at the left is wider than the room for them, which would be cut off.
_CUT = """() => allDrawn.flatMap((plot) => {
    const axis = plot.axes[1];
    plot.ctx.font = axis.font[0];
    return axis._values.filter((word) => plot.ctx.measureText(word).width / devicePixelRatio > axis._size - axis.gap);
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_plots_are_drawn_kept_and_renewed(town: Town, as_owner: AsOwner, signed_in: Callable[..., BrowserContext], scheme: str) -> None:
    """Four plots with a canvas each; after htmx brought newer figures the same canvases show them; the browser complains of nothing."""
    from tests.console import rows

    made = town.acorn
    rows.store(as_owner, made, *(rows.record(made, started_at=rows.ago(minutes=number)) for number in range(1, 30)))
    visit = Visit.of(signed_in(town.owner, viewport={"width": 390, "height": 844}, color_scheme=scheme))
    page = visit.page
    page.goto("/t/acorn")
    page.locator(".plot canvas").first.wait_for()
    assert page.locator(".plot canvas").count() == 4
    assert page.locator(".plot .chart").count() == 0  # the drawings for those without scripts gave way
    assert visit.sideways() == []
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
    assert visit.complaints() == []


def test_without_scripts_the_drawings_and_tables_stay(town: Town, as_owner: AsOwner, signed_in: Callable[..., BrowserContext]) -> None:
    from tests.console import rows

    made = town.acorn
    rows.store(as_owner, made, *(rows.record(made, started_at=rows.ago(minutes=number)) for number in range(1, 5)))
    page = signed_in(town.owner, java_script_enabled=False).new_page()
    page.goto("/t/acorn?range=15m")
    assert page.locator(".plot svg.chart").count() == 4
    page.get_by_text("The plots as a table").click()
    assert page.get_by_role("row").filter(has_text="84 %").count() >= 4


def test_a_single_figure_is_seen_and_small_ticks_differ(town: Town, as_owner: AsOwner, signed_in: Callable[..., BrowserContext]) -> None:
    """The first request of an hour has no neighbour to draw a line to: it is a point all the same. Ticks far below one are told apart."""
    from tests.console import rows

    made = town.acorn
    rows.store(as_owner, made, rows.record(made, started_at=rows.ago(minutes=30)))
    page = signed_in(town.owner).new_page()
    page.add_init_script(ALL_DRAWN)
    page.goto("/t/acorn?range=1h")
    page.locator(".plot canvas").first.wait_for()
    lone = "allDrawn[0].series[1].points.filter(allDrawn[0], 1, false)"
    assert page.evaluate(f"{lone}.length === 1 && allDrawn[0].data[1][{lone}[0]] !== null")
    assert page.evaluate("allDrawn[0].series[1].points.filter(allDrawn[0], 1, true)") is None  # wide enough for all points: uPlot draws them itself
    ticks = page.evaluate("allDrawn[2].axes[1].values(allDrawn[2], [0, 0.0005, 0.001, 0.0015])")
    assert ticks == ["0", "0.0005", "0.001", "0.0015"]


def test_where_nothing_was_saved_or_asked_the_axes_are_read_in_full(town: Town, as_owner: AsOwner, signed_in: Callable[..., BrowserContext]) -> None:
    """Figures that are all zero have an axis up to one; where words at the side are long, there is room for them."""
    from tests.console import rows

    made = town.acorn
    rows.store(
        as_owner, made, *(rows.record(made, started_at=rows.ago(minutes=number), cached_tokens=0, outcome="refused") for number in range(1, 9))
    )
    page = signed_in(town.owner, viewport={"width": 1280, "height": 900}).new_page()
    page.add_init_script(ALL_DRAWN)
    page.goto("/t/acorn?range=1h")
    page.locator(".plot canvas").first.wait_for()
    tops = page.evaluate("allDrawn.map((plot) => [plot.data[1].every((one) => !one), plot.scales.y.max])")
    zero = [top for nothing, top in tops if nothing]
    assert zero  # GPU time saved, for one
    assert all(top >= 1 for top in zero)
    assert page.evaluate(_CUT) == []
    page.evaluate("allDrawn[0].setData([allDrawn[0].data[0], ...allDrawn[0].data.slice(1).map((all) => all.map(() => 123456789.5))])")
    page.wait_for_function("() => allDrawn[0].axes[1]._values.some((word) => word.length > 9)")
    assert page.evaluate(_CUT) == []


def test_a_page_that_renews_itself_keeps_focus_and_what_is_open(town: Town, as_owner: AsOwner, signed_in: Callable[..., BrowserContext]) -> None:
    """The table of the plots stays open for whoever reads it, and the keyboard where it was; what was shut stays shut."""
    from tests.console import rows

    rows.store(as_owner, town.acorn, *(rows.record(town.acorn, started_at=rows.ago(minutes=number)) for number in range(1, 5)))
    visit = Visit.of(signed_in(town.owner))
    page = visit.page
    visit.open("/t/acorn")
    renew = "htmx.ajax('GET', location.href, {target: '#live', select: '#live', swap: 'outerHTML'})"

    def renewed() -> None:
        page.evaluate("document.querySelector('#live').dataset.old = 'yes'")
        page.evaluate(renew)
        page.wait_for_function("!document.querySelector('#live').dataset.old")

    renewed()
    assert page.locator("#live details[open]").count() == 0
    table = page.locator(".figures-table summary")
    table.focus()
    page.keyboard.press("Enter")
    assert page.locator("#live details[open]").count() == 1
    renewed()
    assert page.locator(".figures-table[open]").count() == 1
    assert page.evaluate("document.activeElement.textContent") == table.inner_text()
    link = page.locator("#live tbody a").first
    link.focus()
    renewed()
    assert page.evaluate("document.activeElement.getAttribute('href')") == link.get_attribute("href")
    assert visit.complaints() == []
