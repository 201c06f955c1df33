"""A person's day with the console of a running product, in a real browser: what is clicked there happens in routers, workers and engines."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deploy.local.options import REPOSITORY
from tests.console.browser.looks import Visit
from tests.product import Product

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = Path("/usr/bin/chromium")
PATIENCE_MS = 120_000  # a busy machine; what is waited for is an answer of a worker
pytestmark = [
    pytest.mark.journey,
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM}: apt-get install chromium"),
]


@pytest.fixture
def visit(product: Product) -> Iterator[Visit]:
    """The demo's person, signed in."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"])
        context = chromium.new_context(base_url=product.control_url, reduced_motion="reduce")
        context.set_default_timeout(PATIENCE_MS)
        one = Visit.of(context)
        one.open("/login")
        one.page.get_by_label("E-mail").fill(product.email)
        one.page.get_by_label("Password").fill(product.password)
        one.page.get_by_role("button", name="Sign in").click()
        one.page.wait_for_url(lambda url: not url.endswith("/login"))
        yield one
        chromium.close()


def _policy(page: Page, name: str) -> None:
    """Store a routing policy, where it is not there yet."""
    page.goto("/t/acme/policies")
    if page.get_by_role("link", name=name, exact=True).count():
        return
    page.goto("/t/acme/policies/new/routing")
    if not page.locator("#spec").count():
        page.get_by_role("button", name="Write it as YAML").click()
    page.get_by_label("Document").fill("policy: round_robin")
    page.get_by_label("Name").fill(name)
    page.locator("button.primary").click()
    page.get_by_role("heading", name=name).wait_for()


def test_a_key_is_used_a_policy_tried_an_audit_and_a_replay_run(visit: Visit) -> None:
    """A key for the playground opens an endpoint, the second turn is cached, and its decision can be read; a policy on trial is applied by the router
    and rolled back; an audit is asked for and ends; a trace is replayed by a worker to its plots. No page complains of its policy."""
    page = visit.page

    # A chat with a key of its own, and why it went where it went.
    visit.open("/t/acme/playground?endpoint=llama-private")
    page.get_by_role("button", name="Get a key").click()
    page.get_by_text("is in the field").wait_for()
    for number, message in enumerate(("Tell me about the salt trade of Timbuktu. " * 20, "And its routes?"), start=1):
        page.get_by_label("Message").fill(message)
        page.get_by_label("Message").press("Control+Enter")
        page.get_by_role("link", name="Its decision").nth(number - 1).wait_for()
    cached = re.search(r"(\d+) of them cached", page.locator(".turn.assistant").last.inner_text())
    assert cached
    assert int(cached[1]) > 100
    assert "sk-sr-" not in page.url + page.locator("#turns").inner_text()
    page.get_by_role("link", name="Its decision").last.click()
    page.get_by_role("heading", name="Where the time went").wait_for()
    assert "prompt tokens" in page.locator("#answer").inner_text()

    # A policy: tried, applied, taken back.
    _policy(page, "by turns")
    page.goto("/t/acme/endpoints")
    page.get_by_role("link", name="llama-private", exact=True).first.click()
    page.get_by_role("link", name="Try a policy").click()
    page.get_by_label("Policy", exact=True).select_option(label="by turns v1: round_robin")
    page.get_by_label("Prompts that it places").fill("50")
    page.get_by_role("button", name="Try it").click()
    page.get_by_role("link", name="Roll back").wait_for()
    page.locator(".applied .pill.good").wait_for()
    page.get_by_role("link", name="Roll back").click()
    page.get_by_role("button", name="Roll back").click()
    page.get_by_role("link", name="Try a policy").wait_for()

    # An audit: one runs, or has just run, since a replica has a budget for the day.
    page.goto("/t/acme/isolation")
    page.get_by_label("Endpoint to audit").select_option(label="llama-private")
    page.get_by_role("button", name="Run an audit now").click()
    page.locator("#live .pill.good", has_text="pass").first.wait_for()

    # A replay, to its plots.
    lines = [
        {"timestamp": 500 * n, "input_length": 2048, "output_length": 40, "hash_ids": [n % 7, 100 + n % 7, 1000 + n, 2000 + n]} for n in range(120)
    ]
    page.goto("/t/acme/traces")
    trace = "".join(json.dumps(line) + "\n" for line in lines).encode()
    page.get_by_label("File", exact=True).set_input_files({"name": "day.jsonl", "mimeType": "application/octet-stream", "buffer": trace})
    page.get_by_role("button", name="Send it").click()
    page.get_by_text("day.jsonl is read: 120 requests.").wait_for()
    form = page.get_by_role("form", name="Replay policies")
    form.get_by_label("And a document").fill("policy: round_robin")
    form.get_by_role("button", name="Replay").click()
    page.locator("img.trace-plot").first.wait_for()
    assert visit.complaints() == []


@pytest.fixture
def engine() -> Iterator[str]:
    """The address of one more simulated engine, with the demo's files, that nobody has declared."""
    demo = REPOSITORY / "deploy" / "demo"
    files = ["--tokenizer", str(demo / "tokenizer.json"), "--chat-template", str(demo / "chat_template.jinja")]
    ports = ["--port", "0", "--kv-port", "0", "--replay-port", "0"]
    argv = [sys.executable, "-m", "routing.simulator", *ports, *files]
    with subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = re.search(r"url=(\S+)", process.stdout.readline())
            assert ready
            yield ready[1]
        finally:
            process.terminate()


def test_a_replica_is_tested_and_added(visit: Visit, engine: str) -> None:
    """What a router found of an engine is shown before it is added; where nothing is, that is shown; an added one is taken into service."""
    page, name = visit.page, f"tried-{uuid.uuid4().hex[:6]}"
    away = Visit.of(page.context)  # in another tab meanwhile: that nothing answered is told only some time after it was asked

    def asked(visit: Visit, address: str, pool: str) -> None:
        page = visit.page
        visit.open("/t/acme/replicas/new")
        page.locator("#new_pool").fill(pool)
        page.get_by_label("Name", exact=True).fill(name)
        page.get_by_label("Address").fill(address)
        page.get_by_label("Compare tokens for").select_option(label="llama-private")
        page.get_by_role("button", name="Test it").click()

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and nobody listens
        asked(away, f"http://127.0.0.1:{nobody.getsockname()[1]}", f"{name}-away")
        asked(visit, engine, name)
        page.get_by_role("heading", name="What was found").wait_for()
        found = page.locator("dl.facts").inner_text()
        for told in ("vllm", "sim-8b", "16 tokens", "published", "the same"):
            assert told in found
        page.get_by_role("button", name=f"Add it to {name}").click()
        page.get_by_text(f"Replica {name} is added.").wait_for()
        page.get_by_role("heading", name=name).wait_for()
        page.locator(".applied .pill.good").wait_for()
        token = next(cookie["value"] for cookie in page.context.cookies() if cookie["name"] == "csrftoken")
        address = page.url.replace("/t/acme/", "/api/v1/")
        removed = page.request.delete(address, headers={"X-CSRFToken": token, "X-Saltroute-Tenant": "acme"})  # the product is others' too
        assert removed.ok, removed.text()
        away.page.get_by_text("Nothing answered there").wait_for()
    assert visit.complaints() + away.complaints() == []
