"""Causes of many requests added up: whole microseconds and tokens, so a sum is the same in any order, and equal to the sum of its records.

As a document (:meth:`CauseSum.document`) it has short names, since one lies in each row of rollups: ``n`` requests, ``us`` by part, ``main``
requests by the part that their time is mostly due to, ``missed`` tokens by why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from routing.core.cause import OF_THE_REPLICA
from routing.core.record import CauseRecord

MAX_US = 2**50  # of one part of one request: 35 years; what is beyond was no router's clock
MAX_TOKENS = 2**40


@dataclass(frozen=True, slots=True)
class CauseSum:
    """Sums over ``requests`` that had a cause."""

    requests: int = 0
    parts_us: Mapping[str, int] = field(default_factory=dict)
    main: Mapping[str, int] = field(default_factory=dict)
    missed_tokens: Mapping[str, int] = field(default_factory=dict)

    def plus(self, other: CauseSum) -> CauseSum:
        """Both together."""
        if not other.requests:
            return self
        if not self.requests:
            return other
        return CauseSum(
            self.requests + other.requests,
            _added(self.parts_us, other.parts_us),
            _added(self.main, other.main),
            _added(self.missed_tokens, other.missed_tokens),
        )

    def document(self) -> dict[str, Any]:
        """As it is stored; empty for nothing."""
        if not self.requests:
            return {}
        return {"n": self.requests, "us": dict(self.parts_us), "main": dict(self.main), "missed": dict(self.missed_tokens)}

    @classmethod
    def of_document(cls, said: Mapping[str, Any]) -> CauseSum:
        """What :meth:`document` wrote."""
        return cls(said.get("n", 0), said.get("us", {}), said.get("main", {}), said.get("missed", {})) if said else NONE


NONE = CauseSum()


def of(causes: Iterable[CauseRecord | None], *, fold: bool = False) -> CauseSum:
    """Add up the causes of some requests; those without one count nowhere.

    ``fold``: as their tenant may read them, whatever replicas they went to: what tells of others on a platform's pool is one part, ``replica``.
    """
    requests = 0
    parts_us: dict[str, int] = {}
    main: dict[str, int] = {}
    missed: dict[str, int] = {}
    for one in causes:
        if one is None:
            continue
        requests += 1
        folds = fold and not one.own_pool
        for name, part_us in one.parts_us.items():
            part = "replica" if folds and name in OF_THE_REPLICA else name
            parts_us[part] = parts_us.get(part, 0) + (part_us if 0 <= part_us <= MAX_US else MAX_US if part_us > 0 else 0)
        if one.main is not None:
            name = "replica" if folds and one.main in OF_THE_REPLICA else one.main
            main[name] = main.get(name, 0) + 1
        for why, tokens in one.missed_tokens.items():
            missed[why] = missed.get(why, 0) + (tokens if 0 <= tokens <= MAX_TOKENS else MAX_TOKENS if tokens > 0 else 0)
    return CauseSum(requests, parts_us, main, missed) if requests else NONE


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    found = dict(one)
    for name, count in other.items():
        found[name] = found.get(name, 0) + count
    return found
