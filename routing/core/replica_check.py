"""What a look at an engine before it is added says: which models, how its cache is cut, whether it keeps two salts apart. Pure.

The report is read by the tenant who named the address. Of an address that does not answer, that may not be connected to, or that is another tenant's
it says one and the same thing: nothing answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

MAX_MODELS = 64  # named in a report
MAX_CHARACTERS = 200  # of any text of the engine's
Salts = Literal["honoured", "ignored", "unsupported", "not reported", "no hit", "odd", "not tried"]
Events = Literal["published", "drained", "none"]

SALTS_IN_WORDS: dict[str, str] = {
    "honoured": "The same prompt hit under the same salt and missed under another: two identities share nothing here.",
    "ignored": "The same prompt hit under another salt: this engine shares cached blocks between identities. It serves one namespace only.",
    "unsupported": "This engine family takes no salt: a replica of it serves one namespace only.",
    "not reported": "Answers do not say how many tokens were cached; start vLLM with --enable-prompt-tokens-details. Audits judge by times instead.",
    "no hit": "A repeat under the same salt did not hit: prefix caching is off, or the cache is too full to tell.",
    "odd": "Tokens that nobody had sent were reported as cached: what this engine reports cannot be relied on.",
    "not tried": "No prompt could be sent: it serves no model of the name asked for, or refused the probe.",
}


class SaltsFound(msgspec.Struct, frozen=True, kw_only=True):
    """Three uses of one prompt: new, again under the same salt, then under another. Cached tokens each; None is "not said"."""

    verdict: Salts
    first: int | None = None
    again: int | None = None
    other: int | None = None
    prompt_tokens: int | None = None
    status: int | None = None  # of the probe that was refused


class ParityFound(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the engine makes the router's tokens of our samples, for the endpoint that was named."""

    state: Literal["ok", "different", "inexact", "unavailable", "not asked"]
    sample: str | None = None
    position: int | None = None
    compared: int = 0
    why: str | None = None


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. ``answered`` False: every other field is as it stands here, whatever the reason."""

    answered: bool
    refused_status: int | None = None  # of /v1/models, where it is none of 200
    family: str | None = None  # as it calls itself
    version: str | None = None
    models: list[str] = []
    served_model: str | None = None  # that was probed
    served: bool | None = None  # whether it lists the name that was asked for
    block_tokens: int | None = None
    capacity_tokens: int | None = None
    events: Events | None = None
    event_ranks: int = 0
    event_replay: bool = False
    salts: SaltsFound = SaltsFound(verdict="not tried")
    parity: ParityFound = ParityFound(state="not asked")


UNANSWERED = CheckReport(answered=False)


@dataclass(frozen=True, slots=True)
class Use:
    """One probe's answer."""

    status: int
    cached_tokens: int | None = None
    prompt_tokens: int | None = None


def salts(first: Use, again: Use, other: Use, *, block_tokens: int) -> SaltsFound:
    """What three uses say. Fewer cached tokens than a block are no hit: a template may be all that two prompts have in common."""
    uses = (first, again, other)
    failed = next((one.status for one in uses if one.status != 200), None)
    if failed is not None:
        return SaltsFound(verdict="not tried", status=failed)
    told = {"first": first.cached_tokens, "again": again.cached_tokens, "other": other.cached_tokens, "prompt_tokens": first.prompt_tokens}
    if first.cached_tokens is None or again.cached_tokens is None or other.cached_tokens is None:
        return SaltsFound(verdict="not reported", **told)
    if first.cached_tokens >= block_tokens:
        return SaltsFound(verdict="odd", **told)
    if again.cached_tokens < block_tokens:
        return SaltsFound(verdict="no hit", **told)
    return SaltsFound(verdict="ignored" if other.cached_tokens >= block_tokens else "honoured", **told)
