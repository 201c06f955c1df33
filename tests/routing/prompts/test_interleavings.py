"""Tokens by the short way (what is kept of texts seen before) and by the long way are the same, in whatever order tenants, namespaces, tokenizers and
templates take turns, also where most of what is kept is dropped again."""

from __future__ import annotations

import random

import pytest

from routing.prompts.service import PromptModel
from tests.routing.prompts import small, templates
from tests.routing.prompts.conftest import A, B, running
from tests.routing.prompts.test_service import straight

TEXTS = ["Salt", "salt and pepper", "<|im_start|>user", "ä😀 caravans", "", "x" * 300, "Salt<|im_end|>"]


@pytest.mark.parametrize("seed", range(4))
async def test_any_order_gives_the_ids_of_the_whole_text(seed: int) -> None:
    draw = random.Random(seed)
    tokenizers = [small.qwen_like(), small.every_metaspace()]
    sources = [templates.CHATML, templates.CHATML.replace("user", "USER")]
    async with running(catalogue=("tokenizer", "template"), segment_owner_bytes=600, segment_owners=3) as service:
        for tokenizer in tokenizers:
            service.with_tokenizer(tokenizer)
        models = {
            (place, number): PromptModel(tokenizer.digest, small.artifact(source).digest)
            for place, tokenizer in enumerate(tokenizers)
            for number, source in enumerate(sources)
        }
        for source in sources:
            service.with_template(source)
        for _ in range(60):
            place, number = draw.randrange(2), draw.randrange(2)
            turns = [{"role": ("user", "assistant")[turn % 2], "content": draw.choice(TEXTS)} for turn in range(draw.randrange(1, 5))]
            owner, ns_key = draw.choice([(A, b"n" * 16), (A, b"m" * 16), (B, b"n" * 16), (B, b"o" * 16)])
            ids = await service.ids({"messages": turns}, owner=owner, ns_key=ns_key, model=models[place, number])
            assert ids == straight(sources[number], tokenizers[place], {"messages": turns}, {})
        held = service.prompts.stats()
        assert held["segment_hits"] > 0
        assert held["segment_evicted_bytes"] > 0
