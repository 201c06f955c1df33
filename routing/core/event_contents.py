"""How stores and removals change the event index: where a block belongs, and what makes room. Internal to :mod:`routing.core.event_index`."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import Final

from routing.core.blocks import DIGEST_BYTES
from routing.core.event_tables import (
    FULL_KINDS,
    WINDOW_KINDS,
    Block,
    Group,
    Ignored,
    Name,
    Owner,
    Segment,
    Table,
    Unusable,
    Waiting,
    fewer,
    more,
    plain_blocks,
    tier_of,
)
from routing.core.kv_events import SALT_PREFIX, Hash, Removed, Stored, split_keys

MAX_PARKED_SALTS = 4096
MAX_GROUPS = 16

COUNTERS: Final = (
    "stored",
    "copies",
    "removed",
    "removed_unknown",
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
    "evicted",
    "old_generation",
    "unknown_target",
    "holes_matched",
    "claims",
    "claims_dropped",
    "claim_conflicts",
)


class Conflict(Exception):
    """One engine hash for two different blocks: this engine's hashes do not name blocks, so nothing of it may be believed."""


class Place:
    """Where the blocks of one event belong."""

    __slots__ = ("adapter", "ignored", "orphan", "parent", "salt", "segment")

    def __init__(
        self,
        *,
        segment: Segment | None = None,
        parent: bytes = b"",
        salt: str = "",
        adapter: str | None = None,
        orphan: bool = False,
        ignored: Ignored = "foreign",
    ) -> None:
        self.segment = segment
        self.parent = parent
        self.salt = salt
        self.adapter = adapter
        self.orphan = orphan
        self.ignored = ignored


class Contents:
    """All tables' blocks, and the bounded pools of what is not credited."""

    def __init__(self, *, capacity_blocks: int, parked_bytes: int, orphan_bytes: int, ignored: int) -> None:
        self.capacity_blocks = capacity_blocks
        self.counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self.names: dict[str, Name] = {}
        self.owners: dict[bytes, Owner] = {}
        self.blocks = 0
        self.parked_by_salt: dict[str, int] = {}  # bytes
        self.parked_bytes = 0
        self.orphan_bytes = 0
        self.ignored = 0
        self._parked_limit_bytes = parked_bytes
        self._orphan_limit_bytes = orphan_bytes
        self._ignored_limit = ignored
        self._segments: dict[int, Segment] = {}
        self._numbers = 0

    # -- stores -------------------------------------------------------------------------------------------------------------------------------------

    def store(self, table: Table, event: Stored) -> None:
        hashes = event.hashes
        tier = tier_of(event.medium, event.locality)
        if tier is None:
            self.counters["unknown_medium"] += len(hashes)
            return
        if not hashes or table.unusable is not None:
            return
        if not event.tokens:
            self._reach(table, event, tier)
            return
        group = self._group(table, event)
        if group is None:
            return
        try:
            place, plain = self._place(group, event)
            counting = table.counting and tier == 0
            if counting and event.parent is None and _holds(group.known.get(hashes[0])):
                # A first block stored again: its prompt was computed twice, or its reuse is only reported.
                counting = False
                if len(hashes) > 1:
                    table.counting = False
                    self.counters["set_semantics"] += 1
            self._put(group, place, event, range(plain), tier, counting=counting)
            if plain < len(hashes):
                self._ignore(group, hashes[plain:], place.ignored if place.segment is None and not place.salt and not place.orphan else "media")
        except Conflict:
            self.counters["hash_conflicts"] += 1
            self._give_up(table, "hash_conflict")

    def _group(self, table: Table, event: Stored) -> Group | None:
        group = table.groups.get(event.group)
        if group is not None:
            if group.block_tokens != event.block_tokens:
                self._give_up(table, "block_size")
                return None
            return group
        window = event.sliding_window_tokens
        if event.spec_kind in FULL_KINDS and window is None:
            group = Group(event.block_tokens, None)
        elif event.spec_kind in WINDOW_KINDS and window is not None and window > 0:
            group = Group(event.block_tokens, window)
        else:
            self._give_up(table, "unknown_spec_kind")
            return None
        if len(table.groups) >= MAX_GROUPS:
            self._give_up(table, "too_many_groups")
            return None
        table.groups[event.group] = group
        return group

    def _give_up(self, table: Table, reason: Unusable) -> None:
        self.empty(table)
        table.unusable = reason

    def _place(self, group: Group, event: Stored) -> tuple[Place, int]:
        """Where the event's blocks belong, and how many of them are plain (named by tokens, salt and adapter alone)."""
        if event.parent is None:
            first = event.extra_keys[0] if event.extra_keys else None
            salt, others = split_keys(first, event.lora_name)
            if event.cache_salt is not None:
                salt, others = event.cache_salt, 0 if salt is None or salt == event.cache_salt else 1
            return self._root_place(group, salt, event.lora_name), plain_blocks(event, others)
        known = group.known.get(event.parent)
        if known is None and event.parent in group.ignored:
            return Place(ignored=group.ignored[event.parent]), 0
        plain = plain_blocks(event, 0)
        if known is None:
            first_known = group.known.get(event.hashes[0])
            if isinstance(first_known, Block):  # its parent went before it: it stays what it is
                return Place(segment=self._segments[first_known.segment], parent=first_known.parent), plain
            if first_known is not None and first_known.salt:
                return Place(salt=first_known.salt, adapter=first_known.adapter), plain
            return Place(orphan=True), plain
        return self._under(known), plain

    def _under(self, parent: Block | Waiting) -> Place:
        """Where a block belongs that continues ``parent``."""
        if isinstance(parent, Block):
            return Place(segment=self._segments[parent.segment], parent=parent.digest)
        return Place(salt=parent.salt, adapter=parent.adapter, orphan=not parent.salt)

    def _root_place(self, group: Group, salt: str | None, adapter: str | None) -> Place:
        if salt is None or not salt.startswith(SALT_PREFIX):
            return Place(ignored="foreign")
        name = self.names.get(salt)
        if name is None:
            if salt not in self.parked_by_salt and len(self.parked_by_salt) >= MAX_PARKED_SALTS:
                return Place(ignored="crowded")
            return Place(salt=salt, adapter=adapter)
        if name.adapter is None:
            name.adapter = (adapter,)
        elif name.adapter[0] != adapter:
            return Place(ignored="adapter")
        return Place(segment=self._segment(group, name), parent=name.root)

    def _segment(self, group: Group, name: Name) -> Segment:
        segment = group.segments.get(name.ns_key)
        if segment is None:
            self._numbers += 1
            segment = group.segments[name.ns_key] = self._segments[self._numbers] = Segment(self._numbers, name, group)
        return segment

    def _put(self, group: Group, place: Place, event: Stored, positions: range, tier: int, *, counting: bool) -> None:
        hashes, tokens, width = event.hashes, event.tokens, group.width
        if place.segment is not None:
            segment, parent = place.segment, place.parent
            for position in positions:
                parent = self._credit(
                    group, segment, parent, hashes[position], tokens[position * width : (position + 1) * width], tier=tier, counting=counting
                )
        elif place.salt or place.orphan:
            before = event.parent
            for position in positions:
                hash_ = hashes[position]
                self._wait(group, place, before, hash_, tokens[position * width : (position + 1) * width], tier=tier, counting=counting)
                before = hash_
        else:
            self._ignore(group, hashes[: len(positions)], place.ignored)
        if group.waiting_for:
            for position in positions:
                if hashes[position] in group.waiting_for:
                    self._adopt(group, hashes[position])

    def _credit(
        self, group: Group, segment: Segment, parent: bytes, hash_: Hash, tokens: bytes, *, tier: int, counting: bool, lanes: int = 0
    ) -> bytes:
        """One block under a parent's digest; returns its own. ``lanes``: the copies it was waiting with."""
        known = group.known.get(hash_)
        if isinstance(known, Block):
            if known.parent != parent or known.segment != segment.number:
                raise Conflict
            copies = more(known.copies, tier, counting=counting)
            if not known.copies & 255 and copies & 255:
                segment.lower -= 1
            if copies != known.copies:
                self.counters["copies"] += 1
            known.copies = copies
            return known.digest
        if known is not None:
            if not known.salt:
                lanes = self._leave_orphans(group, known)
            elif self.names.get(known.salt) is segment.name:
                lanes = self._leave_parked(group, known)
            else:
                raise Conflict
        digest = sha256(parent + tokens).digest()[:DIGEST_BYTES]
        if digest in segment.held or (group.ignored and group.ignored.get(hash_) == "foreign"):
            raise Conflict
        if hash_ in group.ignored:
            del group.ignored[hash_]
            self.ignored -= 1
        block = Block(hash_, digest, parent, segment.number, more(lanes, tier, counting=False), 0)
        group.known[hash_] = block
        segment.add(block)
        self.blocks += 1
        self.counters["stored"] += 1
        return digest

    def _wait(self, group: Group, place: Place, parent: Hash | None, hash_: Hash, tokens: bytes, *, tier: int, counting: bool) -> None:
        """One block that is parked (its salt has no claim) or an orphan (its parent is unknown)."""
        known = group.known.get(hash_)
        lanes = 0
        if known is not None:
            if place.orphan or (isinstance(known, Waiting) and known.salt == place.salt and known.parent == parent):
                known.copies = more(known.copies, tier, counting=counting)
                return
            if isinstance(known, Block) or known.salt:
                raise Conflict
            lanes = self._leave_orphans(group, known)
        if group.ignored:
            if group.ignored.get(hash_) == "foreign":
                raise Conflict
            if hash_ in group.ignored:
                del group.ignored[hash_]
                self.ignored -= 1
        waiting = Waiting(hash_, parent, tokens, place.salt, place.adapter, more(lanes, tier, counting=False))
        group.known[hash_] = waiting
        if place.salt:
            group.parked.setdefault(place.salt, OrderedDict())[hash_] = waiting
            self.parked_by_salt[place.salt] = self.parked_by_salt.get(place.salt, 0) + waiting.size_bytes
            self.parked_bytes += waiting.size_bytes
            self.counters["parked"] += 1
        else:
            group.orphans[hash_] = waiting
            if parent is not None:
                group.waiting_for.setdefault(parent, []).append(hash_)
            self.orphan_bytes += waiting.size_bytes
            self.counters["orphaned"] += 1

    def _ignore(self, group: Group, hashes: tuple[Hash, ...], reason: Ignored) -> None:
        """Blocks that are nobody's here. They are remembered so that what continues them is passed over too."""
        for hash_ in hashes:
            known = group.known.get(hash_)
            if known is not None:
                if isinstance(known, Block) or known.salt:
                    raise Conflict
                self._leave_orphans(group, known)
            before = group.ignored.get(hash_)
            if before is None:
                group.ignored[hash_] = reason
                self.ignored += 1
            elif before != reason and "foreign" in {before, reason}:
                raise Conflict
        self.counters[f"ignored_{reason}"] += len(hashes)

    def _reach(self, table: Table, event: Stored, tier: int) -> None:
        """An event without tokens: blocks that are known reached another tier."""
        for hash_ in event.hashes:
            group = table.groups.get(event.group)
            known = None if group is None else group.known.get(hash_)
            if known is None:
                self.counters["without_tokens_unknown"] += 1
                continue
            copies = more(known.copies, tier, counting=False)
            if isinstance(known, Block) and not known.copies & 255 and copies & 255:
                self._segments[known.segment].lower -= 1
            known.copies = copies

    # -- waiting blocks -----------------------------------------------------------------------------------------------------------------------------

    def _adopt(self, group: Group, hash_: Hash) -> None:
        """A parent came: the orphans that lacked it go where it is, and theirs after them."""
        stack = [hash_]
        while stack:
            parent_hash = stack.pop()
            parent = group.known.get(parent_hash)
            for child_hash in group.waiting_for.pop(parent_hash, ()):
                child = group.orphans.get(child_hash)
                if child is None or child.parent != parent_hash:
                    continue
                lanes = self._leave_orphans(group, child, listed=False)
                if isinstance(parent, Block):
                    segment = self._segments[parent.segment]
                    self._credit(group, segment, parent.digest, child_hash, child.tokens, lanes=lanes, tier=_lowest(lanes), counting=False)
                    self.counters["orphans_adopted"] += 1
                elif parent is not None:
                    self._wait(group, self._under(parent), parent_hash, child_hash, child.tokens, tier=_lowest(lanes), counting=False)
                    group.known[child_hash].copies = lanes
                else:
                    self._ignore(group, (child_hash,), group.ignored.get(parent_hash, "foreign"))
                stack.append(child_hash)

    def unpark(self, group: Group, name: Name, waiting: Waiting) -> None:
        """Credit one parked block of a salt that is claimed now. One whose parent went before it is an orphan."""
        lanes = self._leave_parked(group, waiting)
        hash_, parent_hash = waiting.hash, waiting.parent
        try:
            if parent_hash is None:
                place = self._root_place(group, waiting.salt, waiting.adapter)
                if place.segment is None:
                    self._ignore(group, (hash_,), place.ignored)
                else:
                    self._credit(group, place.segment, place.parent, hash_, waiting.tokens, lanes=lanes, tier=_lowest(lanes), counting=False)
            else:
                parent = group.known.get(parent_hash)
                if isinstance(parent, Block) and self._segments[parent.segment].name is name:
                    self._credit(
                        group, self._segments[parent.segment], parent.digest, hash_, waiting.tokens, lanes=lanes, tier=_lowest(lanes), counting=False
                    )
                elif parent_hash in group.ignored:
                    self._ignore(group, (hash_,), group.ignored[parent_hash])
                else:
                    self._wait(group, Place(orphan=True), parent_hash, hash_, waiting.tokens, tier=_lowest(lanes), counting=False)
            if group.waiting_for:
                self._adopt(group, hash_)
        except Conflict:
            self.counters["hash_conflicts"] += 1

    def _leave_orphans(self, group: Group, waiting: Waiting, *, listed: bool = True) -> int:
        """Take a block out of the orphans; returns its copies."""
        del group.orphans[waiting.hash]
        del group.known[waiting.hash]
        self.orphan_bytes -= waiting.size_bytes
        if listed and waiting.parent is not None:
            siblings = group.waiting_for.get(waiting.parent)
            if siblings is not None:
                siblings.remove(waiting.hash)
                if not siblings:
                    del group.waiting_for[waiting.parent]
        return waiting.copies

    def _leave_parked(self, group: Group, waiting: Waiting) -> int:
        salt = waiting.salt
        parked = group.parked[salt]
        del parked[waiting.hash]
        del group.known[waiting.hash]
        if not parked:
            del group.parked[salt]
        self.parked_bytes -= waiting.size_bytes
        left = self.parked_by_salt[salt] - waiting.size_bytes
        if left:
            self.parked_by_salt[salt] = left
        else:
            del self.parked_by_salt[salt]
        return waiting.copies

    # -- removals -----------------------------------------------------------------------------------------------------------------------------------

    def remove(self, table: Table, event: Removed) -> None:
        tier = tier_of(event.medium, event.locality)
        group = table.groups.get(event.group)
        if tier is None or group is None:
            self.counters["unknown_medium" if tier is None else "removed_unknown"] += len(event.hashes)
            return
        for hash_ in event.hashes:
            known = group.known.get(hash_)
            if known is None:
                if hash_ in group.ignored:
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
                    self._drop(known)
                else:
                    if known.copies & 255 and not copies & 255:
                        self._segments[known.segment].lower += 1
                    known.copies = copies
            elif copies:
                known.copies = copies
            elif known.salt:
                self._leave_parked(group, known)
            else:
                self._leave_orphans(group, known)

    def _drop(self, block: Block) -> None:
        segment = self._segments[block.segment]
        del segment.group.known[block.hash]
        segment.drop(block)
        self.blocks -= 1

    def empty(self, table: Table) -> None:
        """Forget all of a table's blocks."""
        for group in table.groups.values():
            for segment in list(group.segments.values()):
                self._drop_segment(segment)
            for parked in [list(each.values()) for each in group.parked.values()]:
                for waiting in parked:
                    self._leave_parked(group, waiting)
            self.orphan_bytes -= sum(waiting.size_bytes for waiting in group.orphans.values())
            self.ignored -= len(group.ignored)
            group.known.clear()
        table.groups.clear()

    def drop_name(self, salt: str, tables: list[Table]) -> None:
        """Forget a claim and its blocks."""
        name = self.names.pop(salt)
        name.owner.salts.pop(salt, None)
        for table in tables:
            for group in table.groups.values():
                segment = group.segments.get(name.ns_key)
                if segment is not None and segment.name is name:
                    for block in segment.held.values():
                        del group.known[block.hash]
                    self._drop_segment(segment)
        if not name.owner.salts and not name.owner.blocks:
            self.owners.pop(name.owner_key, None)

    def _drop_segment(self, segment: Segment) -> None:
        owner = segment.name.owner
        for block in segment.held.values():
            if not block.children:
                owner.leaves.pop(block, None)
        owner.blocks -= len(segment.held)
        self.blocks -= len(segment.held)
        segment.held.clear()
        del segment.group.segments[segment.name.ns_key]
        del self._segments[segment.number]

    # -- bounds -------------------------------------------------------------------------------------------------------------------------------------

    def trim(self, tables: list[Table]) -> None:
        """Drop down to every bound."""
        if self.blocks > self.capacity_blocks:
            self._trim_owners()
        if self.parked_bytes > self._parked_limit_bytes:
            self._trim_parked(tables)
        while self.orphan_bytes > self._orphan_limit_bytes:
            group = max((group for table in tables for group in table.groups.values()), key=lambda each: len(each.orphans))
            for _ in range(1 + len(group.orphans) // 64):
                self._leave_orphans(group, next(iter(group.orphans.values())))
                self.counters["orphans_dropped"] += 1
        while self.ignored > self._ignored_limit:
            group = max((group for table in tables for group in table.groups.values()), key=lambda each: len(each.ignored))
            for _ in range(1 + len(group.ignored) // 64):
                group.ignored.popitem(last=False)
                self.ignored -= 1
                self.counters["ignored_dropped"] += 1

    def _trim_owners(self) -> None:
        """From whoever holds most, and from nobody below an equal share."""
        while self.blocks > self.capacity_blocks:
            active = [owner for owner in self.owners.values() if owner.blocks]
            payer = max(active, key=lambda owner: owner.blocks)
            over_share = payer.blocks - self.capacity_blocks // len(active)
            for _ in range(max(1, min(over_share, self.blocks - self.capacity_blocks))):
                self._drop(next(iter(payer.leaves)))
                payer.evicted += 1
                self.counters["evicted"] += 1

    def _trim_parked(self, tables: list[Table]) -> None:
        """From the salt with most parked bytes, newest first: what continues a block goes before it."""
        while self.parked_bytes > self._parked_limit_bytes:
            salt = max(self.parked_by_salt, key=lambda each: self.parked_by_salt[each])
            group = max(
                (group for table in tables for group in table.groups.values() if salt in group.parked), key=lambda each: len(each.parked[salt])
            )
            for _ in range(1 + len(group.parked[salt]) // 64):
                self._leave_parked(group, next(reversed(group.parked[salt].values())))
                self.counters["parked_dropped"] += 1
                if salt not in group.parked:
                    break


def _holds(known: Block | Waiting | None) -> bool:
    return known is not None and bool(known.copies & 255)


def _lowest(lanes: int) -> int:
    """The fastest tier with a copy."""
    return 0 if lanes & 255 else 1 if lanes & 0xFF00 else 2
