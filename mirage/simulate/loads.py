"""KV blocks that are loaded into one simulated engine, over a link that streamed layers share.

A request whose prefix is in a tier below the device gets blocks for it, and waits outside the batch
until they are loaded. Blocks that do not arrive in time are computed. Times are picoseconds.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Sized
from dataclasses import dataclass, field
from itertools import takewhile

from mirage.simulate.batch import SimulatedRequest
from mirage.simulate.hierarchy import Hierarchy, Hit
from mirage.simulate.lanes import Lane
from mirage.simulate.reuse import PrefixCache, PrefixFound
from mirage.simulate.roofline import NEVER, PS
from mirage.simulate.savings import Savings
from mirage.simulate.tally import Tally
from mirage.tiers.blocks import Name
from mirage.tiers.contract import Medium, Member
from mirage.tiers.patience import COMING_S
from mirage.units import ceil_div

PATIENCE_PS = round(COMING_S * PS)


@dataclass(slots=True, eq=False)
class RequestLoad:
    """Load after which a request has its first `blocks` blocks. Times are picoseconds."""

    request: SimulatedRequest
    blocks: int
    begin: int
    """Time at which all its blocks can be read."""
    left: int
    """Picoseconds that the link still needs for it if no other load uses the link."""
    end: int
    """Time at which the blocks of the peer, which do not use the link, have arrived; in the end,
    the time of all blocks.
    """
    late_from: int
    media: Counter[Medium] = field(default_factory=Counter)
    """Number of the blocks to load, by the medium from which they come."""


class NoLoads:
    """Loads of an engine without tiers: no request ever loads."""

    under_way: Sized = ()
    """Loads for which requests wait."""

    def arrived(self, request: SimulatedRequest, now: int) -> None:
        """Note that a request entered the queue. With tiers, the disk then begins to read blocks of
        its prefix into host memory; here nothing happens."""

    def seek(self, request: SimulatedRequest, found: PrefixFound, now: int) -> list[Hit]:
        """Blocks below the device that follow those `found` on it, as far as the request would wait
        for them.
        """
        return []

    def begin(
        self, request: SimulatedRequest, found: PrefixFound, hits: list[Hit], now: int
    ) -> bool:
        """Begin to load `hits`, which follow the blocks `found`; True if the request has to wait
        for them.
        """
        return False

    def advance(self, now: int) -> list[SimulatedRequest]:
        """Requests that wait no longer at `now`; the blocks that have arrived are theirs."""
        return []

    def pace(self, free_ps: int, step_ps: int) -> None:
        """Set the pace after the last `advance`: the link is free for `free_ps` of every
        `step_ps`.
        """

    def next_end(self) -> int:
        """Time at which the next wait ends at the present pace; `NEVER` if none will."""
        return NEVER


class TierLoads(NoLoads):
    """Loads of an engine that joins `hierarchy`; `link` is the link up from host memory."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        member: Member,
        link: Lane,
        tally: Tally,
        savings: Savings,
    ) -> None:
        self._hierarchy, self._link, self._block_bytes = hierarchy, link, member.block_bytes
        self._guest = hierarchy.join(member)
        self._tally, self._savings = tally, savings
        peer = hierarchy.speeds.get(Medium.PEER)
        self._peer = peer.lane() if peer else None
        self.under_way: list[RequestLoad] = []
        """Loads in the order in which they can be read."""
        self._at, self._pace = 0, (1, 1)
        self.cache: PrefixCache
        """Cache that receives loaded blocks; set once after construction."""

    # -- down ---------------------------------------------------------------------------

    def store(self, names: list[Name], now: int) -> dict[Name, int]:
        """Copy blocks down, as `mirage.simulate.reuse.Demotion` specifies."""
        ends = self._hierarchy.store(self._guest, names, now)
        self._tally.counters.bytes_down += len(ends) * self._block_bytes
        return ends

    # -- up -----------------------------------------------------------------------------

    def arrived(self, request: SimulatedRequest, now: int) -> None:
        if request.prefix is not None and request.prefix.shared:
            held = self.cache.find(request).blocks
            wanted = self.cache.wanted(request)[held:]
            self._hierarchy.seek(self._guest, request.number, wanted, now)

    def seek(self, request: SimulatedRequest, found: PrefixFound, now: int) -> list[Hit]:
        names = self.cache.wanted(request)[found.blocks :]
        hits = self._hierarchy.seek(self._guest, request.number, names, now)
        in_time = now + PATIENCE_PS
        return list(takewhile(lambda hit: hit.ready <= in_time, hits))

    def begin(
        self, request: SimulatedRequest, found: PrefixFound, hits: list[Hit], now: int
    ) -> bool:
        if not hits:
            self._hierarchy.leave(self._guest, request.number, now)
            return False
        load = self._load(request, found, hits, now)
        if not load.left and max(load.begin, load.end) <= now:
            self._hierarchy.leave(self._guest, request.number, now)
            self._arrived(load)
            return False
        insort(self.under_way, load, key=lambda x: x.begin)
        return True

    def advance(self, now: int) -> list[SimulatedRequest]:
        self._transfer(now)
        over = [x for x in self.under_way if now >= x.late_from or (not x.left and x.end <= now)]
        for load in over:
            self.under_way.remove(load)
            self._hierarchy.leave(self._guest, load.request.number, now)
            if load.left or load.end > now:
                self._tally.counters.late_loads += 1
            else:
                self._arrived(load)
        return [load.request for load in over]

    def pace(self, free_ps: int, step_ps: int) -> None:
        self._pace = max(0, free_ps), step_ps

    def next_end(self) -> int:
        ends, time = [], self._at
        for load in self.under_way:
            end = load.end
            if load.left:
                time = max(time, load.begin) + self._takes(load)
                end = max(end, time)
            ends.append(min(load.late_from, end))
        return min(ends, default=NEVER)

    def _load(
        self, request: SimulatedRequest, found: PrefixFound, hits: list[Hit], now: int
    ) -> RequestLoad:
        media = Counter(hit.medium for hit in hits)
        over_link = (len(hits) - media[Medium.PEER]) * self._block_bytes
        end = now
        if media[Medium.PEER]:
            assert self._peer is not None
            end = self._peer.copy(now, media[Medium.PEER] * self._block_bytes)
        begin = max(hit.ready for hit in hits)
        if over_link:
            begin += self._hierarchy.speeds[Medium.HOST].latency_ps
        left = self._link.takes(over_link)
        late_from = now + PATIENCE_PS
        return RequestLoad(request, found.blocks + len(hits), begin, left, end, late_from, media)

    def _transfer(self, until: int) -> None:
        """Let the link work until `until`, on the loads in the order in which they can be read."""
        free, step = self._pace
        time = self._at
        for load in self.under_way:
            time = max(time, load.begin)
            if time >= until or not free:
                break
            if not load.left:
                continue
            takes = self._takes(load)
            if takes > until - time:
                load.left -= (until - time) * free // step
                break
            time += takes
            load.left, load.end = 0, max(load.end, time)
        self._at = until

    def _takes(self, load: RequestLoad) -> int:
        """Picoseconds that the link still needs for a load at the present pace."""
        free, step = self._pace
        return ceil_div(load.left * step, free) if free else PATIENCE_PS

    def _arrived(self, load: RequestLoad) -> None:
        request, tokens = load.request, self.cache.block_tokens
        self._tally.counters.bytes_up += load.media.total() * self._block_bytes
        first = request.computed
        for medium in Medium:
            blocks = load.media[medium]
            self._savings.add(medium.value, first, blocks * tokens)
            first += blocks * tokens
        self.cache.loaded(request, load.blocks)
