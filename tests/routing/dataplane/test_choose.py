"""A prompt's digests belong to its namespace: whoever holds the same text under another one can neither match nor guess them."""

from __future__ import annotations

import msgspec
import pytest

from namespaces.core.salts import Namespace
from routing.dataplane import openai
from routing.dataplane.choose import measure

HERE = Namespace(public_id="ns-" + "0" * 32, salt="sr1-a", index_seed=b"a" * 32)
THERE = Namespace(public_id="ns-" + "1" * 32, salt="sr1-b", index_seed=b"b" * 32)


def _call(text: str) -> openai.Call:
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": text}]})
    return openai.read(body, openai.check_chat, ())


@pytest.mark.parametrize("text", ["x" * 4000, "hi"], ids=["several blocks", "less than a block"])
def test_one_prompt_has_no_digest_in_common_between_two_namespaces(text: str) -> None:
    here, there = measure(_call(text), HERE, 4.0), measure(_call(text), THERE, 4.0)
    assert not {*here.digests, *here.head} & {*there.digests, *there.head}
    assert measure(_call(text), HERE, 4.0) == here


def test_prompts_with_one_beginning_share_its_digests_inside_a_namespace() -> None:
    one, other = measure(_call("x" * 4000 + "one"), HERE, 4.0), measure(_call("x" * 4000 + "other"), HERE, 4.0)
    assert len(one.digests) > 4
    assert one.digests[:4] == other.digests[:4]
