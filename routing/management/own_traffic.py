"""A tenant's own traffic as the input of ``manage.py trace``: what was captured of an endpoint, or its decision records."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from django.core.management.base import CommandError
from django.utils import timezone

from routing import queries
from routing.services import captures, record_trace
from routing.services.record_trace import Figures
from routing.traces.export import mooncake_lines
from routing.traces.request import Trace
from tenants.core.errors import NotFound, Refusal
from tenants.management import tenant
from tenants.scoping import tenant_scope

DEFAULT_HOURS = 24
OPTIONS = ("tenant", "endpoint", "hours", "records", "out")


def add_source(parser: ArgumentParser, *, records: bool) -> None:
    """Describe how own traffic is named."""
    parser.add_argument("--endpoint", help="an endpoint of yours, instead of a file: its captured traffic")
    parser.add_argument("--tenant", help="the endpoint's tenant; may be left out where there is only one")
    parser.add_argument("--hours", type=float, default=DEFAULT_HOURS, help=f"how far back; {DEFAULT_HOURS} without it")
    if records:
        parser.add_argument("--records", action="store_true", help="with --endpoint: its decision records, which know lengths and no blocks")


@dataclass(frozen=True, slots=True)
class Window:
    """Whose traffic, of which endpoint, and when."""

    tenant_id: UUID
    endpoint_id: UUID
    name: str
    since: datetime
    until: datetime


def window(options: dict[str, Any]) -> Window:
    """What the options name.

    Raises:
        CommandError: there is none of this name, or the time is none.
    """
    if not 0 < options["hours"] <= 24 * 366:
        raise CommandError("--hours: use a number above 0, up to 8784")
    tenant_id = tenant.named(options["tenant"])
    try:
        with tenant_scope(tenant_id):
            endpoint = queries.endpoint(tenant_id, options["endpoint"])
    except NotFound:
        raise CommandError(f"--endpoint: this tenant has no endpoint {options['endpoint']!r}") from None
    until = timezone.now()
    return Window(tenant_id, endpoint.id, endpoint.name, until - timedelta(hours=options["hours"]), until)


def opened(options: dict[str, Any]) -> tuple[Trace, tuple[str, ...]]:
    """The trace that the options name, and what must be said of it beside a report.

    Raises:
        CommandError: nothing is there; the text says what to do.
    """
    wanted = window(options)
    try:
        if options["records"]:
            return record_trace.read_records(**_named(wanted)), (record_trace.CANNOT, _how(wanted))
        return captures.read_trace(**_named(wanted)), ()
    except Refusal as refusal:
        raise CommandError(refusal.message) from None


def figures(options: dict[str, Any]) -> tuple[Window, Figures]:
    """What the endpoint's decision records tell.

    Raises:
        CommandError: nothing.
    """
    wanted = window(options)
    try:
        return wanted, record_trace.figures(**_named(wanted))
    except Refusal as refusal:
        raise CommandError(refusal.message) from None


def figure_lines(name: str, found: Figures) -> Iterator[str]:
    """Them as text."""
    scopes = f"{found.scopes} scope{'' if found.scopes == 1 else 's'}"
    yield f"{name}: {found.requests:,} answered requests over {found.span_s:,.0f} s, {scopes}, by decision records"
    yield f"prompt tokens: {found.prompt_tokens:,} (p50 {found.prompt_p50_tokens:,.0f}, p95 {found.prompt_p95_tokens:,.0f})"
    yield f"answer tokens: {found.output_tokens:,} (p50 {found.output_p50_tokens:,.0f}, p95 {found.output_p95_tokens:,.0f})"
    reused = "no engine says" if found.reused is None else f"{found.reused:.1%} of prompt tokens, by the word of engines on {found.told:,} requests"
    yield f"taken from caches: {reused}"
    yield found.cannot
    yield found.how.replace("{name}", name)


def export(options: dict[str, Any], out: Out) -> int:
    """Write the captured traffic that the options name as JSON lines into ``--out``, or into ``out`` where that is ``-``; returns how many requests.

    Raises:
        CommandError: nothing was captured, or the file cannot be written.
    """
    trace, _ = opened({**options, "records": False})
    count = 0
    try:
        with _sink(options["out"], out) as write:
            for line in mooncake_lines(trace):
                write(line)
                count += 1
    except OSError as error:
        raise CommandError(f"--out: {error.filename}: {error.strerror}") from None
    return count


class Out(Protocol):
    """A command's standard output."""

    def write(self, msg: str = ..., /) -> Any: ...


@contextmanager
def _sink(path: Path, out: Out) -> Iterator[Callable[[bytes], Any]]:
    if str(path) == "-":
        yield lambda line: out.write(line.decode())
        return
    with path.open("xb") as file:  # an export is hours of traffic: none is written over by mistake
        yield file.write


def _how(wanted: Window) -> str:
    return captures.HOW.replace("{name}", wanted.name)


def _named(wanted: Window) -> dict[str, Any]:
    return {"tenant": wanted.tenant_id, "endpoint_id": wanted.endpoint_id, "since": wanted.since, "until": wanted.until}
