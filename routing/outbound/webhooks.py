"""Send a signed message to an address that a customer named: checked when it is registered and again at the socket, never redirected, never read.

Nothing of the answer is kept but its status, so that a webhook shows nobody what lies behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from routing.outbound.addresses import MAX_URL_CHARACTERS, Network, Resolve, UrlRefused, check_url
from routing.outbound.guard import connector, was_refused

TIMEOUT_S = 5.0
MAX_CONCURRENT = 8


@dataclass(frozen=True, slots=True)
class Message:
    """One attempt, ready to go."""

    url: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """``error`` is "" for an accepted message (a status from 200 to 299), else a code of ours."""

    status: int | None
    error: str


def check_webhook(url: object, allowed_ranges: Sequence[Network], *, http: bool, resolve: Resolve | None = None) -> str:
    """Refuse a URL that may not be sent to; returns it as given. ``http``: the operator allows plain HTTP.

    Raises:
        UrlRefused: as ``check_url``, or reason ``https``.
    """
    check_url(url, allowed_ranges, resolve)
    text = str(url)
    if len(text) > MAX_URL_CHARACTERS:
        raise UrlRefused("format")
    if urlsplit(text).scheme.lower() != "https" and not http:
        raise UrlRefused("https")
    return text


async def send_all(
    messages: Sequence[Message],
    allowed_ranges: Sequence[Network],
    *,
    http: bool,
    timeout_s: float = TIMEOUT_S,
    resolver: aiohttp.abc.AbstractResolver | None = None,
) -> list[Outcome]:
    """Send each once, some at a time; outcomes in the same order."""
    limit = asyncio.Semaphore(MAX_CONCURRENT)
    guarded = connector(allowed_ranges, keepalive_s=1.0, pooled=False, resolver=resolver)
    async with aiohttp.ClientSession(
        connector=guarded, trust_env=False, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=timeout_s)
    ) as session:

        async def one(message: Message) -> Outcome:
            async with limit:
                return await _send(session, message, allowed_ranges, http=http)

        return list(await asyncio.gather(*(one(message) for message in messages)))


async def _send(session: aiohttp.ClientSession, message: Message, allowed_ranges: Sequence[Network], *, http: bool) -> Outcome:
    try:
        check_webhook(message.url, allowed_ranges, http=http)
        async with session.post(message.url, data=message.body, headers=message.headers, allow_redirects=False) as answer:
            status = answer.status
    except UrlRefused:
        return Outcome(None, "address")
    except TimeoutError:
        return Outcome(None, "timeout")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Outcome(None, "address" if was_refused(error) else "connect")
    if 200 <= status < 300:
        return Outcome(status, "")
    return Outcome(status, "redirect" if 300 <= status < 400 else "status")
