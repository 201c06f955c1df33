"""What a trace and a metrics page say, held against OpenTelemetry's own names: a list of theirs in ``tests/vectors``, not the product's table.

Names of ours (``saltroute.``) are free; any other that the list lacks is a complaint, as is a required one that is missing, or a value of another
type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

NAMES: Mapping[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "otel-genai-0.1.0.json").read_text())
OURS = "saltroute."
KINDS = {2: "server", 3: "client"}
_TYPES = {"string": "stringValue", "boolean": "boolValue", "int": "intValue", "double": "doubleValue", "string[]": "arrayValue"}
_UNITS = {"s": "_seconds", "{token}": ""}  # what Prometheus adds to a name: a unit in braces is a remark and left out


def spans_of(body: bytes) -> Iterator[dict[str, Any]]:
    """The spans of one OTLP document, as they stand there."""
    for resource in json.loads(body)["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            yield from scope["spans"]


def span_complaints(span: Mapping[str, Any]) -> list[str]:
    """What is wrong with the names and types of a span, and with how it is called."""
    kind = KINDS.get(span["kind"])
    if kind is None:
        return [f"kind {span['kind']} is neither SERVER nor CLIENT"]
    known = {**NAMES[kind]["required"], **NAMES[kind]["others"]}
    held = {one["key"]: one["value"] for one in span["attributes"]}
    found = [f"{name} is missing" for name in NAMES[kind]["required"] if name not in held]
    for name, value in held.items():
        if name.startswith(OURS):
            continue
        if name not in known:
            found.append(f"{name} is no name of the conventions for a {kind} span")
        elif list(value) != [_TYPES[known[name]]]:
            found.append(f"{name} should be {known[name]}, is {', '.join(value)}")
    said = {name: next(iter(value.values())) for name, value in held.items()}
    if kind == "client":
        if said.get("gen_ai.operation.name") not in NAMES["client"]["operations"]:
            found.append(f"{said.get('gen_ai.operation.name')} is no operation of the conventions")
        wanted = f"{said.get('gen_ai.operation.name')} {said.get('gen_ai.request.model')}"
    else:
        wanted = f"{said.get('http.request.method')} {said.get('http.route')}"
    return found if span["name"] == wanted else [*found, f"the span is called {span['name']!r} and not {wanted!r}"]


def metric_names() -> dict[str, tuple[str, str]]:
    """The conventions' metrics as Prometheus writes them: the kind, and the conventions' own name."""
    return {name.replace(".", "_") + _UNITS[unit]: (kind, name) for name, (kind, unit) in NAMES["metrics"].items()}


def metrics_said(page: str) -> dict[str, str]:
    """Families of a Prometheus page that claim a name of the conventions, and their kind."""
    families = (family for family in text_string_to_metric_families(page) if not family.name.endswith("_created"))  # Prometheus's own, of each series
    return {family.name: family.type for family in families if family.name.startswith(("gen_ai", "http_"))}


def metric_complaints(page: str) -> list[str]:
    """What is wrong with names, kinds and labels of those families."""
    known, labels = metric_names(), {name.replace(".", "_") for name in NAMES["metric_labels"]} | {"le"}
    found = []
    for family in text_string_to_metric_families(page):
        if family.name not in metrics_said(page):
            continue
        if family.name not in known:
            found.append(f"{family.name} is no metric of the conventions")
        elif family.type != known[family.name][0]:
            found.append(f"{family.name} should be a {known[family.name][0]}, is a {family.type}")
        foreign = {label for sample in family.samples for label in sample.labels} - labels
        found += [f"{family.name} has the label {label}" for label in sorted(foreign)]
    return found
