"""Blocks that are known by their hashes alone, as of vLLM's sliding windows. Internal to :mod:`routing.core.event_index`."""

from __future__ import annotations

from routing.core.event_holdings import Holdings
from routing.core.event_tables import Block, Group, Table, Waiting, more
from routing.core.kv_events import Hash, Stored


class Hashed(Holdings):
    """The holdings, and how stores add copies and hashes to them."""

    def store_by_hash(self, table: Table, group: Group, event: Stored) -> None:
        """Blocks of a windowed group that keeps some of a prompt alone, as vLLM's do: what a hit needs, which is little of a long prompt. Its events
        name them without saying which they are, and the first, with the salt, is mostly left out. They are found by their hashes, through the blocks
        of full attention (:mod:`routing.core.event_windows`): so nothing is known of them without such a group, whose events come with these.
        """
        if group.window_blocks is None or (group.by_hash and not group.goes_on and not _names(table, group)):
            self.give_up(table, "unknown_spec_kind")
            return
        if not group.goes_on:
            group.by_hash, group.maybe_report = True, event.parent is None and not event.sparse
        group.goes_on = bool(event.continued)
        hashes, counting = event.hashes, table.counting
        if group.maybe_report:
            # In full report mode vLLM names all blocks that a hit goes over, and of a window the last alone are sure to be there.
            hashes = () if event.continued else hashes[-group.window_blocks :]
            counting = counting and not all(group.holds(hash_) for hash_ in hashes)
        for hash_ in hashes:
            known = self.known(group, hash_)
            if known is not None:
                self.counters["copies"] += self.again(known, 0, counting=counting)
            elif hash_ in group.hashed:
                group.hashed[hash_] = more(group.hashed[hash_], 0, counting=counting)
                self.counters["copies"] += counting
            else:
                self.keep_hash(group, hash_, 1)

    def keep_hash(self, group: Group, hash_: Hash, copies: int) -> None:
        """Keep a block by its hash alone, from now on."""
        group.hashed[hash_] = copies
        self.ignored += 1  # of the same bound: it takes as much
        if group.ignored.pop(hash_, None) is not None:
            self.ignored -= 1
        self.counters["stored"] += 1

    def again(self, known: Block | Waiting, tier: int, *, counting: bool) -> bool:
        """A known block was stored in a tier; whether that is a copy more."""
        copies = more(known.copies, tier, counting=counting)
        if isinstance(known, Block) and not known.copies & 255 and copies & 255:
            self.segments[known.segment].lower -= 1
        changed = copies != known.copies
        known.copies = copies
        return changed


def _names(table: Table, group: Group) -> bool:
    """Whether blocks of full attention end wherever this group's do."""
    return any(other.window_blocks is None and group.block_tokens % other.block_tokens == 0 for other in table.groups.values())
