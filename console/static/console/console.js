// What the console needs beyond htmx: copying, the dialog that asks before something is done, and menus that close.
// No inline handlers and no eval, so that the Content-Security-Policy holds.
"use strict";

(() => {
  const dialog = document.getElementById("dialog");

  // A link or button with data-dialog loads its page's fragment into the dialog. Without scripts the same link opens the page itself.
  document.addEventListener("htmx:afterSwap", (event) => {
    if (dialog && event.detail.target === dialog && !dialog.open) dialog.showModal();
  });

  // A page that renews itself leaves open what was open and the focus where it was. New elements stand for old ones that say or lead to the same; of
  // several such the first for the first.
  let kept = null;
  function named(root) {
    const seen = new Map();
    return [...root.querySelectorAll("a[href], button, summary, [tabindex]")].map((one) => {
      const said = `${one.tagName} ${one.getAttribute("href") || one.getAttribute("aria-label") || one.textContent.trim()}`;
      seen.set(said, (seen.get(said) || 0) + 1);
      return [`${said} ${seen.get(said)}`, one];
    });
  }
  document.addEventListener("htmx:beforeSwap", (event) => {
    const target = event.detail.target;
    if (!target.id || target === dialog) return;
    const all = named(target);
    kept = {
      id: target.id,
      open: new Set(all.filter(([, one]) => one.tagName === "SUMMARY" && one.parentElement.open).map(([name]) => name)),
      focus: all.find(([, one]) => one === document.activeElement)?.[0],
    };
  });
  document.addEventListener("htmx:afterSwap", () => {
    const now = kept && document.getElementById(kept.id);
    if (!now) return;
    for (const [name, one] of named(now)) {
      if (kept.open.has(name)) one.parentElement.open = true;
      if (name === kept.focus && document.activeElement === document.body) one.focus({ preventScroll: true });
    }
    kept = null;
  });

  // On a narrow screen the tabs scroll: bring the current one into view. Not by scrollIntoView, after which Chromium's first Tab begins there, past "Skip to content".
  const current = document.querySelector(".tabs [aria-current]");
  if (current) {
    const bar = current.parentElement, at = current.getBoundingClientRect(), around = bar.getBoundingClientRect();
    bar.scrollLeft += at.left + at.width / 2 - around.left - around.width / 2;
  }

  document.addEventListener("click", async (event) => {
    const close = event.target.closest("[data-close]");
    if (close && dialog && dialog.contains(close)) {
      event.preventDefault();
      dialog.close();
      return;
    }
    const copy = event.target.closest("[data-copy]");
    if (copy) await copyFrom(copy);
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
  });

  // In an open menu the arrows go from one entry to the next; Home and End go to the ends.
  document.addEventListener("keydown", (event) => {
    const menu = event.target.closest("details.menu");
    if (!menu || !["ArrowDown", "ArrowUp", "Home", "End"].includes(event.key)) return;
    if (event.target.matches("input") && ["Home", "End"].includes(event.key)) return;
    event.preventDefault();
    menu.open = true;
    const entries = [...menu.querySelectorAll(".menu-list :is(input, a, button):not([type=hidden])")];
    const at = entries.indexOf(document.activeElement);
    const next = { ArrowDown: at + 1, ArrowUp: at < 0 ? entries.length - 1 : at - 1, Home: 0, End: entries.length - 1 }[event.key];
    entries[(next + entries.length) % entries.length]?.focus();
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });

  document.addEventListener("focusin", (event) => {
    if (event.target.matches("[data-select]")) event.target.select();
  });

  async function copyFrom(button) {
    const source = document.getElementById(button.dataset.copy);
    const text = "value" in source ? source.value : source.textContent;
    const said = button.querySelector("[data-said]") || button;
    const before = said.textContent;
    try {
      await navigator.clipboard.writeText(text);
      said.textContent = "Copied";
    } catch {
      // No clipboard over plain HTTP to another host: select it, so that one keystroke copies.
      const range = document.createRange();
      if (source.select) source.select();
      else {
        range.selectNodeContents(source);
        window.getSelection().removeAllRanges();
        window.getSelection().addRange(range);
      }
      said.textContent = "Selected: press Ctrl+C";
    }
    window.setTimeout(() => { said.textContent = before; }, 2500);
  }
})();
