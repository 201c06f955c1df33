"""What a person typed, checked: a chat request and the key to send it with. Pure.

The key is a secret of the caller's: it is in no ``repr``, no message of a refusal, and nothing here keeps it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tenants.core import api_key, names, scopes
from tenants.core.errors import Invalid

MAX_MESSAGES = 100
MAX_PROMPT_BYTES = 128 * 1024  # of all messages together
MAX_ANSWER_TOKENS = 2048
DEFAULT_ANSWER_TOKENS = 256
ROLES = ("system", "user", "assistant")
_CONTEXT = re.compile(r"[!-~][ -~]{0,1023}")


@dataclass(frozen=True, slots=True)
class Asked:
    """A chat request as it will be sent. ``scope`` None leaves the key's own scope, ``context`` is the text of X-Saltroute-Context or empty."""

    key: str = field(repr=False)
    model: str
    body: bytes = field(repr=False)
    scope: str | None = None
    context: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the request, the secret one among them."""
        more = {"X-Saltroute-Scope": self.scope} if self.scope else {}
        more |= {"X-Saltroute-Context": self.context} if self.context else {}
        return {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json", "Accept": "text/event-stream", **more}


def read(form: Mapping[str, str]) -> Asked:
    """Read the playground's form: ``key``, ``endpoint``, ``messages`` (JSON), and if given ``scope``, ``context``, ``max_tokens``, ``temperature``,
    ``top_p``, ``seed``.

    Raises:
        Invalid: a field is missing or not acceptable; it is named.
    """
    key = form.get("key", "").strip()
    if key.startswith("srct-"):
        raise Invalid("This is a control token: it opens the API and no endpoint. Use an inference key.", field="key")
    if not key:
        raise Invalid("Paste an inference key, or get one for the playground.", field="key")
    api_key.check_own(key, field="key")
    model = form.get("endpoint", "")
    names.model_name(model, field="endpoint")
    scope = scopes.parse_path(form.get("scope", ""), field="scope") or None
    context = form.get("context", "").strip()
    if context and not _CONTEXT.fullmatch(context):
        raise Invalid("Write name=version, several with commas between them.", field="context")
    body: dict[str, Any] = {"model": model, "messages": _messages(form.get("messages", ""))}
    body["max_tokens"] = _whole(form, "max_tokens", low=1, high=MAX_ANSWER_TOKENS) or DEFAULT_ANSWER_TOKENS
    optional = {
        "temperature": _number(form, "temperature", low=0, high=2),
        "top_p": _number(form, "top_p", low=0.001, high=1),
        "seed": _whole(form, "seed", low=0, high=2**31),
    }
    body |= {name: value for name, value in optional.items() if value is not None}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    return Asked(key=key, model=model, body=json.dumps(body).encode(), scope=scope, context=context)


def _messages(text: str) -> list[dict[str, str]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise Invalid("This is no list of messages.", field="messages") from None
    if not isinstance(found, list) or not found:
        raise Invalid("Write a message.", field="messages")
    if len(found) > MAX_MESSAGES:
        raise Invalid(f"A conversation here has at most {MAX_MESSAGES} messages (MAX_MESSAGES): start over.", field="messages")
    told = []
    for one in found:
        fits = isinstance(one, dict) and one.get("role") in ROLES and isinstance(one.get("content"), str)
        if not fits:
            raise Invalid(f"A message has a role ({', '.join(ROLES)}) and text.", field="messages")
        told.append({"role": one["role"], "content": one["content"]})
    if not any(one["content"].strip() for one in told if one["role"] == "user"):
        raise Invalid("Write a message.", field="messages")
    if sum(len(one["content"].encode("utf-8", "surrogatepass")) for one in told) > MAX_PROMPT_BYTES:
        raise Invalid(f"A conversation here has at most {MAX_PROMPT_BYTES} bytes (MAX_PROMPT_BYTES).", field="messages")
    return told


def _number(form: Mapping[str, str], name: str, *, low: float, high: float) -> float | None:
    text = form.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise Invalid(f"Use a number from {low:g} to {high:g}.", field=name)
    return value


def _whole(form: Mapping[str, str], name: str, *, low: int, high: int) -> int | None:
    value = _number(form, name, low=low, high=high)
    if value is not None and value != int(value):
        raise Invalid("Use a whole number.", field=name)
    return None if value is None else int(value)
