"""The service that the router owns: artifacts in, tokens out, within a deadline and never in the way of others."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import tokenizers

from routing.prompts.types import Api, Kind, NoTokens, PromptModel, Reason, Tokens

__all__ = ["NoTokens", "PromptModel", "Prompts", "Reason", "Tokens"]


class Prompts:
    """Tokens for request bodies. Made in the process's event loop; ``start`` before use, ``stop`` at the end."""

    def __init__(self, *, catalogue: frozenset[bytes] = frozenset()) -> None:
        self._catalogue = catalogue
        self._contents: dict[tuple[Kind, bytes], bytes] = {}

    async def start(self) -> None:
        """Start the workers."""

    async def stop(self) -> None:
        """End the workers. Calls that wait get ``NoTokens("stopped")``."""

    def load(self, digest: bytes, content: bytes, kind: Kind) -> None:
        """Make an artifact known. Its content is trusted to have this SHA-256; it is compiled in the sandbox when it is first used (or by ``admit``)."""
        self._contents[kind, digest] = content

    def unload(self, digest: bytes, kind: Kind) -> None:
        """Forget an artifact with everything derived from it."""
        self._contents.pop((kind, digest), None)

    def known(self, digest: bytes, kind: Kind) -> bool:
        """Whether the artifact has been loaded."""
        return (kind, digest) in self._contents

    async def admit(self, digest: bytes, kind: Kind, *, deadline_s: float = 10.0) -> Reason | None:
        """Compile a loaded artifact in the sandbox; the reason why it is refused, or None."""
        del deadline_s
        return None if self.known(digest, kind) else ("no_tokenizer" if kind == "tokenizer" else "no_template")

    async def tokens(
        self, body: Mapping[str, Any], *, api: Api, model: PromptModel, ns_key: bytes, owner: bytes, deadline_s: float
    ) -> Tokens | NoTokens:
        """The ids of a body's prompt. ``ns_key`` keys what is cached, ``owner`` is whose budget it takes; ``deadline_s`` is from now."""
        del ns_key, owner, deadline_s
        content = self._contents.get(("tokenizer", model.tokenizer_digest))
        if content is None:
            return NoTokens("no_tokenizer")
        prompt = body.get("prompt")
        if api != "completions" or not isinstance(prompt, str):
            return NoTokens("unsupported")
        ids = array("I", tokenizers.Tokenizer.from_buffer(content).encode(prompt).ids)
        return Tokens(ids, len(ids))

    def stats(self) -> dict[str, float]:
        """Counters and gauges for metrics; the names are fixed."""
        return {}
