"""Slots for LoRA adapters, as an engine keeps them: a few are loaded, others come in on first use, in place of the one least recently used.

An adapter that a running request uses cannot leave, so a request whose adapter finds no slot waits while others pass it, as in vLLM's scheduler.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection


class AdapterSlots:
    """``slots`` None: as many as there are adapters. A load takes time in the step that begins it; see ``TimeModel.adapter_load_s``."""

    def __init__(self, slots: int | None) -> None:
        self._slots = slots
        self._loaded: OrderedDict[str, None] = OrderedDict()  # least recently used first
        self.loads = 0

    @property
    def loaded(self) -> tuple[str, ...]:
        return tuple(self._loaded)

    def has_room(self, name: str, running: Collection[str]) -> bool:
        """Whether the adapter is in a slot, or can be brought into one while the ``running`` ones are in use."""
        full = self._slots is not None and len(self._loaded) >= self._slots
        return name in self._loaded or not full or any(one not in running for one in self._loaded)

    def take(self, name: str, running: Collection[str]) -> bool:
        """Use an adapter that has room; True if it had to be loaded."""
        if name in self._loaded:
            self._loaded.move_to_end(name)
            return False
        if self._slots is not None and len(self._loaded) >= self._slots:
            del self._loaded[next(one for one in self._loaded if one not in running)]
        self._loaded[name] = None
        self.loads += 1
        return True

    def unload(self, name: str) -> None:
        self._loaded.pop(name, None)
