"""Media in prompts: which URLs an engine may be asked to fetch, and how a picture enters the prefix.

The engine fetches what ``image_url`` names, from inside the operator's network, so the router holds the policy: ``data:`` URLs always, ``https``
to hosts
on the operator's list (exact, ``.suffix``, or ``*`` for any named host), nothing else. Only message content is read, not tools or metadata.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

LONG_PART_BYTES = 2048  # a part longer than this enters the prefix as its digest
MAX_DEPTH = 16


def _urls(value: object, key: str, depth: int) -> Iterator[str]:
    """Strings under keys that engines fetch: ``image_url`` (text or ``{url}``), ``video_url``, ``audio_url``, ``file_url``, ``url``, ``uri``."""
    if depth > MAX_DEPTH:
        return
    if isinstance(value, str):
        if key.endswith("url") or key == "uri":
            yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _urls(inner, str(name).lower(), depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _urls(inner, key, depth + 1)


def _named_host(host: str) -> bool:
    """A public-looking name: not an address in any notation, not a single label, not one of the reserved inner domains."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        labels = host.split(".")
        last = labels[-1]
        return len(labels) > 1 and not last.isdigit() and not last.startswith("0x") and last not in ("internal", "local", "localhost")
    return False


def allowed(url: str, hosts: Sequence[str]) -> bool:
    """Whether an engine may be handed ``url``."""
    if url[:5].lower() == "data:":
        return True
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return False
    if parts.scheme != "https" or not host or "@" in parts.netloc or port not in (None, 443) or not _named_host(host):
        return False
    return any(host == one or (one.startswith(".") and host.endswith(one)) or one == "*" for one in hosts)


def refused_urls(messages: Sequence[Any], hosts: Sequence[str]) -> int:
    """How many URLs in the messages' content the policy refuses. The URLs themselves are nobody's business in an error."""
    count = 0
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list | dict):
            count += sum(not allowed(url, hosts) for url in _urls(content, "", 0))
    return count


def names_media(messages: Sequence[Any]) -> bool:
    """Whether a content part carries a ``uuid``: engines look media up by it in a cache that knows no salt, so a client may not choose one."""
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and "uuid" in part:
                return True
    return False


def compact(messages: Sequence[Any]) -> tuple[list[Any], bool]:
    """Replace long media parts by their SHA-256, for the prefix only; the second value says whether there was any media.

    A megabyte of base64 is a few hundred tokens to an engine: as bytes it would drown the estimate of everything round it.
    """
    found = False
    result: list[Any] = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            result.append(message)
            continue
        parts: list[Any] = []
        for part in content:
            if isinstance(part, dict) and part.get("type") != "text":
                found = True
                encoded = msgspec.json.encode(part, order="deterministic")
                parts.append({"sha256": hashlib.sha256(encoded).hexdigest()} if len(encoded) > LONG_PART_BYTES else part)
            else:
                parts.append(part)
        result.append({**message, "content": parts})
    return result, found
