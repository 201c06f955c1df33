"""Traces: one SERVER span, one CLIENT span for each engine that was asked, strangers' traces linked to, and no request that waits for a collector."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from routing.core import conventions
from routing.core.otlp import Span, document
from tests.fakes.collector import FakeCollector
from tests.fakes.replica import Script, chunk, usage_chunk
from tests.fakes.rig import HI, Rig, prefer_a, standard_rig, until

STRANGER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STREAMED = {**HI, "stream": True, "max_tokens": 5, "stop": ["never say this"], "user": "a person"}


@pytest.fixture
async def collector() -> AsyncIterator[FakeCollector]:
    made = FakeCollector()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def traced(tmp_path: Path, collector: FakeCollector) -> AsyncIterator[Rig]:
    async with standard_rig(tmp_path, otlp_endpoint=collector.url) as rig:
        yield rig


async def _spans(collector: FakeCollector, count: int) -> list[dict[str, Any]]:
    await until(lambda: len(collector.spans) >= count)
    return sorted(collector.spans, key=lambda span: (span["kind"], int(span["startTimeUnixNano"])))


async def test_a_stream_has_a_server_span_and_a_client_span(traced: Rig, collector: FakeCollector) -> None:
    traced.only_a()
    traced.a.script = Script(sse=[chunk("hel"), chunk("lo", finish="stop"), usage_chunk(prompt=40, completion=2, cached=32), "[DONE]"])
    reply = await traced.chat(STREAMED)
    assert reply.status == 200
    server, client = await _spans(collector, 2)
    assert (server["kind"], server["name"], server["status"]) == (2, "POST /v1/chat/completions", {})
    assert "parentSpanId" not in server
    assert "links" not in server
    assert server["attributes"]["http.response.status_code"] == 200
    assert server["attributes"]["saltroute.decision.id"] == reply.headers["x-saltroute-decision"]
    assert (client["kind"], client["name"], client["traceId"], client["parentSpanId"]) == (3, "chat m-7b", server["traceId"], server["spanId"])
    found = client["attributes"]
    assert (found["gen_ai.operation.name"], found["gen_ai.provider.name"], found["gen_ai.request.model"]) == ("chat", "vllm", "m-7b")
    assert (found["gen_ai.request.stream"], found["gen_ai.request.max_tokens"]) == (True, 5)
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"], found["gen_ai.usage.cache_read.input_tokens"]) == (40, 2, 32)
    assert (found["server.address"], found["server.port"]) == ("127.0.0.1", traced.a.port)
    assert 0 < found["gen_ai.response.time_to_first_chunk"] < 10
    assert int(server["startTimeUnixNano"]) <= int(client["startTimeUnixNano"]) <= int(client["endTimeUnixNano"]) <= int(server["endTimeUnixNano"])
    assert traced.a.requests[0].headers["traceparent"] == f"00-{server['traceId']}-{client['spanId']}-01"


async def test_a_failed_attempt_has_a_span_of_its_own(traced: Rig, collector: FakeCollector) -> None:
    prefer_a(traced)
    for one in (traced.a, traced.b):
        one.scripts = []
    first = traced.a
    first.script = Script(status=500, body={"error": {"message": "secret text of the engine"}})
    assert (await traced.chat()).status == 200
    if not traced.a.requests:  # the smaller id came first
        pytest.fail("A was not asked first")
    server, failed, served = await _spans(collector, 3)
    assert failed["attributes"]["error.type"] == "status_500"
    assert failed["status"] == {"code": 2}
    assert "gen_ai.usage.input_tokens" not in failed["attributes"]
    assert served["attributes"]["http.request.resend_count"] == 1
    assert {failed["parentSpanId"], served["parentSpanId"]} == {server["spanId"]}
    assert b"secret text" not in b"".join(collector.bodies)


async def test_a_stranger_s_trace_is_linked_to_and_engines_continue_ours(traced: Rig, collector: FakeCollector) -> None:
    traced.only_a()
    await traced.chat(headers={"traceparent": STRANGER, "tracestate": "vendor=secret", "baggage": "user=secret"})
    server, _client = await _spans(collector, 2)
    assert server["traceId"] != STRANGER.split("-")[1]
    assert server["links"] == [{"traceId": STRANGER.split("-")[1], "spanId": STRANGER.split("-")[2]}]
    received = traced.a.requests[0].headers
    assert received["traceparent"].split("-")[1] == server["traceId"]
    assert "tracestate" not in received
    assert "baggage" not in received


async def test_a_trusted_client_s_trace_is_continued(tmp_path: Path, collector: FakeCollector) -> None:
    async with standard_rig(tmp_path, otlp_endpoint=collector.url, trace_trusted=True) as rig:
        await rig.chat(headers={"traceparent": STRANGER})
        server, client = await _spans(collector, 2)
        assert (server["traceId"], server["parentSpanId"]) == tuple(STRANGER.split("-")[1:3])
        assert client["traceId"] == server["traceId"]
        assert "links" not in server


async def test_a_client_s_sampled_flag_costs_nothing_and_failures_are_always_sent(tmp_path: Path, collector: FakeCollector) -> None:
    async with standard_rig(tmp_path, otlp_endpoint=collector.url, trace_share=0.0) as rig:
        await rig.chat(headers={"traceparent": STRANGER})
        assert (rig.a.requests + rig.b.requests)[0].headers["traceparent"].endswith("-00")
        assert rig.router.plane.tracing.queued() == 0
        for one in (rig.a, rig.b):
            one.script = Script(status=500, body={})
        assert (await rig.chat()).status >= 500
        spans = await _spans(collector, 3)
        assert [span["kind"] for span in spans] == [2, 3, 3]
        assert spans[0]["status"] == {"code": 2}


async def test_without_a_collector_there_are_no_traces(tmp_path: Path) -> None:
    async with standard_rig(tmp_path) as rig:
        await rig.chat(headers={"traceparent": STRANGER})
        assert rig.router.plane.tracing.queued() == 0
        assert (rig.a.requests + rig.b.requests)[0].headers["traceparent"].split("-")[1] == STRANGER.split("-")[1]


async def test_a_collector_that_is_away_costs_no_request_and_gets_the_spans_later(tmp_path: Path, collector: FakeCollector) -> None:
    await collector.stop()
    async with standard_rig(tmp_path, otlp_endpoint=collector.url) as rig:
        for _ in range(3):
            assert (await rig.chat()).status == 200
        assert rig.router.plane.tracing.queued() == 6
        rig.router.plane.tracing.backlog.bound = 7
        assert (await rig.chat()).status == 200
        assert rig.router.plane.tracing.queued() == 7
        page = rig.router.plane.metrics.page().decode()
        assert 'saltroute_spans_dropped_total{reason="queue_full"} 1.0' in page
        await collector.start()
        await _spans(collector, 7)
        await until(lambda: rig.router.plane.tracing.queued() == 0)


async def test_a_collector_that_asks_to_come_again_gets_the_spans_once(traced: Rig, collector: FakeCollector) -> None:
    collector.status = 503
    await traced.chat()
    await until(lambda: collector.asked > 0)
    assert traced.router.plane.tracing.queued() == 2
    collector.status = 200
    await until(lambda: traced.router.plane.tracing.queued() == 0)
    assert len(collector.spans) == 2


async def test_spans_that_a_collector_refuses_are_dropped_and_counted(traced: Rig, collector: FakeCollector) -> None:
    collector.status = 400
    await traced.chat()
    await until(lambda: 'saltroute_spans_dropped_total{reason="refused"} 2.0' in traced.router.plane.metrics.page().decode())
    assert traced.router.plane.tracing.queued() == 0


async def test_nothing_is_sent_that_could_carry_content(traced: Rig, collector: FakeCollector) -> None:
    await traced.chat(STREAMED)
    await traced.call("POST", "/v1/completions", json={"model": "m-7b", "prompt": "hello there"})
    for span in await _spans(collector, 4):
        for name in span["attributes"]:
            assert not name.startswith(conventions.NEVER), name
            assert name.startswith((conventions.OURS, "gen_ai.", "http.", "server.", "url.scheme", "error.type")), name
    assert "text_completion m-7b" in {span["name"] for span in collector.spans}


def test_numbers_are_written_as_protobuf_s_json_has_them() -> None:
    span = Span("a" * 32, "b" * 16, None, "n", "client", 2**60, 2**60 + 1, {"i": 7, "f": 0.5, "b": True, "s": "x"})
    (one,) = json.loads(document([span], {"service.name": "r"}))["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert one["startTimeUnixNano"] == str(2**60)
    assert [attribute["value"] for attribute in one["attributes"]] == [
        {"intValue": "7"},
        {"doubleValue": 0.5},
        {"boolValue": True},
        {"stringValue": "x"},
    ]
