"""What is wider than its place shows that it goes on: a shadow at the edge behind which there is more, and none at the other."""

from __future__ import annotations

import io
from collections.abc import Callable
from statistics import mode
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from tests.console.browser.looks import Visit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Locator

    from tests.console.rows import AsOwner, Town


def edges(one: Locator) -> tuple[bool, bool]:
    """Whether there is a shadow at the left and at the right edge: the usual colour of the column there is not that of the card."""
    image = Image.open(io.BytesIO(one.screenshot())).convert("RGB")
    width, height = image.size
    pixels = image.tobytes()
    card = one.evaluate("one => getComputedStyle(one.closest('.card')).backgroundColor.match(/[0-9]+/g).map(Number)")
    columns = (mode([pixels[3 * (y * width + x) :][:3] for y in range(height)]) for x in (1, width - 2))
    left, right = (sum(abs(a - b) for a, b in zip(column, card, strict=True)) > 20 for column in columns)
    return left, right


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_chart_that_goes_on_has_a_shadow_where_it_does(
    town: Town, as_owner: AsOwner, signed_in: Callable[..., BrowserContext], scheme: str
) -> None:
    from tests.console import rows

    decision = rows.record(town.acorn, started_at=rows.ago(minutes=2))
    rows.store(as_owner, town.acorn, decision)
    visit = Visit.of(signed_in(town.owner, viewport={"width": 390, "height": 844}, color_scheme=scheme))
    visit.open(f"/t/acorn/decisions/{decision.id}")
    chart = visit.page.locator(".wide").first
    assert chart.evaluate("one => one.scrollWidth > one.clientWidth")
    assert edges(chart) == (False, True)
    chart.evaluate("one => { one.scrollLeft = one.scrollWidth; }")
    assert edges(chart) == (True, False)
    visit.page.set_viewport_size({"width": 1280, "height": 900})
    assert not chart.evaluate("one => one.scrollWidth > one.clientWidth")
    assert edges(chart) == (False, False)
