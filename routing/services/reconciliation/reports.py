"""What each router says in its report, one by one: reconciliation asks where they differ, so nothing is joined here.

A report is a router's word and no more. What is malformed, too long or unknown is passed over; routers may be older or newer than we are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import redis

from routing import queries
from routing.core.reconcile import EngineWord, Rank, RouterWord
from routing.services.audits.reports import digest
from tenants.queries import parse_uuid

MAX_ENGINES = 10_000  # in one report
MAX_MODELS = 256
MAX_TENANTS = 100_000
MAX_ARTIFACTS = 1000
MAX_RANKS = 64
MAX_TOKENS = 1 << 40
_NAME = re.compile(r"[\w.:@/-]{1,100}")
_WORD = re.compile(r"[\w .,:;()%/=<>+-]{1,120}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Heard:
    """All routers' words, and what Valkey holds of snapshots. ``reachable`` False: it did not answer, and the rest is empty."""

    reachable: bool = False
    routers: tuple[RouterWord, ...] = ()
    published: Mapping[str, int] | None = None  # by tenant id as text


def read(timeout_s: float) -> Heard:
    """Read every report and the published versions, in three questions."""
    try:
        with queries.valkey(timeout_s) as client:
            found = client.scan_iter(match=f"{queries.ROUTER_PREFIX}*", count=1000)
            names = sorted(name for name, _ in zip(found, range(queries.MAX_ROUTERS), strict=False))
            values = client.mget(names) if names else []
            versions = client.hgetall(queries.VERSIONS)
    except redis.RedisError:
        return Heard()
    published = {key.decode(errors="replace"): int(value) for key, value in versions.items() if value.isdigit()}
    return Heard(reachable=True, routers=parse(value for value in values if isinstance(value, bytes)), published=published)


def parse(documents: Iterable[bytes]) -> tuple[RouterWord, ...]:
    """Reports as reconciliation knows them, by router."""
    found: dict[str, RouterWord] = {}
    for document in documents:
        try:
            report = msgspec.json.decode(document, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError):
            continue
        router_id = report.get("router_id")
        if isinstance(router_id, str) and _NAME.fullmatch(router_id):
            found[router_id] = _router(router_id, report)
    return tuple(found[name] for name in sorted(found))


def _router(router_id: str, report: Mapping[str, Any]) -> RouterWord:
    versions = list(_mapping(report.get("versions")).items())[:MAX_TENANTS]
    refused = list(_mapping(report.get("refused")).items())[:MAX_TENANTS]
    engines = list(_mapping(report.get("replicas")).items())[:MAX_ENGINES]
    missing = report.get("artifacts_missing", _mapping(report.get("artifacts")).get("missing"))
    return RouterWord(
        router_id=router_id,
        at_s=_number(report.get("at")) or 0.0,
        state=_word(report.get("state")),
        versions={tenant_id: said for key, said in versions if (tenant_id := parse_uuid(key)) and _whole(said) is not None},
        refused={tenant_id: _word(said) for key, said in refused if (tenant_id := parse_uuid(key))},
        engines={url: _engine(_mapping(said)) for url, said in engines if len(url) <= 500},
        missing_artifacts=frozenset(one for one in _list(missing)[:MAX_ARTIFACTS] if isinstance(one, str) and _DIGEST.fullmatch(one)),
    )


def _engine(said: Mapping[str, Any]) -> EngineWord:
    return EngineWord(
        condition=_word(said.get("condition")),
        build=digest(said.get("build")),
        models=frozenset(one for one in _list(said.get("models"))[:MAX_MODELS] if isinstance(one, str)),
        block_tokens=_whole(said.get("block_size_tokens")),
        index_block_tokens=_whole(said.get("index_block_tokens")),
        capacity_tokens=_whole(said.get("capacity_tokens")),
        ranks=_ranks(said.get("residency")),
        parity=_complaint(said.get("parity")),
        trust=_complaint(said.get("trust")),
    )


def _ranks(said: object) -> tuple[Rank, ...]:
    """``"exact"``, ``{state, reason, since}``, or one of those for each rank, by its number."""
    if isinstance(said, str):
        return (Rank(0, _word(said)),)
    facts = _mapping(said)
    if "state" in facts:
        return (_rank(0, facts),)
    found = [_rank(int(key), inner) for key, inner in list(facts.items())[:MAX_RANKS] if key.isascii() and key.isdigit() and len(key) < 6]
    return tuple(sorted(found, key=lambda rank: rank.rank))


def _rank(number: int, said: object) -> Rank:
    if isinstance(said, str):
        return Rank(number, _word(said))
    facts = _mapping(said)
    return Rank(number, _word(facts.get("state")), _word(facts.get("reason")), _number(facts.get("since")))


def _complaint(said: object) -> str:
    """A verdict that is not fine, with its likely cause: from a word, or from ``{verdict | state, cause | reason}``."""
    facts = _mapping(said)
    verdict = _word(said if isinstance(said, str) else facts.get("verdict", facts.get("state")))
    if verdict in ("", "fine", "ok", "good", "unknown", "untested", "warming", "exact"):
        return ""
    cause = _word(facts.get("cause", facts.get("reason")))
    return f"{verdict} ({cause})" if cause else verdict


def _word(value: object) -> str:
    """A short word of a router's own; anything that could be somebody's text is dropped."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_TOKENS else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
