"""What goes in and what comes out."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Literal

Api = Literal["chat", "completions"]
Kind = Literal["tokenizer", "chat_template"]

# Added tokens of one file, which the event loop takes from the sandbox and compares: the largest models' have a few ten thousand.
MAX_ADDED_TOKENS = 65_536
MAX_ADDED_CHARACTERS = 4 * 1024 * 1024

# Why there are no tokens. Closed: these are label values of a metric.
Reason = Literal[
    "no_tokenizer",  # the artifact is not loaded here
    "no_template",  # chat, and no chat template is loaded
    "bad_tokenizer",  # the artifact was refused when it was compiled
    "bad_template",
    "set_aside",  # the artifact killed too many workers of late
    "request",  # the engine will refuse the body, or we cannot tell what it makes of it
    "unsupported",  # a body member whose effect on the prompt we do not reproduce
    "many_prompts",  # more than one prompt in a body
    "template_error",  # the template refused these messages
    "special_tokens",  # the template names special tokens whose text no artifact tells
    "date",  # the template asks for the time, or for chance
    "deadline",
    "memory",
    "too_long",  # the rendered text or the body is over the limit
    "queue_full",
    "worker",  # the sandbox failed in another way
    "stopped",
]


@dataclass(frozen=True, slots=True)
class PromptModel:
    """The artifacts of one model, by SHA-256 (32 bytes).

    Special tokens (BOS, EOS) come from the artifacts: a chat template artifact is either the template's text or a whole ``tokenizer_config.json``.
    """

    tokenizer_digest: bytes
    template_digest: bytes | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """The prompt's ids (unsigned 32 bit), the number of them that are exact (all, but for prompts with images or audio), and what they cost."""

    ids: array[int]
    exact_tokens: int
    render_s: float = 0.0
    tokenise_s: float = 0.0
    segments_hit: int = 0
    segments_missed: int = 0

    @property
    def exact(self) -> bool:
        return self.exact_tokens == len(self.ids)


@dataclass(frozen=True, slots=True)
class NoTokens:
    """No tokens, and why. Never an error of the request."""

    reason: Reason


class Unprepared(Exception):
    """No exact preparation, for a reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason
