"""What the event index keeps: blocks, and the tables that find them. Internal to :mod:`routing.core.event_index`.

Tens of millions of blocks are possible, so a block is one object without garbage-collector header that names its segment by number, and a segment is
one as well: nothing here forms a cycle through them, and dictionaries of them are not traversed by the collector. 258 to 284 bytes a block,
dictionaries included, and 480 to 540 a segment.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from weakref import ReferenceType, ref

import msgspec

from routing.core.blocks import TOKEN_BYTES
from routing.core.kv_events import Hash, Stored

Target = tuple[str, int]  # normalised URL of an engine, data-parallel rank
Medium = Literal["GPU", "CPU", "STORAGE"]
MEDIA: Final[tuple[Medium, ...]] = ("GPU", "CPU", "STORAGE")
TIERS: Final = {
    None: 0,
    "GPU": 0,
    "CPU": 1,
    "CPU_PINNED": 1,
    "CPU_TIER1": 1,
    "HOST": 1,
    "CPU_TIER2": 2,
    "DISK": 2,
    "STORAGE": 2,
    "EXTERNAL": 2,
    "FS": 2,
    "REMOTE": 2,
}
FULL_KINDS: Final = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
WINDOW_KINDS: Final = frozenset({"sliding_window", "sliding_window_mla"})
BLOCK_BYTES = 290  # at most what one credited block takes: 258 to 284 measured by tests/bench/event_index.py, as dictionaries grow
SEGMENT_BLOCKS = 2  # a namespace in one KV group of a target takes as much as so many blocks besides its own: 480 to 540 bytes measured, of 580
SALT_BYTES = 640  # what a salt's first parked block takes besides: the salt and the list of its blocks
WAITING_BYTES = 320  # what one parked or orphaned block takes besides its tokens
IGNORED_BYTES = 180
GONE_S = 2.0  # for so long a removal is remembered: what answers showed before it must not be believed any more
MAX_GONE = 8192  # removals of one KV group; twice what an engine of 2,000 blocks/s turns over in that time

Ignored = Literal["foreign", "media", "adapter", "crowded"]
Unusable = Literal["unknown_spec_kind", "block_size", "hash_conflict", "too_many_groups"]


@dataclass(frozen=True, slots=True)
class Applied:
    """What one batch did, in blocks.

    ``accepted``: False, the batch was of an old generation or of a target that is not there. ``ignored``: of other salts, none, or behind media.
    ``unusable``: why the target's events cannot be used, if so.
    """

    accepted: bool = True
    stored: int = 0
    copies: int = 0
    removed: int = 0
    removed_unknown: int = 0
    parked: int = 0
    orphaned: int = 0
    ignored: int = 0
    evicted: int = 0
    cleared: bool = False
    set_semantics: bool = False
    unusable: Unusable | None = None


class Block(msgspec.Struct, gc=False, eq=False):
    """A credited block. ``copies``: 8 bits for each tier, GPU lowest. ``children``: credited blocks that continue it."""

    hash: Hash
    digest: bytes
    parent: bytes
    segment: int
    copies: int
    children: int


class Waiting(msgspec.Struct, gc=False, eq=False):
    """A block whose namespace is not known yet: parked under ``salt`` until somebody claims it, or (salt empty) an orphan until its parent comes."""

    hash: Hash
    parent: Hash | None
    tokens: bytes
    salt: str
    adapter: str | None
    copies: int

    @property
    def size_bytes(self) -> int:
        return WAITING_BYTES + len(self.tokens) + (SALT_BYTES if self.salt and self.parent is None else 0)


class Owner:
    """Whose budget blocks, and the segments that they are in, count against. ``leaves``: blocks that nothing continues, least recently used first.
    ``forgot``: salts were once too many, so whichever is claimed may have been claimed before."""

    __slots__ = ("blocks", "evicted", "forgot", "leaves", "salts", "segments")

    def __init__(self) -> None:
        self.blocks = 0
        self.segments = 0
        self.evicted = 0
        self.forgot = False
        self.leaves: OrderedDict[Block, None] = OrderedDict()
        self.salts: OrderedDict[str, None] = OrderedDict()

    @property
    def weight(self) -> int:
        """What it takes, in blocks."""
        return self.blocks + SEGMENT_BLOCKS * self.segments


class Name:
    """A namespace that was claimed. ``known_from``: all is known of it at targets that were empty after so many claims."""

    __slots__ = ("known_from", "ns_key", "owner", "owner_key", "root")

    def __init__(self, ns_key: bytes, owner_key: bytes, owner: Owner, root: bytes, known_from: int) -> None:
        self.ns_key = ns_key
        self.owner_key = owner_key
        self.owner = owner
        self.root = root
        self.known_from = known_from


class Segment(msgspec.Struct, gc=False, eq=False):
    """One namespace's blocks in one KV group of one target.

    ``lost``: parents that are gone although blocks continue them (by digest, how many): holes, which a whole event stream never leaves.
    ``lower``: blocks held in lower tiers alone.
    """

    number: int
    name: Name
    its_group: ReferenceType[Group]
    adapter: str | None = None
    held: dict[bytes, Block] = {}
    lost: dict[bytes, int] = {}
    lower: int = 0

    @property
    def group(self) -> Group:
        """Its group, which is there as long as the segment is one."""
        group = self.its_group()
        if group is None:
            raise RuntimeError("a segment without its group")
        return group

    def add(self, block: Block) -> None:
        """Take in a new block. It becomes a leaf unless something continues it."""
        if self.lost:
            block.children = self.lost.pop(block.digest, 0)
        leaves = self.name.owner.leaves
        parent = self.held.get(block.parent)
        if parent is not None:
            if not parent.children:
                leaves.pop(parent, None)
            parent.children += 1
        elif block.parent != self.name.root:
            self.lost[block.parent] = self.lost.get(block.parent, 0) + 1
        self.held[block.digest] = block
        if not block.children:
            leaves[block] = None
        if not block.copies & 255:
            self.lower += 1
        self.name.owner.blocks += 1

    def drop(self, block: Block) -> None:
        """Forget a block. Its parent, no longer continued, is as old as it was."""
        del self.held[block.digest]
        if not block.copies & 255:
            self.lower -= 1
        owner = self.name.owner
        owner.blocks -= 1
        if block.children:
            self.lost[block.digest] = block.children
        else:
            owner.leaves.pop(block, None)
        parent = self.held.get(block.parent)
        if parent is not None:
            parent.children -= 1
            if not parent.children:
                owner.leaves[parent] = None
                owner.leaves.move_to_end(parent, last=False)
        elif block.parent != self.name.root:
            left = self.lost[block.parent] - 1
            if left:
                self.lost[block.parent] = left
            else:
                del self.lost[block.parent]

    def shed(self, known: dict[Hash, Block | Waiting], most: int) -> int:
        """Take at most so many blocks of a segment that was given up out of their owner's leaves and, but for those that came again since, out of
        ``known``; returns how many it found."""
        held, leaves = self.held, self.name.owner.leaves
        count = min(most, len(held))
        for _ in range(count):
            _, block = held.popitem()
            if known.get(block.hash) is block:
                del known[block.hash]
            if not block.children:
                leaves.pop(block, None)
        return count + _shed(self.lost, most - count)


class Group:
    """One KV group of one target: its blocks by the engine's hash, and what is not (yet) anybody's."""

    __slots__ = (
        *("block_tokens", "by_hash", "goes_on", "gone", "hashed", "ignored", "itself", "known", "maybe_report", "orphan_bytes", "orphans"),
        *("__weakref__", "credited", "parked", "parked_blocks", "parked_bytes", "segments", "waiting_for", "width", "window_blocks"),
    )

    def __init__(self, block_tokens: int, window_tokens: int | None) -> None:
        self.itself = ref(self)
        self.block_tokens = block_tokens
        self.width = block_tokens * TOKEN_BYTES
        # A windowed group needs only the blocks that the window reaches back to; None: all of the prefix.
        self.window_blocks = None if window_tokens is None else max(1, -(-(window_tokens - 1) // block_tokens))
        self.known: dict[Hash, Block | Waiting] = {}
        self.segments: dict[bytes, Segment] = {}
        self.parked: dict[str, OrderedDict[Hash, Waiting]] = {}
        self.orphans: OrderedDict[Hash, Waiting] = OrderedDict()
        self.waiting_for: dict[Hash, Hash | dict[Hash, None]] = {}  # by the parent that orphans lack; most lack one of their own
        self.ignored: OrderedDict[Hash, Ignored] = OrderedDict()
        self.by_hash = False  # a windowed group whose events leave blocks out: those that came since are known by their hashes alone
        self.goes_on = False  # the last of these events was a piece of one, and not its last
        self.maybe_report = False  # that event may only repeat what is there
        self.hashed: OrderedDict[Hash, int] = OrderedDict()  # copies
        self.gone: OrderedDict[bytes, float] = OrderedDict()  # credited blocks removed of late, by digest: when, oldest first
        self.credited = 0  # blocks of all segments: whoever looks at sizes asks each second
        self.parked_blocks = 0
        self.parked_bytes = 0
        self.orphan_bytes = 0

    def wait(self, parent: Hash, child: Hash) -> None:
        """An orphan lacks its parent."""
        others = self.waiting_for.setdefault(parent, child)
        if isinstance(others, dict):
            others[child] = None
        elif others != child:
            self.waiting_for[parent] = {others: None, child: None}

    def wait_no_more(self, parent: Hash, child: Hash) -> None:
        """An orphan is gone. As quick for one of very many that lack the same parent: engines choose hashes."""
        others = self.waiting_for.get(parent)
        if isinstance(others, dict):
            others.pop(child, None)
        if others in (child, {}):
            del self.waiting_for[parent]

    def holds(self, hash_: Hash) -> bool:
        """Whether there is a block of this hash, whoever's it is."""
        return hash_ in self.hashed or hash_ in self.known

    def given_up(self) -> Remains:
        """Hold nothing any more; what was held comes back, to be taken apart in slices."""
        remains = Remains(self.segments, self.known, self.parked, (self.orphans, self.waiting_for, self.ignored, self.hashed, self.gone))
        self.known, self.segments, self.parked, self.waiting_for = {}, {}, {}, {}
        self.orphans, self.ignored, self.hashed, self.gone = OrderedDict(), OrderedDict(), OrderedDict(), OrderedDict()
        self.credited = self.parked_blocks = self.parked_bytes = self.orphan_bytes = 0
        return remains

    def came(self, parent: Hash) -> list[Hash]:
        """The orphans that lack this parent, longest waiting first; they no longer wait."""
        children = self.waiting_for.pop(parent, None)
        return [] if children is None else [*children] if isinstance(children, dict) else [children]


class Remains:
    """What a KV group held when it was given up. Taking a million blocks apart takes half a second, so it is done in slices. No look-up finds any of
    it, but its leaves stand among their owner's until then."""

    __slots__ = ("_known", "_others", "_parked", "_segments")

    def __init__(
        self,
        segments: dict[bytes, Segment],
        known: dict[Hash, Block | Waiting],
        parked: dict[str, OrderedDict[Hash, Waiting]],
        others: Sequence[MutableMapping[Any, Any]],
    ) -> None:
        self._segments = segments
        self._known = known
        self._parked = parked
        self._others = others

    def __len__(self) -> int:
        return len(self._known)

    @property
    def segments(self) -> int:
        """How many are not taken apart yet."""
        return len(self._segments)

    def shed(self, most: int) -> int:
        """Take at most so many entries apart; returns how many it found, fewer where nothing is left."""
        left = most
        while left > 0 and self._segments:  # a segment counts too: an engine may have very many without a block
            key, segment = self._segments.popitem()
            left -= 1 + segment.shed(self._known, left - 1)
            if segment.held or segment.lost:
                self._segments[key] = segment
        while left > 0 and self._parked:
            salt, parked = self._parked.popitem()
            left -= 1 + _shed(parked, left - 1)
            if parked:
                self._parked[salt] = parked
        for each in (self._known, *self._others):
            left -= _shed(each, left)
        return most - left


class Dropped:
    """One namespace's blocks in a KV group that goes on without them, to be taken apart in slices as well. Until then the group's ``known`` lists
    them, so who looks there asks whether a block's segment is still one."""

    __slots__ = ("_known", "_segment")

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._known = segment.group.known  # this very one: a group that is given up meanwhile gets another

    def __len__(self) -> int:
        return len(self._segment.held)

    @property
    def segments(self) -> int:
        """As :attr:`Remains.segments`."""
        return 1 if self._segment.held else 0

    def shed(self, most: int) -> int:
        """As :meth:`Remains.shed`."""
        return self._segment.shed(self._known, most)


def _shed(entries: MutableMapping[Any, Any], most: int) -> int:
    count = min(most, len(entries))
    for _ in range(count):
        entries.popitem()
    return count


class Table:
    """One target. ``empty_at``: how many claims there had been when nothing was known of it last."""

    __slots__ = ("cleared_s", "counting", "empty_at", "generation", "groups", "last_s", "sizes", "unusable")

    def __init__(self, generation: int, now_s: float, empty_at: int) -> None:
        self.generation = generation
        self.empty_at = empty_at
        self.last_s = now_s
        self.cleared_s = -math.inf  # when the engine last said that its cache was reset
        self.groups: dict[int, Group] = {}
        self.sizes: tuple[int, ...] = ()  # of the groups' blocks, in tokens: each request asks for them
        self.counting = True  # copies are counted; False: set semantics, until the cache is known to be empty
        self.unusable: Unusable | None = None


def tier_of(medium: str | None, locality: str | None) -> int | None:
    """The tier of an event's medium, None for one that is not known. What is not at the engine itself is the lowest tier."""
    tier = TIERS.get(medium) if medium is None or medium in TIERS else TIERS.get(medium.upper())
    return 2 if tier is not None and locality == "REMOTE" else tier


def more(copies: int, tier: int, *, counting: bool) -> int:
    """One more copy in a tier; without counting, at least one."""
    lane = (copies >> 8 * tier) & 255
    return copies + (1 << 8 * tier) if lane == 0 or (counting and lane < 255) else copies


def fewer(copies: int, tier: int, *, counting: bool) -> int:
    """One copy less in a tier; without counting, none."""
    lane = (copies >> 8 * tier) & 255
    return copies - ((1 if counting else lane) << 8 * tier) if lane else copies


def plain_blocks(stored: Stored, keys_of_first: int) -> int:
    """How many leading blocks of an event are named by their tokens, salt and adapter alone. Media end the chain that a router can follow."""
    if keys_of_first:
        return 0
    if not stored.extra_keys:
        return len(stored.hashes)
    start = 1 if stored.parent is None else 0
    for position, entry in enumerate(stored.extra_keys[start:], start):
        if entry and not _only_adapter(entry, stored.lora_name):
            return position
    return len(stored.hashes)


def _only_adapter(entry: Sequence[object], adapter: str | None) -> bool:
    return adapter is not None and len(entry) == 1 and entry[0] == adapter
