"""Spans as OTLP over HTTP writes them in JSON: ids in hexadecimal, 64-bit numbers as text, enumerations as numbers. Pure.

Source: opentelemetry-proto 1.9, "JSON Protobuf Encoding". *Why no client library*: its batch processor has a thread and queues of its own, and
what is sent here is one document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from routing.core import conventions

Value = str | int | float | bool
Kind = Literal["server", "client"]
_KINDS: dict[Kind, int] = {"server": 2, "client": 3}
_ERROR = 2


@dataclass(frozen=True, slots=True)
class Link:
    """Another trace's span: ids in hexadecimal."""

    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True)
class Span:
    """One span. Times are unix nanoseconds. ``failed`` sets the status; its description stays empty, since texts of errors can quote anything."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: Kind
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    failed: bool = False
    links: Sequence[Link] = field(default=())


def document(spans: Sequence[Span], resource: Mapping[str, Value]) -> bytes:
    """The body of one export."""
    scope = {"name": conventions.SCOPE, "version": conventions.GENAI_VERSION}
    scoped = {"scope": scope, "spans": [_span(span) for span in spans], "schemaUrl": conventions.SCHEMA_URL}
    return msgspec.json.encode({"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scoped]}]})


def _span(span: Span) -> dict[str, Any]:
    found: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": _KINDS[span.kind],
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
        "status": {"code": _ERROR} if span.failed else {},
    }
    if span.parent_id is not None:
        found["parentSpanId"] = span.parent_id
    if span.links:
        found["links"] = [{"traceId": link.trace_id, "spanId": link.span_id} for link in span.links]
    return found


def _attributes(values: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}
