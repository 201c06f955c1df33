"""The ids of segments that were tokenised before, by namespace, with a budget for each owner. Pure.

A namespace sees only what it put in itself. Each owner has the same budget of its own, so nobody evicts another's segments or learns from time what
another has. Owners beyond ``max_owners`` take the place of one that has been idle for ``idle_s``; while there is none, they go without.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

ENTRY_BYTES = 200  # what an entry takes besides its ids: key, value object, dictionary
Key = tuple[bytes, bytes, bytes]  # namespace, tokenizer, digest of the segment


def key(ns_key: bytes, tokenizer_digest: bytes, segment: str, *, whole: bool = False) -> Key:
    """``whole``: a text tokenised with special tokens added, which is another thing than the same text as a segment.

    Raises:
        UnicodeEncodeError: the text holds a lone surrogate.
    """
    return ns_key, tokenizer_digest, hashlib.sha256((b"w" if whole else b"s") + segment.encode()).digest()


@dataclass(slots=True)
class _Owner:
    entries: OrderedDict[Key, bytes] = field(default_factory=OrderedDict)
    size_bytes: int = 0
    used_s: float = 0.0


@dataclass(slots=True)
class Segments:
    """Bounded store of segments' ids (4 bytes each)."""

    owner_bytes: int
    max_owners: int
    idle_s: float = 600.0
    hits: int = 0
    misses: int = 0
    evicted_bytes: int = 0
    refused: int = 0  # segments that found no room: longer than a budget, or of an owner without one
    _owners: dict[bytes, _Owner] = field(default_factory=dict)

    def get(self, owner: bytes, key: Key, now_s: float) -> bytes | None:
        held = self._owners.get(owner)
        ids = held.entries.get(key) if held else None
        if held is None or ids is None:
            self.misses += 1
            return None
        held.entries.move_to_end(key)
        held.used_s = now_s
        self.hits += 1
        return ids

    def put(self, owner: bytes, key: Key, ids: bytes, now_s: float) -> None:
        size = len(ids) + ENTRY_BYTES
        held = self._owners.get(owner) or self._admit(owner, now_s)
        if held is None or size > self.owner_bytes:
            self.refused += 1
            return
        held.used_s = now_s
        old = held.entries.pop(key, None)
        held.size_bytes += size - (len(old) + ENTRY_BYTES if old is not None else 0)
        held.entries[key] = ids
        while held.size_bytes > self.owner_bytes:
            _, evicted = held.entries.popitem(last=False)
            held.size_bytes -= len(evicted) + ENTRY_BYTES
            self.evicted_bytes += len(evicted) + ENTRY_BYTES

    def _drop_idle(self, now_s: float) -> None:
        for owner in [each for each, held in self._owners.items() if now_s - held.used_s > self.idle_s]:
            self.evicted_bytes += self._owners.pop(owner).size_bytes

    def forget_tokenizer(self, digest: bytes) -> None:
        """Forget what one tokenizer made."""
        for held in self._owners.values():
            for each in [each for each in held.entries if each[1] == digest]:
                held.size_bytes -= len(held.entries.pop(each)) + ENTRY_BYTES

    def size_bytes(self) -> int:
        return sum(held.size_bytes for held in self._owners.values())

    def owners(self) -> int:
        return len(self._owners)

    def _admit(self, owner: bytes, now_s: float) -> _Owner | None:
        if len(self._owners) >= self.max_owners:
            self._drop_idle(now_s)
        if len(self._owners) >= self.max_owners:
            return None
        held = self._owners[owner] = _Owner()
        return held
