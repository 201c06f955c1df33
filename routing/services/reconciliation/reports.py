"""What each router says in its report, one by one: reconciliation asks where they differ, so nothing is joined here.

A report is a router's word and no more. What is malformed, too long or unknown is passed over; routers may be older or newer than we are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import redis

from routing import queries
from routing.core.findings import Word
from routing.core.reconcile_facts import EngineWord, Mismatch, Rank, RouterWord
from routing.services.audits.reports import digest, number
from tenants.queries import parse_uuid

MAX_ENGINES = 10_000  # in one report
MAX_MODELS = 256
MAX_TENANTS = 100_000
MAX_ARTIFACTS = 1000
MAX_MISMATCHES = 1000
MAX_TOKENS = 1 << 40
MAX_DIGITS = 18  # of a version
_NAME = re.compile(r"[\w.:@/-]{1,100}")
_WORD = re.compile(r"[\w .,:;()%-]{1,120}")
_URL = re.compile(r"https?://[!-~]{1,490}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Heard:
    """All routers' words, and what Valkey holds of snapshots. ``reachable`` False: it did not answer, and the rest is empty."""

    reachable: bool = False
    routers: tuple[RouterWord, ...] = ()
    published: Mapping[str, int] | None = None  # by tenant id as text

    @property
    def unread(self) -> frozenset[Word]:
        """Whose word is missing: where Valkey does not answer, its own and all routers'."""
        return frozenset(("valkey", "routers")) if not self.reachable else frozenset() if self.routers else frozenset(("routers",))


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
    published = {key.decode(errors="replace"): int(value) for key, value in versions.items() if value.isdigit() and len(value) <= MAX_DIGITS}
    return Heard(reachable=True, routers=parse(value for value in values if isinstance(value, bytes)), published=published)


def parse(documents: Iterable[bytes]) -> tuple[RouterWord, ...]:
    """Reports as reconciliation knows them, by router."""
    found: dict[str, RouterWord] = {}
    for document in documents:
        try:
            report = msgspec.json.decode(document, type=dict[str, Any])
            router_id = report.get("router_id")
            if isinstance(router_id, str) and _NAME.fullmatch(router_id):
                found[router_id] = word(router_id, report)
        except (msgspec.MsgspecError, RecursionError):
            continue
    return tuple(found[name] for name in sorted(found))


def word(router_id: str, report: Mapping[str, Any]) -> RouterWord:
    """One report, whatever is in it."""
    versions = list(_mapping(report.get("versions")).items())[:MAX_TENANTS]
    refused = list(_mapping(report.get("refused")).items())[:MAX_TENANTS]
    engines = list(_mapping(report.get("replicas")).items())[:MAX_ENGINES]
    tokens, at_s = _mapping(report.get("tokens")), number(report.get("at")) or 0.0
    others = list(_mapping(_mapping(tokens.get("artifacts")).get("others")).items())[:MAX_ARTIFACTS]
    return RouterWord(
        router_id=router_id,
        at_s=at_s,
        state=_word(report.get("state")),
        versions={tenant_id: said for key, said in versions if (tenant_id := parse_uuid(key)) and _whole(said) is not None},
        refused={tenant_id: _word(said) for key, said in refused if (tenant_id := parse_uuid(key))},
        engines={url: _engine(_mapping(said), at_s) for url, said in engines if _URL.fullmatch(url)},
        artifacts={digest: _artifact(_mapping(said)) for digest, said in others if _DIGEST.fullmatch(digest)},
        mismatches=tuple(_mismatches(_list(_mapping(tokens.get("parity")).get("others")))),
    )


def _artifact(said: Mapping[str, Any]) -> str:
    state, reason = _word(said.get("state")), _word(said.get("reason"))
    return f"{state}: {reason}" if reason else state


def _mismatches(rows: list[Any]) -> Iterator[Mismatch]:
    """Pairs that differ, or of which a router lacks tokens; those that could not be compared contradict nothing."""
    for row in rows[:MAX_MISMATCHES]:
        said = _mapping(row)
        endpoint_id, replica_id = parse_uuid(str(said.get("endpoint"))), parse_uuid(str(said.get("replica")))
        if endpoint_id is None or replica_id is None:
            continue
        if said.get("state") == "different":
            yield Mismatch(endpoint_id, replica_id, _word(said.get("sample")), _whole(said.get("position")) or 0)
        elif said.get("state") == "inexact" and (why := _word(said.get("why"))):
            yield Mismatch(endpoint_id, replica_id, _word(said.get("sample")), inexact=why)


def _engine(said: Mapping[str, Any], at_s: float) -> EngineWord:
    away_since_s = number(said.get("away_since"))
    return EngineWord(
        condition=_word(said.get("condition")),
        away_since_s=away_since_s,
        away_for_s=0.0 if away_since_s is None else max(0.0, at_s - away_since_s),
        build=digest(said.get("build")),
        models=frozenset(one for one in _list(said.get("models"))[:MAX_MODELS] if isinstance(one, str)),
        block_tokens=_whole(said.get("block_size_tokens")),
        capacity_tokens=_whole(said.get("capacity_tokens")),
        ranks=_ranks(said, at_s),
        trust=_complaint(said.get("trust")),
    )


def _ranks(said: Mapping[str, Any], at_s: float) -> tuple[Rank, ...]:
    """The engine's state is that of its worst rank; ``residency_for_s`` is how long it has lasted."""
    state, lasting_s = _word(said.get("residency")), number(said.get("residency_for_s"))
    if not state:
        return ()
    return (Rank(0, state, _word(said.get("residency_reason")), None if lasting_s is None else at_s - lasting_s),)


def _complaint(said: object) -> str:
    """A verdict that is not fine, with its likely cause."""
    facts = _mapping(said)
    verdict, cause = _word(facts.get("verdict")), _word(facts.get("cause"))
    if verdict in ("", "fine"):
        return ""
    return f"{verdict}, likely {cause.replace('_', ' ')}" if cause not in ("", "unknown") else verdict


def _word(value: object) -> str:
    """A short word of a router's own; anything that could be somebody's text is dropped."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_TOKENS else None
