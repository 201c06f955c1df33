"""The port of an engine adapter: how a namespace reaches an engine family, and what clients may not send to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Engine:
    """Facts of one engine family that the request path acts on.

    ``salt_field`` is the body member that carries the salt; None means that the family cannot keep two namespaces apart inside one process, so a
    replica serves one namespace only. ``stripped`` are top-level members that clients may not set; ``stripped_inside`` maps a top-level member to
    members inside it. ``forced`` members are written by us whatever the client sent. ``full_report`` is the member, the name inside it and the raw
    JSON by which a request makes the engine report, among its events, all cached blocks that it reuses; None: it has no such thing.
    ``transfer_field`` is the member by which a prompt's KV cache goes from one engine to another; None: the family cannot.
    ``checks_model``: it refuses names that ``/v1/models`` does not list; other families answer whatever name they are asked for.
    ``events_path`` is where KV events are drained by a POST; None: the family publishes them, or has none.
    ``rank_header`` is the request header by which one data-parallel rank of several behind a URL is named, by its number from 0 on; None: the family
    has none. ``proof`` says how far the adapter was tried.
    """

    family: str
    salt_field: str | None
    stripped: frozenset[str]
    stripped_inside: dict[str, frozenset[str]]
    forced: dict[str, str]  # member -> raw JSON
    proof: Literal["live engine", "from specification and recordings, unproven"]
    full_report: tuple[str, str, str] | None = None
    transfer_field: str | None = None
    checks_model: bool = False
    events_path: str | None = None
    rank_header: str | None = None
