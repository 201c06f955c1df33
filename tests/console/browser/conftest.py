"""One Chromium for all browser tests of this folder, and pages of somebody who is signed in already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from django.test import Client
    from playwright.sync_api import Browser, BrowserContext
    from pytest_django.live_server_helper import LiveServer

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
AXE = Path(__file__).parents[2] / "vendor/axe/axe.min.js"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What each test of this folder needs: Chromium, a database that the server's threads see, and time on a busy machine."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.django_db(transaction=True))
            item.add_marker(pytest.mark.timeout(600))
            item.add_marker(pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}: apt-get install chromium"))


@pytest.fixture
def roles_of_the_server(as_app: None) -> Iterator[list[str]]:
    """Which database role each connection of the live server's threads acts as."""
    from django.db import connection
    from django.db.backends.signals import connection_created

    seen: list[str] = []

    def note(**_: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_user")
            seen.append(cursor.fetchone()[0])

    connection_created.connect(note)
    yield seen
    connection_created.disconnect(note)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. The sandbox is off: it does not start as root.

    Its event loop lives in this thread until the folder's last test has ended. Django refuses its ORM beside a loop, for good reason where coroutines
    share a connection; here none do.
    """
    from playwright.sync_api import sync_playwright

    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage", *ARGUMENTS])
        yield chromium
        chromium.close()


@pytest.fixture
def signed_in(browser: Browser, live_server: LiveServer, valkey_url: str) -> Iterator[Callable[..., BrowserContext]]:
    """``signed_in(client, **options)``: a browser context with a test client's session, or with none; axe is there in each of its pages."""
    from django.conf import settings

    made: list[BrowserContext] = []

    def make(client: Client | None = None, **options: Any) -> BrowserContext:
        context = browser.new_context(base_url=live_server.url, reduced_motion="reduce", **options)  # colours are read at once, not on their way
        made.append(context)
        context.add_init_script(path=AXE)  # by the debugger, which the page's policy does not bind
        if client is not None:
            value = client.cookies[settings.SESSION_COOKIE_NAME].value
            context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": value, "url": live_server.url}])
        return context

    yield make
    for context in made:
        context.close()
