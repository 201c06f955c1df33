"""Which addresses and URLs may be connected to. Pure; the check at connect time is in ``guard.py``.

A customer names the URL, we hold the network: public addresses are allowed, everything inner is refused unless the operator's ranges name it,
and the cloud's
metadata services are refused unless a range names that very address.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from urllib.parse import urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_URL_CHARACTERS = 512
_METADATA = frozenset(
    ipaddress.ip_address(text) for text in ("169.254.169.254", "169.254.170.2", "169.254.169.253", "100.100.100.200", "192.0.0.192", "fd00:ec2::254")
)
_INNER_NAMES = ("localhost", "metadata", "metadata.google.internal", "instance-data")
_INNER_SUFFIXES = (".localhost", ".internal")
_TRANSITION = ipaddress.IPv6Network("2002::/16")  # 6to4: another route, not another spelling
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*")
_NUMERIC_LABEL = re.compile(r"\d+|0x[0-9a-f]*")
_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")
# What is wrong with a text, by reason of :class:`UrlRefused`: to be told to anybody, since nothing but the text decides it.
MALFORMED: Mapping[str, str] = {
    "format": "it holds characters that no base URL has, is too long, or is no URL",
    "scheme": "it begins with neither http:// nor https://",
    "credentials": "it holds a user name; what an engine asks for goes into credential",
    "query": "it has a query or a fragment, and a base URL has neither",
    "host": "its host is neither a name nor an address",
    "port": "its port is no number up to 65535, or is below 1024 and neither 80 nor 443",
    "path": "its path holds dot segments or odd characters",
    "request": "its path is that of a request; give what comes before /v1, /metrics or /health",
}
_REQUEST = re.compile(r"/(?:v1/(?:chat(?:/completions)?|completions|embeddings|models|responses)|metrics|health)/?$")


class UrlRefused(ValueError):
    """A URL that may not be used. ``reason`` is a code of ours, one of :data:`MALFORMED` or ``address``; it never says what a name resolved to."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def parse_ranges(texts: Iterable[str]) -> tuple[Network, ...]:
    """Read the operator's allow-list, such as ``127.0.0.0/8``.

    Raises:
        ValueError: not a network, or host bits set (``10.0.0.1/8`` is a typing mistake, not a range).
    """
    return tuple(ipaddress.ip_network(text) for text in texts)


def _embedded(address: Address) -> Address:
    """The IPv4 address that an IPv6 form carries (mapped, NAT64, 6to4), or the address itself."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _NAT64 or int(address) >> 32 == 0:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if int(address) > 0xFFFF else address
    return address


def address_allowed(address: Address, ranges: Sequence[Network]) -> bool:
    """Whether a connection to ``address`` may be made."""
    real = _embedded(address)
    if real in _METADATA:
        return any(one.num_addresses == 1 and real in one for one in ranges if one.version == real.version)
    if any(real in one for one in ranges if one.version == real.version):
        return True
    return real.is_global and not real.is_multicast and not real.is_reserved and not real.is_unspecified


def literal(host: str) -> Address | None:
    """The address a host text denotes in any notation that resolvers accept (``2130706433``, ``0x7f.1``), or None for a name.

    Raises:
        UrlRefused: it looks like an address and is none.
    """
    if ":" in host:
        try:
            return ipaddress.IPv6Address(host)
        except ValueError:
            raise UrlRefused("host") from None
    if _NUMERIC_LABEL.fullmatch(host.rsplit(".", 1)[-1]):
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError:
            raise UrlRefused("host") from None
    return None


def normalise_url(url: object) -> str:
    """The one spelling of a replica's base URL: lower-case host, addresses in their usual form, no default port, no trailing slash or ``/v1``.

    Load and residency are kept under this text, so that two spellings of one engine are one engine.

    Raises:
        UrlRefused: not http(s), a user name, query, fragment, odd characters, dot segments, or a port that is some other service's.
    """
    if not isinstance(url, str) or not 1 <= len(url) <= MAX_URL_CHARACTERS or not url.isascii() or any(c <= " " or c in '\\<>"{}|^`%' for c in url):
        raise UrlRefused("format")
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        raise UrlRefused("format") from None
    if parts.scheme not in ("http", "https"):
        raise UrlRefused("scheme")
    if "@" in parts.netloc:
        raise UrlRefused("credentials")
    if "?" in url or "#" in url:
        raise UrlRefused("query")
    host = (host or "").lower().rstrip(".")
    if not host:
        raise UrlRefused("host")
    address = literal(host)
    if isinstance(address, ipaddress.IPv6Address) and address not in _TRANSITION:
        address = _embedded(address)  # mapped and compatible forms are the IPv4 address, so they are spelled like it
    if address is None and (len(host) > 253 or not _HOST.fullmatch(host)):
        raise UrlRefused("host")
    default = 443 if parts.scheme == "https" else 80
    try:
        port = parts.port
    except ValueError:
        raise UrlRefused("port") from None
    if port is not None and port != default and port < 1024 and port not in (80, 443):
        raise UrlRefused("port")
    path = parts.path.rstrip("/")
    if not _PATH.fullmatch(path) or any(segment in (".", "..") for segment in path.split("/")):
        raise UrlRefused("path")
    path = path.removesuffix("/v1")
    shown = f"[{address}]" if isinstance(address, ipaddress.IPv6Address) else str(address) if address is not None else host
    return f"{parts.scheme}://{shown}{'' if port is None or port == default else f':{port}'}{path}"


def base_url(url: object) -> str:
    """:func:`normalise_url` of an engine. A path before ``/v1`` may be there, for engines behind a gateway; that of a request may not.

    Raises:
        UrlRefused: as :func:`normalise_url`, or reason ``request``.
    """
    normal = normalise_url(url)
    if _REQUEST.search(urlsplit(str(url)).path):
        raise UrlRefused("request")
    return normal


def origins(url: str, resolve: Callable[[str], Iterable[str]]) -> frozenset[str]:
    """Every ``host:port`` that a normalised URL may mean, whatever its scheme and path: as written, and by each address that its name has now."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    hosts = {host}
    if literal(host) is None:
        hosts.update(str(_embedded(ipaddress.ip_address(text.partition("%")[0]))) for text in resolve(host))
    return frozenset(f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts)


Resolve = Callable[[str], Iterable[str]]


def system_resolve(host: str) -> Iterable[str]:
    """All addresses of a name, by the system's resolver; none if it has none now. Blocks."""
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return ()


def check_url(url: object, allowed_ranges: Sequence[Network], resolve: Resolve | None = None) -> str:
    """Normalise a URL and refuse it if it names an inner address; returns the normalised form.

    With ``resolve`` the name's present addresses are checked too, and one bad address among good ones is enough to refuse. That is a courtesy to
    the person
    who registers it: what counts is the check at connect time, and a name that does not resolve yet is accepted.

    Raises:
        UrlRefused: as :func:`normalise_url`, or reason ``address``.
    """
    normal = normalise_url(url)
    host = urlsplit(normal).hostname or ""
    address = literal(host)
    if address is not None:
        if not address_allowed(address, allowed_ranges):
            raise UrlRefused("address")
        return normal
    if host == "localhost" or host.endswith(".localhost"):
        loopback = ipaddress.ip_address("127.0.0.1")
        if not address_allowed(loopback, allowed_ranges):
            raise UrlRefused("address")
    elif host in _INNER_NAMES or host.endswith(_INNER_SUFFIXES):
        raise UrlRefused("address")
    for text in resolve(host) if resolve is not None else ():
        if not address_allowed(ipaddress.ip_address(text.split("%")[0]), allowed_ranges):
            raise UrlRefused("address")
    return normal
