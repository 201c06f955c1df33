"""Names of spans and metrics are OpenTelemetry's, by a list that is not the product's own."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bench import otel
from tests.fakes import otel_names


async def test_all_that_one_request_exports_fits_the_conventions(tmp_path: Path) -> None:
    """A SERVER span, a CLIENT span for each of two attempts, and every client metric: names, types, kinds and labels are those of the conventions."""
    body, page = await otel.one_request(tmp_path)
    assert otel.complaints(body, page) == []
    said = otel_names.metrics_said(page)
    assert {"gen_ai_client_inference_duration_seconds", "gen_ai_client_inference_time_to_first_chunk_seconds"} <= said.keys()
    assert len(said) == 6


async def test_the_check_notices_what_does_not_fit(tmp_path: Path) -> None:
    """The control: a name that is wrong, missing, of another type or kind, and a span that is called otherwise are each complained of."""
    body, page = await otel.one_request(tmp_path)
    spans = [span for line in body.splitlines() for span in otel_names.spans_of(line)]
    client = next(span for span in spans if span["kind"] == 3 and not span.get("status"))
    assert otel_names.span_complaints(client) == []

    def with_attributes(old: str, new: str) -> list[str]:
        return otel_names.span_complaints(json.loads(json.dumps(client).replace(old, new)))

    assert with_attributes("cache_read.input_tokens", "cached_tokens") == [
        "gen_ai.usage.cached_tokens is no name of the conventions for a client span"
    ]
    assert with_attributes('"gen_ai.request.model"', '"gen_ai.model"')[0] == "gen_ai.model is no name of the conventions for a client span"
    assert "gen_ai.provider.name is missing" in with_attributes('"gen_ai.provider.name"', '"saltroute.provider"')
    assert with_attributes('"intValue": "5"', '"stringValue": "5"') == ["gen_ai.request.max_tokens should be int, is stringValue"]
    assert with_attributes('"name": "chat m-7b"', '"name": "a prompt"') == ["the span is called 'a prompt' and not 'chat m-7b'"]
    assert otel_names.metric_complaints(page.replace("gen_ai_client_inference_duration", "gen_ai_client_operation_duration"))
    assert otel_names.metric_complaints(page.replace('gen_ai_operation_name="chat"', 'gen_ai_conversation_id="chat"'))
