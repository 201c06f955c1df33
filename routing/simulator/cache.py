"""The block pool: a fixed number of blocks, reference counts, and a least-recently-used queue of free ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class Block:
    """One physical block. ``digest`` is set while its content can be found by hash, in use or free."""

    __slots__ = ("block_id", "digest", "references")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.references = 0
        self.digest: bytes | None = None

    def __repr__(self) -> str:
        name = self.digest[-4:].hex() if self.digest else "-"
        return f"<Block {self.block_id} refs={self.references} {name}>"


class BlockPool:
    """Blocks in use, blocks free, and the index from digest to the copies that hold it.

    A free block keeps its content until it is taken for something else, so "free" and "cached" overlap. The same
    digest may live in several blocks: a recomputed last block is stored again, and each copy is evicted by itself.
    All mutable state is three containers: ``_blocks`` (fixed), ``_free`` (oldest first) and ``_copies``.
    """

    def __init__(self, usable_blocks: int) -> None:
        # Ids begin at 1: block 0 is the engine's null block and never holds anything.
        self._blocks = [Block(block_id) for block_id in range(1, usable_blocks + 1)]
        self._free: OrderedDict[int, Block] = OrderedDict((block.block_id, block) for block in self._blocks)
        self._copies: dict[bytes, list[Block]] = {}

    @property
    def size(self) -> int:
        return len(self._blocks)

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        return len(self._blocks) - len(self._free)

    @property
    def usage(self) -> float:
        """Share of blocks in use, 0 to 1. Cached blocks that nobody uses count as free, as in vLLM's gauge."""
        return self.used_blocks / len(self._blocks)

    @property
    def cached_digests(self) -> frozenset[bytes]:
        return frozenset(self._copies)

    def copies(self, digest: bytes) -> int:
        return len(self._copies.get(digest, ()))

    def longest_prefix(self, digests: Iterable[bytes]) -> list[Block]:
        """The blocks that hold the given chain from its start, up to the first that is absent."""
        found: list[Block] = []
        for digest in digests:
            copies = self._copies.get(digest)
            if not copies:
                break
            found.append(copies[0])
        return found

    def touch(self, blocks: Sequence[Block]) -> None:
        """Take a reference on blocks that were found, so that nothing can evict them."""
        for block in blocks:
            if block.references == 0:
                del self._free[block.block_id]
            block.references += 1

    def take(self, count: int) -> tuple[list[Block], list[bytes]]:
        """Take ``count`` free blocks, least recently used first; returns them and the digests this evicted.

        Raises:
            MemoryError: fewer than ``count`` are free; callers ask ``free_blocks`` first.
        """
        if count > len(self._free):
            raise MemoryError(f"{count} blocks wanted, {len(self._free)} free")
        taken: list[Block] = []
        evicted: list[bytes] = []
        for _ in range(count):
            _, block = self._free.popitem(last=False)
            if block.digest is not None:
                evicted.append(block.digest)
                self._forget(block)
            block.references = 1
            taken.append(block)
        return taken, evicted

    def store(self, block: Block, digest: bytes) -> None:
        """Make a block findable by its content; a second block with the same content is a second copy."""
        block.digest = digest
        self._copies.setdefault(digest, []).append(block)

    def release(self, blocks: Sequence[Block]) -> None:
        """Drop one reference on each block of a request.

        They join the queue last block first, so that a chain is evicted from its leaf and never loses its root
        while a child is still cached. A block that holds nothing findable goes to the front: taking it costs nobody.
        """
        for block in reversed(blocks):
            block.references -= 1
            if block.references == 0:
                self._free[block.block_id] = block
                if block.digest is None:
                    self._free.move_to_end(block.block_id, last=False)

    def clear(self) -> bool:
        """Forget all content. Refused while any block is in use."""
        if self.used_blocks:
            return False
        for block in self._blocks:
            block.digest = None
        self._copies.clear()
        return True

    def references(self) -> int:
        return sum(block.references for block in self._blocks)

    def _forget(self, block: Block) -> None:
        digest, block.digest = block.digest, None
        if digest is None:
            return
        copies = self._copies[digest]
        copies.remove(block)
        if not copies:
            del self._copies[digest]
