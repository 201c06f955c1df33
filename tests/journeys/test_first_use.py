"""What a newcomer sees: a conversation stays with its prefix, the control API says why, and no two contexts share a salt."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx2 as httpx
import openai
import pytest

from tests.product import POLL_S, Product

pytestmark = pytest.mark.journey


def _keys(product: Product) -> dict[str, str]:
    """The demo's inference keys by the name of their variable."""
    return {path.name.removeprefix("demo_"): path.read_text().strip() for path in product.home.secrets.glob("demo_*_KEY")}


def _decision(product: Product, decision_id: str) -> Any:
    headers = {"Authorization": f"Bearer {product.token}"}
    for _ in range(300):
        answer = httpx.get(f"{product.control_url}/api/v1/decisions/{decision_id}", headers=headers, timeout=10)
        if answer.status_code == 200:
            return answer.json()
        time.sleep(POLL_S)
    raise AssertionError(f"decision {decision_id} did not arrive: {answer.text}")


def test_the_second_turn_lands_on_its_prefix_and_the_record_says_why(product: Product) -> None:
    """With the stock client: cached tokens in the second answer, the same replica in both records, every candidate with its terms."""
    client = openai.OpenAI(base_url=f"{product.router_url}/v1", api_key=product.key, max_retries=0)
    conversation: list[Any] = [{"role": "user", "content": "Tell me about the salt trade of Timbuktu. " * 20}]
    first = client.chat.completions.with_raw_response.create(model="llama-private", messages=conversation, max_tokens=24)
    conversation += [
        {"role": "assistant", "content": first.parse().choices[0].message.content},
        {"role": "user", "content": "And its routes?"},
    ]
    second = client.chat.completions.with_raw_response.create(model="llama-private", messages=conversation, max_tokens=24)
    usage = second.parse().usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) > 100
    records = [_decision(product, answer.headers["x-saltroute-decision"]) for answer in (first, second)]
    chosen = [record["decision"]["replica"] for record in records]
    assert chosen[0] == chosen[1]
    assert records[1]["cached_tokens"] == usage.prompt_tokens_details.cached_tokens
    assert records[1]["matched_tokens"] > 0
    candidates = records[1]["decision"]["candidates"]
    assert len(candidates) == 2
    assert set(candidates[0]["terms"]) == {"wait", "prefill", "tier", "external_price", "pressure", "slo_guard", "adapter"}


def test_two_tenants_and_two_scopes_have_four_salts_that_nobody_sent(product: Product) -> None:
    """The same prompt, with a client's own salt beside it: four salts at the replicas, none is the client's."""
    keys = _keys(product)
    prompt = "the same words for everybody " * 30
    mine = "sr1-what-a-client-would-like-to-have-as-its-salt-000"
    for name in ("ACME_SUPPORT_KEY", "ACME_RESEARCH_KEY", "GLOBEX_APP_KEY", "GLOBEX_RESEARCH_KEY"):
        body = {"model": "llama-chat", "messages": [{"role": "user", "content": prompt}], "max_tokens": 2, "cache_salt": mine}
        answer = httpx.post(f"{product.router_url}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {keys[name]}"}, timeout=30)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, name
    salts = set()
    for url in _replica_urls(product):
        for request in httpx.get(f"{url}/sim/requests?last=200", timeout=10).json():
            if prompt in request["body"]:
                salts.add(json.loads(request["body"])["cache_salt"])
    assert len(salts) == 4
    assert mine not in salts
    assert all(salt.startswith("sr1-") and len(salt) == 47 for salt in salts)


def _replica_urls(product: Product) -> list[str]:
    import yaml

    declared = yaml.safe_load((product.home.root / "demo.yaml").read_text())
    pools = [*declared["pools"], *(endpoint for tenant in declared["tenants"] for endpoint in tenant["endpoints"])]
    return [replica["url"] for pool in pools for replica in pool.get("replicas", [])]
