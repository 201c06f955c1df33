"""What the event index holds, and how it goes: removals, resets, bounds. Internal to :mod:`routing.core.event_index`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final

from routing.core.event_tables import (
    GONE_S,
    MAX_GONE,
    SALT_BYTES,
    SEGMENT_BLOCKS,
    WAITING_BYTES,
    Block,
    Dropped,
    Group,
    Name,
    Owner,
    Remains,
    Segment,
    Table,
    Target,
    Unusable,
    Waiting,
    fewer,
    tier_of,
)
from routing.core.kv_events import Hash, Removed

COUNTERS: Final = (
    "stored",
    "copies",
    "removed",
    "removed_unknown",
    "removals_forgotten",
    "cleared",
    "parked",
    "parked_dropped",
    "orphaned",
    "orphans_adopted",
    "orphans_dropped",
    "ignored_foreign",
    "ignored_media",
    "ignored_adapter",
    "ignored_crowded",
    "ignored_dropped",
    "unknown_events",
    "unknown_fields",
    "unknown_medium",
    "without_tokens_unknown",
    "set_semantics",
    "hash_conflicts",
    "hash_twins",
    "evicted",
    "old_generation",
    "unknown_target",
    "holes_matched",
    "claims",
    "claims_dropped",
    "claim_conflicts",
)


class Holdings:
    """All targets' tables with their blocks, the owners, and the bounded pools of what is not credited."""

    def __init__(self, *, capacity_blocks: int, parked_bytes: int, orphan_bytes: int, ignored: int) -> None:
        self.capacity_blocks = capacity_blocks
        self.tables: dict[Target, Table] = {}
        self.counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self.names: dict[str, Name] = {}
        self.by_key: dict[bytes, Name] = {}
        self.owners: dict[bytes, Owner] = {}
        self.blocks = 0
        self.parked_in: dict[str, int] = {}  # by salt: blocks
        self.parked_bytes = 0
        self.orphan_bytes = 0
        self.ignored = 0
        self._parked_limit_bytes = parked_bytes
        self._orphan_limit_bytes = orphan_bytes
        self._ignored_limit = ignored
        self.segments: dict[int, Segment] = {}
        self._numbers = 0
        self._remains: list[Remains | Dropped] = []

    def give_up(self, table: Table, reason: Unusable) -> None:
        """Nothing this target says can be used until its next generation."""
        self.empty(table)
        table.unusable = reason

    def place_of(self, block: Block) -> Segment:
        return self.segments[block.segment]

    def known(self, group: Group, hash_: Hash) -> Block | Waiting | None:
        """What the group has under an engine's hash, but blocks of a namespace that was dropped and is not swept yet."""
        found = group.known.get(hash_)
        return None if type(found) is Block and found.segment not in self.segments else found

    def segment(self, group: Group, name: Name) -> Segment:
        segment = group.segments.get(name.ns_key)
        if segment is None:
            self._numbers += 1
            segment = group.segments[name.ns_key] = self.segments[self._numbers] = Segment(self._numbers, name, group.itself)
            name.owner.segments += 1
        return segment

    def leave_orphans(self, group: Group, waiting: Waiting, *, listed: bool = True) -> int:
        """Take a block out of the orphans; returns its copies."""
        del group.orphans[waiting.hash]
        del group.known[waiting.hash]
        group.orphan_bytes -= waiting.size_bytes
        self.orphan_bytes -= waiting.size_bytes
        if listed and waiting.parent is not None:
            group.wait_no_more(waiting.parent, waiting.hash)
        return waiting.copies

    def leave_parked(self, group: Group, waiting: Waiting) -> int:
        salt = waiting.salt
        parked = group.parked[salt]
        del parked[waiting.hash]
        del group.known[waiting.hash]
        if not parked:
            del group.parked[salt]
        group.parked_blocks -= 1
        group.parked_bytes -= waiting.size_bytes
        self.parked_bytes -= waiting.size_bytes
        self.parked_in[salt] -= 1
        if not self.parked_in[salt]:
            del self.parked_in[salt]
        return waiting.copies

    # -- removals -----------------------------------------------------------------------------------------------------------------------------------

    def remove(self, table: Table, event: Removed) -> None:
        tier = tier_of(event.medium, event.locality)
        group = table.groups.get(event.group)
        if tier is None or group is None:
            self.counters["unknown_medium" if tier is None else "removed_unknown"] += len(event.hashes)
            return
        for hash_ in event.hashes:
            known = self.known(group, hash_)
            if known is None:
                if hash_ in group.hashed and not tier:
                    self._remove_hashed(group, hash_, counting=table.counting)
                elif hash_ in group.ignored and not tier:
                    del group.ignored[hash_]
                    self.ignored -= 1
                else:
                    self.counters["removed_unknown"] += 1
                continue
            copies = fewer(known.copies, tier, counting=table.counting and tier == 0)
            if copies == known.copies:
                self.counters["removed_unknown"] += 1
            elif isinstance(known, Block):
                self.counters["removed"] += 1
                if not copies:
                    self.drop(known)
                    self._note_gone(group, known.digest, table.last_s)
                else:
                    if known.copies & 255 and not copies & 255:
                        self.place_of(known).lower += 1
                    known.copies = copies
            elif copies:
                known.copies = copies
            elif known.salt:
                self.leave_parked(group, known)
            else:
                self.leave_orphans(group, known)

    def _remove_hashed(self, group: Group, hash_: Hash, *, counting: bool) -> None:
        self.counters["removed"] += 1
        group.hashed[hash_] = fewer(group.hashed[hash_], 0, counting=counting)
        if not group.hashed[hash_]:
            del group.hashed[hash_]
            self.ignored -= 1

    def _note_gone(self, group: Group, digest: bytes, now_s: float) -> None:
        gone = group.gone
        gone[digest] = now_s
        gone.move_to_end(digest)
        while gone[oldest := next(iter(gone))] < now_s - GONE_S:
            del gone[oldest]
        if len(gone) > MAX_GONE:
            gone.popitem(last=False)
            self.counters["removals_forgotten"] += 1

    def drop(self, block: Block) -> None:
        segment = self.segments[block.segment]
        group = segment.group
        del group.known[block.hash]
        segment.drop(block)
        group.credited -= 1
        self.blocks -= 1
        if not segment.held:  # a namespace that comes no more would keep a table as large as it ever was
            self._forget(segment)

    def _forget(self, segment: Segment) -> None:
        del segment.group.segments[segment.name.ns_key]
        del self.segments[segment.number]
        segment.name.owner.segments -= 1

    def empty(self, table: Table) -> None:
        """Forget all of a table's blocks: at once for whoever asks, in slices (:meth:`sweep`) for the memory that they take."""
        for group in table.groups.values():
            for segment in group.segments.values():
                owner = segment.name.owner
                owner.segments -= 1
                owner.blocks -= len(segment.held)
                self.blocks -= len(segment.held)
                del self.segments[segment.number]
            for salt, parked in group.parked.items():
                self.parked_in[salt] -= len(parked)
                if not self.parked_in[salt]:
                    del self.parked_in[salt]
            self.parked_bytes -= group.parked_bytes
            self.orphan_bytes -= group.orphan_bytes
            self.ignored -= len(group.ignored) + len(group.hashed)
            self._remains.append(group.given_up())
        table.groups.clear()
        table.sizes = ()
        table.empty_at = self.counters["claims"]

    def sweep(self, most: int) -> None:
        """Take at most so many entries apart of what was forgotten."""
        while most > 0 and self._remains:
            found = self._remains[-1].shed(most)
            if found < most:
                self._remains.pop()
            most -= found + 1  # one without entries counts too

    @property
    def weight(self) -> int:
        """What all credited blocks and their segments take, in blocks."""
        return self.blocks + SEGMENT_BLOCKS * len(self.segments)

    @property
    def remains(self) -> int:
        """Blocks that were forgotten and still take memory."""
        return sum(map(len, self._remains))

    @property
    def remaining_weight(self) -> int:
        """What was forgotten and still takes memory, in blocks."""
        return sum([len(each) + SEGMENT_BLOCKS * each.segments for each in self._remains])

    def drop_name(self, salt: str) -> None:
        """Forget a claim and its blocks."""
        name = self.names.pop(salt)
        del self.by_key[name.ns_key]
        name.owner.salts.pop(salt, None)
        for group in self.groups():
            segment = group.segments.get(name.ns_key)
            if segment is not None and segment.name is name:
                self.drop_segment(segment)
        if not name.owner.salts and not name.owner.blocks:
            self.owners.pop(name.owner_key, None)

    def drop_segment(self, segment: Segment) -> None:
        """Forget a namespace's blocks in one KV group: as :meth:`empty` does, the memory that they take in slices."""
        segment.name.owner.blocks -= len(segment.held)
        segment.group.credited -= len(segment.held)
        self.blocks -= len(segment.held)
        self._forget(segment)
        self._remains.append(Dropped(segment))

    # -- bounds -------------------------------------------------------------------------------------------------------------------------------------

    def groups(self) -> Iterator[Group]:
        return (group for table in self.tables.values() for group in table.groups.values())

    def trim(self) -> None:
        """Drop down to every bound."""
        if self.weight > self.capacity_blocks:
            self._trim_owners()
        if self.parked_bytes > self._parked_limit_bytes:
            self._trim_parked()
        while self.orphan_bytes > self._orphan_limit_bytes:
            group = self._payer(lambda each: each.orphan_bytes)
            for _ in range(1 + len(group.orphans) // 64):
                self.leave_orphans(group, next(iter(group.orphans.values())))
                self.counters["orphans_dropped"] += 1
        while self.ignored > self._ignored_limit:
            group = self._payer(lambda each: len(each.ignored) + len(each.hashed))
            paying: OrderedDict[Hash, Any] = group.hashed if len(group.hashed) > len(group.ignored) else group.ignored
            for _ in range(1 + len(paying) // 64):
                paying.popitem(last=False)
                self.ignored -= 1
                self.counters["ignored_dropped"] += 1

    def _trim_owners(self) -> None:
        """From whoever holds most, and from nobody below an equal share."""
        while self.weight > self.capacity_blocks and (active := [owner for owner in self.owners.values() if owner.blocks]):
            payer = max(active, key=lambda owner: owner.weight)
            over_share = payer.weight - self.capacity_blocks // len(active)
            left = payer.weight - max(1, min(over_share, self.weight - self.capacity_blocks))
            while payer.blocks and payer.weight > left:
                leaf = next(iter(payer.leaves))
                if leaf.segment not in self.segments:  # of what was forgotten and is not swept yet
                    del payer.leaves[leaf]
                    continue
                self.drop(leaf)
                payer.evicted += 1
                self.counters["evicted"] += 1

    def _payer(self, size: Callable[[Group], int]) -> Group:
        """The largest group of the engine that takes most, with all its ranks: an engine that says what is not so pays for it alone."""
        by_engine: dict[str, int] = {}
        for (url, _), table in self.tables.items():
            by_engine[url] = by_engine.get(url, 0) + sum(map(size, table.groups.values()))
        url = max(by_engine, key=lambda each: by_engine[each])
        return max((group for target, table in self.tables.items() if target[0] == url for group in table.groups.values()), key=size)

    def _trim_parked(self) -> None:
        """From the salts with most blocks, down to one size, and newest first: what continues a block goes before it. A little more goes than must,
        so that looking through all salts is paid for."""
        while self.parked_bytes > self._parked_limit_bytes:
            group = self._payer(lambda each: each.parked_bytes)
            excess_bytes = self.parked_bytes - self._parked_limit_bytes + self._parked_limit_bytes // 256
            excess = -(-excess_bytes // (WAITING_BYTES + SALT_BYTES + group.width))
            salts = sorted(group.parked, key=lambda each: len(group.parked[each]), reverse=True)
            level = total = 0
            for paying, salt in enumerate(salts, 1):
                total += len(group.parked[salt])
                level = max(0, (total - excess) // paying)
                if paying == len(salts) or level >= len(group.parked[salts[paying]]):
                    break
            for salt in salts[:paying]:
                for waiting in list(reversed(group.parked[salt].values()))[: len(group.parked[salt]) - level]:
                    self.leave_parked(group, waiting)
                    self.counters["parked_dropped"] += 1
