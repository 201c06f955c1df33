"""Where a stored block belongs: to a namespace, to a salt that nobody claimed yet, to the orphans, or nowhere. Internal to
:mod:`routing.core.event_index`."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256

from routing.core.blocks import DIGEST_BYTES
from routing.core.event_hashed import Hashed
from routing.core.event_tables import FULL_KINDS, WINDOW_KINDS, Block, Group, Ignored, Name, Segment, Table, Waiting, more, plain_blocks, tier_of
from routing.core.kv_events import MAX_NAME_CHARACTERS, NO_HASHES, SALT_PREFIX, Hash, Stored, split_keys

MAX_PARKED_SALTS = 16_384  # in one group of one engine: as many as its cache has blocks, or nearly
MAX_SALT_CHARACTERS = 128  # ours have fewer
MAX_GROUPS = 16
MAX_SIZES = 4  # of blocks, at one engine: a prompt has a chain for each


class Conflict(Exception):
    """One engine hash for two different blocks: this engine's hashes do not name blocks, so nothing of it may be believed."""


class Twin(Exception):
    """Two engine hashes for one block: the engine names its blocks by something that events do not show and that just changed, such as an adapter's
    files. What is known under the old names is of no use any more."""

    def __init__(self, segment: Segment) -> None:
        super().__init__()
        self.segment = segment


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


class Contents(Hashed):
    """The holdings, and how stores and claims add to them."""

    # -- stores -------------------------------------------------------------------------------------------------------------------------------------

    def store(self, table: Table, event: Stored) -> None:
        hashes = event.hashes
        tier = tier_of(event.medium, event.locality)
        if tier is None:
            self.counters["unknown_medium"] += len(hashes)
            return
        if not (hashes or event.sparse) or table.unusable is not None:
            return
        if tier or not (event.tokens or event.sparse):
            self._reach(table, event, tier)
            return
        group = self._group(table, event)
        if group is None:
            return
        if event.sparse or group.by_hash:
            self.store_by_hash(table, group, event)
            return
        if group.window_blocks is not None and event.parent is None and not event.continued and all(map(group.holds, hashes[-group.window_blocks :])):
            return  # a report of reuse, most likely: it names what the window lost as well
        if not self._store_in(table, group, event):
            self._store_in(table, group, event, again=True)

    def _store_in(self, table: Table, group: Group, event: Stored, *, again: bool = False) -> bool:
        """False: it brought a twin to light, so what was known of its namespace is forgotten; the event is to be stored ``again``, once."""
        hashes, counting = event.hashes, table.counting
        if counting and event.parent is None and _holds(self.known(group, hashes[0])):
            # A first block stored again: its prompt was computed twice, or its reuse is only reported.
            counting = False
            if len(hashes) > 1 or event.continued:
                table.counting = False
                self.counters["set_semantics"] += 1
        try:
            place, plain = self._place(group, event)
            self._put(group, place, event, range(plain), counting=counting, again=again)
            if plain < len(hashes):
                self._ignore(group, hashes[plain:], place.ignored if place.segment is None and not place.salt and not place.orphan else "media")
        except Conflict:
            self.counters["hash_conflicts"] += 1
            self.give_up(table, "hash_conflict")
        except Twin as twin:
            self.counters["hash_twins"] += 1
            self.drop_segment(twin.segment)
            return False
        return True

    def _group(self, table: Table, event: Stored) -> Group | None:
        group = table.groups.get(event.group)
        if group is not None:
            if group.block_tokens != event.block_tokens:
                self.give_up(table, "block_size")
                return None
            return group
        window = event.sliding_window_tokens
        if event.spec_kind in FULL_KINDS:  # whatever window: blocks are kept as if there were none
            group = Group(event.block_tokens, None)
        elif event.spec_kind in WINDOW_KINDS and window is not None and window > 0:
            group = Group(event.block_tokens, window)
        else:
            self.give_up(table, "unknown_spec_kind")
            return None
        sizes = {event.block_tokens, *table.sizes}
        if len(sizes) > MAX_SIZES:
            self.give_up(table, "block_size")
            return None
        if len(table.groups) >= MAX_GROUPS:
            self.give_up(table, "too_many_groups")
            return None
        table.groups[event.group] = group
        table.sizes = tuple(sorted(sizes))
        return group

    def _place(self, group: Group, event: Stored) -> tuple[Place, int]:
        """Where the event's blocks belong, and how many of them are plain (named by tokens, salt and adapter alone)."""
        if event.parent is None:
            first = event.extra_keys[0] if event.extra_keys else None
            salt, others = split_keys(first, event.lora_name)
            if event.cache_salt is not None:
                salt, others = event.cache_salt, 0 if salt is None or salt == event.cache_salt else 1
            plain = plain_blocks(event, others)
            return self._root_place(group, salt, event.lora_name, plain=plain), plain
        known = self.known(group, event.parent)
        if known is None and event.parent in group.ignored:
            return Place(ignored=group.ignored[event.parent]), 0
        plain = plain_blocks(event, 0)
        if known is None:
            first_known = self.known(group, event.hashes[0])
            if isinstance(first_known, Block):  # its parent went before it: it stays what it is
                return Place(segment=self.segments[first_known.segment], parent=first_known.parent), plain
            if first_known is not None and first_known.salt:
                return Place(salt=first_known.salt, adapter=first_known.adapter), plain
            return Place(orphan=True), plain
        return self._under(known), plain

    def _under(self, parent: Block | Waiting) -> Place:
        """Where a block belongs that continues ``parent``."""
        if isinstance(parent, Block):
            return Place(segment=self.segments[parent.segment], parent=parent.digest)
        return Place(salt=parent.salt, adapter=parent.adapter, orphan=not parent.salt)

    def _root_place(self, group: Group, salt: str | None, adapter: str | None, *, plain: int = 1) -> Place:
        """Where a prompt's first block belongs. Without a ``plain`` block nothing is credited, and no table is made for a namespace."""
        if salt is None or not salt.startswith(SALT_PREFIX) or len(salt) > MAX_SALT_CHARACTERS or len(adapter or "") > MAX_NAME_CHARACTERS:
            return Place(ignored="foreign")
        name = self.names.get(salt)
        if name is None:
            if salt not in group.parked and len(group.parked) >= MAX_PARKED_SALTS:
                return Place(ignored="crowded")
            return Place(salt=salt, adapter=adapter)
        if not plain and name.ns_key not in group.segments:
            return Place(ignored="media")
        segment = self.segment(group, name)
        if not segment.held:
            segment.adapter = adapter
        elif segment.adapter != adapter:  # one salt serves one adapter; another's blocks have the same tokens and other content
            return Place(ignored="adapter")
        return Place(segment=segment, parent=name.root)

    def _put(self, group: Group, place: Place, event: Stored, positions: range, *, counting: bool, again: bool) -> None:
        hashes, tokens, width = event.hashes, event.tokens, group.width
        if place.segment is not None:
            segment, parent = place.segment, place.parent
            for position in positions:
                parent = self._credit(group, segment, parent, hashes[position], tokens[position * width : (position + 1) * width], counting=counting)
        elif place.salt or place.orphan:
            before = event.parent
            for position in positions:
                hash_ = hashes[position]
                self._wait(group, place, before, hash_, tokens[position * width : (position + 1) * width], counting=counting)
                before = hash_
        else:
            self._ignore(group, hashes[: len(positions)], place.ignored)
        if group.waiting_for:
            put = frozenset(hashes) if event.continued else NO_HASHES
            for hash_ in dict.fromkeys(hashes[: len(positions)]):  # once each: all that wait for it are looked at
                if hash_ in group.waiting_for:
                    self._adopt(group, hash_, event.continued, put, again=again)

    def _credit(
        self, group: Group, segment: Segment, parent: bytes, hash_: Hash, tokens: bytes, *, tier: int = 0, counting: bool, lanes: int = 0
    ) -> bytes:
        """One block under a parent's digest; returns its own. ``lanes``: the copies it was waiting with, ``tier`` the fastest that has one."""
        known = self.known(group, hash_)
        if isinstance(known, Block):
            if known.parent != parent or known.segment != segment.number:
                raise Conflict
            self.counters["copies"] += self.again(known, tier, counting=counting)
            return known.digest
        if known is not None:
            if not known.salt:
                lanes = self.leave_orphans(group, known)
            elif self.names.get(known.salt) is segment.name:
                lanes = self.leave_parked(group, known)
            else:
                raise Conflict
        digest = sha256(parent + tokens).digest()[:DIGEST_BYTES]
        if group.ignored and group.ignored.get(hash_) == "foreign":
            raise Conflict
        if digest in segment.held:
            raise Twin(segment)
        if hash_ in group.ignored:
            del group.ignored[hash_]
            self.ignored -= 1
        block = Block(hash_, digest, parent, segment.number, more(lanes, tier, counting=False), 0)
        group.known[hash_] = block
        segment.add(block)
        group.credited += 1
        self.blocks += 1
        self.counters["stored"] += 1
        return digest

    def _wait(self, group: Group, place: Place, parent: Hash | None, hash_: Hash, tokens: bytes, *, tier: int = 0, counting: bool) -> None:
        """One block that is parked (its salt has no claim) or an orphan (its parent is unknown)."""
        known = self.known(group, hash_)
        lanes = 0
        if known is not None:
            if place.orphan or (isinstance(known, Waiting) and known.salt == place.salt and known.parent == parent):
                self.again(known, tier, counting=counting)
                return
            if isinstance(known, Block) or known.salt:
                raise Conflict
            lanes = self.leave_orphans(group, known)
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
            self.parked_in[place.salt] = self.parked_in.get(place.salt, 0) + 1
            group.parked_blocks += 1
            group.parked_bytes += waiting.size_bytes
            self.parked_bytes += waiting.size_bytes
            self.counters["parked"] += 1
        else:
            group.orphans[hash_] = waiting
            if parent is not None:
                group.wait(parent, hash_)
            group.orphan_bytes += waiting.size_bytes
            self.orphan_bytes += waiting.size_bytes
            self.counters["orphaned"] += 1

    def _ignore(self, group: Group, hashes: tuple[Hash, ...], reason: Ignored) -> None:
        """Blocks that are nobody's here. They are remembered so that what continues them is passed over too."""
        for hash_ in hashes:
            known = self.known(group, hash_)
            if known is not None:
                if isinstance(known, Block) or known.salt:
                    raise Conflict
                self.leave_orphans(group, known)
            before = group.ignored.get(hash_)
            if before is None:
                group.ignored[hash_] = reason
                self.ignored += 1
            elif before != reason and "foreign" in {before, reason}:
                raise Conflict
        self.counters[f"ignored_{reason}"] += len(hashes)

    def _reach(self, table: Table, event: Stored, tier: int) -> None:
        """An event of a slower tier, or without tokens: blocks that are known reached that tier, others are passed over.

        A connector's events stand beside the engine's own and say less: no salt, no media, sizes and hashes of their own. So they give no block to
        anybody, and contradict nothing.
        """
        for hash_ in event.hashes:
            group = table.groups.get(event.group)
            known = None if group is None else self.known(group, hash_)
            if known is None:
                self.counters["without_tokens_unknown"] += 1
                continue
            self.again(known, tier, counting=False)

    # -- waiting blocks -----------------------------------------------------------------------------------------------------------------------------

    def _adopt(
        self, group: Group, hash_: Hash, continued: frozenset[Hash] = NO_HASHES, put: frozenset[Hash] = NO_HASHES, *, again: bool = False
    ) -> None:
        """A parent came: the orphans that lacked it go where it is, and theirs after them. Those of an event that is ``continued`` wait for its later
        pieces, unless they were in the one ``put`` now: adopted already, they would then be stored once more. ``again``: all old names are forgotten
        already, so an orphan that is a twin is one of what was just stored and goes alone: an engine may have very many wait for one event."""
        stack = [hash_]
        while stack:
            parent_hash = stack.pop()
            parent = self.known(group, parent_hash)
            if isinstance(parent, Waiting) and not parent.salt:
                continue  # an orphan itself
            children = group.came(parent_hash)
            if continued and (left := [child_hash for child_hash in children if child_hash in continued and child_hash not in put]):
                for child_hash in left:
                    group.wait(parent_hash, child_hash)
                children = [child_hash for child_hash in children if child_hash not in continued or child_hash in put]
            for place, child_hash in enumerate(children):
                child = group.orphans.get(child_hash)
                if child is None or child.parent != parent_hash:
                    continue
                lanes = self.leave_orphans(group, child, listed=False)
                if isinstance(parent, Block):
                    segment = self.segments[parent.segment]
                    try:
                        self._credit(group, segment, parent.digest, child_hash, child.tokens, lanes=lanes, tier=_lowest(lanes), counting=False)
                    except Twin:
                        self.counters["orphans_dropped"] += 1
                        if again:
                            continue
                        for other in children[place + 1 :]:
                            group.wait(parent_hash, other)
                        raise
                    self.counters["orphans_adopted"] += 1
                elif parent is not None:
                    self._wait(group, self._under(parent), parent_hash, child_hash, child.tokens, tier=_lowest(lanes), counting=False)
                    group.known[child_hash].copies = lanes
                else:
                    self._ignore(group, (child_hash,), group.ignored.get(parent_hash, "foreign"))
                stack.append(child_hash)

    def unpark(self, table: Table, group: Group, name: Name, waiting: Waiting) -> bool:
        """Credit one parked block of a salt that is claimed now: to that namespace or to none, whatever became of its parent's hash meanwhile.

        False: its parent is parked behind it and goes first.
        """
        hash_, parent = waiting.hash, None if waiting.parent is None else self.known(group, waiting.parent)
        if isinstance(parent, Waiting) and parent.salt == waiting.salt:
            group.parked[waiting.salt].move_to_end(hash_)
            return False
        lanes = self.leave_parked(group, waiting)
        if group.by_hash:
            self.keep_hash(group, hash_, max(1, lanes & 255))
            return True
        try:
            place = self._place_unparked(group, name, waiting, parent)
            if place is None:
                self.counters["parked_dropped"] += 1
            elif place.segment is not None:
                self._credit(group, place.segment, place.parent, hash_, waiting.tokens, lanes=lanes, tier=_lowest(lanes), counting=False)
            else:
                self._ignore(group, (hash_,), place.ignored)
            if hash_ in group.waiting_for and place is not None:
                self._adopt(group, hash_)
        except Conflict:
            self.counters["hash_conflicts"] += 1
            self.give_up(table, "hash_conflict")
        except Twin as twin:
            self.counters["hash_twins"] += 1
            self.drop_segment(twin.segment)
        return True

    def _place_unparked(self, group: Group, name: Name, waiting: Waiting, parent: Block | Waiting | None) -> Place | None:
        """None: its parent is gone, so that nothing can be said of it."""
        if waiting.parent is None:
            return self._root_place(group, waiting.salt, waiting.adapter)
        if isinstance(parent, Block) and self.place_of(parent).name is name:
            return self._under(parent)
        reason = group.ignored.get(waiting.parent)
        if parent is not None or reason == "foreign":
            raise Conflict
        return None if reason is None else Place(ignored=reason)


def _holds(known: Block | Waiting | None) -> bool:
    return known is not None and bool(known.copies & 255)


def _lowest(lanes: int) -> int:
    """The fastest tier with a copy."""
    return 0 if lanes & 255 else 1 if lanes & 0xFF00 else 2
