"""What the real vLLM makes of request bodies: its own request model, renderer and tokenizer, without an engine.

Runs in vLLM's environment, not in ours: ``python prompt_oracle.py MODEL_DIR`` reads JSON lines ``{"api": ..., "body": ...}`` and writes for each a
line ``{"ids": [...]}`` or ``{"refused": text}``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

CONTEXT_TOKENS = 400_000  # beyond what the model says, so that long prompts are not refused (VLLM_ALLOW_LONG_MAX_MODEL_LEN=1)


def renderer(model: str) -> Any:
    """vLLM's renderer for a model's folder, set up as its API server sets it up."""
    from vllm.config import ModelConfig, VllmConfig  # type: ignore[import-not-found]
    from vllm.renderers import renderer_from_config  # type: ignore[import-not-found]
    from vllm.renderers.online_renderer import OnlineRenderer  # type: ignore[import-not-found]

    model_config = ModelConfig(model=model, max_model_len=CONTEXT_TOKENS)
    inner = renderer_from_config(VllmConfig(model_config=model_config))
    return OnlineRenderer(model_config, inner, request_logger=None, chat_template=None, chat_template_content_format="auto", enable_auto_tools=True)


async def ids(online: Any, api: str, body: dict[str, Any]) -> dict[str, Any]:
    """The prompt's ids, or why vLLM refuses the body."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # type: ignore[import-not-found]
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest  # type: ignore[import-not-found]

    try:
        if api == "chat":
            made = await online.render_chat(ChatCompletionRequest.model_validate(body))
            if not isinstance(made, tuple):
                return {"refused": made.error.message}
            (prompt,) = made[1]
        else:
            made = await online.render_completion(CompletionRequest.model_validate(body))
            if not isinstance(made, list):
                return {"refused": made.error.message}
            (prompt,) = made
    except Exception as error:  # noqa: BLE001 - a refusal is an answer here
        return {"refused": f"{type(error).__name__}: {error}"[:300]}
    return {"ids": list(prompt["prompt_token_ids"])}


async def main(model: str) -> None:
    online = renderer(model)
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.write(json.dumps(await ids(online, asked["api"], asked["body"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
