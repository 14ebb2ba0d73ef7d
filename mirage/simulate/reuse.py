"""KV blocks that requests left on the device, for who begins with the same tokens.

Blocks of requests that have finished, or were preempted, stay cached as long as nobody needs the
memory, least recently used ones first to go, a request's last ones before its first. Requests that
run at once share the blocks that they begin with.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, Protocol

from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.savings import Savings
from mirage.tiers.blocks import Name
from mirage.tiers.policies import LRU


class PrefixFound(NamedTuple):
    """Part of a prompt that is on the device: its first `blocks`; `shared` of them belong to others
    as well.
    """

    blocks: int = 0
    shared: int = 0


NO_PREFIX = PrefixFound()


class Reuse:
    """Nothing is kept: what an engine without prefix caching does."""

    keeps = False
    """True if blocks stay whose requests are over."""
    shared = 0
    """Blocks that are counted by each of several requests, once for each but one."""
    again = 0
    """Blocks that no request had and that one took again."""
    keeps_below = False
    """True if blocks that leave the device are kept below it."""

    @property
    def cached(self) -> int:
        """Blocks that are kept and no request has."""
        return 0

    def find(self, request: SimulatedRequest) -> PrefixFound:
        """Part of a waiting request's prompt that is on the device."""
        return NO_PREFIX

    def take(self, request: SimulatedRequest, found: PrefixFound) -> None:
        """A request is admitted with the blocks that it found."""

    def prefilled(self, request: SimulatedRequest) -> None:
        """Its prompt is in KV."""

    def released(self, request: SimulatedRequest) -> None:
        """A request releases the blocks of its `computed` tokens."""

    def growth(self, free: int) -> int:
        """Number of `free` blocks that may be taken without a look at what is cached in them."""
        return free

    def trim(self, free: int, now: int) -> int:
        """Forget what does not fit into `free` blocks; when these are free, in picoseconds."""
        return now


class Demotion(Protocol):
    """Destination of blocks that leave the device. Times in picoseconds."""

    def store(self, names: list[Name], now: int) -> dict[Name, int]:
        """Ends of the copies that are under way; blocks without one are held there already, or have
        no room.
        """


class PrefixCache(Reuse):
    """Prefix cache of one engine with blocks of `block_tokens`. Cached blocks count as free for
    others.

    With a `demotion`, the `window` blocks that would be taken first are copied down ahead. A block
    that is taken before its copy has ended is waited for.
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
        """Blocks by requests that hold them."""
        self._cached = LRU()
        self._names: set[Name] = set()
        """Names of cached blocks."""
        self._copied: dict[Name, int] = {}
        """Cached ones that were offered to the demotion, and when that is done."""
        self._now = self._busy_until = 0
        """Time of the last look, and the end of the last copy."""

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
        """Names of all that it need not compute: at least one token it must."""
        assert request.prefix is not None, "requests have prefixes where they are cached"
        blocks = (request.known - 1) // self.block_tokens
        return request.prefix.names(blocks, self.block_tokens)

    def take(self, request: SimulatedRequest, found: PrefixFound) -> None:
        self._hold(request, found.blocks, shares=True)
        request.computed = found.blocks * self.block_tokens
        self._savings.add("device", 0, request.computed)

    def loaded(self, request: SimulatedRequest, blocks: int) -> None:
        """Its first `blocks` have come from below."""
        self._hold(request, blocks, shares=False)
        request.computed = blocks * self.block_tokens

    def prefilled(self, request: SimulatedRequest) -> None:
        self._hold(request, request.computed // self.block_tokens, shares=False)

    def _hold(self, request: SimulatedRequest, blocks: int, *, shares: bool) -> None:
        """Its first `blocks` are known by their names from now on.

        Unless it `shares` them, what another one holds as well is a copy of its own without a name;
        and so is all that follows, since a name is found only after those before it.
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
        """It is cached no more; nothing if it was not."""
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
        """So many cached blocks, first to go first."""
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
