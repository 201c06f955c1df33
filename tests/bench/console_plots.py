"""The console's plots in a real browser: from navigation to drawn plots, a hover over all of them, and one redraw, timed in the page itself.

Part of ``python -m tests.bench.console``; not run where there is no Chromium.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

CHROMIUM = Path("/usr/bin/chromium")
ROUNDS = 5
HOVERS = 200
# Each plot that uPlot makes, and when one was drawn last (ms since the navigation began).
WATCH = """let made; Object.defineProperty(window, 'uPlot', { get: () => made, set: (plot) => {
    made = class extends plot { constructor(options, ...rest) {
        options.hooks = { ...options.hooks, draw: [...(options.hooks?.draw || []), () => { window.lastDraw = performance.now(); }] };
        super(options, ...rest); (window.allDrawn ||= []).push(this); } };
    Object.assign(made, plot); } });
new PerformanceObserver((list) => { for (const one of list.getEntries()) window.longest = Math.max(window.longest || 0, one.duration); })
    .observe({ type: 'longtask' });
"""
# Two frames after the last plot was drawn: by then it is on the screen.
DRAWN = """() => new Promise((done) => { const look = () => {
    if (!window.allDrawn || !window.lastDraw || document.readyState !== 'complete') { requestAnimationFrame(look); return; }
    requestAnimationFrame(() => requestAnimationFrame(() => done({
        answered: performance.getEntriesByType('navigation')[0].responseEnd, drawn: window.lastDraw, shown: performance.now(),
        plots: allDrawn.length, points: allDrawn[0].data[0].length, width: Math.round(allDrawn[0].bbox.width / devicePixelRatio),
        longest: window.longest || 0 }))); };
    look(); })"""
# A hover moves the cursors and legends of all plots (they follow one another); the layout that it causes is part of it.
HOVER = """(times) => { const plot = allDrawn[0], width = plot.over.clientWidth, took = [];
    for (let number = 0; number < times; number++) { const began = performance.now();
        plot.setCursor({ left: (number * 37) % width, top: 60 }, true, true); document.body.getBoundingClientRect();
        took.push(performance.now() - began); }
    return took; }"""
REDRAW = """async () => { const took = []; for (let number = 0; number < 20; number++) { const began = performance.now();
    for (const plot of allDrawn) plot.setData(plot.data); await Promise.resolve(); await Promise.resolve();
    took.push(performance.now() - began); await new Promise(requestAnimationFrame); }
    return took; }"""


@contextmanager
def server() -> Iterator[str]:
    """The console behind a threading server of Django's own, with its static files; yields its URL."""
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
    from django.core.wsgi import get_wsgi_application

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_: object) -> None: ...

    serving = ThreadedWSGIServer(("127.0.0.1", 0), Quiet)
    serving.set_app(StaticFilesHandler(get_wsgi_application()))
    thread = threading.Thread(target=serving.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{serving.server_address[1]}"
    finally:
        serving.shutdown()
        serving.server_close()
        thread.join()


def measure(paths: dict[str, str], cookies: dict[str, str], say: Callable[[str], None]) -> None:
    """Open each page some times (``paths``: shown name -> path) and say the medians."""
    if not CHROMIUM.exists():
        say(f"no Chromium at {CHROMIUM}: plots were not timed")
        return
    from playwright.sync_api import sync_playwright

    with server() as url, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"])
        try:
            for name, path in paths.items():
                rounds = [_one(chromium, url, path, cookies) for _ in range(ROUNDS)]
                say(f"{name:44} {_words(rounds)}")
        finally:
            chromium.close()


def _one(chromium: Any, url: str, path: str, cookies: dict[str, str]) -> dict[str, Any]:
    """One visit in a context of its own, nothing cached."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    try:
        context.add_cookies([{"name": name, "value": value, "url": url} for name, value in cookies.items()])
        context.add_init_script(WATCH)
        page = context.new_page()
        answer = page.goto(url + path)
        if answer is None or answer.status != 200:
            raise SystemExit(f"{path}: {answer and answer.status}")
        found: dict[str, Any] = page.evaluate(DRAWN)
        hovers = page.evaluate(HOVER, HOVERS)
        return {**found, "hover": median(hovers), "slowest": max(hovers), "redraw": median(page.evaluate(REDRAW))}
    finally:
        context.close()


def _words(rounds: list[dict[str, Any]]) -> str:
    middle = {name: median(one[name] for one in rounds) for name in ("answered", "drawn", "shown", "hover", "slowest", "redraw", "longest")}
    size = f"{rounds[0]['plots']} plots of {rounds[0]['points']} points on {rounds[0]['width']} pixels"
    times = f"{middle['answered']:5.0f} ms to the page, {middle['drawn']:5.0f} ms drawn, {middle['shown']:5.0f} ms on the screen"
    hover = f"hover {middle['hover']:.2f} ms (slowest {middle['slowest']:.1f})"
    return f"{times}; {hover}, redraw {middle['redraw']:.1f} ms, longest task {middle['longest']:.0f} ms; {size}"
