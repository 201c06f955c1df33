"""What routers say of engines: who answers at an address, which build, since when. The control plane holds no credential and asks no engine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import redis

from routing import queries

MAX_NAMESPACES_A_REPLICA = 8
MAX_NUMBER = 1e11  # of seconds: the year 5138, which a date still holds
DEFAULT_BLOCK_TOKENS = 32  # an unknown block size: vLLM's 16 and 32 are both within it, and a prompt has 32 such blocks


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One engine. Empty and None are "not said"."""

    condition: str = ""
    build: str = ""
    block_tokens: int | None = None
    started_at: float | None = None  # unix s
    models: tuple[str, ...] = ()
    waiting: float | None = None
    reported_at: float = 0.0  # unix s


@dataclass(frozen=True, slots=True)
class Reports:
    """All routers' newest reports, joined. ``unserved`` holds replica ids and public namespace ids as routers wrote them."""

    engines: Mapping[str, EngineReport]  # by URL
    unserved: Mapping[str, tuple[str, ...]]  # by replica id, oldest first
    routers: int = 0


def read(client: redis.Redis) -> Reports:
    """Read them from Valkey.

    Raises:
        redis.RedisError: it does not answer.
    """
    names = sorted(name for name, _ in zip(client.scan_iter(match=f"{queries.ROUTER_PREFIX}*", count=1000), range(queries.MAX_ROUTERS), strict=False))
    values = client.mget(names) if names else []
    return join(value for value in values if isinstance(value, bytes))


def join(documents: Iterable[bytes]) -> Reports:
    """Join reports; of two that speak of one engine the newer counts. What is malformed is passed over: it is a router's word and no more."""
    engines: dict[str, EngineReport] = {}
    unserved: dict[str, tuple[str, ...]] = {}
    count = 0
    for document in documents:
        try:
            report = msgspec.json.decode(document, type=dict[str, Any])
            at = number(report.get("at")) or 0.0
            spoken = {url: _engine(said, at) for url, said in _mapping(report.get("replicas")).items() if url.isprintable()}
        except (msgspec.MsgspecError, RecursionError):
            continue
        count += 1
        for url, engine in spoken.items():
            if url not in engines or engines[url].reported_at < at:
                engines[url] = engine
        for replica_id, namespaces in _mapping(report.get("unserved")).items():
            wanted = tuple(one for one in namespaces if isinstance(one, str))[:MAX_NAMESPACES_A_REPLICA] if isinstance(namespaces, list) else ()
            unserved[replica_id] = tuple(dict.fromkeys((*unserved.get(replica_id, ()), *wanted)))
    return Reports(engines=engines, unserved=unserved, routers=count)


def _engine(said: object, at: float) -> EngineReport:
    if isinstance(said, str):
        return EngineReport(condition=said, reported_at=at)
    facts = _mapping(said)
    block_tokens, models, build = facts.get("block_size_tokens"), facts.get("models"), facts.get("build")
    return EngineReport(
        condition=str(facts.get("condition", ""))[:40],
        build=digest(build),
        block_tokens=block_tokens if isinstance(block_tokens, int) and 0 < block_tokens <= 1024 else None,
        started_at=number(facts.get("started_at")),
        models=tuple(one for one in models if isinstance(one, str))[:256] if isinstance(models, list) else (),
        waiting=number(facts.get("waiting")),
        reported_at=at,
    )


def digest(build: object) -> str:
    """A build as kept: up to 64 characters; what a router gives in another shape is digested."""
    if build is None or build == "":
        return ""
    if isinstance(build, str) and len(build) <= 64 and build.isprintable():
        return build
    return hashlib.sha256(msgspec.json.encode(build, order="sorted")).hexdigest()


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def number(value: object) -> float | None:
    """A time, a duration or a count that a router said, of any size; None where it is none, or none that can be."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_NUMBER:
        return None
    return float(value)
