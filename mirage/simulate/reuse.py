"""Cached KV blocks on the device, for requests that begin with the same tokens.

Blocks of requests that have finished, or were preempted, stay cached until their memory is needed.
The least recently used go first, and a request's last blocks before its first. Requests that run at
the same time share the blocks that they begin with.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, Protocol

from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.savings import Savings
from mirage.tiers.blocks import Name
from mirage.tiers.policies import LRU


class PrefixFound(NamedTuple):
    """Part of a prompt that is on the device: its first `blocks` blocks. Other requests hold
    `shared` of these.
    """

    blocks: int = 0
    shared: int = 0


NO_PREFIX = PrefixFound()


class Reuse:
    """No reuse: the behaviour of an engine without prefix caching. Base of `PrefixCache`."""

    keeps = False
    """True if blocks of finished requests are kept."""
    shared = 0
    """Sum over the KV blocks that several requests hold: for each, the number of these requests
    less one."""
    again = 0
    """Cached blocks that a request took again, counted since the start."""
    keeps_below = False
    """True if blocks that leave the device are copied to a tier."""

    @property
    def cached(self) -> int:
        """Number of cached blocks that no request holds."""
        return 0

    def find(self, request: SimulatedRequest) -> PrefixFound:
        """Part of a waiting request's prompt whose blocks are on the device."""
        return NO_PREFIX

    def take(self, request: SimulatedRequest, found: PrefixFound) -> None:
        """Note that a request is admitted with the blocks that `find` found for it."""

    def prefilled(self, request: SimulatedRequest) -> None:
        """Note that the prompt of a request is computed: its blocks can be found from now on."""

    def released(self, request: SimulatedRequest) -> None:
        """Release the blocks of a request's `computed` tokens."""

    def growth(self, free: int) -> int:
        """Number of `free` blocks that may be taken without a call of `trim`."""
        return free

    def trim(self, free: int, now: int) -> int:
        """Drop cached blocks that do not fit into `free`; return the time in picoseconds at which
        their copies have ended.
        """
        return now


class Demotion(Protocol):
    """Receiver of blocks that leave the device. Times in picoseconds."""

    def store(self, names: list[Name], now: int) -> dict[Name, int]:
        """Begin to copy blocks down; return the end of each copy under way. A block without an end
        is held there already, or has no room.
        """


class PrefixCache(Reuse):
    """Prefix cache of one engine with blocks of `block_tokens` tokens. Cached blocks count as free.

    With a `demotion`, the next `window` blocks to be taken are copied down in advance. The engine
    waits for the copy of a block that is taken before it has ended. Times are picoseconds.
    """

    keeps = True

    def __init__(
        self,
        block_tokens: int,
        savings: Savings,
        demotion: Demotion | None = None,
        window: int = 0,
    ) -> None:
        self.block_tokens, self._savings = block_tokens, savings
        self.keeps_below = demotion is not None
        self._demotion, self._window = demotion, window
        self._used: Counter[Name] = Counter()
        """Number of requests that hold each block."""
        self._cached = LRU()
        self._names: set[Name] = set()
        """Names of the cached blocks."""
        self._copied: dict[Name, int] = {}
        """Cached blocks that were offered to the demotion, and the time at which their copies
        end.
        """
        self._now = self._busy_until = 0
        """Time of the last `trim`, and the end of the last copy."""

    # -- what is found ------------------------------------------------------------------

    def find(self, request: SimulatedRequest) -> PrefixFound:
        blocks = shared = 0
        for name in self.wanted(request):
            if name in self._used:
                shared += 1
            elif name not in self._names:
                break
            blocks += 1
        return PrefixFound(blocks, shared)

    def wanted(self, request: SimulatedRequest) -> list[Name]:
        """Names of the whole blocks of all tokens but the last, which must be computed in any
        case."""
        assert request.prefix is not None, "requests have prefixes where they are cached"
        blocks = (request.known - 1) // self.block_tokens
        return request.prefix.names(blocks, self.block_tokens)

    def take(self, request: SimulatedRequest, found: PrefixFound) -> None:
        self._hold(request, found.blocks, shares=True)
        request.computed = found.blocks * self.block_tokens
        self._savings.add("device", 0, request.computed)

    def loaded(self, request: SimulatedRequest, blocks: int) -> None:
        """Note that the first `blocks` blocks of a request were loaded from a tier: from now on
        they count as computed, for the request and for the prefix cache."""
        self._hold(request, blocks, shares=False)
        request.computed = blocks * self.block_tokens

    def prefilled(self, request: SimulatedRequest) -> None:
        self._hold(request, request.computed // self.block_tokens, shares=False)

    def _hold(self, request: SimulatedRequest, blocks: int, *, shares: bool) -> None:
        """Let the first `blocks` blocks of a request be found by their names from now on.

        Unless the request `shares` them, a block that another request holds too is a private copy
        without a name, and so are all blocks after it, since a name is found only after those
        before it.
        """
        assert request.prefix is not None, "requests have prefixes where they are cached"
        for name in request.prefix.names(blocks, self.block_tokens)[request.named :]:
            if name in self._used:
                if not shares:
                    return
                self.shared += 1
            self.again += shares and name in self._names
            self._drop(name)
            self._used[name] += 1
            request.named += 1

    # -- what is left -------------------------------------------------------------------

    def released(self, request: SimulatedRequest) -> None:
        assert request.prefix is not None, "requests have prefixes where they are cached"
        blocks = request.computed // self.block_tokens
        names = request.prefix.names(max(blocks, request.named), self.block_tokens)
        for number in reversed(range(len(names))):
            name = names[number]
            if number < request.named:
                self._used[name] -= 1
                if self._used[name]:
                    self.shared -= 1
                    continue
                del self._used[name]
            if name not in self._used and name not in self._names:
                self._cached.add(name)
                self._names.add(name)
        request.named = 0

    def _drop(self, name: Name) -> None:
        """Remove a block from the cache; nothing happens if it is not cached."""
        if name in self._names:
            self._names.remove(name)
            self._cached.drop(name)
            self._copied.pop(name, None)

    # -- what goes ----------------------------------------------------------------------

    @property
    def cached(self) -> int:
        return len(self._names)

    def growth(self, free: int) -> int:
        if self._demotion is None:
            return free
        if len(self._copied) == len(self._names) and self._busy_until <= self._now:
            return free
        return max(0, free - len(self._names) - self._window)

    def trim(self, free: int, now: int) -> int:
        self._now, ready = now, now
        gone = self._first(max(0, len(self._names) - max(0, free)))
        if self._demotion is not None:
            self._offer(gone, now)
            ready = max((self._copied[name] for name in gone), default=now)
        for name in gone:
            self._drop(name)
        if self._demotion is not None and len(self._copied) < len(self._names):
            self._offer(self._first(self._window - (free - len(self._names))), now)
        return max(now, ready)

    def _first(self, count: int) -> list[Name]:
        """The first `count` cached blocks in the order in which they are dropped."""
        if count <= 0:
            return []
        return [name for name, _ in zip(self._cached.victims(), range(count), strict=False)]

    def _offer(self, names: list[Name], now: int) -> None:
        assert self._demotion is not None
        new = [name for name in names if name not in self._copied]
        ends = self._demotion.store(new, now) if new else {}
        for name in new:
            self._copied[name] = ends.get(name, now)
        self._busy_until = max(self._busy_until, *ends.values(), 0)
