from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from routing.prompts.pool import PoolLimits
from routing.prompts.service import Limits, NoTokens, PromptModel, Prompts, Tokens
from tests.routing.prompts import small, templates
from tests.routing.prompts.small import Artifact

A, B = b"acme", b"globex"
NS = b"n" * 16
PATIENT_S = 60.0  # for what must succeed: the machine may be busy


@dataclass
class Service:
    """A running service with one tokenizer and one template, and short ways to ask it."""

    prompts: Prompts
    tokenizer: Artifact
    template: Artifact

    @property
    def model(self) -> PromptModel:
        return PromptModel(self.tokenizer.digest, self.template.digest)

    async def ask(
        self, body: dict[str, Any], *, owner: bytes = A, ns_key: bytes = NS, model: PromptModel | None = None, deadline_s: float = PATIENT_S
    ) -> Tokens | NoTokens:
        api: Any = "chat" if "messages" in body else "completions"
        return await self.prompts.tokens(body, api=api, model=model or self.model, ns_key=ns_key, owner=owner, deadline_s=deadline_s)

    async def ids(self, body: dict[str, Any], **more: Any) -> list[int]:
        result = await self.ask(body, **more)
        assert isinstance(result, Tokens), result
        return list(result.ids)

    def with_template(self, source: str | bytes) -> PromptModel:
        made = small.artifact(source)
        self.prompts.load(made.digest, made.content, "chat_template")
        return PromptModel(self.tokenizer.digest, made.digest)

    def with_tokenizer(self, made: Artifact) -> PromptModel:
        self.prompts.load(made.digest, made.content, "tokenizer")
        return PromptModel(made.digest, self.template.digest)


@asynccontextmanager
async def running(
    *,
    tokenizer: Artifact | None = None,
    template: str | bytes = templates.CHATML,
    catalogue: tuple[str, ...] = (),
    pool: PoolLimits | None = None,
    **limits: Any,
) -> AsyncIterator[Service]:
    """A service; ``catalogue`` names which of "tokenizer" and "template" run in this process."""
    held = {"tokenizer": tokenizer or small.qwen_like(), "template": small.artifact(template)}
    prompts = Prompts(
        catalogue=frozenset(held[name].digest for name in catalogue),
        limits=Limits(**{"render_s": PATIENT_S, "encode_s": PATIENT_S, "pool": pool or PoolLimits(load_s=PATIENT_S), **limits}),
    )
    await prompts.start()
    try:
        prompts.load(held["tokenizer"].digest, held["tokenizer"].content, "tokenizer")
        prompts.load(held["template"].digest, held["template"].content, "chat_template")
        yield Service(prompts, held["tokenizer"], held["template"])
    finally:
        await prompts.stop()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """Everything in the sandbox."""
    async with running() as made:
        yield made
