"""Traces in a real browser: a file is chosen and analysed, the plots are drawn, and the page's policy has nothing to complain of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.console.browser.looks import Visit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

    from tests.console.rows import Town


def test_from_choosing_a_file_to_its_plots_in_the_dark(town: Town, signed_in: Callable[..., BrowserContext], tmp_path: Path) -> None:
    """Every plot has a size and the ink of a dark page; no script, style or image was refused; the job page moves on by itself."""
    from routing.services.traces import running
    from tests.routing.services.traces.made import mooncake

    made = town.acorn
    (tmp_path / "day.jsonl").write_bytes(mooncake())
    visit = Visit.of(signed_in(town.owner, viewport={"width": 390, "height": 844}, color_scheme="dark"))
    page = visit.page

    visit.open("/t/acorn/traces")
    page.get_by_role("heading", name="No job yet").wait_for()
    page.get_by_label("File", exact=True).set_input_files(tmp_path / "day.jsonl")
    page.get_by_role("button", name="Send it").click()
    page.get_by_text("day.jsonl is read: 200 requests.").wait_for()
    page.get_by_role("button", name="Analyse").click()
    page.get_by_text("waits for a worker").wait_for()
    job_id = page.url.rstrip("/").rsplit("/", 1)[-1]

    def work() -> None:
        from uuid import UUID

        from django.db import connection

        try:
            running.run(made.tenant_id, UUID(job_id))
        finally:
            connection.close()

    worker = threading.Thread(target=work)
    worker.start()
    page.get_by_text("of the prompt tokens could be reused").wait_for(timeout=90_000)
    worker.join(timeout=60)
    plots = page.locator("img.trace-plot")
    assert plots.count() == 5
    for number in range(5):
        plots.nth(number).scroll_into_view_if_needed()
        page.wait_for_function("n => document.querySelectorAll('img.trace-plot')[n].naturalWidth > 100", arg=number)
    ink = """async () => {
        const image = document.querySelector('img.trace-plot'), canvas = document.createElement('canvas');
        canvas.width = 300; canvas.height = 150;
        const context = canvas.getContext('2d');
        context.drawImage(image, 0, 0, 300, 150);
        const data = context.getImageData(0, 0, 300, 150).data;
        let bright = 0, black = 0;
        for (let i = 0; i < data.length; i += 4) {
            if (data[i + 3] > 200 && Math.min(data[i], data[i + 1], data[i + 2]) > 190) bright++;
            if (data[i + 3] > 200 && Math.max(data[i], data[i + 1], data[i + 2]) < 60) black++;
        }
        return [bright, black];
    }"""
    bright, black = page.evaluate(ink)
    assert bright > 20
    assert black == 0
    assert visit.sideways() == []
    assert visit.complaints() == []
