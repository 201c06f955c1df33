"""Whether an engine computes the last block anew that it holds of a prompt, learned from answers.

vLLM does where EAGLE, MTP or a like draft speculates: the draft's own cache of that block cannot be used, so each hit is a block shorter than what
the engine holds and its events show. Nothing that the engine says of itself tells. Without it no prediction would come true to the block, and with
blocks of 64 tokens and more the engine's events would be left for history.

Source: vLLM 0.32, ``v1/core/single_type_kv_cache_manager.py::find_longest_cache_hit`` (``drop_eagle_block``) and
``config/speculative.py::use_eagle_block_drop``; a speculating engine may also be told not to.
"""

from __future__ import annotations

from dataclasses import dataclass

SURE = 8  # answers, more for it than against it, until it is believed; as many more against it until it is not


@dataclass(slots=True)
class LastBlock:
    """What one account's answers say. An answer tells where the engine held a block or more, and gave back all of them or all but one; what falls
    short by anything else (evictions, other prompts) tells nothing of this."""

    withheld: bool = False
    answers: int = 0  # that told, as far as ``SURE``
    _score: int = 0  # in [0, SURE]

    @property
    def known(self) -> bool:
        """Whether these answers are enough to speak for themselves."""
        return self.answers >= SURE

    def observe(self, *, held_tokens: int, cached_tokens: int, block_tokens: int) -> None:
        """Take in an answer of an engine that held ``held_tokens`` of the prompt which it might have used."""
        short_tokens = held_tokens - cached_tokens
        if held_tokens < block_tokens or short_tokens not in (0, block_tokens):
            return
        self.answers = min(SURE, self.answers + 1)
        self._score = min(SURE, self._score + 1) if short_tokens else max(0, self._score - 1)
        if self._score in (0, SURE):
            self.withheld = self._score == SURE
