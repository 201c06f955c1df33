"""What is asked of every page: nothing to complain of, no sideways scrolling, reachable by keyboard with a visible focus, nothing serious for axe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Page

_QUIET = "() => !document.querySelector('.htmx-request, .htmx-swapping, .htmx-settling')"
_AXE = """options => axe.run(document, options).then(found => found.violations
    .filter(one => one.impact === 'serious' || one.impact === 'critical')
    .map(one => one.id + ': ' + one.nodes.slice(0, 3).map(node => node.target.join(' ')).join(' | ')))"""
# Each thing that can be used: can it have the focus, does Tab get there, and does one see it? Focus moves as a keyboard moves it.
_KEYBOARD = """() => {
    const wanted = 'a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]';
    const wrong = [];
    for (const one of document.querySelectorAll(wanted)) {
        if (one.disabled || !one.checkVisibility({visibilityProperty: true}) || one.closest('dialog:not([open]), [aria-hidden=true]')) continue;
        const name = one.outerHTML.slice(0, 90);
        if (one.tabIndex > 0) wrong.push('its own place in the order: ' + name);
        if (one.tabIndex < 0) { if (one.id !== 'main') wrong.push('passed over by Tab: ' + name); continue; }
        one.focus({preventScroll: true, focusVisible: true});
        if (document.activeElement !== one) { wrong.push('takes no focus: ' + name); continue; }
        const style = getComputedStyle(one);
        if (style.outlineStyle === 'none' || parseFloat(style.outlineWidth) < 2) wrong.push('focus unseen: ' + name);
    }
    document.activeElement.blur();
    return wrong;
}"""
# Words of tables that stand in two lines: what people read as two words, or cannot read. Longer ones than any of ours may break.
_BROKEN = """() => {
    const found = [], walk = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const text = walk.currentNode;
        if (!text.parentElement.closest('td, th') || text.parentElement.closest('pre, .sr') || !text.parentElement.checkVisibility()) continue;
        for (const word of text.data.matchAll(/\\w{1,24}(?!\\w)/g)) {
            const range = document.createRange();
            range.setStart(text, word.index);
            range.setEnd(text, word.index + word[0].length);
            const lines = new Set([...range.getClientRects()].filter(one => one.width > 0).map(one => Math.round(one.top)));
            if (lines.size > 1) found.push(word[0]);
        }
    }
    return found;
}"""
_BEYOND = """() => [...document.querySelectorAll('main .scroll')].filter(one => one.scrollWidth > one.clientWidth + 1)
    .map(one => (one.querySelector('thead') || one).innerText.replace(/\\s+/g, ' ').slice(0, 80))"""


@dataclass
class Visit:
    """A browser's page and what it complained of: errors of scripts, and what the Content-Security-Policy refused."""

    page: Page
    said: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, context: BrowserContext) -> Visit:
        visit = cls(context.new_page())
        visit.page.on("console", visit._note)
        visit.page.on("pageerror", lambda error: visit.said.append(str(error)))
        return visit

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "the server responded with a status of 404" not in message.text:
            self.said.append(message.text)

    def open(self, path: str) -> int:
        """Go there and wait until what the page fetches at once has come; returns the status."""
        answer = self.page.goto(path)
        self.quiet()
        return answer.status if answer else 0

    def quiet(self) -> None:
        """Wait until what was fetched stands in the page and listens: no person types within the 20 ms before that."""
        self.page.wait_for_function(_QUIET)

    def complaints(self) -> list[str]:
        """What was said since the last time it was asked."""
        said, self.said = self.said, []
        return said

    def sideways(self) -> list[str]:
        """What is wider than the window, or nothing."""
        if self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"):
            return []
        find = """() => [...document.querySelectorAll('main *, header *')].filter(one => one.getBoundingClientRect().right > window.innerWidth + 1
            && !one.closest('.scroll, .tabs, .wide, pre, .sr')).slice(0, 3).map(one => one.outerHTML.slice(0, 90))"""
        return [f"sideways: {one}" for one in self.page.evaluate(find)] or ["sideways"]

    def tabs(self) -> list[str]:
        """Tabs that are out of sight on a wide screen, where nothing shows that they could be scrolled to."""
        hidden = """() => { const bar = document.querySelector('.tabs'); return bar && bar.scrollWidth > bar.clientWidth + 1; }"""
        return ["tabs out of sight"] if self.page.evaluate(hidden) else []

    def broken(self) -> list[str]:
        """Words of tables that are broken in two."""
        return [f"broken word: {one}" for one in self.page.evaluate(_BROKEN)]

    def beyond(self) -> list[str]:
        """Tables that go on beyond the edge of their card."""
        return [f"beyond the edge: {one}" for one in self.page.evaluate(_BEYOND)]

    def axe(self, *, only: tuple[str, ...] = ()) -> list[str]:
        """Serious and critical findings of axe, by all its rules or by ``only`` these."""
        options: dict[str, Any] = {"resultTypes": ["violations"]}
        if only:
            options["runOnly"] = {"type": "rule", "values": list(only)}
        found: list[str] = self.page.evaluate(_AXE, options)
        return found

    def keyboard(self) -> list[str]:
        """What a keyboard cannot reach, or reaches unseen."""
        found: list[str] = self.page.evaluate(_KEYBOARD)
        return found

    def narrow_and_dark(self) -> None:
        self.page.set_viewport_size({"width": 360, "height": 740})
        self.page.emulate_media(color_scheme="dark")

    def wide_and_light(self) -> None:
        self.page.set_viewport_size({"width": 1280, "height": 900})
        self.page.emulate_media(color_scheme="light")
