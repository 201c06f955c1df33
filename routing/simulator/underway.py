"""A request on its way through the simulated engine: what the scheduler keeps of it."""

from __future__ import annotations

from collections.abc import Iterable

from routing.simulator.cache import Block
from routing.simulator.hashes import ExtraKeys
from routing.simulator.submission import Submission


class Request:
    """A submission on its way through the engine."""

    __slots__ = (
        "arrived_s",
        "blocks",
        "cached_tokens",
        "computed_tokens",
        "digests",
        "emitted",
        "extras",
        "first_token_s",
        "found_tokens",
        "last_token_s",
        "preemptions",
        "scheduled_s",
        "stored_blocks",
        "submission",
        "tokens",
        "unreported_preemptions",
    )

    def __init__(self, submission: Submission, arrived_s: float) -> None:
        self.submission = submission
        self.arrived_s = arrived_s
        self.tokens = list(submission.token_ids)
        self.digests: list[bytes] = []
        self.extras: list[ExtraKeys] = []
        self.blocks: list[Block] = []
        self.stored_blocks = 0  # leading blocks that are findable by hash
        self.computed_tokens = 0
        self.found_tokens = 0  # in the cache, when it was admitted
        self.cached_tokens: int | None = None
        self.emitted = 0
        self.preemptions = 0
        self.unreported_preemptions = 0
        self.scheduled_s = self.first_token_s = 0.0
        self.last_token_s: float | None = None

    @property
    def prompt_tokens(self) -> int:
        return len(self.submission.token_ids)


def adapters_of(requests: Iterable[Request]) -> tuple[str, ...]:
    """The adapters in use, each once."""
    return tuple(dict.fromkeys(one.submission.adapter.name for one in requests if one.submission.adapter is not None))
