"""The OpenTelemetry output of one request, as a collector receives it, checked against the conventions' names.

    python -m tests.bench.otel [--json]

A real router before two engines, of which the first fails: one streamed request makes a SERVER span and a CLIENT span for each attempt, which arrive
as OTLP over HTTP at a collector on a free port. Printed are the spans with every attribute, the GenAI metrics of the router's page, and what does not
fit ``tests/vectors/otel-genai-0.1.0.json``; with ``--json`` the document as it came. Exit code 1 if anything does not fit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.fakes import otel_names
from tests.fakes.collector import FakeCollector
from tests.fakes.replica import Script, chunk, usage_chunk
from tests.fakes.rig import HI, prefer_a, standard_rig, until

STREAM = [chunk("hel"), chunk("lo"), chunk(finish="stop"), usage_chunk(prompt=40, completion=2, cached=32), "[DONE]"]


async def one_request(state: Path) -> tuple[bytes, str]:
    """The OTLP document and the metrics page of one request whose first attempt failed."""
    collector = FakeCollector()
    await collector.start()
    try:
        async with standard_rig(state, otlp_endpoint=collector.url) as rig:
            prefer_a(rig)
            rig.a.script = rig.b.script = Script(sse=STREAM)
            await rig.chat({**HI, "stream": True})  # says which of the two comes second
            first = rig.b if rig.a.requests else rig.a
            await until(lambda: len(collector.spans) == 2)
            collector.bodies.clear()
            first.script = Script(status=500, body={"error": {"message": "out of order"}})
            reply = await rig.chat({**HI, "stream": True, "max_tokens": 5})
            if reply.status != 200:
                raise RuntimeError(f"the request was answered with {reply.status}")
            await until(lambda: len(collector.spans) == 3)
            page = rig.router.plane.metrics.page().decode()
        return b"\n".join(collector.bodies), page
    finally:
        await collector.stop()


def complaints(body: bytes, page: str) -> list[str]:
    """Everything about a request with two attempts that does not fit the conventions."""
    spans = [span for line in body.splitlines() for span in otel_names.spans_of(line)]
    found = [f"{span['name']}: {one}" for span in spans for one in otel_names.span_complaints(span)]
    kinds = sorted(span["kind"] for span in spans)
    if kinds != [2, 3, 3]:
        found.append(f"a SERVER span and two CLIENT spans were expected, the kinds are {kinds}")
    elif len({span["traceId"] for span in spans}) != 1:
        found.append("the spans are of several traces")
    else:
        (server,) = (span for span in spans if span["kind"] == 2)
        found += [
            "a CLIENT span has another parent than the SERVER span"
            for span in spans
            if span["kind"] == 3 and span["parentSpanId"] != server["spanId"]
        ]
    return found + otel_names.metric_complaints(page)


def shown(body: bytes, page: str) -> str:
    """As a console exporter would write it."""
    out = []
    for line in body.splitlines():
        for span in otel_names.spans_of(line):
            length_ms = (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e6
            out.append(
                f"{otel_names.KINDS[span['kind']].upper()} {span['name']}   {length_ms:.1f} ms   trace {span['traceId']}   span {span['spanId']}"
            )
            out[-1] += f"   parent {span['parentSpanId']}" if "parentSpanId" in span else ""
            out += [f"    {one['key']} = {next(iter(one['value'].values()))}" for one in sorted(span["attributes"], key=lambda one: str(one["key"]))]
            out += [f"    status {span['status']}"] if span.get("status") else []
    names = otel_names.metric_names()
    out += [f"METRIC {names.get(family, ('', family))[1]}   {kind}   as {family}" for family, kind in sorted(otel_names.metrics_said(page).items())]
    return "\n".join(out)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="print the OTLP document")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        body, page = asyncio.run(one_request(Path(name)))
    if options.json:
        sys.stdout.writelines(json.dumps(json.loads(line), indent=2) + "\n" for line in body.splitlines())
    else:
        sys.stdout.write(shown(body, page) + "\n")
    found = complaints(body, page)
    sys.stdout.writelines(f"NOT  {one}\n" for one in found)
    sys.stdout.write("Every name is one of the conventions or ours.\n" if not found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
