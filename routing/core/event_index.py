"""Which blocks each engine holds, from its own KV events: exact where it says anything.

Namespace first: a block is credited to the namespace whose salt its prompt's first block shows, under digests that start from that namespace's seed,
and is found under that namespace alone. A salt of ours that nobody here has claimed yet parks its blocks until somebody does; a block whose parent is
unknown is an orphan until the parent comes; blocks of other salts, of no salt and behind media are passed over. Nothing of these is ever matched.

vLLM stores one block in several copies and reports each store and each eviction, so copies are counted. Its full report mode repeats what is merely
reused and breaks the count: from then on a block is gone with its first removal, until the cache is empty again.

Bounds: credited blocks by owner in bytes (the largest pays first, least recently used leaves first, nobody below an equal share), parked ones by
salt, orphans and passed-over ones by target. Not thread-safe: one event loop owns it. ``now_s`` is monotonic and given by the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, NamedTuple

from routing.core import blocks
from routing.core.event_contents import Contents
from routing.core.event_tables import BLOCK_BYTES, IGNORED_BYTES, MEDIA, Applied, Group, Medium, Name, Owner, Segment, Table, Target, Unusable
from routing.core.event_windows import Window, add_by_hash, agreed
from routing.core.kv_events import Batch, Cleared, Removed, Stored

Chain = Callable[[int], Sequence[bytes]]  # block size in tokens -> digests of whole blocks

DEFAULT_BUDGET_BYTES = 1024**3
DEFAULT_PARKED_BYTES = 256 * 1024**2
DEFAULT_ORPHAN_BYTES = 8 * 1024**2  # about 20,000: all of them may be adopted in one go, which then takes 60 to 80 ms
DEFAULT_IGNORED_BYTES = 128 * 1024**2
MAX_CLAIMS = 4096  # salts of one owner; the longest unused is forgotten first
SWEEP_SLICE = 8192  # entries of forgotten blocks taken apart in one go: about 4 ms
UNPARK_SLICE = 2048  # blocks credited in one go when a salt is claimed: about 5 ms


class EventMatch(NamedTuple):
    """What of a prompt an engine holds. ``blocks``: in GPU memory, from the start. ``lower_blocks``: those right after them that slower tiers hold;
    ``medium`` is then the slowest. ``tokens`` counts the first. ``age_s``: since the target's latest message. ``block_tokens`` is the largest size of
    the target's blocks, 0 of one that showed none. ``removed_s``: when the engine said that it removed what follows, -inf where it said no such thing
    within GONE_S; what an answer showed before that moment is not there any more. ``partial``: the target may hold more, of before the namespace was
    claimed again."""

    blocks: int
    tokens: int
    lower_blocks: int
    medium: Medium
    age_s: float
    block_tokens: int = 0
    removed_s: float = -math.inf
    partial: bool = False


NO_EVENT_MATCH: Final = EventMatch(blocks=0, tokens=0, lower_blocks=0, medium="GPU", age_s=0.0)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Blocks of one target by what they are."""

    credited: int
    parked: int
    orphans: int
    ignored: int

    @property
    def ours(self) -> int:
        """Under salts of ours. A router that has just begun finds most of them parked: a namespace is known to it with its first request."""
        return self.credited + self.parked


class EventIndex:
    """All targets' blocks. A target exists from :meth:`set_generation` to :meth:`forget`; batches for others are refused."""

    def __init__(
        self,
        *,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        parked_bytes: int = DEFAULT_PARKED_BYTES,
        orphan_bytes: int = DEFAULT_ORPHAN_BYTES,
        ignored_bytes: int = DEFAULT_IGNORED_BYTES,
        sweep_slice: int = SWEEP_SLICE,
    ) -> None:
        self._contents = Contents(
            capacity_blocks=max(1, budget_bytes // BLOCK_BYTES),
            parked_bytes=parked_bytes,
            orphan_bytes=orphan_bytes,
            ignored=max(1, ignored_bytes // IGNORED_BYTES),
        )
        self.counters = self._contents.counters
        self._tables = self._contents.tables
        self._unparking: dict[str, None] = {}
        self._sweep_slice = sweep_slice

    # -- targets ------------------------------------------------------------------------------------------------------------------------------------

    def set_generation(self, target: Target, generation: int, now_s: float) -> bool:
        """Begin a generation of a target, with nothing known. False: a later or the same one is there already."""
        table = self._tables.get(target)
        if table is not None and generation <= table.generation:
            return False
        if table is not None:
            self._contents.empty(table)
        self._tables[target] = Table(generation, now_s, self.counters["claims"])
        return True

    def generation(self, target: Target) -> int | None:
        table = self._tables.get(target)
        return None if table is None else table.generation

    def unusable(self, target: Target) -> Unusable | None:
        """Why this target's events cannot be used until its next generation, if so."""
        table = self._tables.get(target)
        return None if table is None else table.unusable

    def forget(self, target: Target) -> None:
        """The target is gone, and so is what comes late for it."""
        table = self._tables.pop(target, None)
        if table is not None:
            self._contents.empty(table)

    def clear(self, target: Target) -> None:
        """Forget what a target holds: messages are lost for good, or its cache was reset. How copies are treated stays."""
        table = self._tables.get(target)
        if table is not None:
            self._contents.empty(table)

    def use_set_semantics(self, target: Target) -> None:
        """The target was asked to report in full: its stores no longer mean new copies."""
        table = self._tables.get(target)
        if table is not None and table.counting:
            table.counting = False
            self.counters["set_semantics"] += 1

    # -- namespaces ---------------------------------------------------------------------------------------------------------------------------------

    def claim(self, salt: str, *, ns_key: bytes, owner: bytes, seed: bytes) -> None:
        """This router derived the namespace of ``salt``: its parked blocks become credited, in slices (:meth:`advance`), and later ones at once.

        Idempotent, O(1) when known. A salt belongs to the namespace that claimed it first, and a namespace has one salt. Whose salts were once too
        many may come again with one that was forgotten, so of what they claim later nobody knows what targets stored before: matches say ``partial``,
        until a target is empty once.
        """
        contents = self._contents
        name = contents.names.get(salt)
        if name is not None:
            if name.ns_key != ns_key or name.owner_key != owner:
                self.counters["claim_conflicts"] += 1
            else:
                name.owner.salts.move_to_end(salt)
            return
        if ns_key in contents.by_key:
            self.counters["claim_conflicts"] += 1
            return
        held = contents.owners.setdefault(owner, Owner())
        self.counters["claims"] += 1
        known_from = self.counters["claims"] if held.forgot else 0
        contents.names[salt] = contents.by_key[ns_key] = Name(ns_key, owner, held, blocks.root(seed), known_from)
        held.salts[salt] = None
        if len(held.salts) > MAX_CLAIMS:
            held.forgot = True
            self.disclaim(next(iter(held.salts)))
            self.counters["claims_dropped"] += 1
        if salt in contents.parked_in:
            self._unparking[salt] = None
            self.advance()

    def advance(self, max_blocks: int = UNPARK_SLICE) -> int:
        """Credit parked blocks of claimed salts, at most so many; returns how many it handled. A slice of what was forgotten is taken apart as well.
        ``apply`` does both too."""
        handled = 0
        contents = self._contents
        contents.sweep(self._sweep_slice)
        while self._unparking and handled < max_blocks:
            salt = next(iter(self._unparking))
            name = contents.names.get(salt)
            for table in self._tables.values():
                for group in list(table.groups.values()):
                    if name is not None and salt in group.parked:
                        handled += self._unpark(table, group, name, salt, max_blocks - handled)
            if name is None or salt not in contents.parked_in:
                del self._unparking[salt]
        if handled:
            self._contents.trim()
        return handled

    def _unpark(self, table: Table, group: Group, name: Name, salt: str, most: int) -> int:
        """Handle some parked blocks of one salt; returns how many. Blocks that wait for one another in a circle are dropped."""
        contents = self._contents
        handled = waited = 0
        while handled < most and salt in group.parked:
            waiting = next(iter(group.parked[salt].values()))
            handled += 1
            if contents.unpark(table, group, name, waiting):
                waited = 0
            elif (waited := waited + 1) > min(len(group.parked[salt]), UNPARK_SLICE // 2):
                contents.leave_parked(group, waiting)
                self.counters["parked_dropped"] += 1
        return handled

    def forget_owner(self, owner: bytes) -> None:
        """The owner is gone: forget its namespaces and their blocks."""
        held = self._contents.owners.get(owner)
        for salt in list(held.salts) if held is not None else ():
            self.disclaim(salt)

    def disclaim(self, salt: str) -> None:
        """The namespace is gone: forget its blocks everywhere."""
        if salt in self._contents.names:
            self._contents.drop_name(salt)

    # -- look-up ------------------------------------------------------------------------------------------------------------------------------------

    def match(self, ns_key: bytes, digests: Sequence[bytes], target: Target, now_s: float) -> EventMatch:
        """The longest prefix of ``digests`` (of the target's one block size) that ``target`` holds in the namespace."""
        return self.match_chain(ns_key, lambda _block_tokens: digests, target, now_s)

    def match_chain(self, ns_key: bytes, chain: Chain, target: Target, now_s: float) -> EventMatch:
        """As :meth:`match`, for whatever block sizes the target's KV groups have. A prefix counts as far as every group holds it."""
        table = self._tables.get(target)
        if table is None or table.unusable is not None:
            return NO_EVENT_MATCH
        if not table.groups:
            return NO_EVENT_MATCH._replace(removed_s=table.cleared_s)
        age_s = now_s - table.last_s if now_s > table.last_s else 0.0
        name = self._contents.by_key.get(ns_key)
        partial = name is not None and name.known_from > table.empty_at
        if len(table.groups) != 1:
            return self._match_groups(table, ns_key, chain, age_s, partial=partial)
        (group,) = table.groups.values()
        if group.window_blocks is not None:
            return self._match_groups(table, ns_key, chain, age_s, partial=partial)
        size, digests = group.block_tokens, chain(group.block_tokens)
        segment = group.segments.get(ns_key)
        held, gpu, tier = (0, 0, 0) if segment is None else self._held(segment, digests)
        removed_s = table.cleared_s
        if group.gone and held < len(digests):
            removed_s = max(removed_s, group.gone.get(digests[held], removed_s))
        return EventMatch(gpu, gpu * size, held - gpu, MEDIA[tier] if held > gpu else "GPU", age_s, size, removed_s, partial)

    def _match_groups(self, table: Table, ns_key: bytes, chain: Chain, age_s: float, *, partial: bool) -> EventMatch:
        """As :meth:`match_chain`, of several KV groups, or of one that needs no more than a window."""
        tokens = gpu_tokens = 1 << 62
        lowest, unit = 0, 1
        windows: list[Window] = []
        full: list[tuple[Segment, Sequence[bytes]]] = []
        for group in table.groups.values():
            block_tokens, digests = group.block_tokens, chain(group.block_tokens)
            unit = math.lcm(unit, block_tokens)
            segment = group.segments.get(ns_key)
            if group.by_hash:
                continue
            if segment is None:
                tokens = 0
            elif group.window_blocks is None:
                full.append((segment, digests))
                held, gpu, tier = self._held(segment, digests)
                lowest = max(lowest, tier)
                tokens = min(tokens, held * block_tokens)
                gpu_tokens = min(gpu_tokens, gpu * block_tokens)
            else:
                tokens = min(tokens, len(digests) * block_tokens)
                windows.append(Window(segment.held, digests, block_tokens, group.window_blocks))
            if not tokens:
                break
        for group in table.groups.values():
            if group.by_hash and tokens and not add_by_hash(windows, group, full):
                tokens = 0
        tokens = agreed(tokens, unit, windows)
        gpu_tokens = min(gpu_tokens, tokens)
        gpu_tokens -= gpu_tokens % unit
        removed_s = max([_removed_s(group, chain, tokens) for group in table.groups.values()])
        size = next(iter(table.groups.values())).block_tokens
        lower = (tokens - gpu_tokens) // size
        medium = MEDIA[lowest] if lower else "GPU"
        largest = max([group.block_tokens for group in table.groups.values()])
        return EventMatch(gpu_tokens // size, gpu_tokens, lower, medium, age_s, largest, max(table.cleared_s, removed_s), partial)

    def block_sizes(self, target: Target) -> tuple[int, ...]:
        """The block sizes (tokens) of a target's KV groups, as far as it showed them."""
        table = self._tables.get(target)
        return () if table is None else table.sizes

    def _held(self, segment: Segment, digests: Sequence[bytes]) -> tuple[int, int, int]:
        """How many leading blocks are held anywhere, how many in GPU memory, and the slowest tier of the others.

        A chain that was only ever cut at its leaves is monotone, so bisection finds its end, once neither its first nor its last block has told it.
        Where a hole is known, every block is asked for.
        """
        held = segment.held
        if segment.lost:
            self.counters["holes_matched"] += 1
            count = sum(1 for _ in takewhile(held.__contains__, digests))
        elif not digests or digests[0] not in held:
            count = 0
        elif digests[-1] in held:
            count = len(digests)
        else:
            count, high = 1, len(digests) - 1
            while count < high:
                middle = (count + high) // 2
                if digests[middle] in held:
                    count = middle + 1
                else:
                    high = middle
        if not count:
            return 0, 0, 0
        leaf = held[digests[count - 1]]
        leaves = segment.name.owner.leaves
        if leaf in leaves:
            leaves.move_to_end(leaf)
        if not segment.lower:
            return count, count, 0
        copies = [held[digest].copies for digest in digests[:count]]
        gpu = next((position for position, lanes in enumerate(copies) if not lanes & 255), count)
        slowest = max((1 if lanes & 0xFF00 else 2 for lanes in copies[gpu:] if not lanes & 255), default=0)
        return count, gpu, slowest

    # -- events -------------------------------------------------------------------------------------------------------------------------------------

    def apply(self, target: Target, batch: Batch, now_s: float, *, generation: int | None = None) -> Applied:
        """Take in one batch. ``generation``: the one it belongs to; a batch of an older one is refused, whatever it says."""
        table = self._tables.get(target)
        if table is None:
            self.counters["unknown_target"] += 1
            return Applied(accepted=False)
        if generation is not None and generation != table.generation:
            self.counters["old_generation"] += 1
            return Applied(accepted=False)
        table.last_s = now_s
        counters, contents = self.counters, self._contents
        before = dict(counters)
        counting = table.counting
        for event in batch.events:
            if isinstance(event, Stored):
                contents.store(table, event)
            elif isinstance(event, Removed):
                contents.remove(table, event)
            elif isinstance(event, Cleared):
                counters["cleared"] += 1
                table.cleared_s = now_s
                contents.empty(table)
                table.counting = True
            else:
                counters["unknown_events"] += 1
        counters["unknown_fields"] += batch.unknown_fields
        # As many go as come: what was forgotten and what is new never take more memory together than the bound.
        contents.sweep(self._sweep_slice + 2 * sum([len(event.hashes) for event in batch.events if isinstance(event, Stored)]))
        if self._unparking:
            self.advance()
        contents.trim()
        return Applied(
            stored=counters["stored"] - before["stored"],
            copies=counters["copies"] - before["copies"],
            removed=counters["removed"] - before["removed"],
            removed_unknown=counters["removed_unknown"] - before["removed_unknown"],
            parked=counters["parked"] - before["parked"],
            orphaned=counters["orphaned"] - before["orphaned"],
            ignored=sum(counters[name] - before[name] for name in ("ignored_foreign", "ignored_media", "ignored_adapter", "ignored_crowded")),
            evicted=counters["evicted"] - before["evicted"],
            cleared=counters["cleared"] != before["cleared"],
            set_semantics=counting and not table.counting,
            unusable=table.unusable,
        )

    # -- sizes --------------------------------------------------------------------------------------------------------------------------------------

    def sizes(self) -> dict[Target, Sizes]:
        """Blocks by target."""
        return {
            target: Sizes(
                credited=sum(group.credited for group in table.groups.values()),
                parked=sum(group.parked_blocks for group in table.groups.values()),
                orphans=sum(len(group.orphans) for group in table.groups.values()),
                ignored=sum(len(group.ignored) + len(group.hashed) for group in table.groups.values()),
            )
            for target, table in self._tables.items()
        }

    def holdings(self) -> dict[Target, dict[bytes, dict[bytes, object]]]:
        """What each target's first KV group of full attention (or, without one, its first) holds: its blocks by namespace and digest, oldest first.
        To be read at once and not kept."""
        usable = {target: table.groups.values() for target, table in self._tables.items() if table.groups and table.unusable is None}
        first = {target: min(groups, key=lambda each: each.window_blocks is not None) for target, groups in usable.items()}
        return {target: {ns_key: segment.held for ns_key, segment in group.segments.items()} for target, group in first.items()}  # type: ignore[misc]

    def owners(self) -> dict[bytes, tuple[int, int]]:
        """Credited blocks and blocks dropped for the budget so far, by owner."""
        return {key: (owner.blocks, owner.evicted) for key, owner in self._contents.owners.items()}

    @property
    def size_bytes(self) -> int:
        """About what everything takes."""
        contents = self._contents
        blocks_bytes = (contents.weight + contents.remaining_weight) * BLOCK_BYTES
        return blocks_bytes + contents.parked_bytes + contents.orphan_bytes + contents.ignored * IGNORED_BYTES


def _removed_s(group: Group, chain: Chain, tokens: int) -> float:
    digests, place = chain(group.block_tokens), tokens // group.block_tokens
    return group.gone.get(digests[place], -math.inf) if place < len(digests) else -math.inf
