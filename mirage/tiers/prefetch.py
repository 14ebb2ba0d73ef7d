"""Prefetch from below: the blocks that come up next, and their requests. No clock, no I/O.

TierKV's Algorithm 1 (`ahead`): blocks are brought up in the order in which the scheduler will reach
the requests that lack them. Its Eq. 1 (`fitting`) bounds how many are under way. Engines and the
simulator take both from here.

In engines (`Prefetch`) those blocks come from below host memory that the disk and the link can
carry in the next `STEPS` steps. So a request that overtakes others in the queue waits for few
blocks, and an aborted one leaves few behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import TypeVar

from mirage.tiers.contract import Key, Lookup

STEPS = 2
"""Number of steps ahead for which blocks are brought up, by what came in the last one."""
LEAST = 8
"""Blocks that may be under way whatever came: a disk reads several at once."""
LOOK = 1024
"""Keys that are looked at in one step."""

UNDER_WAY = (Lookup.UNKNOWN, Lookup.RISING, Lookup.COMING)
SETTLED = (Lookup.ABSENT, Lookup.RISING, Lookup.COMING, Lookup.READY)


Request = TypeVar("Request")
Block = TypeVar("Block")


def fitting(window: float, bytes_each: float, block_bytes: int, latency: float = 0.0) -> float:
    """Eq. 1: blocks that a link brings in a window, all of them together.

    It carries `bytes_each` unit of the window's time. Each block tested alone against the window
    would fit as well: that overcommits the link.
    """
    return max(0.0, window - latency) * bytes_each / block_bytes


def ahead(
    queue: Iterable[Request],
    lacks: Callable[[Request], Iterable[Block]],
    room: int,
    fits: Callable[[Block], bool] = lambda block: True,
) -> Iterator[tuple[Request, Block]]:
    """Algorithm 1: at most `room` blocks, in the order of the scheduler's `queue`.

    `lacks` are what a request lacks, first needed first; what does not `fits`, since another link
    on its way is full, is left out. Nobody is asked once there is no room.
    """
    if room <= 0:
        return
    for request in queue:
        for block in lacks(request):
            if not fits(block):
                continue
            yield request, block
            room -= 1
            if not room:
                return


def window(came: float, carried: float, *, steps: int = STEPS, least: int = LEAST) -> int:
    """Blocks that may be under way (Eq. 1).

    `came` blocks arrived in the last step, the disk's own pace; the link has room for `carried`
    blocks in one step beside streamed layers.
    """
    return max(least, int(min(steps * came, steps * carried, 1 << 30)))


@dataclass(slots=True)
class _Asked:
    """Questions of one step, and whether all of them were answered."""

    found: Callable[[str, Key], Lookup]
    on_device: Callable[[Key], bool]
    answered: bool = True


class Prefetch:
    """Blocks to be loaded ahead for waiting requests. `found` tells the pool's state of a key."""

    def __init__(self, found: Callable[[str, Key], Lookup]) -> None:
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
        """True if anything may still have to come up."""
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
        """The request needs nothing any more."""
        self._lacks.pop(request, None)
        self._near.pop(request, None)
        self._refused = {pair for pair in self._refused if pair[0] != request}

    def refused(self, request: str, key: Key) -> bool:
        """True if there was no room for a key when it was asked last."""
        return (request, key) in self._refused

    def next(
        self,
        queue: Iterable[str],
        on_device: Callable[[Key], bool] = lambda key: False,
        carried: float = inf,
    ) -> dict[str, list[Key]]:
        """Keys to bring up now, by request; `queue` is in the order of the scheduler.

        Keys that are `on_device` stay below until they are `needed`. `carried` is `window`'s.
        """
        came = self._settle()
        room = window(came, carried) - len(self._coming)
        asked = _Asked(self._found, on_device)
        chosen = dict[str, list[Key]]()
        reached = self._reached(queue, asked)
        for request, key in ahead(reached, lambda r: self._lacking(r, asked), room):
            chosen.setdefault(request, []).append(key)
            self._coming[key] = request
            self._refused.discard((request, key))
        return chosen

    def _reached(self, queue: Iterable[str], asked: _Asked) -> Iterator[str]:
        """Requests that lack anything, up to one of whose keys the pool has not answered.

        The turn of that request comes before those behind it.
        """
        looks = LOOK
        for request in queue:
            if looks <= 0 or not self._lacks or not asked.answered:
                return
            if request in self._lacks:
                looks -= len(self._lacks[request])
                yield request

    def _settle(self) -> int:
        """Keys that have come since the last call."""
        came = 0
        for key, request in list(self._coming.items()):
            state = self._found(request, key)
            if state in UNDER_WAY:
                continue
            del self._coming[key]
            came += state is Lookup.READY
            if state is Lookup.BELOW:
                self._refused.add((request, key))
        return came

    def _lacking(self, request: str, asked: _Asked) -> Iterator[Key]:
        """Keys of one request that lie below and were not asked to come up."""
        lacks = self._lacks[request]
        for key in list(islice(lacks, LOOK)):
            state = asked.found(request, key)
            if state in SETTLED:
                lacks.remove(key)
            elif key in self._coming:
                continue
            elif state is Lookup.UNKNOWN:
                asked.answered = False
                break
            elif asked.on_device(key):
                lacks.remove(key)
                self._near.setdefault(request, set()).add(key)
            else:
                yield key
        if not lacks:
            del self._lacks[request]
