// The playground: sends the form, shows the answer as it comes, then lets htmx fetch what is known of it.
// The conversation and the key live in this page alone; everything that is shown of them is text, never markup.
"use strict";

(() => {
  const form = document.getElementById("talk");
  if (!form) return;
  const byId = (id) => document.getElementById(id);
  const turns = byId("turns"), wrong = byId("wrong"), state = byId("state"), send = byId("send"), stop = byId("stop"), message = byId("message");
  let told = [];
  let running = null;

  function say(text) { state.textContent = text; }

  function complain(text, field) {
    wrong.textContent = text;
    wrong.hidden = !text;
    for (const one of form.querySelectorAll("[aria-invalid]")) one.removeAttribute("aria-invalid");
    const at = field && byId(field);
    if (!at) return;
    at.setAttribute("aria-invalid", "true");
    const folded = at.closest("details");
    if (folded) folded.open = true;
    at.focus();
  }

  function turn(role, text) {
    const item = document.createElement("li");
    item.className = `turn ${role}`;
    const who = document.createElement("p");
    who.className = "small muted";
    who.textContent = role === "user" ? "You" : byId("endpoint").value;
    const said = document.createElement("div");
    said.className = "said";
    said.textContent = text;
    item.append(who, said);
    turns.append(item);
    return item;
  }

  async function refusal(answer) {
    try {
      const { error } = await answer.json();
      return [error.message, error.field === "messages" ? "message" : error.field];
    } catch {
      return [answer.status === 403 ? "This page is too old, or your role does not allow it: load it again." : `The console answered ${answer.status}.`, null];
    }
  }

  // Lines of JSON from a stream of bytes that may be cut anywhere.
  async function* events(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line) yield JSON.parse(line);
    }
  }

  function facts(end) {
    const parts = [];
    if (end.ttft_s !== null) parts.push(`first token after ${Math.round(end.ttft_s * 1000)} ms`);
    if (end.prompt_tokens != null) parts.push(`${end.prompt_tokens} prompt tokens`);
    if (end.cached_tokens != null) parts.push(`${end.cached_tokens} of them cached`);
    if (end.completion_tokens != null) parts.push(`${end.completion_tokens} answered in ${end.e2e_s.toFixed(2)} s`);
    if (end.finish && end.finish !== "stop") parts.push(`ended by ${end.finish}`);
    return `Measured here: ${parts.join(", ")}.`;
  }

  function explain(item, decision) {
    if (!/^[0-9a-f-]{36}$/.test(decision || "")) return;
    const place = document.createElement("div");
    item.append(place);
    const url = form.dataset.decisionUrl.replace("00000000-0000-0000-0000-000000000000", decision);
    htmx.ajax("GET", url, { target: place, swap: "innerHTML" });
  }

  async function ask() {
    const text = message.value;
    if (!text.trim()) { complain("Write a message.", "message"); return; }
    complain("");
    const system = byId("system").value;
    const messages = [...(system.trim() ? [{ role: "system", content: system }] : []), ...told, { role: "user", content: text }];
    const fields = new FormData(form);
    fields.set("messages", JSON.stringify(messages));
    running = new AbortController();
    send.disabled = true;
    stop.hidden = false;
    say("Waiting for the first token…");
    let item = null, answer = "", decision = null;
    try {
      const response = await fetch(form.action, { method: "POST", body: fields, signal: running.signal, redirect: "error" });
      if (!response.ok) { complain(...await refusal(response)); return; }
      turn("user", text);
      message.value = "";
      item = turn("assistant", "");
      const said = item.querySelector(".said");
      for await (const event of events(response.body)) {
        decision = event.decision || decision;
        if (event.type === "text") {
          if (!answer) say("The answer comes…");
          answer += event.text;
          said.textContent = answer;
        } else if (event.type === "refused") {
          complain(`${event.message}${event.code ? ` (${event.code})` : ""}`);
          if (event.status === 401) complain(`${event.message} A new key takes up to a second to reach the routers.`, "key");
        } else if (event.type === "end") {
          const line = document.createElement("p");
          line.className = "small muted";
          line.textContent = facts(event);
          item.append(line);
        }
      }
      if (answer) told = [...told, { role: "user", content: text }, { role: "assistant", content: answer }];
      else { message.value = text; item.classList.add("none"); }
    } catch (error) {
      if (error.name === "AbortError") say("Stopped.");
      else complain("The connection broke off.");
      if (answer) told = [...told, { role: "user", content: text }, { role: "assistant", content: answer }];
    } finally {
      running = null;
      send.disabled = false;
      stop.hidden = true;
      if (state.textContent !== "Stopped.") say("");
      if (item) explain(item, decision);
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running && !send.disabled) ask();
  });
  message.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  stop.addEventListener("click", () => { if (running) running.abort(); });
  byId("start-over").addEventListener("click", () => {
    if (running) running.abort();
    told = [];
    turns.replaceChildren();
    complain("");
    say("");
    message.focus();
  });

  const getKey = byId("get-key");
  if (getKey) getKey.addEventListener("click", async () => {
    getKey.disabled = true;
    try {
      const fields = new FormData();
      fields.set("csrfmiddlewaretoken", form.elements.csrfmiddlewaretoken.value);
      const answer = await fetch(form.dataset.keyUrl, { method: "POST", body: fields, redirect: "error" });
      if (!answer.ok) { complain(...await refusal(answer)); return; }
      const issued = await answer.json();
      byId("key").value = issued.key;
      complain("");
      say(`A key for ${issued.minutes} minutes is in the field.`);
    } catch {
      complain("The console did not answer.");
    } finally {
      getKey.disabled = false;
    }
  });
})();
