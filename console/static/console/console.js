// What the console needs beyond htmx: copying, the dialog that asks before something is done, and menus that close.
// No inline handlers and no eval, so that the Content-Security-Policy holds.
"use strict";

(() => {
  const dialog = document.getElementById("dialog");

  // A link or button with data-dialog loads its page's fragment into the dialog. Without scripts the same link opens the page itself.
  document.addEventListener("htmx:afterSwap", (event) => {
    if (dialog && event.detail.target === dialog && !dialog.open) dialog.showModal();
  });

  // On a narrow screen the tabs scroll: bring the current one into view.
  const current = document.querySelector(".tabs [aria-current]");
  if (current) current.scrollIntoView({ block: "nearest", inline: "center" });

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
