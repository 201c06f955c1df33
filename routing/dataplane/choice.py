"""What is chosen and what for: a prompt's sizes and chains, and the place that a decision sends it to."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Final

from routing.core import blocks
from routing.core.pairs import Pair
from routing.core.types import Candidate, Decision
from routing.dataplane.engine import Engine
from routing.dataplane.ranks import Rank
from routing.dataplane.view import ReplicaView

MAX_DIGESTS: Final = 65_536  # of one prompt's exact tokens, whatever blocks engines show: a million tokens at 16 a block; 5 MB
LOOP_DIGESTS: Final = 4096  # made on the event loop: 2 to 4 ms


@dataclass(frozen=True, slots=True)
class Prompt:
    """What placing a prompt needs: its chain under the namespace, and sizes."""

    digests: tuple[bytes, ...]
    head: tuple[bytes, ...]  # what ranks cold replicas: the first blocks, or the whole of a prompt shorter than one
    tokens: int  # exact where all of them are known, else by the learned ratio
    bytes_per_token: float
    seed: bytes = field(default=b"", repr=False)  # the namespace's index seed
    token_ids: array[int] | None = field(default=None, repr=False)  # exact, from the first on; of a prompt with media up to the first of it
    _chains: dict[int, tuple[bytes, ...]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def exact(self) -> bool:
        return self.token_ids is not None

    @property
    def exact_tokens(self) -> int:
        return 0 if self.token_ids is None else len(self.token_ids)

    def chain(self, block_tokens: int, most: int = LOOP_DIGESTS) -> tuple[bytes, ...]:
        """Digests of the whole blocks of exact tokens under the namespace, 16 bytes each, of ``most`` at most; computed once for each block size."""
        known = self._chains.get(block_tokens)
        if known is None:
            ids = self.token_ids if self.token_ids is not None else array("I")
            known = self._chains[block_tokens] = blocks.token_chain(self.seed, ids[: most * block_tokens], block_tokens)
        return known


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision and what it refers to; ``rank`` is the data-parallel rank that the request names. Where two replicas share the request, ``prefill``
    is the choice of the other one, and ``side`` what each of the two is charged with."""

    decision: Decision
    replica: ReplicaView
    engine: Engine
    side: Candidate | None = None
    prefill: Choice | None = None
    pair: Pair | None = None
    rank: Rank | None = None

    @property
    def place(self) -> Engine | Rank:
        """Where it is queued and cached."""
        return self.engine if self.rank is None else self.rank

    @property
    def taken(self) -> Candidate:
        """What this replica is expected to hold and to compute."""
        return self.decision.chosen if self.side is None else self.side

    @property
    def computes(self) -> Choice:
        """Where the prompt is computed."""
        return self if self.prefill is None else self.prefill
