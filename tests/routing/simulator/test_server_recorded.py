"""Every recorded request, sent again to the simulator: same status, same errors, same shapes, same order of fields."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.routing.simulator.vectors import load
from tests.routing.simulator.wire import RECORDED, RECORDED_ENGINE, Wire, shape, sse, wired

ROWS = load("http.json")
CONFIGS = {
    "http_tokenize": replace(RECORDED, engine=replace(RECORDED_ENGINE, max_model_len_tokens=1024)),
    "http_llama3_auth_admission": replace(RECORDED, api_key="sekret"),
}


def expanded(body: Any) -> Any:
    """Undo the vectors' shorthand for a text that repeats itself."""
    if isinstance(body, dict) and set(body) == {"repeat", "times"}:
        return body["repeat"] * body["times"]
    if isinstance(body, dict):
        return {key: expanded(value) for key, value in body.items()}
    return [expanded(value) for value in body] if isinstance(body, list) else body


async def send(wire: Wire, row: dict[str, Any]) -> tuple[int, dict[str, str], str]:
    body = row["body"]
    data = None
    if body is not None:
        data = (body["raw"] if set(body) == {"raw"} else json.dumps(expanded(body))).encode()
    headers = {"Content-Type": "application/json"} | row["headers"]
    async with wire.session.request(row["method"], wire.running.url + row["path"], data=data, headers=headers) as answer:
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}, await answer.text()


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['source']}-{row['name']}" for row in ROWS])
async def test_recorded_request(row: dict[str, Any]) -> None:
    """Errors word for word; answers and chunks by their shape, for the model and its tokenizer differ."""
    async with wired(CONFIGS.get(row["source"], RECORDED)) as wire:
        status, headers, text = await send(wire, row)
    recorded = row["response"]
    assert status == row["status"]
    for name in ("content-type", "allow", "vary", "endpoint-load-metrics"):
        if recorded != "":  # an empty body has no type in vLLM
            assert headers.get(name) == row["response_headers"].get(name), name
    if status != 200:
        assert json.loads(text) == recorded
    elif isinstance(recorded, str):
        assert [shape(event) for event in sse(text)] == [shape(event) for event in sse(recorded)]
    else:
        assert shape(json.loads(text)) == shape(recorded)


@pytest.mark.parametrize("kind", ["chat", "comp"])
async def test_recorded_salt_scenario(kind: str) -> None:
    """The salts of the recording in its order: a hit exactly where the real engine had one."""
    rows = [row for row in ROWS if row["source"] == "http_salt" and row["name"].startswith(f"{kind} ") and row["status"] == 200]
    async with wired(replace(RECORDED, engine=replace(RECORDED_ENGINE, blocks=400))) as wire:
        for row in rows:
            _, _, text = await send(wire, row)
            here = json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]
            there = row["response"]["usage"]["prompt_tokens_details"]["cached_tokens"]
            # A token-id prompt repeats a text in the recording; here its ids mean other words.
            assert (here > 0) == (there > 0 and "token ids" not in row["name"]), row["name"]
