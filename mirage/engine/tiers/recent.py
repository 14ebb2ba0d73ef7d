"""Blocks that an engine itself has stored lately, perhaps after the pool had answered without
them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mirage.tiers.contract import Key

MOST = 1 << 16
"""Largest number of keys that are remembered."""


class Recent:
    """Keys of blocks whose copies to the pool are in progress, and keys of those that have arrived
    there lately, in order of arrival."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._under_way: set[Key] = set()
        self._arrived: dict[Key, int] = {}
        self.mark = 0
        """Number of keys that have arrived, which grows with each."""

    def begin(self, keys: Iterable[Key]) -> None:
        """Note that copies of these keys were submitted."""
        self._under_way.update(keys)

    def end(self, keys: Collection[Key], *, arrived: bool) -> None:
        """Note that the copies of these keys have ended.

        If they succeeded (`arrived`), `since` finds the keys.
        """
        self._under_way.difference_update(keys)
        if not arrived:
            return
        for key in keys:
            self.mark += 1
            self._arrived.pop(key, None)
            self._arrived[key] = self.mark
        while len(self._arrived) > self._most:
            del self._arrived[next(iter(self._arrived))]

    def any_under_way(self, keys: Iterable[Key]) -> bool:
        """True if a copy of any of these keys is in progress."""
        return bool(self._under_way) and not self._under_way.isdisjoint(keys)

    def since(self, mark: int, keys: Iterable[Key]) -> list[Key]:
        """Return those of `keys` that arrived since `self.mark` had the value `mark`."""
        return [key for key in keys if self._arrived.get(key, 0) > mark] if self.mark > mark else []
