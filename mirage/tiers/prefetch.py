"""Prefetch from the tier below: the blocks to bring up next, and their requests. No clock, no I/O.

TierKV's Algorithm 1 (`ahead`): blocks are brought up in the order in which the scheduler will reach
the requests that lack them. Its Eq. 1 (`fitting`) limits how many are on their way. Engines and the
simulator use both.

In engines (`Prefetch`) as many blocks come up from below host memory as the disk and the link can
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
"""Number of coming steps for which blocks are brought up, at the rate of the last step."""
LEAST = 8
"""Number of blocks that may always be on their way: a disk reads several at the same time."""
LOOK = 1024
"""Largest number of keys that are looked at in one step."""

UNDER_WAY = (Lookup.UNKNOWN, Lookup.RISING, Lookup.COMING)
SETTLED = (Lookup.ABSENT, Lookup.RISING, Lookup.COMING, Lookup.READY)


Request = TypeVar("Request")
Block = TypeVar("Block")


def fitting(window: float, bytes_each: float, block_bytes: int, latency: float = 0.0) -> float:
    """Return Eq. 1: the number of blocks that a link brings in a `window` of time, all of them
    together, if it needs `latency` before the first.

    The link carries `bytes_each` bytes for each unit of the window's time. If each block were
    tested alone against the window, all would fit: that would overcommit the link.
    """
    return max(0.0, window - latency) * bytes_each / block_bytes


def ahead(
    queue: Iterable[Request],
    lacks: Callable[[Request], Iterable[Block]],
    room: int,
    fits: Callable[[Block], bool] = lambda block: True,
) -> Iterator[tuple[Request, Block]]:
    """Yield by Algorithm 1 at most `room` blocks, in the order of the scheduler's `queue`.

    `lacks` returns the blocks that a request lacks, first needed first; blocks that `fits` refuses,
    because another link on their way is full, are left out. Once there is no room, no further
    request is looked at.
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
    """Return the number of blocks that may be on their way (Eq. 1): as many as the disk and the
    link bring in `steps` steps, but at least `least`.

    `came` blocks arrived in the last step, which shows the disk's pace; the link has room for
    `carried` blocks in one step beside streamed layers.
    """
    return max(least, int(min(steps * came, steps * carried, 1 << 30)))


@dataclass(slots=True)
class _Asked:
    """Questions of one step; `answered` is True while all of them were answered."""

    found: Callable[[str, Key], Lookup]
    on_device: Callable[[Key], bool]
    answered: bool = True


class Prefetch:
    """Blocks to copy from below to host memory for waiting requests. `found` returns the pool's
    state of a key."""

    def __init__(self, found: Callable[[str, Key], Lookup]) -> None:
        self._found = found
        self._lacks: dict[str, deque[Key]] = {}
        """Keys by request that may be below, first needed first."""
        self._near: dict[str, set[Key]] = {}
        """Keys by request that are below, and were on the device as well when they were looked
        at."""
        self._coming: dict[Key, str] = {}
        """Keys that are being copied to host memory, with the request that lacks them."""
        self._refused: set[tuple[str, Key]] = set()
        """Requests and keys for which there was no room."""

    @property
    def waits(self) -> bool:
        """True if any key may still have to be copied to host memory."""
        return bool(self._lacks or self._coming)

    def sought(self, request: str, keys: Iterable[Key]) -> None:
        """Note that a request will need these keys."""
        self._lacks.setdefault(request, deque()).extend(keys)

    def needed(self, request: str, key: Key) -> None:
        """Note that the scheduler reached a request, and the device does not have the key any
        more."""
        near = self._near.get(request, set())
        if key in near:
            near.remove(key)
            self.sought(request, [key])

    def left(self, request: str) -> None:
        """Note that the request needs nothing any more."""
        self._lacks.pop(request, None)
        self._near.pop(request, None)
        self._refused = {pair for pair in self._refused if pair[0] != request}

    def refused(self, request: str, key: Key) -> bool:
        """True if there was no room for a key when the pool was last asked to bring it up."""
        return (request, key) in self._refused

    def next(
        self,
        queue: Iterable[str],
        on_device: Callable[[Key], bool] = lambda key: False,
        carried: float = inf,
    ) -> dict[str, list[Key]]:
        """Return the keys to copy to host memory now, by request; `queue` is in the scheduler's
        order.

        Keys that are `on_device` stay below until they are `needed`. The link has room for
        `carried` blocks in one step beside streamed layers.
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
        """Yield requests that lack keys, up to the first with a key for which the pool has not
        answered.

        Requests behind that one are not yielded before it.
        """
        looks = LOOK
        for request in queue:
            if looks <= 0 or not self._lacks or not asked.answered:
                return
            if request in self._lacks:
                looks -= len(self._lacks[request])
                yield request

    def _settle(self) -> int:
        """Note the copies that have ended since the last call, and the keys that were refused;
        return the number of keys that have arrived."""
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
        """Yield the keys of one request that are below host memory, neither on the device nor being
        copied up; end at the first key for which the pool has not answered."""
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
