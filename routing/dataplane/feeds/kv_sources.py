"""Where an engine publishes its KV events: what its owner declared, or what the engine says at ``/kv_event_sources``.

Only port numbers are taken from either. The host is always the replica's own, checked each time it is connected to, so no engine can send us
elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from routing.core.snapshot import KvEvents

MAX_RANKS = 64  # data-parallel ranks of one engine
MAX_TOPIC_CHARACTERS = 256
MAX_PAGE_BYTES = 64 * 1024  # 64 ranks take about 16 KiB; reading four megabytes would hold up requests
Key = TypeVar("Key", bound=Hashable)
_PORT = re.compile(r"tcp://[^\s/?#]*:([1-9][0-9]{3,4})")


@dataclass(frozen=True, slots=True)
class Source:
    """One data-parallel rank's sockets. ``topic`` None: any. Kept out of logs: whoever can connect reads token ids and salts."""

    rank: int
    port: int
    replay_port: int | None
    topic: str | None


class _Said(msgspec.Struct):
    """One entry of an engine's own list."""

    endpoint: str | None = None
    replay_endpoint: str | None = None
    topic: str | None = None
    publisher: str | None = None
    enable_kv_cache_events: bool = True


POLLED = Source(rank=0, port=0, replay_port=None, topic=None)  # no socket at all: the engine is asked over HTTP

_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_said_decoder = msgspec.json.Decoder(_Said)
POLLED = Source(rank=0, port=0, replay_port=None, topic=None)  # no socket at all: the engine is asked over HTTP


def read(page: bytes) -> tuple[Source, ...]:
    """The sources in an engine's answer, by rank; what cannot be used is left out.

    Engines list a base port for every rank and bind that port plus the rank; a list with a port of its own for each rank is taken as it stands.
    """
    if len(page) > MAX_PAGE_BYTES:
        return ()
    try:
        rows = _decoder.decode(page)
    except (msgspec.MsgspecError, RecursionError):
        return ()
    found = [source for name, raw in rows.items() if (source := _source(name, raw)) is not None]
    if len(found) > 1 and len({source.port for source in found}) == 1:
        found = [_offset(source, source.rank) for source in found]
    return tuple(sorted(found, key=lambda source: source.rank)[:MAX_RANKS])


def sources(declared: KvEvents | None, said: tuple[Source, ...] | None) -> tuple[Source, ...] | None:
    """The sources of one engine. ``said`` is what it says itself, None: it was not asked yet; the result None: nothing is known yet.

    What is declared wins over what the engine says, but for the ranks that there are.
    """
    if declared is None:
        return said
    port, replay = _port(declared.endpoint), _port(declared.replay)
    if port is None:
        return ()
    base = Source(rank=0, port=port, replay_port=replay, topic=declared.topic or None)
    ranks = [source.rank for source in said or ()] or [0]
    found = tuple(_offset(base, rank) for rank in ranks)
    topics = {source.port: source.topic for source in said or ()}
    return tuple(source for source in found if _heard(source.topic, topics.get(source.port)))


def _heard(wanted: str | None, topic: str | None) -> bool:
    """Whether who subscribes to ``wanted`` hears messages under ``topic``, as far as both are known: ZMQ compares beginnings."""
    return wanted is None or topic is None or topic.startswith(wanted)


@dataclass(frozen=True, slots=True)
class Claim:
    """One engine's source as it would be followed: whose engine on which host, and whether the engine says so itself."""

    owner: Hashable
    host: str
    port: int
    said: bool


def doubtful(claims: Mapping[Key, Claim]) -> set[Key]:
    """Of one owner's engines on one host those whose port is another's: what one engine publishes must not count as what another holds.

    What an engine says of itself is believed before what was declared; of several declarations none. What others' engines are said to be changes
    nothing for an owner's own: nobody can take another's events away by declaring their port.
    """
    by_port: dict[tuple[Hashable, str, int], list[Key]] = {}
    for key, claim in claims.items():
        by_port.setdefault((claim.owner, claim.host, claim.port), []).append(key)
    several = [keys for keys in by_port.values() if len(keys) > 1]
    return {key for keys in several for key in keys if not claims[key].said or sum(claims[one].said for one in keys) > 1}


def _offset(source: Source, rank: int) -> Source:
    replay = None if source.replay_port is None else source.replay_port + rank
    return Source(rank=rank, port=source.port + rank, replay_port=replay, topic=source.topic)


def _source(name: str, raw: msgspec.Raw) -> Source | None:
    try:
        said = _said_decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
    port = _port(said.endpoint)
    if not name.isascii() or not name.isdigit() or len(name) > 4 or int(name) >= MAX_RANKS or port is None:
        return None
    if not said.enable_kv_cache_events or said.publisher not in (None, "zmq") or len(said.topic or "") > MAX_TOPIC_CHARACTERS:
        return None
    return Source(rank=int(name), port=port, replay_port=_port(said.replay_endpoint), topic=said.topic)


def _port(endpoint: str | None) -> int | None:
    """The port of ``tcp://*:5557`` or of the like; low ones are other services'."""
    match = None if endpoint is None else _PORT.fullmatch(endpoint)
    port = 0 if match is None else int(match[1])
    return port if 1024 <= port <= 65_535 - MAX_RANKS else None
