"""Which blocks come up next from below host memory, and for whom. No clock, no I/O.

TierKV's Algorithm 1: blocks are brought up in the order in which the scheduler will reach the
requests that lack them. Its Eq. 1 bounds how many are under way: those that the disk and the
link can carry in the next `STEPS` steps. So who steps ahead in the queue waits for few, and who
is aborted leaves few behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from math import inf

from mirage.tiers.contract import Found, Key

STEPS = 2
"""How many steps ahead blocks are brought up, by what came in the last one."""
LEAST = 8
"""Blocks that may be under way whatever came: a disk reads several at once."""
LOOK = 1024
"""Keys that are looked at in one step."""

UNDER_WAY = (Found.UNKNOWN, Found.RISING, Found.COMING)
SETTLED = (Found.ABSENT, Found.RISING, Found.COMING, Found.READY)


def window(came: float, carried: float, *, steps: int = STEPS, least: int = LEAST) -> int:
    """Blocks that may be under way (Eq. 1).

    `came` blocks arrived in the last step, the disk's own pace; the link has room for `carried`
    blocks in one step beside streamed layers.
    """
    return max(least, int(min(steps * came, steps * carried, 1 << 30)))


class Prefetch:
    """Fed with requests as they come, asked once a step. `found` is the pool's word of a key."""

    def __init__(self, found: Callable[[str, Key], Found]) -> None:
        self._found = found
        self._lacks: dict[str, deque[Key]] = {}
        """By request: keys that may lie below, first needed first."""
        self._near: dict[str, set[Key]] = {}
        """By request: keys that lie below, and on the device as well when they were looked at."""
        self._coming: dict[Key, str] = {}
        """Keys that were asked to come up, and for whom."""
        self._refused: set[tuple[str, Key]] = set()
        """There was no room for them."""

    @property
    def waits(self) -> bool:
        """Whether anything may still have to come up."""
        return bool(self._lacks or self._coming)

    def sought(self, request: str, keys: Iterable[Key]) -> None:
        """A request will need these."""
        self._lacks.setdefault(request, deque()).extend(keys)

    def needed(self, request: str, key: Key) -> None:
        """The scheduler reached it, and the device has not got that key (any more)."""
        near = self._near.get(request, set())
        if key in near:
            near.remove(key)
            self.sought(request, [key])

    def left(self, request: str) -> None:
        """It needs nothing any more."""
        self._lacks.pop(request, None)
        self._near.pop(request, None)
        self._refused = {pair for pair in self._refused if pair[0] != request}

    def refused(self, request: str, key: Key) -> bool:
        """Whether there was no room for a key when it was asked last."""
        return (request, key) in self._refused

    def next(
        self,
        queue: Iterable[str],
        on_device: Callable[[Key], bool] = lambda key: False,
        carried: float = inf,
    ) -> dict[str, list[Key]]:
        """What is to come up now, by request; `queue` is in the order of the scheduler.

        What is `on_device` stays below until it is `needed`. `carried` is `window`'s.
        """
        came = self._settle()
        room = window(came, carried) - len(self._coming)
        looks, chosen = LOOK, dict[str, list[Key]]()
        for request in queue:
            if room <= 0 or looks <= 0 or not self._lacks:
                break
            lacks = self._lacks.get(request)
            if lacks is None:
                continue
            looks -= len(lacks)
            some, answered = self._choose(request, lacks, on_device, room)
            if some:
                chosen[request] = some
                room -= len(some)
            if not answered:
                break  # its turn comes before those behind it
        return chosen

    def _settle(self) -> int:
        """Keys that have come since the last call."""
        came = 0
        for key, request in list(self._coming.items()):
            state = self._found(request, key)
            if state in UNDER_WAY:
                continue
            del self._coming[key]
            came += state is Found.READY
            if state is Found.BELOW:
                self._refused.add((request, key))
        return came

    def _choose(
        self, request: str, lacks: deque[Key], on_device: Callable[[Key], bool], room: int
    ) -> tuple[list[Key], bool]:
        """Of one request, and whether the pool has answered for what was looked at."""
        chosen: list[Key] = []
        for key in list(islice(lacks, LOOK)):
            if len(chosen) == room:
                break
            state = self._found(request, key)
            if state in SETTLED:
                lacks.remove(key)
            elif key in self._coming:
                continue
            elif state is Found.UNKNOWN:
                return chosen, False
            elif on_device(key):
                lacks.remove(key)
                self._near.setdefault(request, set()).add(key)
            else:
                chosen.append(key)
                self._coming[key] = request
                self._refused.discard((request, key))
        if not lacks:
            del self._lacks[request]
        return chosen, True
