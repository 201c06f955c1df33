"""Something bounded that all tenants use: nobody is refused while plenty is free, and nobody takes the last of it.

An owner may hold ``FACTOR`` times what is left over. One that takes all it can leaves an eighth of the whole, two together leave a fifteenth, and so
on: whoever comes next finds room, without a number for each owner and without anything lying unused that the owners there are could not have.

Source: dynamic thresholds for shared buffers, A. K. Choudhury and E. L. Hahne, IEEE/ACM Transactions on Networking 6 (2), 1998.
"""

from __future__ import annotations

from collections.abc import Hashable

FACTOR = 7


class Shares:
    """Accounts by owner. ``used`` is what all hold now; ``refused`` counts refusals. Not thread-safe."""

    def __init__(self, whole: int) -> None:
        self.whole = whole
        self.used = 0
        self.refused = 0
        self._held: dict[Hashable, int] = {}

    def held(self, owner: Hashable) -> int:
        """What an owner holds now."""
        return self._held.get(owner, 0)

    def room(self, owner: Hashable, amount: int = 1) -> bool:
        """Whether an owner may hold ``amount`` (>= 0) more."""
        if not amount:  # an owner may hold more than its share once others took what was left
            return True
        free = self.whole - self.used
        return amount <= free and self.held(owner) + amount <= FACTOR * free

    def take(self, owner: Hashable, amount: int = 1) -> bool:
        """Let an owner hold ``amount`` (>= 0) more; False: its share is used up, or too little is left, and nothing was taken."""
        if not self.room(owner, amount):
            self.refused += 1
            return False
        if amount:
            self.used += amount
            self._held[owner] = self.held(owner) + amount
        return True

    def give_back(self, owner: Hashable, amount: int = 1) -> None:
        """An owner holds ``amount`` less. It must have held it."""
        left = self._held.get(owner, 0) - amount
        if left < 0:
            raise ValueError("more is given back than was held")
        self.used -= amount
        if left:
            self._held[owner] = left
        else:
            self._held.pop(owner, None)
