"""Where a prompt leaves the one before it: the last turns of conversations, as short prints of their blocks, in memory alone.

A print is the first ``PRINT_BYTES`` of a block's chained digest under the namespace's index seed, so that a turn of 100k tokens takes 4 kB, and no
print means anything in another namespace. Two different blocks look alike once in 2^32. Positions are in whole blocks of :mod:`routing.core.prefix`.

A turn is found by the conversation it belongs to: the session that the client names, else how the user opened it, else how the prompt begins. Of the
last ``TURNS`` prompts of one conversation the one that shares most is taken, since several may begin alike.

Bounds: ``budget_bytes`` over all owners; who holds most pays first, oldest conversation first, so that nobody's traffic pushes out another's modest
one. ``dropped`` counts conversations and lineages given up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

PRINT_BYTES = 4
MAX_BLOCKS = 16_384  # of a turn; what lies beyond is not compared
TURNS = 4
OVERHEAD_BYTES = 400  # of a conversation: keys, dictionary entries, objects
BUDGET_BYTES = 64 * 1024 * 1024
MAX_LINEAGES = 512  # of one owner


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt as it was sent. ``target`` is where it went, ``generation`` counts that engine's restarts then."""

    prints: bytes = field(repr=False)
    target: str
    generation: int

    @property
    def blocks(self) -> int:
        return len(self.prints) // PRINT_BYTES


@dataclass(frozen=True, slots=True)
class Compared:
    """A prompt beside the turn it shares most with, in blocks. It extends that turn if all of the turn's blocks are common; it differs from it where
    both go on behind what is common, so a prompt that is the beginning of that turn differs nowhere."""

    common_blocks: int
    turn_blocks: int
    prompt_blocks: int
    target: str
    generation: int

    @property
    def extends(self) -> bool:
        return self.common_blocks == self.turn_blocks

    @property
    def differs(self) -> bool:
        return self.common_blocks < min(self.turn_blocks, self.prompt_blocks)


@dataclass(frozen=True, slots=True)
class Former:
    """The namespace that the same asker had before. The seed never leaves memory."""

    namespace: bytes
    seed: bytes = field(repr=False)


def prints(digests: Sequence[bytes]) -> bytes:
    """The prints of a chain of digests, one after the other."""
    return b"".join([digest[:PRINT_BYTES] for digest in digests[:MAX_BLOCKS]])


def common_blocks(one: bytes, other: bytes) -> int:
    """How many leading blocks two rows of prints share."""
    low, high = 0, min(len(one), len(other)) // PRINT_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if one[low * PRINT_BYTES : middle * PRINT_BYTES] == other[low * PRINT_BYTES : middle * PRINT_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low


class Turns:
    """The last turns of all conversations. Not thread-safe: one event loop owns it. ``namespace`` and conversation keys are opaque bytes."""

    def __init__(self, *, budget_bytes: int = BUDGET_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._owners: dict[bytes, OrderedDict[bytes, tuple[Turn, ...]]] = {}
        self._sizes: dict[bytes, int] = {}  # bytes, by owner
        self._lineages: dict[bytes, OrderedDict[object, tuple[bytes, bytes, Former | None]]] = {}
        self._size_bytes = 0
        self.dropped = 0

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def __iter__(self) -> Iterator[bytes]:
        """Owners."""
        return iter(self._owners)

    def compare(self, namespace: bytes, conversation: bytes, wanted: bytes, *, owner: bytes) -> Compared | None:
        """Hold the prints of a prompt against the last turns of its conversation; None where there is none."""
        turns = self._owners.get(owner, _NONE).get(namespace + conversation, ())
        asked = len(wanted) // PRINT_BYTES
        found = [Compared(common_blocks(wanted, turn.prints), turn.blocks, asked, turn.target, turn.generation) for turn in turns]
        return max(found, key=lambda one: (one.common_blocks, one.extends), default=None)  # of equals the first: newest first

    def note(self, namespace: bytes, conversation: bytes, turn: Turn, *, owner: bytes) -> None:
        """Remember a prompt that was sent. It takes the place of the turn it extends."""
        held = self._owners.setdefault(owner, OrderedDict())
        key = namespace + conversation
        before = held.pop(key, ())
        kept = [one for one in before if not turn.prints.startswith(one.prints)][: TURNS - 1]
        held[key] = (turn, *kept)
        grown = _size(held[key]) - (_size(before) if before else 0)
        self._sizes[owner] = self._sizes.get(owner, 0) + grown
        self._size_bytes += grown
        while self.size_bytes > self._budget_bytes:
            self._drop()

    def _drop(self) -> None:
        payer = max(self._sizes, key=lambda owner: (self._sizes[owner], owner))
        held = self._owners[payer]
        _, turns = held.popitem(last=False)
        self._sizes[payer] -= _size(turns)
        self._size_bytes -= _size(turns)
        self.dropped += 1
        if not held:
            del self._owners[payer], self._sizes[payer]

    def follow(self, question: object, namespace: bytes, seed: bytes, *, owner: bytes) -> Former | None:
        """Note which namespace a question (who asks for what) has now; returns the one that it had before, if it ever changed."""
        held = self._lineages.setdefault(owner, OrderedDict())
        known = held.pop(question, None)
        if known is None:
            former = None
        elif known[0] == namespace:
            former = known[2]
        else:
            former = Former(known[0], known[1])
        held[question] = (namespace, seed, former)
        if len(held) > MAX_LINEAGES:
            held.popitem(last=False)
            self.dropped += 1
        return former

    def forget_owner(self, owner: bytes) -> None:
        """The owner is gone."""
        self._size_bytes -= self._sizes.pop(owner, 0)
        self._owners.pop(owner, None)
        self._lineages.pop(owner, None)


_NONE: OrderedDict[bytes, tuple[Turn, ...]] = OrderedDict()


def _size(turns: Sequence[Turn]) -> int:
    return OVERHEAD_BYTES + sum(len(turn.prints) for turn in turns)
