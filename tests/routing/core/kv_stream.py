"""Events for tests, an index to take them, and one engine that makes them: physical blocks, copies and all, written without a look at the index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from routing.core import blocks
from routing.core.event_index import EventIndex
from routing.core.kv_events import Batch, Cleared, Event, Hash, Removed, Stored

BLOCK_TOKENS = 2
URL = "http://engine:8000"


def salt(name: str) -> str:
    return "sr1-" + name.ljust(43, "_")


def ns_key(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def seed(name: str) -> bytes:
    return name.encode().ljust(32, b".")


def tokens(word: str) -> list[int]:
    """One block for each letter; words that begin alike share their first blocks."""
    return [value for letter in word for value in (ord(letter), 7)]


@lru_cache(maxsize=4096)
def chain(name: str, word: str) -> tuple[bytes, ...]:
    return blocks.token_chain(seed(name), tokens(word), BLOCK_TOKENS)


def stored(
    hashes: Sequence[Hash],
    word: str,
    *,
    parent: Hash | None = None,
    keys: Sequence[object] = (),
    adapter: str | None = None,
    medium: str = "GPU",
    group: int = 0,
    kind: str = "full_attention",
    window: int | None = None,
) -> Stored:
    """Blocks of ``word``, a letter each. ``keys``: the extra keys of a prompt's first block, besides its adapter."""
    own = () if adapter is None else (adapter,)
    first = (*own, *keys) if parent is None else own
    entries = tuple((entry or None) for entry in [first, *[own] * (len(hashes) - 1)])
    return Stored(
        tuple(hashes),
        parent,
        blocks.pack(tokens(word)),
        BLOCK_TOKENS,
        medium=medium,
        lora_name=adapter,
        extra_keys=entries,
        group=group,
        spec_kind=kind,
        sliding_window_tokens=window,
    )


def batch(*events: Event) -> Batch:
    return Batch(1.0, tuple(events), 0)


def index_of(*names: str, **bounds: int) -> EventIndex:
    """An index with one target, at which namespaces of so many owners are claimed."""
    index = EventIndex(**bounds)
    index.set_generation((URL, 0), 1, 0.0)
    for name in names:
        claim(index, name)
    return index


def claim(index: EventIndex, name: str) -> None:
    """A namespace and its owner of one name."""
    index.claim(salt(name), ns_key=ns_key(name), owner=name.encode(), seed=seed(name))


@dataclass
class Engine:
    """A cache of whole blocks, as vLLM keeps one. A block is (salt, adapter, word up to its end); each may have several copies."""

    copies: dict[tuple[str | None, str | None, str], int] = field(default_factory=dict)
    hashes: dict[tuple[str | None, str | None, str], int] = field(default_factory=dict)

    def hash(self, block: tuple[str | None, str | None, str]) -> int:
        return self.hashes.setdefault(block, 2**63 + len(self.hashes))

    def holds(self, salt_: str | None, adapter: str | None, word: str) -> int:
        """How many leading blocks of ``word`` are cached."""
        return next((end for end in range(len(word)) if not self.copies.get((salt_, adapter, word[: end + 1]))), len(word))

    def run(self, salt_: str | None, adapter: str | None, word: str, *, cold: bool = False) -> list[Event]:
        """Serve a prompt that is ``word`` exactly: its last block is computed even if cached; ``cold``: all of them are."""
        first = 0 if cold else min(self.holds(salt_, adapter, word), len(word) - 1)
        path = [(salt_, adapter, word[: end + 1]) for end in range(len(word))]
        for block in path[first:]:
            self.copies[block] = self.copies.get(block, 0) + 1
        keys = () if salt_ is None else (salt_,)
        parent = None if first == 0 else self.hash(path[first - 1])
        return [stored([self.hash(block) for block in path[first:]], word[first:], parent=parent, keys=keys, adapter=adapter)]

    def report(self, salt_: str | None, adapter: str | None, word: str) -> list[Event]:
        """Full report mode: say again what is reused."""
        path = [(salt_, adapter, word[: end + 1]) for end in range(self.holds(salt_, adapter, word))]
        keys = () if salt_ is None else (salt_,)
        return [stored([self.hash(block) for block in path], word[: len(path)], keys=keys, adapter=adapter)] if path else []

    def leaves(self) -> list[tuple[str | None, str | None, str]]:
        held = [block for block, count in self.copies.items() if count]
        inner = {(each[0], each[1], each[2][:-1]) for each in held}
        return [block for block in held if block not in inner or self.copies[block] > 1]

    def evict(self, block: tuple[str | None, str | None, str]) -> list[Event]:
        self.copies[block] -= 1
        return [Removed((self.hash(block),), "GPU")]

    def reset(self) -> list[Event]:
        self.copies.clear()
        return [Cleared()]
