"""The console's main pages as pictures, with traffic behind them.

    python -m tests.bench.screenshots [--minutes 4] [--out docs/screenshots] [--home .saltroute]

Starts the product in a home of its own (or uses the one that runs in ``--home``), holds conversations with the demo's two tenants, asks for
an audit, a trial of a policy and a replay, then takes each page in Debian's Chromium and writes it as a PNG of 256 colours (below 300 kB).
People who need them again run this again: nothing in a picture is drawn by hand. Secrets of the home stay in it: no page that shows a key is taken.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2 as httpx

from deploy.local.options import REPOSITORY
from deploy.local.places import Home
from tests.bench.conversations import text
from tests.product import Product, fresh_home, remove

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = "/usr/bin/chromium"
MOST_BYTES = 300_000
WIDTH, HEIGHT, MOST_HEIGHT = 1280, 860, 2200
TALKERS = 6
THINK_S = 0.8
MODELS = ("llama-chat", "llama-private")


class Traffic:
    """Conversations of several people at once, until stopped: they share system prompts by scope, and come back after some thought."""

    def __init__(self, router_url: str, keys: dict[str, str]) -> None:
        self.router_url, self.keys = router_url, keys
        self.requests = self.failed = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._talk, args=(number,), daemon=True) for number in range(TALKERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _talk(self, number: int) -> None:
        draw = random.Random(f"screenshots {number}")
        systems = {name: text(random.Random(name), 160) for name in self.keys}
        with httpx.Client(timeout=60) as client:
            while not self._stop.is_set():
                name = draw.choice(sorted(self.keys))
                model = "llama-chat" if name.startswith("GLOBEX") else draw.choice(MODELS)
                messages = [{"role": "system", "content": systems[name]}]
                for _ in range(draw.randrange(2, 7)):
                    messages.append({"role": "user", "content": text(draw, draw.randrange(20, 120))})
                    messages.append({"role": "assistant", "content": self._ask(client, self.keys[name], model, messages, draw)})
                    if self._stop.wait(draw.expovariate(1 / THINK_S)):
                        return

    def _ask(self, client: httpx.Client, key: str, model: str, messages: list[dict[str, str]], draw: random.Random) -> str:
        body = {"model": model, "messages": messages, "max_tokens": draw.randrange(16, 64), "stream": True}
        said = ""
        try:
            with client.stream("POST", f"{self.router_url}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        choices = json.loads(line[6:]).get("choices") or [{}]
                        said += (choices[0].get("delta") or {}).get("content") or ""
        except httpx.HTTPError:
            self.failed += 1
        self.requests += 1
        return said or "…"


@contextmanager
def product(options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], Home]]:
    """How to reach a product, and its home."""
    if options.home:
        home = Home(Path(options.home).absolute())
        yield json.loads((home.run / "access.json").read_text()), home
        return
    home = fresh_home()
    try:
        running = Product.start(home)
        try:
            yield json.loads((home.run / "access.json").read_text()), home
        finally:
            running.stop()
    finally:
        remove(home)


class Camera:
    """A signed-in browser that writes pictures into a folder."""

    def __init__(self, page: Page, access: dict[str, Any], out: Path) -> None:
        self.page, self.access, self.out = page, access, out

    def sign_in(self) -> None:
        self.page.goto(f"{self.access['console']}/login")
        self.page.get_by_label("E-mail").fill(self.access["email"])
        self.page.get_by_label("Password").fill(self.access["password"])
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(lambda url: not url.rstrip("/").endswith("/login"))

    def go(self, path: str) -> None:
        self.page.goto(self.access["console"] + path)
        self.page.wait_for_function("() => !document.querySelector('.htmx-request')")

    def take(self, name: str) -> None:
        """The page from its top, as far down as a picture stays readable."""
        height = min(self.page.evaluate("document.documentElement.scrollHeight"), MOST_HEIGHT)
        self.page.set_viewport_size({"width": WIDTH, "height": max(HEIGHT, height)})
        self.page.wait_for_timeout(400)  # plots draw themselves anew when the window's size has settled
        self.page.evaluate("window.scrollTo(0, 0)")
        raw = self.page.screenshot()
        self.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        size = write(raw, self.out / f"{name}.png")
        sys.stdout.write(f"{name}.png  {size // 1000} kB\n")


def write(raw: bytes, path: Path) -> int:
    """Write a PNG in 256 colours; returns its bytes.

    Raises:
        ValueError: it is larger than ``MOST_BYTES``.
    """
    from PIL import Image

    buffer = io.BytesIO()
    Image.open(io.BytesIO(raw)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    if len(buffer.getvalue()) > MOST_BYTES:
        raise ValueError(f"{path.name} has {len(buffer.getvalue())} bytes, at most {MOST_BYTES}")
    path.write_bytes(buffer.getvalue())
    return len(buffer.getvalue())


def a_trace() -> bytes:
    """Half an hour of chats in Mooncake's form (docs/traces.md): 512 tokens a block, conversations that grow, eight shared beginnings."""
    draw, lines, block = random.Random("a trace"), [], 1000
    for _ in range(160):
        at_s, ids = draw.uniform(0, 1800), list(range(draw.randrange(8) * 10, 0, -1))[:6]
        for _ in range(draw.randrange(1, 9)):
            new = draw.randrange(1, 4)
            ids, block = [*ids, *range(block, block + new)], block + new
            answer = draw.randrange(30, 400)
            lines.append((at_s, {"timestamp": int(at_s * 1000), "input_length": len(ids) * 512, "output_length": answer, "hash_ids": ids}))
            at_s += draw.expovariate(1 / 40)
    return "".join(json.dumps(line) + "\n" for _, line in sorted(lines, key=lambda pair: pair[0])).encode()


def replay(camera: Camera, trace: bytes) -> str:
    """Send a trace and replay it under the stored policies and one more; returns the job's path when it is done."""
    page = camera.page
    camera.go("/t/acme/traces")
    page.get_by_label("File", exact=True).set_input_files({"name": "tuesday.jsonl", "mimeType": "application/octet-stream", "buffer": trace})
    page.get_by_role("button", name="Send it").click()
    page.get_by_text("is read:").wait_for()
    form = page.get_by_role("form", name="Replay policies")
    form.get_by_role("checkbox").first.check()
    form.get_by_label("And a document").fill("policy: round_robin")
    form.get_by_label("Objective").fill("2")
    form.get_by_role("button", name="Replay").click()
    page.locator("img.trace-plot").first.wait_for(timeout=240_000)
    return page.url.removeprefix(camera.access["console"])


def audit(camera: Camera) -> None:
    """Ask for an audit of the tenant's own endpoint. One that is refused (the start of the product had one just now) leaves that one's rows."""
    camera.go("/t/acme/isolation")
    camera.page.get_by_label("Endpoint to audit").select_option(label="llama-private")
    camera.page.get_by_role("button", name="Run an audit now").click()
    camera.page.wait_for_load_state()


def try_round_robin(camera: Camera) -> str:
    """Let another policy place half of an endpoint's prompts; returns the endpoint's path."""
    page = camera.page
    camera.go("/t/acme/policies")
    if not page.get_by_role("link", name="blind", exact=True).count():
        camera.go("/t/acme/policies/new/routing")
        if not page.locator("#spec").count():
            page.get_by_role("button", name="Write it as YAML").click()
        page.get_by_label("Document").fill("policy: round_robin")
        page.get_by_label("Name").fill("blind")
        page.locator("button.primary").click()
    camera.go("/t/acme/endpoints")
    page.get_by_role("link", name="llama-private", exact=True).first.click()
    endpoint: str = page.url.removeprefix(camera.access["console"])
    page.get_by_role("link", name=re.compile("Try a policy|Change the share")).click()
    page.get_by_label("Policy", exact=True).select_option(label="blind v1: round_robin")
    page.get_by_label("Prompts that it places").fill("50")
    page.get_by_role("button", name="Try it").click()
    page.get_by_text("applied by").wait_for()
    return endpoint


def talk(camera: Camera) -> None:
    """Two turns in the playground, with a key that ends by itself."""
    page = camera.page
    camera.go("/t/acme/playground?endpoint=llama-private")
    page.get_by_role("button", name="Get a key").click()
    page.get_by_text("is in the field").wait_for()
    first = "Tell me about the salt trade of Timbuktu: who carried it, along which routes, and what was it worth in gold? " * 2
    for number, message in enumerate((first, "And which of its towns lived of it?"), start=1):
        page.get_by_label("Message").fill(message)
        page.get_by_role("button", name="Send", exact=True).click()
        page.get_by_role("link", name="Its decision").nth(number - 1).wait_for(timeout=60_000)


def decision(camera: Camera) -> str:
    """A decision worth looking at: of the tenant's own pool, with reuse; it comes from the playground's second turn."""
    address = camera.page.get_by_role("link", name="Its decision").last.get_attribute("href")
    assert address
    return address


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.screenshots")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs/screenshots")
    parser.add_argument("--home", help="of a product that runs")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with product(options) as (access, home):
        keys = {path.name.removeprefix("demo_"): path.read_text().strip() for path in sorted(home.secrets.glob("demo_*_KEY"))}
        traffic = Traffic(access["router"], keys)
        traffic.start()
        try:
            pictures(access, options)
        finally:
            traffic.stop()
        sys.stdout.write(f"{traffic.requests} requests, {traffic.failed} without an answer\n")
    return 0


def pictures(access: dict[str, Any], options: argparse.Namespace) -> None:
    """Prepare, wait for figures, and take each page."""
    from playwright.sync_api import sync_playwright

    began_s = time.monotonic()
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"])
        context = chromium.new_context(viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce")
        context.set_default_timeout(60_000)
        camera = Camera(context.new_page(), access, options.out)
        camera.sign_in()
        audit(camera)
        job = replay(camera, a_trace())
        talk(camera)  # before the trial, under the policy that runs
        camera.take("playground")
        shown = decision(camera)
        endpoint = try_round_robin(camera)
        camera.page.wait_for_timeout(max(0.0, options.minutes * 60 - (time.monotonic() - began_s)) * 1000)
        camera.go(shown)
        camera.take("decision")
        camera.go("/t/acme?range=15m")
        camera.take("overview")
        camera.page.emulate_media(color_scheme="dark")
        camera.go("/t/acme?range=15m")
        camera.take("overview-dark")
        camera.page.emulate_media(color_scheme="light")
        for name, path in (("isolation", "/t/acme/isolation"), ("policy", endpoint), ("traces", job)):
            camera.go(path)
            camera.take(name)
        chromium.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
